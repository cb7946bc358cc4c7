//! What was learned, as a page: one file, nothing to fetch.

use std::fmt::Write as _;

use super::picture::{EDGE, GRID, Regions};
use super::plan::Plan;
use super::spiral::Spiral;
use super::training::Outcome;

const SIDE: f64 = 420.0;
const REGIONS: [&str; 3] = ["#cfe3f7", "#fbe3c0", "#d3eed3"];
const POINTS: [&str; 3] = ["#1f6fb4", "#c47a12", "#2d8a3a"];

pub(super) fn write(plan: &Plan, outcome: &Outcome, alone: &[f64]) -> String {
    let curve = curve(outcome, alone);
    let regions = regions(plan, &outcome.regions);
    let mut ledger = String::new();
    for (what, much) in outcome.ledger.lines() {
        let _ = writeln!(ledger, "<tr><td>{what}</td><td>{much}</td></tr>");
    }
    let last = |losses: &[f64]| losses.last().copied().unwrap_or(f64::NAN);
    format!(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>farref demo</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 960px; margin: 2em auto; padding: 0 1em }}
figure {{ display: inline-block; margin: 0 1em 1em 0; vertical-align: top }}
figcaption {{ color: #555 }}
table {{ border-collapse: collapse }}
td {{ padding: .15em 1.5em .15em 0; border-bottom: 1px solid #ddd }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>farref demo</h1>
<p>{workers} processes: {names}. {steps} steps, seed {seed}.
Accuracy {accuracy:.1} %.</p>
<figure>{regions}<figcaption>which arm the model sees where</figcaption></figure>
<figure>{curve}<figcaption>loss, logarithmic: over processes (blue) and in one process (dashed)</figcaption></figure>
<p>Final loss over processes {here:.12}, in one process {there:.12}.</p>
<table>
{ledger}</table>
</html>
"#,
        workers = plan.names().len(),
        names = plan.names().join(", "),
        steps = plan.steps,
        seed = plan.seed,
        accuracy = outcome.accuracy * 100.0,
        here = last(&outcome.losses),
        there = last(alone),
    )
}

fn regions(plan: &Plan, regions: &Regions) -> String {
    let (columns, rows) = GRID;
    let (width, height) = (SIDE / columns as f64, SIDE / rows as f64);
    let mut svg = format!(r#"<svg width="{SIDE}" height="{SIDE}" viewBox="0 0 {SIDE} {SIDE}">"#);
    for (row, cells) in regions.0.chunks(columns).enumerate() {
        // Neighbours of one region are one rectangle.
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a == b) {
            let _ = write!(
                svg,
                r#"<rect x="{:.2}" y="{:.2}" width="{:.2}" height="{:.2}" fill="{}"/>"#,
                column as f64 * width,
                row as f64 * height,
                run.len() as f64 * width + 0.5,
                height + 0.5,
                REGIONS[run[0] as usize % 3],
            );
            column += run.len();
        }
    }
    let spiral = Spiral::new(plan.seed);
    for ([x, y], arm) in spiral.points.iter().zip(&spiral.arms) {
        let at = |coordinate: f64| (coordinate + EDGE) / (2.0 * EDGE) * SIDE;
        let _ = write!(
            svg,
            r#"<circle cx="{:.1}" cy="{:.1}" r="1.6" fill="{}"/>"#,
            at(*x),
            at(-*y),
            POINTS[*arm as usize % 3],
        );
    }
    svg + "</svg>"
}

fn curve(outcome: &Outcome, alone: &[f64]) -> String {
    let both = || outcome.losses.iter().chain(alone);
    let logarithm = |loss: &f64| loss.max(1e-9).log10();
    let low = both().map(logarithm).fold(f64::INFINITY, f64::min);
    let high = both().map(logarithm).fold(f64::NEG_INFINITY, f64::max);
    let spread = (high - low).max(1e-9);
    let steps = outcome.losses.len().max(2) - 1;
    let x = |step: usize| 40.0 + (SIDE - 50.0) * step as f64 / steps as f64;
    let y = |loss: &f64| 10.0 + (SIDE - 40.0) * (high - logarithm(loss)) / spread;
    let line = |losses: &[f64]| {
        // More points than pixels would only make the page large.
        let every = losses.len().div_ceil(1000).max(1);
        let points = losses.iter().enumerate().step_by(every);
        let points = points.map(|(step, loss)| format!("{:.1},{:.1}", x(step), y(loss)));
        points.collect::<Vec<_>>().join(" ")
    };
    let mut svg = format!(
        r##"<svg width="{SIDE}" height="{SIDE}" viewBox="0 0 {SIDE} {SIDE}" font-size="11">
<polyline points="{}" fill="none" stroke="#1f6fb4" stroke-width="2"/>
<polyline points="{}" fill="none" stroke="#222" stroke-width="1" stroke-dasharray="4 4"/>
<text x="0" y="16">{:.3}</text><text x="0" y="{:.0}">{:.3}</text>
<text x="40" y="{:.0}">0</text><text x="{:.0}" y="{:.0}" text-anchor="end">step {steps}</text>"##,
        line(&outcome.losses),
        line(alone),
        10f64.powf(high),
        SIDE - 26.0,
        10f64.powf(low),
        SIDE - 6.0,
        SIDE - 10.0,
        SIDE - 6.0,
    );
    if let Some((name, step)) = &outcome.killed {
        let at = x(*step as usize);
        let _ = write!(
            svg,
            r##"<line x1="{at:.1}" x2="{at:.1}" y1="10" y2="{:.0}" stroke="#b22"/><text x="{:.1}" y="24" fill="#b22">{name} killed</text>"##,
            SIDE - 30.0,
            at + 4.0,
        );
    }
    svg + "</svg>"
}

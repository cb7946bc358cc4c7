//! Plots as SVG: lines over two logarithmic axes, and times with their high percentiles.

use std::fmt::Write as _;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
/// What the labels of the axes need.
const LEFT: f64 = 62.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 14.0;
const LEGEND_LINE: f64 = 17.0;

/// Tell series apart, also for those who see few colours.
const COLOURS: [&str; 6] = [
    "#1f6fb4", "#d1730f", "#2d8a3a", "#8d4bb0", "#b22a2a", "#6b6b6b",
];

/// One line.
pub(super) struct Series {
    pub(super) name: String,
    /// Of a limit: dashed and grey.
    pub(super) limit: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// How one axis is labelled.
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) label: fn(f64) -> String,
}

/// Something that was timed: median, 99th percentile, 99.9th percentile.
pub(super) struct Range {
    pub(super) name: String,
    /// A limit.
    pub(super) limit: bool,
    pub(super) times: [f64; 3],
}

/// A logarithmic scale from whole decades to places.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = (low.log10(), high.log10());
        if !low.is_finite() || !high.is_finite() {
            return None;
        }
        // Half a decade at least, and a little air.
        let air = ((0.6 - (high - low)) / 2.0).max(0.06);
        Some(Self {
            low: low - air,
            high: high + air,
            from,
            to,
        })
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.log10() - self.low) / (self.high - self.low);
        self.from + (self.to - self.from) * part
    }

    /// Round values to draw a line at: whole decades, and between them where there are few.
    fn ticks(&self) -> Vec<f64> {
        let between: &[f64] = match self.high - self.low {
            ..1.2 => &[1.0, 2.0, 5.0],
            ..2.5 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let every = if self.high - self.low > 7.0 { 2 } else { 1 };
        let decades = (self.low.floor() as i32..=self.high.ceil() as i32).step_by(every);
        decades
            .flat_map(|decade| between.iter().map(move |tick| tick * 10_f64.powi(decade)))
            .filter(|tick| (self.low..=self.high).contains(&tick.log10()))
            .collect()
    }
}

pub(super) fn lines(x_axis: &Axis, y_axis: &Axis, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|one| &one.points);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = Scale::over(points().map(|point| point.0), LEFT, right);
    let y = Scale::over(points().map(|point| point.1), bottom, TOP);
    let (Some(x), Some(y)) = (x, y) else {
        return String::new();
    };
    let legend = series.len().div_ceil(3) as f64 * LEGEND_LINE;
    let mut svg = open(HEIGHT + legend);
    for tick in y.ticks() {
        horizontal(&mut svg, y.at(tick), right);
        let label = (y_axis.label)(tick);
        text(&mut svg, (LEFT - 6.0, y.at(tick) + 4.0), "end", &label);
    }
    // Where something was measured is what to know; what does not fit is left out.
    let mut measured: Vec<f64> = points().map(|point| point.0).collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    let mut last = f64::NEG_INFINITY;
    for at in measured {
        let place = x.at(at);
        vertical(&mut svg, place, bottom);
        if place - last > 44.0 {
            text(
                &mut svg,
                (place, bottom + 16.0),
                "middle",
                &(x_axis.label)(at),
            );
            last = place;
        }
    }
    text(
        &mut svg,
        ((LEFT + right) / 2.0, HEIGHT - 6.0),
        "middle",
        x_axis.title,
    );
    let turned = format!(
        r##"<text transform="translate(12 {:.0}) rotate(-90)" text-anchor="middle" fill="#222">{}</text>"##,
        (TOP + bottom) / 2.0,
        escaped(y_axis.title),
    );
    svg += &turned;
    let mut colours = COLOURS.iter();
    for (index, one) in series.iter().enumerate() {
        let (colour, dashes) = match one.limit {
            true => ("#333", ["6 4", "2 3"][index % 2]),
            false => (*colours.next().unwrap_or(&COLOURS[5]), "none"),
        };
        let path: Vec<_> = one
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)))
            .collect();
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#,
            path.join(" "),
        );
        for point in one.points.iter().filter(|_| !one.limit) {
            dot(&mut svg, (x.at(point.0), y.at(point.1)), colour);
        }
        let (column, row) = ((index % 3) as f64, (index / 3) as f64);
        let (left, top) = (LEFT + column * 134.0, HEIGHT + 8.0 + row * LEGEND_LINE);
        let _ = write!(
            svg,
            r#"<line x1="{left:.0}" x2="{:.0}" y1="{top:.0}" y2="{top:.0}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#,
            left + 22.0,
        );
        text(&mut svg, (left + 27.0, top + 4.0), "start", &one.name);
    }
    svg + "</svg>"
}

/// Each line is one thing: a dot at the median, a bar to the 99th percentile, a thin one to the 99.9th.
pub(super) fn ranges(axis: &Axis, ranges: &[Range]) -> String {
    const ROW: f64 = 24.0;
    const NAMES: f64 = 210.0;
    let wide = 1.6 * WIDTH;
    let all = ranges.iter().flat_map(|range| range.times);
    let Some(x) = Scale::over(all, NAMES, wide - RIGHT) else {
        return String::new();
    };
    let bottom = TOP + ROW * ranges.len() as f64;
    let height = bottom + BOTTOM;
    let mut svg = format!(
        r#"<svg width="{wide:.0}" height="{height:.0}" viewBox="0 0 {wide:.0} {height:.0}" font-size="12" fill="none">"#
    );
    for tick in x.ticks() {
        vertical(&mut svg, x.at(tick), bottom);
        text(
            &mut svg,
            (x.at(tick), bottom + 16.0),
            "middle",
            &(axis.label)(tick),
        );
    }
    text(
        &mut svg,
        ((NAMES + wide) / 2.0, height - 6.0),
        "middle",
        axis.title,
    );
    for (index, range) in ranges.iter().enumerate() {
        let middle = TOP + ROW * (index as f64 + 0.5);
        let colour = if range.limit { COLOURS[5] } else { COLOURS[0] };
        text(&mut svg, (NAMES - 10.0, middle + 4.0), "end", &range.name);
        let [median, high, highest] = range.times.map(|time| x.at(time));
        for (to, thickness) in [(high, 5), (highest, 2)] {
            let _ = write!(
                svg,
                r#"<line x1="{median:.1}" x2="{to:.1}" y1="{middle:.1}" y2="{middle:.1}" stroke="{colour}" stroke-width="{thickness}" opacity="0.5"/>"#
            );
        }
        dot(&mut svg, (median, middle), colour);
        let label = (axis.label)(range.times[0]);
        text(&mut svg, (median, middle - 7.0), "middle", &label);
    }
    svg + "</svg>"
}

fn open(height: f64) -> String {
    format!(
        r#"<svg width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" font-size="12" fill="none">"#
    )
}

fn horizontal(svg: &mut String, y: f64, right: f64) {
    let _ = write!(
        svg,
        r##"<line x1="{LEFT}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}" stroke="#e2e2e2"/>"##
    );
}

fn vertical(svg: &mut String, x: f64, bottom: f64) {
    let _ = write!(
        svg,
        r##"<line x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{bottom:.1}" stroke="#e2e2e2"/>"##
    );
}

fn dot(svg: &mut String, (x, y): (f64, f64), colour: &str) {
    let _ = write!(
        svg,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = write!(
        svg,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#222">{}</text>"##,
        escaped(words),
    );
}

/// As text in a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXIS: Axis = Axis {
        title: "<x>",
        label: |value| value.to_string(),
    };

    fn series(points: Vec<(f64, f64)>) -> Series {
        Series {
            name: "one".to_owned(),
            limit: false,
            points,
        }
    }

    #[test]
    fn every_point_is_drawn_inside_of_the_axes() {
        let points = vec![(1.0, 1e-3), (10.0, 1.0), (4096.0, 1e6)];
        let x = Scale::over(points.iter().map(|point| point.0), LEFT, WIDTH).unwrap();
        assert!(
            points
                .iter()
                .all(|point| (LEFT..WIDTH).contains(&x.at(point.0)))
        );
        let svg = lines(&AXIS, &AXIS, &[series(points)]);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("&lt;x&gt;"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        assert_eq!(lines(&AXIS, &AXIS, &[]), "");
        assert_eq!(lines(&AXIS, &AXIS, &[series(vec![(1.0, 0.0)])]), "");
        assert_eq!(ranges(&AXIS, &[]), "");
    }
}

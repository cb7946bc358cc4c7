//! The tables in Markdown, and their place in a file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::peers::built_version;
use crate::results::Measure;
use crate::summary::{Row, Summary};
use crate::transport::Transport;

const BEGIN: &str = "<!-- bench/peers/run writes this part. -->";
const END: &str = "<!-- The end of what bench/peers/run writes. -->";
/// How much of a reason is shown.
const MAX_REASON: usize = 200;

pub fn text(summary: &Summary<'_>, rounds: usize, seconds: f64, load: [&str; 2]) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "Rounds: {rounds}, {seconds} s for each measurement; {cores} cores; load average before {}, after {}. {}.\n\n",
        load[0],
        load[1],
        versions(summary)
    );
    text += "farref divided by the peer: median (least..most) of the rounds. Of the times, less than 1 means that \
             farref is quicker; of calls per second and of bytes, more than 1.\n\n";
    head(&mut text, "beside");
    for row in &summary.rows {
        line(&mut text, row, |measure| {
            row.ratio(measure).map(|ratio| ratio.to_string())
        });
    }
    text += "\nMedians of the rounds (calls per second in thousands):\n\n";
    head(&mut text, "what");
    for (transport, title) in [
        (Transport::Tcp, "farref, TCP"),
        (Transport::Unix, "farref, Unix socket"),
        (Transport::Shm, "farref, shared memory"),
    ] {
        let cell = |measure: Measure| {
            let spread = summary.farref(transport, measure)?;
            Some(measure.shown(spread.median))
        };
        cells(&mut text, title, cell);
    }
    for row in &summary.rows {
        line(&mut text, row, |measure| {
            let spread = row.absolute(measure)?;
            Some(measure.shown(spread.median))
        });
    }
    text
}

fn versions(summary: &Summary<'_>) -> String {
    let mut versions: Vec<String> = ["farref", "tarpc", "tonic", "capnp-rpc"]
        .iter()
        .filter_map(|name| Some(format!("{name} {}", built_version(name)?)))
        .collect();
    for row in &summary.rows {
        let Some(version) = row.version() else {
            continue;
        };
        let version = format!("{} {version}", row.peer.title);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions.join(", ")
}

fn head(text: &mut String, first: &str) {
    cells(text, first, |measure| Some(measure.title().to_owned()));
    cells(text, "---", |_| Some("---".to_owned()));
}

fn line(text: &mut String, row: &Row<'_>, cell: impl Fn(Measure) -> Option<String>) {
    let title = format!("{}, {}", row.peer.title, row.peer.over);
    match row.why_not() {
        None => cells(text, &title, cell),
        Some(why) => cells(text, &title, |measure| match measure {
            Measure::EmptyP50 => Some(format!("not measured: {}", plain(why))),
            _ => Some(String::new()),
        }),
    }
}

fn cells(text: &mut String, first: &str, cell: impl Fn(Measure) -> Option<String>) {
    let _ = write!(text, "| {first} |");
    for measure in Measure::ALL {
        let cell = cell(measure).unwrap_or_else(|| "-".to_owned());
        let _ = write!(text, " {cell} |");
    }
    text.push('\n');
}

/// Without what would end a cell of a table.
fn plain(why: &str) -> String {
    let one_line = why.replace(['\n', '\r', '|', '<', '>'], " ");
    one_line.chars().take(MAX_REASON).collect()
}

/// Puts the text between the marks of a file.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let old =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = replaced(&old, text)
        .with_context(|| format!("{} has no part that begins with {BEGIN}", path.display()))?;
    std::fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

fn replaced(old: &str, text: &str) -> Option<String> {
    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let old = format!("# before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = format!("# before\n{BEGIN}\n\nnew\n\n{END}\nafter\n");
        assert_eq!(replaced(&old, "new\n"), Some(new.clone()));
        assert_eq!(replaced(&new, "new\n"), Some(new));
        assert_eq!(replaced("no marks", "new\n"), None);
    }

    #[test]
    fn a_reason_stays_in_its_cell() {
        assert_eq!(plain("a|b\nc"), "a b c");
    }
}

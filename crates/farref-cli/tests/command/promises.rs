//! What `docs/reliability.md` says of every promise: each of `docs/semantics.md` has a row, and the tests and planted faults that it
//! names are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::blocking,
        every_promise_has_one_row_and_every_row_is_of_a_promise,
        every_row_names_tests_or_says_that_there_is_none,
        every_test_that_is_named_is_there,
        every_planted_fault_that_is_named_is_there,
    ]
}

/// Where the table begins. It ends with the next heading of that kind.
const HEADING: &str = "## Every promise, and what fails without it\n";

/// Where planted faults are listed.
const FAULTS: [&str; 3] = [
    "crates/farref-proto/src/mutation.rs",
    "crates/farref-sim/src/config.rs",
    "crates/farref/src/support/mutation.rs",
];

/// A file of the repository.
fn file(path: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).ok()
}

/// The part of the page that has the table.
fn section() -> String {
    let page = file("docs/reliability.md").expect("there is such a page");
    let (_, section) = page.split_once(HEADING).expect("there is such a heading");
    let end = section.find("\n## ").unwrap_or(section.len());
    section[..end].to_owned()
}

/// `D1`, `F10`, `S1a`: letters, a number, and perhaps a letter.
fn is_promise(id: &str) -> bool {
    let number = id.trim_start_matches(|c: char| c.is_ascii_uppercase());
    let rest = number.trim_start_matches(|c: char| c.is_ascii_digit());
    let letters = id.len() - number.len();
    letters > 0 && number.len() > rest.len() && rest.chars().all(|c| c.is_ascii_lowercase())
}

/// The promises that are numbered, in the lines that begin with `- **X1**`.
fn promises() -> Vec<String> {
    let page = file("docs/semantics.md").expect("there is such a page");
    let ids = page.lines().filter_map(|line| {
        let (id, _) = line.strip_prefix("- **")?.split_once("**")?;
        is_promise(id).then(|| id.to_owned())
    });
    ids.collect()
}

/// The cells of each row: the promise's number, its words, its tests, its planted faults.
fn rows(section: &str) -> Vec<[&str; 4]> {
    let rows = section.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let cells: Vec<&str> = cells.collect();
        let cells = <[&str; 4]>::try_from(cells).ok()?;
        is_promise(cells[0]).then_some(cells)
    });
    rows.collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tests that are named as `path/to/file.rs: name`.
fn tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    quoted(text).filter_map(|quoted| {
        let (path, name) = quoted.split_once(": ")?;
        path.ends_with(".rs").then_some((path, name))
    })
}

/// Whether a file has a function of this name, or the name in a list of tests.
fn has_test(source: &str, name: &str) -> bool {
    let is_part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let is_function = source
        .split(&format!("fn {name}"))
        .skip(1)
        .any(|rest| !rest.starts_with(is_part_of_name));
    is_function || source.contains(&format!("\"{name}\""))
}

fn every_promise_has_one_row_and_every_row_is_of_a_promise() -> anyhow::Result<()> {
    let section = section();
    let promises = promises();
    assert!(promises.len() > 40, "{promises:?}");
    let mut rows: Vec<&str> = rows(&section).iter().map(|row| row[0]).collect();
    let mut promises: Vec<&str> = promises.iter().map(String::as_str).collect();
    rows.sort_unstable();
    promises.sort_unstable();
    assert_eq!(rows, promises);
    Ok(())
}

fn every_row_names_tests_or_says_that_there_is_none() -> anyhow::Result<()> {
    let section = section();
    for [promise, _, cell, _] in rows(&section) {
        let named = tests(cell).count();
        let quoted = quoted(cell).count();
        assert_eq!(named, quoted, "{promise}: not all of it names a test");
        assert_eq!(named == 0, cell.starts_with("no test"), "{promise}: {cell}");
    }
    Ok(())
}

fn every_test_that_is_named_is_there() -> anyhow::Result<()> {
    let section = section();
    let mut missing = Vec::new();
    let named: BTreeSet<_> = tests(&section).collect();
    assert!(named.len() > 40, "{named:?}");
    for (path, name) in named {
        match file(path) {
            Some(source) if has_test(&source, name) => {}
            Some(_) => missing.push(format!("no {name} in {path}")),
            None => missing.push(format!("no file {path}")),
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    Ok(())
}

fn every_planted_fault_that_is_named_is_there() -> anyhow::Result<()> {
    let section = section();
    let lists = FAULTS.map(|path| file(path).expect("there is such a list"));
    let is_there = |fault: &str| {
        let variant = format!(" {fault},");
        lists.iter().any(|list| list.contains(&variant))
    };
    for [promise, .., faults] in rows(&section) {
        for fault in quoted(faults) {
            assert!(is_there(fault), "{promise}: no fault {fault}");
        }
    }
    Ok(())
}

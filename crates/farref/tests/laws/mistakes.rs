//! What the compiler says about mistakes with `#[farref::remote]`.
//!
//! Each program in `tests/ui` has to be refused, with the messages in the file `.stderr` beside it.
//! The compiler gets the libraries that the tests were built with, so nothing is built again.
//! `FARREF_UI=overwrite` writes the messages into the files instead.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use farref_testkit::Scratch;

/// Compiles only if the library of serde is the one that the library of farref uses.
const PROBE: &str = "
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Probe;
    #[derive(Debug, thiserror::Error)]
    #[error(\"probe\")]
    pub struct Wrong;
    #[farref::remote]
    pub fn probe(probe: Probe) -> Probe {
        probe
    }
    fn main() {}
";

/// How many types rustc lists before `and $N others`, if not asked for all of them.
const LISTED_TYPES: usize = 8;

#[test]
fn mistakes_are_answered_with_what_to_write() -> Result<()> {
    let scratch = Scratch::new()?;
    let compiler = Compiler::find(&scratch)?;
    let mut programs: Vec<PathBuf> = fs::read_dir(folder().join("tests/ui"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    programs.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    programs.sort();
    ensure!(
        programs.len() >= 13,
        "tests/ui has {} programs",
        programs.len()
    );

    let mut wrong = String::new();
    for program in programs {
        let name = program.file_name().context("a name")?.display().to_string();
        let output = compiler.check(Path::new(&format!("{PACKAGE}tests/ui/{name}")))?;
        ensure!(!output.status.success(), "{name} is not refused");
        let messages = normalized(&String::from_utf8(output.stderr)?);
        let expected = program.with_extension("stderr");
        if std::env::var_os("FARREF_UI").is_some_and(|value| value == "overwrite") {
            fs::write(&expected, messages)?;
            continue;
        }
        let expected = fs::read_to_string(expected).unwrap_or_default();
        if lines(&messages) != lines(&expected) {
            wrong += &format!("{name}: expected\n{expected}\ngot\n{messages}\n");
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// The package's folder in that of the workspace, where cargo starts rustc: `crates/farref/`.
const PACKAGE: &str = file!()
    .split_at(file!().len() - "tests/laws/mistakes.rs".len())
    .0;

/// The package's folder.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The workspace's folder, where rustc finds the sources of `farref` to quote them.
fn workspace() -> &'static Path {
    let mut ancestors = folder().ancestors();
    let depth = Path::new(PACKAGE).components().count();
    ancestors.nth(depth).unwrap_or_else(folder)
}

/// rustc, with the libraries that this program was built with.
struct Compiler<'a> {
    libraries: PathBuf,
    externs: [(&'static str, PathBuf); 3],
    scratch: &'a Scratch,
}

impl<'a> Compiler<'a> {
    fn find(scratch: &'a Scratch) -> Result<Self> {
        let libraries = std::env::current_exe()?;
        let libraries = libraries.parent().context("no folder")?.to_owned();
        let probe = scratch.path().join("probe.rs");
        fs::write(&probe, PROBE)?;
        let mut said = String::new();
        // Any build of thiserror fits; that of serde has to be the one that farref was built with.
        for thiserror in candidates(&libraries, "thiserror")? {
            for farref in candidates(&libraries, "farref")? {
                for serde in candidates(&libraries, "serde")? {
                    let compiler = Self {
                        libraries: libraries.clone(),
                        externs: [
                            ("farref", farref.clone()),
                            ("serde", serde),
                            ("thiserror", thiserror.clone()),
                        ],
                        scratch,
                    };
                    let output = compiler.check(&probe)?;
                    if output.status.success() {
                        return Ok(compiler);
                    }
                    said = String::from_utf8_lossy(&output.stderr).into_owned();
                }
            }
        }
        anyhow::bail!(
            "no libraries in {} fit together: {said}",
            libraries.display()
        )
    }

    fn check(&self, program: &Path) -> Result<Output> {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        // Verbose: without it, what rustc leaves out depends on how long names are.
        rustc
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "bin",
                "--emit",
                "metadata",
            ])
            .args([
                "--verbose",
                "--color",
                "never",
                "--allow",
                "dead_code",
                "--out-dir",
            ])
            .arg(self.scratch.path())
            .arg("-L")
            .arg(format!("dependency={}", self.libraries.display()))
            .current_dir(workspace())
            .arg(program);
        for (name, path) in &self.externs {
            rustc
                .arg("--extern")
                .arg(format!("{name}={}", path.display()));
        }
        rustc.output().context("starting rustc")
    }
}

/// The builds of a library, the newest first.
fn candidates(libraries: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(libraries)? {
        let entry = entry?;
        let file = entry.file_name().display().to_string();
        let hash = file.strip_prefix(&format!("lib{name}-"));
        if hash.is_some_and(|hash| hash.ends_with(".rlib")) {
            found.push((Reverse(entry.metadata()?.modified()?), entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The messages without what depends on the machine, on the compiler's summary, and on lines in
/// files other than those in `tests/ui`.
fn normalized(messages: &str) -> String {
    let mut elsewhere = false;
    let mut listed = None;
    let mut text = String::new();
    for line in messages.lines() {
        let mut line = line.trim_end().replace(PACKAGE, "");
        if [
            "error: aborting due to",
            "Some errors have detailed",
            "For more information about",
        ]
        .iter()
        .any(|summary| line.starts_with(summary))
        {
            continue;
        }
        let content = line.trim_start().to_owned();
        let indent = " ".repeat(line.len() - content.len());
        if let Some(place) = content.strip_prefix("--> ") {
            elsewhere = !place.starts_with("tests/ui/");
            if elsewhere {
                let file = place.split(':').next().unwrap_or(place);
                let file = match file.split_once("/library/") {
                    Some((_, file)) => format!("$RUST/{file}"),
                    None => file.to_owned(),
                };
                line = format!("{indent}--> {file}");
            }
        } else if elsewhere && content.starts_with(|c: char| c.is_ascii_digit()) {
            let code = content.trim_start_matches(|c: char| c.is_ascii_digit());
            line = format!("{indent}{}{code}", " ".repeat(content.len() - code.len()));
        } else if !content.starts_with(['|', '.']) {
            elsewhere = false;
        }
        if content.starts_with("= help: the following") && content.contains("implement trait") {
            listed = Some(0);
        } else if indent.len() < 11 {
            listed = None;
        } else if let Some(count) = &mut listed {
            *count += 1;
            if *count > LISTED_TYPES + 1 {
                continue;
            }
            if *count == LISTED_TYPES + 1 {
                line = format!("{}and $N others", &indent[2..]);
            }
        }
        if !(line.is_empty() && (text.is_empty() || text.ends_with("\n\n"))) {
            text += &line;
            text.push('\n');
        }
    }
    text.trim_end().to_owned() + "\n"
}

/// Lines without their indentation, which depends on the width of line numbers.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

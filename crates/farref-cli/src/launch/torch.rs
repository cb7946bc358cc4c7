//! `--torch`: what is to be run is a program of torch.distributed.rpc, and runs on farref.
//!
//! The Python package has what is needed, `python -m farref.torch program`; here that goes into the command line, behind
//! Python's own options.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

/// Options of Python's whose value is the next word.
const WITH_VALUE: [&str; 3] = ["-W", "-X", "--check-hash-based-pycs"];

/// The words that run the same program on farref.
pub(super) fn on_farref(words: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let name = words.first().context("which program? Say it behind `--`")?;
    let shown = name.display();
    ensure!(
        is_python(name),
        "--torch runs programs of Python's, and `{shown}` is not Python: say `-- python3 script.py`"
    );
    let Some(place) = program_at(words) else {
        bail!("--torch: which program is `{shown}` to run? Say a script, or `-m` and a module");
    };
    ensure!(
        !word(&words[place]).starts_with("-c") && words[place] != "-",
        "--torch runs a script or a module (`-m`), and not what is in the command line or in standard input"
    );
    let mut all = words.to_vec();
    all.splice(place..place, ["-m".into(), "farref.torch".into()]);
    Ok(all)
}

/// Whether this is called as Python is: `python`, `python3.12`, `/somewhere/bin/python3`, `pypy3`.
fn is_python(name: &OsStr) -> bool {
    let file = Path::new(name).file_name().unwrap_or(name);
    let file = file.to_string_lossy();
    file.starts_with("python") || file.starts_with("pypy")
}

/// Where Python's own options end: the script, `-m`, `-c` or `-`.
fn program_at(words: &[OsString]) -> Option<usize> {
    let mut place = 1;
    loop {
        let option = word(words.get(place)?);
        if !option.starts_with('-')
            || option == "-"
            || option.starts_with("-m")
            || option.starts_with("-c")
        {
            return Some(place);
        }
        place += match WITH_VALUE.contains(&&*option) {
            true => 2,
            false => 1,
        };
    }
}

fn word(word: &OsStr) -> std::borrow::Cow<'_, str> {
    word.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> Result<String, String> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let words = on_farref(&words).map_err(|error| error.to_string())?;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn farref_comes_behind_the_options_of_python_and_before_the_program() {
        for (line, expected) in [
            (
                "python train.py -m x",
                "python -m farref.torch train.py -m x",
            ),
            (
                "/a/python3.12 -u -X dev t.py",
                "/a/python3.12 -u -X dev -m farref.torch t.py",
            ),
            (
                "python3 -W ignore -m pkg.train 3",
                "python3 -W ignore -m farref.torch -m pkg.train 3",
            ),
        ] {
            assert_eq!(rewritten(line).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_no_program_of_python_is_refused() {
        for line in [
            "",
            "./train.py",
            "python3",
            "python3 -u",
            "python3 -W",
            "python3 -c pass",
            "python3 -",
        ] {
            assert!(rewritten(line).is_err(), "{line}");
        }
    }
}

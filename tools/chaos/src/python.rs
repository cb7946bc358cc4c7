//! Whether the Python of the Python workers has the package `farref`: asked before anything starts.
//!
//! A worker without it would end at once, and be started again, until the run gives up; and why would stand in one of many files.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;

/// Most take less than a second; one on a cold, busy disk may take several.
const LIMIT: Duration = Duration::from_secs(30);

/// A folder of that name in the working directory can be imported too, but has nothing in it.
const QUESTION: &str = "import farref; farref.join";

/// Says why workers cannot be run with this program, if they cannot.
pub(super) fn check(program: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let shown = program.display();
    let Some(said) = runtime.block_on(ask(program)) else {
        return Ok(());
    };
    bail!(
        "the Python workers cannot be run with {shown}: {said}: install the package (`pip install ./python` in the repository) or name another Python with --python-program"
    )
}

/// What is wrong, if anything is.
async fn ask(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.args(["-c", QUESTION]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let Ok(ended) = tokio::time::timeout(LIMIT, command.output()).await else {
        return Some(format!("`import farref` has not ended after {LIMIT:?}"));
    };
    match ended {
        Err(error) => Some(format!("it cannot be started ({error})")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stderr);
            let mut lines = printed.lines().rev().map(str::trim);
            let last = lines.find(|line| !line.is_empty());
            let last = last.map_or_else(|| output.status.to_string(), str::to_owned);
            Some(format!("`import farref` failed there ({last})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(program: &str) -> String {
        let checked = check(Path::new(program));
        checked.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_python_that_cannot_be_used_is_named_with_what_it_printed_last_and_what_to_do() {
        // A shell is no Python, and says so.
        for (program, why) in [
            ("sh", "not found"),
            ("false", "exit status: 1"),
            ("/nope/python", "No such file"),
        ] {
            let complaint = complaint(program);
            for part in [program, why, "pip install ./python", "--python-program"] {
                assert!(complaint.contains(part), "{part}: {complaint}");
            }
            assert_eq!(complaint.lines().count(), 1);
        }
        assert_eq!(complaint("true"), "");
    }
}

//! `farref demo`: the program farref-demo, which is beside this one if it was built.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

const PROGRAM: &str = "farref-demo";

/// Trains a classifier over several processes on this machine
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    #[arg(hide = true, num_args = 0.., allow_hyphen_values = true, trailing_var_arg = true)]
    passed: Vec<OsString>,
}

/// Becomes the program. Returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let myself = std::env::current_exe().context("cannot find this program's own file")?;
    become_program(&myself.with_file_name(PROGRAM), arguments)
}

fn become_program(program: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let shown = program.display();
    if !program.is_file() {
        bail!(
            "`farref demo` needs {shown}, which is not there: \
             `cargo install --locked --path tools/demo` installs {PROGRAM}, \
             and `cargo run --release -- demo` runs it in the repository"
        );
    }
    let error = Command::new(program)
        .arg("demo")
        .args(&arguments.passed)
        .exec();
    Err(error).with_context(|| format!("cannot start {shown}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn all_arguments_are_for_the_demo() {
        for line in [
            &["demo"][..],
            &["demo", "--kill-one", "--steps", "5"],
            &["demo", "--help"],
        ] {
            let parsed = Command::try_parse_from(line).map(|command| command.arguments.passed);
            assert_eq!(
                parsed.ok(),
                Some(line[1..].iter().map(Into::into).collect())
            );
        }
    }

    #[test]
    fn without_the_demo_the_error_says_how_to_get_it() {
        let passed = Vec::new();
        let said = become_program(Path::new("/no/farref-demo"), &Arguments { passed });
        let said = said.expect_err("it is not there").to_string();
        assert!(
            said.contains("/no/farref-demo") && said.contains("tools/demo"),
            "{said}"
        );
    }
}

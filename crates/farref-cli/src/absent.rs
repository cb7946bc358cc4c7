//! Subcommands that this `farref` was built without: they are known, and say what to build.

use std::process::ExitCode;

use anyhow::bail;

/// What stands behind the subcommand, whatever it is.
#[derive(clap::Args)]
#[command(
    about = "Not in this build: says how to get it",
    disable_help_flag = true
)]
pub(crate) struct Arguments {
    #[arg(
        hide = true,
        num_args = 0..,
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    _rest: Vec<std::ffi::OsString>,
}

/// Fails, and says how `farref` is built with the feature, which is what the subcommand is called.
pub(crate) fn run(feature: &str) -> anyhow::Result<ExitCode> {
    bail!(
        "this `farref` was built without `farref {feature}`, which needs candle: \
         `cargo install --locked --path crates/farref-cli --features {feature}` has it, \
         and so does `cargo run --release -- {feature}` in the repository"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        _arguments: Arguments,
    }

    #[test]
    fn a_subcommand_that_is_not_there_takes_any_arguments_and_says_how_to_get_it() {
        for line in [
            &["demo"][..],
            &["demo", "--kill-one", "--steps", "5"],
            &["demo", "--help"],
        ] {
            assert!(Command::try_parse_from(line).is_ok(), "{line:?}");
        }
        let said = run("demo").expect_err("it is not there").to_string();
        assert!(said.contains("--features demo"), "{said}");
    }
}

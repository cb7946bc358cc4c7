//! The `farref` command: [`farref_cli`], as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    farref_cli::main()
}

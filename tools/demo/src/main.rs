//! The program of [`farref_demo`].

use std::process::ExitCode;

fn main() -> ExitCode {
    farref_demo::main()
}

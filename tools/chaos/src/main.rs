//! The program of [`farref_chaos`].

use std::process::ExitCode;

fn main() -> ExitCode {
    farref_chaos::main()
}

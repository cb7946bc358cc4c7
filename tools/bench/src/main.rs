//! The program of [`farref_bench`].

use std::process::ExitCode;

fn main() -> ExitCode {
    farref_bench::main()
}

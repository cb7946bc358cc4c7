//! The `farref` command with the demo in it, which `cargo run` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.next_if(|first| first == "demo") {
        Some(_) => farref_demo::main(arguments),
        None => farref_cli::main(),
    }
}

//! Ties a rank to the launcher's life, also if the launcher is killed in a way it cannot answer.
//!
//! Linux kills a process when its parent dies if the process asked for it beforehand, and a program that
//! takes the process over inherits the wish. To ask between `fork` and `exec` would take unsafe code, so
//! the launcher starts itself instead, asks, and becomes the program. The wish is not inherited by
//! children: those of a rank, if the launcher is killed by SIGKILL, have to notice by themselves.

use std::ffi::OsString;
use std::process::ExitCode;

use tokio::process::Command;

use super::program::Program;

/// The command that starts the program, tied to this process where the system can do that.
pub(super) fn command(program: &Program) -> Command {
    // This very program, even if its file was replaced since.
    const MYSELF: &str = "/proc/self/exe";
    if cfg!(target_os = "linux") && std::path::Path::new(MYSELF).exists() {
        let mut command = Command::new(MYSELF);
        command
            .arg0("farref")
            .args(["launch", "--tethered-to"])
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(&program.path)
            .args(&program.words);
        return command;
    }
    let mut command = Command::new(&program.path);
    if let Some((name, arguments)) = program.words.split_first() {
        command.arg0(name).args(arguments);
    }
    command
}

/// The other end of [`command`]: `words` are the path, the name and the arguments. Returns only if that
/// is impossible.
#[cfg(target_os = "linux")]
pub(super) fn become_program(parent: u32, words: &[OsString]) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    let [path, name, arguments @ ..] = words else {
        anyhow::bail!("--tethered-to is for the launcher itself");
    };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Whoever died before we asked sends nothing.
    if getppid().is_none_or(|alive| alive.as_raw_nonzero().get().unsigned_abs() != parent) {
        anyhow::bail!("the launcher is gone");
    }
    let error = std::process::Command::new(path)
        .arg0(name)
        .args(arguments)
        .exec();
    // The launcher has found the file: what is missing is what runs it.
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "what its first line names to run it is not there".into(),
        _ => error.to_string(),
    };
    eprintln!("farref: cannot start `{}`: {why}", name.display());
    // As a shell says it.
    Ok(ExitCode::from(126))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn become_program(_: u32, _: &[OsString]) -> anyhow::Result<ExitCode> {
    anyhow::bail!("--tethered-to is for the launcher itself")
}

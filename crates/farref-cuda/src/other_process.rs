//! Whether another process lives.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;

/// A process of this host.
///
/// When a process is killed, it first loses its memory, then its files, and with them the driver's events are done that it had recorded. So whoever sees an
/// event done and finds the process with its memory *after that* knows that its work is done, and not only over.
#[derive(Debug)]
pub(crate) struct OtherProcess {
    /// How much memory it has. None if it cannot be seen from here: then it is taken to live.
    memory: Option<File>,
    has_ended: AtomicBool,
}

impl OtherProcess {
    /// One that lives now.
    pub(crate) fn of(pid: Option<Pid>) -> Self {
        let path = |pid: Pid| format!("/proc/{}/statm", pid.as_raw_nonzero());
        Self {
            memory: pid.and_then(|pid| File::open(path(pid)).ok()),
            has_ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        if self.has_ended.load(Ordering::Relaxed) {
            return false;
        }
        let Some(memory) = &self.memory else {
            return true;
        };
        // "0 0 0 .." without memory, and an error when nothing is left of it.
        let mut first = [b'0'];
        let read = memory.read_at(&mut first, 0);
        let is_alive = matches!(read, Ok(1)) && first != *b"0";
        if !is_alive {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        is_alive
    }

    /// It is taken for dead.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_alive_until_it_is_killed_also_if_nobody_has_asked_how_it_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let (process, again) = (OtherProcess::of(pid), OtherProcess::of(pid));
        assert!(process.is_alive());
        child.kill().unwrap();
        crate::tests::until(|| !process.is_alive());
        child.wait().unwrap();
        assert!(!process.is_alive() && !again.is_alive());
    }
}

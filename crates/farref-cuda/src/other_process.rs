//! Whether another process lives.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process of this host.
///
/// When a process is killed, it first loses its memory, then its files, with which the driver ends its work, and then it has ended.
#[derive(Debug)]
pub(crate) struct OtherProcess {
    /// None if it cannot be seen from here: then it is taken to live.
    seen: Option<Seen>,
    has_died: AtomicBool,
    #[cfg(test)]
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    /// How much memory it has.
    memory: File,
    /// Readable when it has ended.
    process: OwnedFd,
}

impl OtherProcess {
    /// One that lives now.
    pub(crate) fn of(pid: Option<Pid>) -> Self {
        let see = |pid: Pid| {
            Some(Seen {
                memory: File::open(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?,
                process: pidfd_open(pid, PidfdFlags::empty()).ok()?,
            })
        };
        Self {
            seen: pid.and_then(see),
            has_died: AtomicBool::new(false),
            #[cfg(test)]
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether it was not killed, and has not begun to end.
    pub(crate) fn is_alive(&self) -> bool {
        if self.has_died.load(Ordering::Relaxed) {
            return false;
        }
        let Some(Seen { memory, .. }) = &self.seen else {
            return true;
        };
        // "0 0 0 .." without memory, and an error when nothing is left of it.
        let mut first = [b'0'];
        let read = memory.read_at(&mut first, 0);
        let is_alive = matches!(read, Ok(1)) && first != *b"0";
        if !is_alive {
            self.has_died.store(true, Ordering::Relaxed);
        }
        is_alive
    }

    /// Of one that is not alive: whether it has ended, so that its device does nothing any more that it was given.
    pub(crate) fn has_ended(&self) -> bool {
        #[cfg(test)]
        if self.has_ended.load(Ordering::Relaxed) {
            return true;
        }
        let Some(Seen { process, .. }) = &self.seen else {
            return false;
        };
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut ends, Some(&at_once)) == Ok(1)
    }
}

#[cfg(test)]
impl OtherProcess {
    /// It is taken for dead, and is ending.
    pub(crate) fn begin_to_end(&self) {
        self.has_died.store(true, Ordering::Relaxed);
    }

    /// It is taken to have ended.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.has_died.store(true, Ordering::Relaxed);
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
        assert!(!again.has_ended());
        child.kill().unwrap();
        crate::tests::until(|| !process.is_alive());
        crate::tests::until(|| again.has_ended());
        child.wait().unwrap();
        assert!(!process.is_alive() && !again.is_alive());
        assert!(again.has_ended());
    }
}

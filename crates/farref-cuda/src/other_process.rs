//! Whether another process lives.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process of this host.
///
/// When a process is killed, its threads first lose its memory, then its files, with which the driver ends its work, and then it has ended.
#[derive(Debug)]
pub(crate) struct OtherProcess {
    /// None if it cannot be seen from here: then it is taken to live.
    seen: Option<Seen>,
    has_died: AtomicBool,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    /// The folder of its threads.
    threads: PathBuf,
    /// How much memory its first thread has. None if that cannot be read.
    memory: Option<File>,
    /// Readable when it has ended.
    process: OwnedFd,
}

impl OtherProcess {
    /// One that was there when it was asked for its number.
    pub(crate) fn of(pid: Option<Pid>) -> Self {
        let opened = pid.map(|pid| (pid, pidfd_open(pid, PidfdFlags::empty())));
        // It was there, so it has ended since.
        let is_gone = matches!(opened, Some((_, Err(Errno::SRCH))));
        let seen = opened.and_then(|(pid, process)| {
            let folder = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
            Some(Seen {
                threads: folder.join("task"),
                process: process.ok()?,
                memory: File::open(folder.join("statm")).ok(),
            })
        });
        Self {
            seen,
            has_died: AtomicBool::new(is_gone),
            has_ended: AtomicBool::new(is_gone),
        }
    }

    /// Whether it was not killed, and has not begun to end.
    pub(crate) fn is_alive(&self) -> bool {
        if self.has_died.load(Ordering::Relaxed) {
            return false;
        }
        let Some(seen) = &self.seen else {
            return true;
        };
        let is_alive = match &seen.memory {
            Some(memory) if has_memory(memory).unwrap_or(false) => true,
            // It may be that its first thread has ended, and nothing else. After that: as long as the process has not ended, nobody else has its number.
            // What cannot be known now may be known the next time; that it has died is never taken back.
            Some(_) => seen.is_a_thread_alive().unwrap_or(true) && !seen.has_ended(),
            None => !seen.has_ended(),
        };
        if !is_alive {
            self.has_died.store(true, Ordering::Relaxed);
        }
        is_alive
    }

    /// Of one that is not alive: whether it has ended, so that its device does nothing any more that it was given.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.seen.as_ref().is_some_and(Seen::has_ended)
    }
}

/// Of a thread: "0 0 0 .." without memory, and an error when nothing is left of it.
fn has_memory(thread: &File) -> io::Result<bool> {
    let mut first = [b'0'];
    Ok(thread.read_at(&mut first, 0)? == 1 && first != *b"0")
}

/// Whether an error means that nothing is left of what was looked at. Others, that too many files are open, say nothing of it.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH)
    )
}

impl Seen {
    fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.process, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut ends, Some(&at_once)) == Ok(1)
    }

    /// Whether any of its threads has not begun to end. None if that cannot be known now.
    fn is_a_thread_alive(&self) -> Option<bool> {
        let threads = match std::fs::read_dir(&self.threads) {
            Ok(threads) => threads,
            Err(error) => return is_gone(&error).then_some(false),
        };
        let mut is_known = true;
        for thread in threads {
            let thread = thread.and_then(|thread| File::open(thread.path().join("statm")));
            match thread.and_then(|thread| has_memory(&thread)) {
                Ok(true) => return Some(true),
                Ok(false) => {}
                Err(error) => is_known &= is_gone(&error),
            }
        }
        is_known.then_some(false)
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
        // Nobody has its number now.
        let late = OtherProcess::of(pid);
        assert!(!late.is_alive() && late.has_ended());
    }

    #[test]
    fn a_process_whose_memory_cannot_be_read_is_alive_until_it_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut process = OtherProcess::of(Pid::from_raw(child.id() as i32));
        process.seen.as_mut().unwrap().memory = None;
        assert!(process.is_alive());
        child.kill().unwrap();
        crate::tests::until(|| !process.is_alive());
        assert!(process.has_ended());
        child.wait().unwrap();
    }

    fn of_a_thread_that_has_ended() -> File {
        let file = rustix::fs::memfd_create("ended", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, b"0 0 0 0 0 0 0\n", 0).unwrap();
        file.into()
    }

    #[test]
    fn a_process_of_which_only_the_first_thread_has_ended_is_alive() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut process = OtherProcess::of(Pid::from_raw(child.id() as i32));
        process.seen.as_mut().unwrap().memory = Some(of_a_thread_that_has_ended());
        assert!(process.is_alive());
        child.kill().unwrap();
        crate::tests::until(|| !process.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_whose_threads_cannot_be_looked_at_for_a_while_is_alive_until_it_is_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let (mut process, mut again) = (OtherProcess::of(pid), OtherProcess::of(pid));
        // Of these nothing can be opened, as when too many files are open: neither the folder, nor what is in the folder.
        let unopened = ["/proc/self/stat", "/proc/self/fdinfo"];
        for (process, unopened) in [&mut process, &mut again].into_iter().zip(unopened) {
            let seen = process.seen.as_mut().unwrap();
            seen.memory = Some(of_a_thread_that_has_ended());
            let threads = std::mem::replace(&mut seen.threads, unopened.into());
            assert!(process.is_alive(), "{unopened}");
            process.seen.as_mut().unwrap().threads = threads;
            assert!(process.is_alive(), "{unopened}");
        }
        // That it has ended is seen also without them.
        again.seen.as_mut().unwrap().threads = unopened[0].into();
        child.kill().unwrap();
        crate::tests::until(|| !process.is_alive() && !again.is_alive());
        assert!(again.has_ended());
        child.wait().unwrap();
    }

    #[test]
    fn one_that_cannot_be_seen_is_taken_to_live() {
        let process = OtherProcess::of(None);
        assert!(process.is_alive() && !process.has_ended());
    }
}

//! The memory of a process, by its number.
//!
//! For those who know by other means that the process is the one that they mean, such as a wire that is not this crate's.
//! Where both ends are, and the socket between them is a Unix socket, [`PeerMemory`](crate::PeerMemory) makes sure of it.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::available_parallelism;

use bytes::BufMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, dumpable_behavior, pidfd_open};

use crate::error::PeerError;
use crate::sys::{fill_by_two, read_process};

/// So much is read at once: what the system has to remember of each page meanwhile stays in the cache.
const CALL: usize = 256 << 10;

/// From this size on two threads copy. Measured: they take 0.55 to 0.8 of the time if a core is free, and no longer if none
/// is.
const BY_TWO: usize = 8 << 20;
/// So much one of them takes at a time.
const PIECE: usize = 1 << 20;

/// The memory of a process that is held on to: if it ends, its number is not taken for another's.
///
/// ```
/// use farref_shm::ProcessMemory;
///
/// let value = b"a value in the memory of a process";
/// let memory = ProcessMemory::open(std::process::id())?;
/// let mut copy = Vec::with_capacity(value.len());
/// memory.read(value.as_ptr().addr() as u64, value.len(), &mut copy)?;
/// assert_eq!(copy, value);
/// # Ok::<(), farref_shm::PeerError>(())
/// ```
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    /// The process itself, whatever becomes of its number.
    process: OwnedFd,
}

impl ProcessMemory {
    /// The memory of a process that runs now. Whether it may be read shows when it is.
    pub fn open(pid: u32) -> Result<Self, PeerError> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Self::of(pid.ok_or(PeerError::Gone)?)
    }

    pub(crate) fn of(pid: Pid) -> Result<Self, PeerError> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Self { pid, process }),
            Err(Errno::SRCH) => Err(PeerError::Gone),
            Err(error) => Err(PeerError::Unsupported(error.into())),
        }
    }

    /// Appends to `into` the `length` bytes that the process has at an address, as
    /// [`PeerMemory::read`](crate::PeerMemory::read) does: what was read counts only if the process still ran
    /// afterwards.
    pub fn read(
        &self,
        address: u64,
        length: usize,
        into: &mut impl BufMut,
    ) -> Result<(), PeerError> {
        match self.copy(address, length, into) {
            Ok(()) if self.runs() => Ok(()),
            Ok(()) => Err(PeerError::Gone),
            Err(_) if !self.runs() => Err(PeerError::Gone),
            Err(error) => Err(error),
        }
    }

    /// The same, whatever has become of the process.
    pub(crate) fn copy(
        &self,
        address: u64,
        length: usize,
        into: &mut impl BufMut,
    ) -> Result<(), PeerError> {
        if length >= BY_TWO && is_parallel() {
            let by_two = fill_by_two(into, length, PIECE, |from, mut room| {
                let address = address.saturating_add(from as u64);
                self.copy_alone(address, room.len(), &mut room)
            });
            if let Some(copied) = by_two {
                return copied;
            }
        }
        self.copy_alone(address, length, into)
    }

    fn copy_alone(
        &self,
        address: u64,
        length: usize,
        into: &mut impl BufMut,
    ) -> Result<(), PeerError> {
        let mut done = 0;
        while done < length {
            let missing = length - done;
            if !into.has_remaining_mut() {
                return Err(PeerError::NoRoom { missing });
            }
            let at = address.saturating_add(done as u64);
            match read_process(self.pid, at, missing.min(CALL), into) {
                Ok(0) => return Err(PeerError::Unreadable { address: at }),
                Ok(read) => done += read,
                Err(error) => return Err(explain(at, error)),
            }
        }
        Ok(())
    }

    /// What becomes ready when the process ends.
    pub(crate) fn process(&self) -> &OwnedFd {
        &self.process
    }

    fn runs(&self) -> bool {
        is_quiet(&mut [PollFd::new(&self.process, PollFlags::IN)])
    }
}

/// Whether the other side has neither closed a connection nor shut its direction of it down, as far as this system has
/// heard. Bytes that it sent before may still be unread.
///
/// For those who have read a peer's memory: what was read counts if the peer had not given up by then.
pub fn is_connected(socket: impl AsFd) -> bool {
    is_quiet(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)])
}

/// Whether this process is one whose memory others may read at all: not one that has changed its user, say, or that hides
/// its memory.
pub fn is_readable() -> bool {
    matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable))
}

/// Whether nothing has happened to any of them.
pub(crate) fn is_quiet(ends: &mut [PollFd<'_>]) -> bool {
    let at_once = Timespec::default();
    loop {
        match poll(ends, Some(&at_once)) {
            Ok(over) => return over == 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Whether there is more than one core.
fn is_parallel() -> bool {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZeroUsize::get)) > 1
}

fn explain(address: u64, error: io::Error) -> PeerError {
    match Errno::from_io_error(&error) {
        Some(Errno::FAULT) => PeerError::Unreadable { address },
        Some(Errno::PERM) => PeerError::NotPermitted,
        Some(Errno::SRCH) => PeerError::Gone,
        _ => PeerError::Unsupported(error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn numbers_that_are_nobodys_are_nobodys() {
        for pid in [0, u32::MAX, i32::MAX as u32] {
            assert!(ProcessMemory::open(pid).is_err(), "{pid}");
        }
    }

    /// SH-3: not those of another process that has its number now, nor the rest of its own.
    #[test]
    fn sh_3_nothing_is_read_of_a_process_that_has_ended() {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut child = child.expect("a process");
        let memory = ProcessMemory::open(child.id()).expect("it runs");
        drop(child.stdin.take());
        child.wait().expect("it ends");
        let read = memory.read(0x1000, 1, &mut Vec::new());
        assert!(matches!(read, Err(PeerError::Gone)), "{read:?}");
    }

    #[test]
    fn an_address_without_memory_is_said() {
        let memory = ProcessMemory::open(std::process::id()).expect("it runs");
        let read = memory.read(8, 1, &mut Vec::new());
        assert!(matches!(read, Err(PeerError::Unreadable { address: 8 })));
    }
}

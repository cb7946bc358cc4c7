//! Which processes may still use memory of this one, whatever anybody says of them.
//!
//! Whoever shares memory has a file in memory, its ledger, with a place for each allocation that is out. Whoever imports the allocation has that
//! place locked, and the kernel unlocks it when the process ends. A message that memory was released, or that its user has gone, says
//! less: it may come from somebody who takes a process for dead that goes on.
//!
//! # Invariants
//!
//! - **LE-1** A process locks the place before it imports the memory, and unlocks it when its work with the memory is done.
//! - **LE-2** The exporter writes that the memory is not out any more, and looks for locks then. An importer locks, and looks then whether it is out.
//!   So at least one of them sees the other.
//! - **LE-3** The kernel unlocks for a process that ends, maybe before the driver has stopped its work. Each importer has a line in the ledger, which it
//!   locks as well: as long as one has unlocked its line, has not said that it is finished, and has not ended, no memory counts as unused. (For a
//!   minute at most, from when it is first seen to have lost its lock: it may have become another program, or it cannot be seen from here when it
//!   ends.)

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{pread, pwrite};
use serde::{Deserialize, Serialize};

use crate::error::{CudaError, Result};
use crate::sys::{SHARED_PAGE, locks};

/// So many importers' lines there are. They come after the page of how far the owner's device is ([`progress`](crate::progress)), and the places come
/// after them.
const LINES: u64 = 4096;
/// The length of a place.
const PLACE: u64 = 8;
/// So many places.
const MOST: u32 = 1 << 24;
/// How long a process may take to end.
pub(crate) const TEARDOWN: Duration = Duration::from_secs(60);
const NAME: &str = "farref-cuda-ledger";

/// What an importer writes into its line.
const IN_USE: u8 = 1;
const FINISHED: u8 = 2;

/// An allocation that is out: its place, and what is written there as long as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Loan {
    place: u32,
    number: u64,
}

impl Loan {
    fn at(self) -> u64 {
        SHARED_PAGE + LINES + u64::from(self.place) * PLACE
    }
}

/// Where a line is.
pub(crate) fn line_at(line: u16) -> u64 {
    SHARED_PAGE + u64::from(line)
}

/// The ledger of a process that shares memory.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: OwnedFd,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    number: u64,
    places: u32,
    unused: Vec<u32>,
    lines: HashMap<u16, Line>,
}

/// A process that imports.
#[derive(Debug)]
struct Line {
    /// Readable when it has ended. None if it cannot be seen from here.
    process: Option<OwnedFd>,
    /// When it was given its line. It locks that later.
    given: Instant,
    /// Since when it is known to have lost the lock. Not since when its line is not locked: somebody may look before it has begun, and nobody looks
    /// at lines while the memory itself is locked.
    lost: Option<Instant>,
}

impl Line {
    /// None if that is not known.
    fn has_ended(&self) -> Option<bool> {
        let process = self.process.as_ref()?;
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        Some(poll(&mut ends, Some(&at_once)) == Ok(1))
    }
}

impl Ledger {
    pub(crate) fn new() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(NAME, flags).map_err(io::Error::from)?;
        rustix::fs::ftruncate(&file, SHARED_PAGE + LINES).map_err(io::Error::from)?;
        // Those who map its first page can rely on that; and nobody who has the file can forbid its owner to write to it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL).map_err(io::Error::from)?;
        Ok(Self {
            file,
            inner: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, loan: Loan, number: u64) -> io::Result<()> {
        pwrite(&self.file, &number.to_le_bytes(), loan.at())?;
        Ok(())
    }

    /// An allocation is out from now on.
    pub(crate) fn lend(&self) -> Result<Loan> {
        let mut inner = self.lock();
        inner.number += 1;
        let number = inner.number;
        let place = match inner.unused.pop() {
            Some(place) => place,
            None if inner.places < MOST => {
                inner.places += 1;
                inner.places - 1
            }
            None => {
                return Err(CudaError::LimitReached {
                    asked: 1,
                    used: u64::from(MOST),
                    limit: u64::from(MOST),
                });
            }
        };
        drop(inner);
        let loan = Loan { place, number };
        self.write(loan, number)?;
        Ok(loan)
    }

    /// One that was out is so again.
    pub(crate) fn lend_again(&self, loan: Loan) -> Result<()> {
        Ok(self.write(loan, loan.number)?)
    }

    /// It is not out any more: nobody begins to use it (LE-2).
    pub(crate) fn end(&self, loan: Loan) {
        // It cannot fail: the place was written before.
        let _ = self.write(loan, 0);
    }

    /// Whether nobody can use any more what was out.
    pub(crate) fn is_unused(&self, loan: Loan) -> bool {
        self.is_unused_at(loan, Instant::now())
    }

    /// The same, as of a time.
    pub(crate) fn is_unused_at(&self, loan: Loan, now: Instant) -> bool {
        if self.is_locked(loan.at()) {
            return false;
        }
        // LE-3
        !self.is_one_ending(&mut self.lock(), now)
    }

    /// Whether an importer has not ended that has unlocked everything. Those that have are forgotten.
    fn is_one_ending(&self, inner: &mut Inner, now: Instant) -> bool {
        let mut is_one_ending = false;
        inner.lines.retain(|&number, line| {
            // Before it is seen whether it is locked: it is locked before it is said to be in use, so that what is in use then, and is not locked, has
            // lost its lock.
            let mut said = [0];
            let said = pread(&self.file, &mut said, line_at(number)).map(|_| said[0]);
            if self.is_locked(line_at(number)) {
                line.lost = None;
                return true;
            }
            // One that has not begun has nothing yet.
            let has_begun = said == Ok(IN_USE);
            let since = match has_begun {
                true => *line.lost.get_or_insert(now),
                false => line.given,
            };
            let is_in_time = now.saturating_duration_since(since) < TEARDOWN;
            let stays = match line.has_ended() {
                _ if said == Ok(FINISHED) => false,
                Some(has_ended) => !has_ended,
                None => is_in_time,
            };
            is_one_ending |= stays && has_begun && is_in_time;
            stays
        });
        is_one_ending
    }

    /// What cannot be known is taken for locked.
    fn is_locked(&self, at: u64) -> bool {
        locks::is_locked(self.file.as_fd(), at).unwrap_or(true)
    }

    /// Its place is free for others.
    pub(crate) fn forget(&self, loan: Loan) {
        self.lock().unused.push(loan.place);
    }

    /// A line for one more importer. None if there are too many.
    pub(crate) fn enlist(&self, process: Option<OwnedFd>) -> Option<u16> {
        let mut inner = self.lock();
        let given = Instant::now();
        self.is_one_ending(&mut inner, given);
        let free = |number: &u16| !inner.lines.contains_key(number);
        let number = (0..LINES as u16).find(free)?;
        pwrite(&self.file, &[0], line_at(number)).ok()?;
        let line = Line {
            process,
            given,
            lost: None,
        };
        inner.lines.insert(number, line);
        Some(number)
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The ledger of another process.
#[derive(Debug)]
pub(crate) struct Borrowed {
    file: File,
    line: u16,
    /// How many use each place, here.
    users: Mutex<HashMap<u32, usize>>,
}

impl Borrowed {
    /// Opens the ledger anew, since locks belong to whoever has opened it.
    pub(crate) fn open(descriptor: &OwnedFd, line: u16) -> Result<Arc<Self>> {
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let name = std::fs::read_link(&path)?;
        // Whatever else a peer gives is not opened.
        if u64::from(line) >= LINES
            || !name
                .to_string_lossy()
                .starts_with(&format!("/memfd:{NAME}"))
        {
            return Err(CudaError::BadTicket(
                "what comes with the pool is no ledger",
            ));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from)?;
        locks::lock(file.as_fd(), line_at(line))?;
        pwrite(&file, &[IN_USE], line_at(line)).map_err(io::Error::from)?;
        Ok(Arc::new(Self {
            file: file.into(),
            line,
            users: Mutex::default(),
        }))
    }

    /// One more use of an allocation here. Fails with [`CudaError::NotShared`] if it is not out any more.
    pub(crate) fn take(self: &Arc<Self>, loan: Loan) -> Result<Held> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let count = users.entry(loan.place).or_default();
        // LE-1
        locks::lock(self.file.as_fd(), loan.at())?;
        *count += 1;
        drop(users);
        // From here on dropping it unlocks.
        let held = Held {
            ledger: Arc::clone(self),
            loan,
        };
        let mut written = [0; PLACE as usize];
        let read = pread(&self.file, &mut written, loan.at()).map_err(io::Error::from)?;
        // LE-2
        if read < written.len() || u64::from_le_bytes(written) != loan.number {
            return Err(CudaError::NotShared);
        }
        Ok(held)
    }
}

impl AsFd for Borrowed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Everything was let go of. If it cannot be said, the exporter waits a while.
        let _ = pwrite(&self.file, &[FINISHED], line_at(self.line));
    }
}

/// Memory of another process that this one may still use: as long as this is kept, that process keeps it, whatever it hears of this one. It is
/// dropped when the work with the memory is [done](crate::AfterWork), and the memory given back.
#[derive(Debug)]
pub struct Held {
    ledger: Arc<Borrowed>,
    loan: Loan,
}

impl Drop for Held {
    fn drop(&mut self) {
        let ledger = &self.ledger;
        let mut users = ledger.users.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = users.get_mut(&self.loan.place) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            users.remove(&self.loan.place);
            let _ = locks::unlock(ledger.file.as_fd(), self.loan.at());
        }
    }
}

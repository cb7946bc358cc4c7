//! Locks on single bytes of a file. They belong to whoever has opened the file, not to a process or a thread, and go when that is closed.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

fn byte(kind: libc::c_int, at: u64) -> io::Result<libc::flock> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_len = 1;
    Ok(lock)
}

fn call(file: BorrowedFd<'_>, what: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these calls read and write such a structure.
    match unsafe { libc::fcntl(file.as_raw_fd(), what, &raw mut *lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Locks a byte, beside others who do the same.
pub(crate) fn lock(file: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, &mut byte(libc::F_RDLCK, at)?)
}

pub(crate) fn unlock(file: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, &mut byte(libc::F_UNLCK, at)?)
}

/// Whether somebody else has it locked.
pub(crate) fn is_locked(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    let mut lock = byte(libc::F_WRLCK, at)?;
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

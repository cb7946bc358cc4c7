//! What the system says of the process at the other end of a socket, and its memory.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::BufMut;
use rustix::process::{Pid, Uid};

/// Who made the other end of a Unix socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCredentials {
    /// None if it is not visible from here.
    pub(crate) pid: Option<Pid>,
    pub(crate) uid: Uid,
}

/// Who made the other end of a Unix socket.
///
/// Not rustix's, which has no word for a process that is not visible from here.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the system writes at most `length` bytes, which `credentials` has; it is made of numbers, so
    // whatever they are it is valid.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        pid: (credentials.pid > 0)
            .then(|| Pid::from_raw(credentials.pid))
            .flatten(),
        uid: Uid::from_raw(credentials.uid),
    })
}

/// Appends to `into` at most `most` bytes that a process has at an address. Returns how many; they are fewer where the
/// readable memory ends, or the room in one piece.
pub(crate) fn read_process(
    pid: Pid,
    address: u64,
    most: usize,
    into: &mut impl BufMut,
) -> io::Result<usize> {
    let Ok(address) = usize::try_from(address) else {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    };
    let room = into.chunk_mut();
    let length = room.len().min(most);
    let local = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: length,
    };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: the system writes at most `length` bytes to `room`, which has them and is borrowed mutably. The other
    // address is one in `pid`, which the system checks; nothing here is read through it.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the system has written so many bytes at the beginning of `room`.
    unsafe { into.advance_mut(read) };
    Ok(read)
}

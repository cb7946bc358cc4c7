//! Reading into memory that nothing was written to yet.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use bytes::BufMut;

/// Appends to `into`, which must have room, what is there to be read from a file or a socket. Returns how many bytes;
/// zero is the end.
///
/// ```
/// use std::io::Write as _;
///
/// let (here, mut there) = std::os::unix::net::UnixStream::pair()?;
/// there.write_all(b"some bytes")?;
/// let mut into = Vec::with_capacity(64);
/// assert_eq!(farref_shm::read(&here, &mut into)?, 10);
/// assert_eq!(into, b"some bytes");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(from: impl AsFd, into: &mut impl BufMut) -> io::Result<usize> {
    let from = from.as_fd();
    let room = into.chunk_mut();
    // SAFETY: the system writes at most `room.len()` bytes to `room`, which has them and is borrowed mutably.
    let read = unsafe { libc::read(from.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the system has written so many bytes at the beginning of `room`.
    unsafe { into.advance_mut(read) };
    Ok(read)
}

//! Who is at the other end of a socket.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::process::{Pid, Uid};

/// The process that had connected, or was listening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// None if it cannot be seen from here: it is in a container with process numbers of its own.
    pub(crate) pid: Option<Pid>,
    pub(crate) user: Uid,
}

impl From<libc::ucred> for Peer {
    fn from(said: libc::ucred) -> Self {
        Self {
            // The kernel says zero of one that cannot be seen.
            pid: (said.pid > 0).then(|| Pid::from_raw(said.pid)).flatten(),
            user: Uid::from_raw(said.uid),
        }
    }
}

/// Asks the kernel who is at the other end of a Unix socket. (Not by rustix, whose process numbers are never zero.)
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut said = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and there is room for as much as is said.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut said).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(said.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn who_is_at_the_other_end_is_known_unless_it_cannot_be_seen() {
        let (one, _other) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid();
        let pid = Some(rustix::process::getpid());
        assert_eq!(peer_of(one.as_fd()).unwrap(), Peer { pid, user });
        let (uid, gid) = (user.as_raw(), 0);
        let unseen = Peer::from(libc::ucred { pid: 0, uid, gid });
        assert_eq!(unseen, Peer { pid: None, user });
        let file = std::fs::File::open("/proc/self/statm").unwrap();
        assert!(peer_of(file.as_fd()).is_err());
    }
}

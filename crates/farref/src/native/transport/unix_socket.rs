//! The halves of a Unix socket, of which the runtime watches one direction.
//!
//! Whoever watches a Unix socket for room to write is woken each time that the other end has read something, not only
//! when there was no room before (with TCP it is): a caller that waits for its answer would be woken once more for each
//! call. So the halves have descriptors of their own, and the runtime watches that of the reading half for something
//! to read, and a third one for room to write for as long as somebody waits for that.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::sleep;

#[cfg(target_os = "linux")]
use super::descriptor_reader::DescriptorReader;
#[cfg(target_os = "linux")]
use crate::codec::SharedBytes;

/// A socket that cannot be watched is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// The half that is read from.
#[derive(Debug)]
pub(crate) enum UnixReader {
    /// Of bytes alone: descriptors that come beside them are thrown away by the system.
    Bytes(pipe::Receiver),
    /// Of bytes, and of descriptors beside them.
    #[cfg(target_os = "linux")]
    Descriptors(Box<DescriptorReader>),
}

/// The half that is written to. Dropping it tells the other end that nothing more comes.
#[derive(Debug)]
pub(crate) struct UnixWriter(UnixStream);

/// Both halves of a socket, which must be in non-blocking mode. To be called within the runtime that is to watch it.
pub(super) fn split(socket: UnixStream) -> io::Result<(UnixReader, UnixWriter)> {
    Ok((UnixReader::new(&socket)?, UnixWriter(socket)))
}

impl UnixReader {
    fn new(socket: &UnixStream) -> io::Result<Self> {
        // What tokio has for one direction is called a pipe; it reads both in the same way.
        let read = OwnedFd::from(socket.try_clone()?);
        let read = pipe::Receiver::from_owned_fd_unchecked(read)?;
        Ok(Self::Bytes(read))
    }

    /// Reads what is there; whoever gets nothing is woken when there is something.
    pub(super) fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            // Who waits is kept with the socket, not in the future.
            Self::Bytes(read) => pin!(read.read_buf(buffer)).poll(context),
            #[cfg(target_os = "linux")]
            Self::Descriptors(read) => read.poll_read_buf(context, buffer),
        }
    }
}

impl AsFd for UnixReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Bytes(read) => read.as_fd(),
            #[cfg(target_os = "linux")]
            Self::Descriptors(read) => read.as_fd(),
        }
    }
}

impl UnixWriter {
    /// Writes as much as can be written without waiting.
    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0.as_fd(), slices)
    }

    /// Waits until something can be written. May be wrong.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self.watch_for_room() {
            Ok(watched) => watched.writable().await,
            // There are no descriptors left, say: it is tried again.
            Err(_) => {
                sleep(RETRY_AFTER).await;
                Ok(())
            }
        }
    }

    fn watch_for_room(&self) -> io::Result<pipe::Sender> {
        let watched = OwnedFd::from(self.0.try_clone()?);
        pipe::Sender::from_owned_fd_unchecked(watched)
    }

    /// Writes some bytes, and descriptors with the first of them, without waiting.
    #[cfg(target_os = "linux")]
    pub(super) fn pass(
        &self,
        slices: &[IoSlice<'_>],
        regions: &[SharedBytes],
    ) -> io::Result<usize> {
        let descriptors: Vec<_> = regions.iter().map(SharedBytes::descriptor).collect();
        farref_shm::send(&self.0, slices, &descriptors)
    }

    /// The same socket, watched by the runtime that this is called in.
    pub(super) fn watch_anew(self, read: UnixReader) -> io::Result<(UnixReader, Self)> {
        drop(read);
        Ok((UnixReader::new(&self.0)?, self))
    }
}

impl AsRef<UnixStream> for UnixWriter {
    fn as_ref(&self) -> &UnixStream {
        &self.0
    }
}

impl Drop for UnixWriter {
    fn drop(&mut self) {
        // An error means that it is over already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// The user whose process is at the other end, if that is neither this process' own nor the superuser, who may do all
/// that its own may. (To a process of the superuser's, others are strangers, but for one that looks on.)
pub(super) fn stranger(uid: u32) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    (uid != own && uid != 0).then_some(uid)
}

/// Sends what the system takes right now, whatever the runtime believes of the socket.
pub(super) fn send(to: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match slices {
        // The plain system call is quicker.
        [slice] => Ok(rustix::net::send(to, slice, flags)?),
        _ => Ok(sendmsg(
            to,
            slices,
            &mut SendAncillaryBuffer::default(),
            flags,
        )?),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use super::*;

    /// `EPOLLOUT`
    const ROOM_TO_WRITE: u32 = 4;

    /// What runtimes of this process watch a descriptor for. There may be several descriptors of one runtime, which say
    /// the same.
    fn watched_for(fd: &impl AsFd) -> Vec<u32> {
        let number = fd.as_fd().as_raw_fd().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
            // Some are gone meanwhile.
            let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for line in info.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                if let ["tfd:", tfd, "events:", events, ..] = words[..]
                    && tfd == number
                {
                    found.push(u32::from_str_radix(events, 16).unwrap());
                }
            }
        }
        found
    }

    fn pair() -> ((UnixReader, UnixWriter), UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (split(ours).unwrap(), theirs)
    }

    #[test]
    fn only_other_users_are_strangers() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(stranger(own), None);
        assert_eq!(stranger(0), None, "may do everything anyway");
        assert_eq!(stranger(own + 1), Some(own + 1));
    }

    #[tokio::test]
    async fn nobody_is_woken_because_the_other_end_has_read() {
        let ((read, write), _theirs) = pair();
        let watched = watched_for(&read);
        let is_woken = |events: &u32| events & ROOM_TO_WRITE != 0;
        assert!(
            !watched.is_empty() && !watched.iter().any(is_woken),
            "{watched:x?}"
        );
        assert!(watched_for(write.as_ref()).is_empty());
    }

    #[tokio::test]
    async fn who_finds_no_room_is_woken_when_there_is_some() {
        use std::io::Read as _;

        let ((_read, write), mut theirs) = pair();
        let bytes = vec![7; 1 << 16];
        let mut sent = 0;
        loop {
            match write.try_write_vectored(&[IoSlice::new(&bytes)]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let waits = write.writable();
        tokio::pin!(waits);
        let at_once = tokio::time::timeout(Duration::from_millis(1), waits.as_mut()).await;
        assert!(at_once.is_err(), "there is none");
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        waits.await.unwrap();
        assert!(write.try_write_vectored(&[IoSlice::new(&bytes)]).is_ok());
    }

    #[tokio::test]
    async fn the_end_of_what_is_written_is_told() {
        use std::io::Read as _;

        let ((read, write), mut theirs) = pair();
        drop(write);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        drop(read);
    }
}

//! The reading half of a Unix socket on which descriptors come beside bytes.
//!
//! A descriptor comes with the first byte of the write that it was sent with. Whoever sends one begins a write with the
//! frame that it belongs to. So where a frame may begin, descriptors are asked for ([`receive`]); inside of a large piece,
//! which is never read beyond, none can come, and bytes are read straight into it. Whoever sends one there nevertheless
//! has it thrown away by the system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use farref_shm::{ReceiveError, receive};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::descriptors::Descriptors;

/// So much is read at once where a frame may begin: such frames are short, but for what is read straight into its place.
const SCRATCH: usize = 16 << 10;

/// Reads bytes and descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorReader {
    socket: AsyncFd<OwnedFd>,
    /// Those that came with what was read last.
    pub(super) come: Descriptors,
    scratch: Box<[u8]>,
}

impl DescriptorReader {
    /// Reads from a socket, which must be in non-blocking mode. To be called within the runtime that is to watch it.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = socket.try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe, for the sake of types that can close what they are asked for"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self {
            socket,
            come: Descriptors::new(),
            scratch: vec![0; SCRATCH].into(),
        })
    }

    /// Reads what is there of a piece, where no descriptors are.
    pub(super) fn poll_read_buf(
        &self,
        context: &mut Context<'_>,
        mut buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(context))?;
            let read = ready.try_io(|socket| farref_shm::read(socket, &mut buffer));
            match read {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return Poll::Ready(read),
                Err(_would_block) => {}
            }
        }
    }

    /// Reads what is there, and descriptors.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        let Self {
            socket,
            come,
            scratch,
        } = self;
        loop {
            let mut ready = ready!(socket.poll_read_ready(context))?;
            match ready.try_io(|socket| receive_into(socket.as_fd(), buffer, scratch, come)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return Poll::Ready(read),
                Err(_would_block) => {}
            }
        }
    }

    /// The same, whatever the runtime believes of the socket.
    pub(super) fn receive_now(&mut self, buffer: &mut impl BufMut) -> io::Result<usize> {
        let Self {
            socket,
            come,
            scratch,
        } = self;
        receive_into(socket.as_fd(), buffer, scratch, come)
    }
}

impl AsFd for DescriptorReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut impl BufMut,
    scratch: &mut [u8],
    come: &mut Descriptors,
) -> io::Result<usize> {
    let room = buffer.chunk_mut().len().min(scratch.len());
    let scratch = scratch.get_mut(..room).unwrap_or_default();
    let read = match receive(socket, scratch, come.queue()) {
        Ok(read) => read,
        Err(ReceiveError::Socket(error)) => return Err(error),
        Err(error) => return Err(io::Error::other(error)),
    };
    buffer.put_slice(scratch.get(..read).unwrap_or_default());
    Ok(read)
}

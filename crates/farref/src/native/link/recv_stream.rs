//! The receiving half of one stream. How it is used: [`receiving`](super::receiving).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use farref_proto::{Frame, Lane};

use crate::native::endpoint::Endpoint;
use crate::native::frame::{Decoder, Packet, ReceivedMessage, Space};
use crate::native::transport::ReadHalf;
use crate::support::lock::try_lock;

/// The receiving half of the stream that a [`SendStream`](super::SendStream) writes to.
#[derive(Debug)]
pub(crate) struct RecvStream {
    /// Which connection of the link it belongs to.
    pub(super) epoch: u64,
    pub(super) lanes: &'static [Lane],
    pub(super) state: Mutex<RecvState>,
    /// How often its task was polled: a stream that has something to read while this stands still waits
    /// for a task that does not run.
    pub(super) polls: AtomicU64,
}

/// What its lock guards.
#[derive(Debug)]
pub(super) struct RecvState {
    stream: ReadHalf,
    pub(super) decoder: Decoder,
    /// What was read and is about to be delivered: empty between two reads, but for their room.
    pub(super) frames: Vec<Frame<ReceivedMessage>>,
    pub(super) messages: Vec<ReceivedMessage>,
    pub(super) acknowledged: Vec<Packet>,
    pub(super) closed: bool,
}

impl RecvStream {
    pub(super) fn new(
        epoch: u64,
        lanes: &'static [Lane],
        stream: ReadHalf,
        endpoint: &Endpoint,
    ) -> Arc<Self> {
        let decoder = Decoder::new(endpoint.limits, Arc::clone(&endpoint.recycler));
        Arc::new(Self {
            epoch,
            lanes,
            state: Mutex::new(RecvState {
                stream,
                decoder,
                frames: Vec::new(),
                messages: Vec::new(),
                acknowledged: Vec::new(),
                closed: false,
            }),
            polls: AtomicU64::new(0),
        })
    }

    /// How often the task was polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Whether a pipe within the process has something to read. None if it is no such pipe, or somebody
    /// reads right now.
    pub(crate) fn is_readable(&self) -> Option<bool> {
        match &try_lock(&self.state)?.stream {
            ReadHalf::Memory(pipe) => Some(pipe.is_readable()),
            _ => None,
        }
    }
}

impl RecvState {
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self.decoder.space() {
            Space::Buffer(buffer) => self.stream.poll_read_buf(context, buffer),
            Space::Piece(mut piece) => self.stream.poll_read_buf(context, &mut piece),
            Space::Elements(mut room, filled) => {
                let read = ready!(self.stream.poll_read_buf(context, &mut room));
                *filled += read.as_ref().map_or(0, |read| *read);
                Poll::Ready(read)
            }
        }
    }

    pub(super) fn read_now(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        match self.decoder.space() {
            Space::Buffer(buffer) => self.stream.read_now(buffer, scratch),
            Space::Piece(mut piece) => self.stream.read_now(&mut piece, scratch),
            Space::Elements(mut room, filled) => {
                let read = self.stream.read_now(&mut room, scratch)?;
                *filled += read;
                Ok(read)
            }
        }
    }
}

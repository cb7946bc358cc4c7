//! The receiving half of one stream. How it is used: [`receiving`](super::receiving).

use std::io;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::thread::available_parallelism;
use std::time::Duration;

use farref_proto::{Frame, Lane};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::busy_poll::BusyPoll;
use super::send_stream::{MAIN, SendStream};
use crate::native::endpoint::Endpoint;
use crate::native::frame::{Decoder, Filling, FrameError, Packet, ReceivedMessage, Space};
use crate::native::transport::{MemoryError, PeerMemory, ReadHalf};
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
    /// The other half.
    pub(super) send: Arc<SendStream>,
    /// Whether the peer has offered its memory, and that memory if it can be read.
    pub(super) was_offered: AtomicBool,
    pub(super) memory: OnceLock<PeerMemory>,
    /// When the peer was last told that its memory is being read.
    pub(super) told: AtomicU64,
    /// Itself, for threads that read that memory.
    pub(super) this: Weak<Self>,
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
    pub(super) busy_poll: BusyPoll,
    /// Whether what has waited for the peer's answer may be sent, and nobody has seen to it.
    pub(super) may_send: bool,
    /// What is read out of the peer's memory, before anything else is read.
    pub(super) reading: Option<Reading>,
}

/// Whether another process can run while this one looks for what it says.
fn has_cores() -> bool {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZero::get)) > 1
}

/// What came of reading parts: where they are.
pub(super) type Read = Result<Vec<Filling>, ReadFailure>;

/// Parts that are being read: where they will be in the end.
pub(super) type Reading = oneshot::Receiver<Read>;

/// Why a part could not be read. None is more than the end of the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    #[error("cannot read the peer's memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("cannot read a region of the peer's: {0}")]
    Region(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the connection is over")]
    Outdated,
    #[error("there is no thread to read the peer's memory")]
    NoThread,
}

impl RecvStream {
    pub(super) fn new(
        epoch: u64,
        lanes: &'static [Lane],
        mut stream: ReadHalf,
        send: &Arc<SendStream>,
        endpoint: &Endpoint,
    ) -> Arc<Self> {
        let mut decoder = Decoder::new(endpoint.limits, Arc::clone(&endpoint.recycler));
        if stream.descriptors().is_some() {
            decoder.permit_regions();
        }
        // Large messages take long, and what is within the process needs no system to wake anybody.
        let busy_poll = match stream {
            ReadHalf::Memory(_) => Duration::ZERO,
            _ if lanes != MAIN || !has_cores() => Duration::ZERO,
            // What is encrypted and decrypted takes longer to follow.
            ReadHalf::Tls(_) => 2 * endpoint.config.busy_poll,
            _ => endpoint.config.busy_poll,
        };
        let busy_poll = BusyPoll::new(busy_poll);
        Arc::new_cyclic(|this| Self {
            epoch,
            lanes,
            state: Mutex::new(RecvState {
                stream,
                decoder,
                frames: Vec::new(),
                messages: Vec::new(),
                acknowledged: Vec::new(),
                closed: false,
                busy_poll,
                may_send: false,
                reading: None,
            }),
            polls: AtomicU64::new(0),
            send: Arc::clone(send),
            was_offered: AtomicBool::new(false),
            memory: OnceLock::new(),
            told: AtomicU64::new(endpoint.now().0),
            this: Weak::clone(this),
        })
    }

    /// How often the task was polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Whether there is something to take from it, as far as the system is not to be asked: a pipe within the process
    /// knows, and so does a thread that reads the peer's memory, before which nothing else is read. None if it has
    /// neither, or somebody reads right now.
    pub(crate) fn is_readable(&self) -> Option<bool> {
        let state = try_lock(&self.state)?;
        match (&state.reading, &state.stream) {
            (Some(reading), _) => Some(!reading.is_empty()),
            (None, ReadHalf::Memory(pipe)) => Some(pipe.is_readable()),
            (None, ReadHalf::Tls(read)) if read.has_more() => Some(true),
            (None, _) => None,
        }
    }
}

impl RecvState {
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(reading) = &mut self.reading {
            let read = ready!(Pin::new(reading).poll(context));
            return Poll::Ready(self.finish_reading(read.ok()));
        }
        match self.decoder.space() {
            Space::Buffer(buffer) => self.stream.poll_receive(context, buffer),
            Space::Piece(mut piece) => self.stream.poll_read_buf(context, &mut piece),
        }
    }

    /// Takes descriptors that came with what was read.
    pub(super) fn sort_descriptors(&mut self) -> Result<(), FrameError> {
        match self.stream.descriptors() {
            Some(come) => self.decoder.put_descriptors(come),
            None => Ok(()),
        }
    }

    pub(super) fn read_now(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        if let Some(reading) = &mut self.reading {
            return match reading.try_recv() {
                Ok(read) => self.finish_reading(Some(read)),
                Err(TryRecvError::Empty) => Err(io::ErrorKind::WouldBlock.into()),
                Err(TryRecvError::Closed) => self.finish_reading(None),
            };
        }
        match self.decoder.space() {
            Space::Buffer(buffer) => self.stream.receive_now(buffer, scratch),
            Space::Piece(mut piece) => self.stream.read_now(&mut piece, scratch),
        }
    }

    /// What came of reading the peer's memory counts as read from the stream. None if the thread did not get to it.
    fn finish_reading(&mut self, read: Option<Read>) -> io::Result<usize> {
        self.reading = None;
        if let Some(Err(ReadFailure::Frame(FrameError::OutOfMemory(bytes)))) = read {
            // FR-7; not the end of the stream.
            self.decoder.refuse_named(bytes);
            return Ok(1);
        }
        let fillings = read
            .ok_or_else(|| io::Error::other("nobody reads the peer's memory any more"))?
            .map_err(io::Error::other)?;
        let length = fillings.iter().map(Filling::length).sum();
        self.decoder.put_named(fillings);
        Ok(length)
    }
}

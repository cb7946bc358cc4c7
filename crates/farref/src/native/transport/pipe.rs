//! A pipe within the process: bounded, ordered, and breakable in every way a socket is.
//!
//! In a [simulation](crate::support::simulation) a pipe takes and gives less than it could now and then, and lets bytes
//! wait for different times: each pipe keeps its order, and two pipes overtake each other.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::support::lock::lock;
use crate::support::simulation::{self, draw};

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Pipe {
    state: Mutex<PipeState>,
    /// One writer waits here; a permit is kept for one that is about to wait.
    writable: Notify,
}

#[derive(Debug)]
struct PipeState {
    /// What is under way, and when it arrives.
    queue: VecDeque<(Instant, Bytes)>,
    queued: usize,
    capacity: usize,
    latency: Duration,
    /// Nothing arrives, nothing is lost.
    frozen: bool,
    /// Whether the writer is gone, and whether in good order.
    end: Option<WriterEnd>,
    reader_gone: bool,
    /// Bytes that still pass before the connection breaks.
    cut_after: Option<u64>,
    /// The reader, if it waits.
    reader: Option<Waker>,
}

/// How a direction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriterEnd {
    /// The reader gets what is under way, then the end of the stream.
    Closed,
    /// The reader gets what is under way, then an error.
    Reset,
}

/// Both directions of a connection, as seen by the network.
#[derive(Debug)]
pub(super) struct Duplex {
    pub(super) pipes: [Arc<Pipe>; 2],
}

/// The reading end of a pipe.
#[derive(Debug)]
pub(crate) struct PipeReader {
    pipe: Arc<Pipe>,
    /// When what is under way arrives, while the reader waits for that.
    arrival: Option<Pin<Box<Sleep>>>,
    /// Keeps the connection within the network's reach.
    _duplex: Arc<Duplex>,
}

/// The writing end of a pipe.
#[derive(Debug)]
pub(crate) struct PipeWriter {
    pipe: Arc<Pipe>,
    /// The connection, which breaks as a whole when a cut falls due.
    duplex: Arc<Duplex>,
}

impl Duplex {
    pub(super) fn new(capacity: usize, latency: Duration) -> Arc<Self> {
        let pipe = || Arc::new(Pipe::new(capacity, latency));
        Arc::new(Self {
            pipes: [pipe(), pipe()],
        })
    }

    /// What the end with this index (0 or 1) reads from and writes to.
    pub(super) fn end(self: &Arc<Self>, index: usize) -> (PipeReader, PipeWriter) {
        let [first, second] = &self.pipes;
        let (from, to) = if index == 0 {
            (second, first)
        } else {
            (first, second)
        };
        (
            PipeReader {
                pipe: Arc::clone(from),
                arrival: None,
                _duplex: Arc::clone(self),
            },
            PipeWriter {
                pipe: Arc::clone(to),
                duplex: Arc::clone(self),
            },
        )
    }

    /// Whether nothing arrives for now.
    pub(super) fn set_frozen(&self, frozen: bool) {
        for pipe in &self.pipes {
            pipe.set_frozen(frozen);
        }
    }

    /// Breaks both directions; what is under way is lost.
    pub(super) fn cut(&self) {
        for pipe in &self.pipes {
            pipe.reset(true);
        }
    }

    /// Whether an end is gone or the connection is cut.
    pub(super) fn is_over(&self) -> bool {
        self.pipes.iter().any(|pipe| {
            let state = pipe.state();
            state.end.is_some() || state.reader_gone
        })
    }
}

impl Pipe {
    fn new(capacity: usize, latency: Duration) -> Self {
        Self {
            state: Mutex::new(PipeState {
                queue: VecDeque::new(),
                queued: 0,
                capacity,
                latency,
                frozen: false,
                end: None,
                reader_gone: false,
                cut_after: None,
                reader: None,
            }),
            writable: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        lock(&self.state)
    }

    /// There is something to see for the reader.
    fn wake_reader(&self) {
        let reader = self.state().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn set_frozen(&self, frozen: bool) {
        self.state().frozen = frozen;
        self.wake_reader();
    }

    pub(super) fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    pub(super) fn set_cut_after(&self, bytes: u64) {
        self.state().cut_after = Some(bytes);
    }

    fn reset(&self, lose: bool) {
        let lost = {
            let mut state = self.state();
            state.end = Some(WriterEnd::Reset);
            // A broken connection says so even through a partition: the end that broke it knows.
            state.frozen = false;
            if lose {
                state.queued = 0;
                std::mem::take(&mut state.queue)
            } else {
                VecDeque::new()
            }
        };
        drop(lost);
        self.wake_reader();
        self.writable.notify_one();
    }
}

impl PipeReader {
    pub(crate) fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        loop {
            // Before looking, so that nothing is missed that comes after.
            self.pipe.state().reader = Some(context.waker().clone());
            match self.try_read(buffer)? {
                Read::Some(read) => return Poll::Ready(Ok(read)),
                Read::Nothing => return Poll::Pending,
                Read::Later(at) => {
                    let arrival = self.arrival.insert(Box::pin(sleep_until(at)));
                    ready!(arrival.as_mut().poll(context));
                }
            }
        }
    }

    /// Reads what is there.
    pub(crate) fn read_now(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        match self.try_read(buffer)? {
            Read::Some(read) => Ok(read),
            Read::Nothing | Read::Later(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether there is something to read, or the end.
    pub(crate) fn is_readable(&self) -> bool {
        let state = self.pipe.state();
        let arrived = state.queue.front().map(|(at, _)| *at <= Instant::now());
        !state.frozen && arrived.unwrap_or_else(|| state.end.is_some())
    }

    fn try_read(&self, buffer: &mut impl BufMut) -> io::Result<Read> {
        let mut state = self.pipe.state();
        if state.frozen {
            return Ok(Read::Nothing);
        }
        let now = Instant::now();
        let room = some_of(buffer.chunk_mut().len());
        let mut read = 0;
        let mut later = None;
        while read < room
            && let Some((at, chunk)) = state.queue.front_mut()
        {
            if *at > now {
                later = Some(*at);
                break;
            }
            let piece = chunk.split_to(chunk.len().min(room - read));
            read += piece.len();
            buffer.put_slice(&piece);
            if !chunk.has_remaining() {
                state.queue.pop_front();
            }
        }
        if read > 0 {
            state.queued = state.queued.saturating_sub(read);
            drop(state);
            self.pipe.writable.notify_one();
            return Ok(Read::Some(read));
        }
        match (later, state.end) {
            (Some(at), _) => Ok(Read::Later(at)),
            (None, None) => Ok(Read::Nothing),
            (None, Some(WriterEnd::Closed)) => Ok(Read::Some(0)),
            (None, Some(WriterEnd::Reset)) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

/// How much of what could be done at once is: all of it, but for simulations.
fn some_of(all: usize) -> usize {
    /// One of so many is cut short.
    const CUT_SHORT: u64 = 4;
    match draw(CUT_SHORT) {
        Some(0) => draw(all as u64)
            .map_or(all, |some| some as usize + 1)
            .min(all),
        _ => all,
    }
}

/// How much longer than others these bytes are under way: not at all, but in simulations.
fn delay() -> Duration {
    /// One of so many is late, by so many milliseconds at most.
    const LATE: (u64, u64) = (4, 20);
    match draw(LATE.0) {
        Some(0) => Duration::from_millis(draw(LATE.1).unwrap_or_default()),
        _ => Duration::ZERO,
    }
}

enum Read {
    Some(usize),
    Nothing,
    Later(Instant),
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.pipe.state().reader_gone = true;
        self.pipe.writable.notify_one();
    }
}

impl PipeWriter {
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.pipe.state();
        if state.end.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.reader_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut room = state.capacity.saturating_sub(state.queued);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Some(cut_after) = state.cut_after {
            room = room.min(usize::try_from(cut_after).unwrap_or(usize::MAX));
        }
        if simulation::is_on() {
            let all = slices.iter().map(|slice| slice.len()).sum::<usize>();
            room = some_of(room.min(all.max(1)));
        }
        let mut chunk = BytesMut::new();
        for slice in slices {
            let take = slice.len().min(room - chunk.len());
            chunk.extend_from_slice(slice.get(..take).unwrap_or_default());
        }
        let written = chunk.len();
        if written > 0 {
            let mut arrives = Instant::now() + state.latency;
            if simulation::is_on() {
                let before = state.queue.back().map(|(at, _)| *at);
                arrives = (arrives + delay()).max(before.unwrap_or(arrives));
            }
            state.queue.push_back((arrives, chunk.freeze()));
            state.queued += written;
        }
        let is_cut = state.cut_after.as_mut().is_some_and(|cut_after| {
            *cut_after -= written as u64;
            *cut_after == 0
        });
        drop(state);
        if is_cut {
            // What has passed until then arrives; what comes the other way is lost.
            self.pipe.reset(false);
            self.duplex
                .pipes
                .iter()
                .filter(|pipe| !Arc::ptr_eq(pipe, &self.pipe))
                .for_each(|pipe| pipe.reset(true));
        }
        self.pipe.wake_reader();
        if written == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(written)
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        while !self.is_writable() {
            self.pipe.writable.notified().await;
        }
        Ok(())
    }

    /// Whether there is room, or nobody to read.
    pub(crate) fn is_writable(&self) -> bool {
        let state = self.pipe.state();
        state.queued < state.capacity || state.end.is_some() || state.reader_gone
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.pipe.state().end.get_or_insert(WriterEnd::Closed);
        self.pipe.wake_reader();
    }
}

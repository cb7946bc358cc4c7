//! Frames of one connection on their way in.
//!
//! All reading goes through one buffer, so that a small message, or several, cost one read. A large frame takes
//! what the buffer has of it, and is then read into memory of its own.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::PipeError;
use super::shared::{Traffic, count};
use super::storage::{Filling, Room, Storage};

/// How much is read at once.
const BUFFER: usize = 64 << 10;
/// Frames up to this length are taken from the buffer. One of them fits beside what is before it.
const SMALL: usize = 32 << 10;
/// The length before every frame.
const PREFIX: usize = 8;

/// Reads the frames of one connection.
#[derive(Debug)]
pub(super) struct FrameReader {
    half: OwnedReadHalf,
    buffer: Box<[u8]>,
    /// What the buffer has that is not taken yet.
    start: usize,
    end: usize,
    /// How much of that was shown last, and is taken when the next frame is asked for.
    shown: usize,
    /// The length of the frame that is under way.
    length: Option<usize>,
    /// A large frame that is under way.
    filling: Option<Filling>,
    closed: bool,
    traffic: Arc<Traffic>,
}

/// A frame.
pub(super) enum Frame<'a> {
    /// A small one, in the buffer.
    Here(&'a [u8]),
    /// A large one.
    Own(Storage),
}

impl FrameReader {
    pub(super) fn new(half: OwnedReadHalf, traffic: &Arc<Traffic>) -> Self {
        Self::with_buffer(half, traffic, BUFFER)
    }

    /// One on which nothing is to come: it is only [watched](Self::poll_ahead).
    pub(super) fn silent(half: OwnedReadHalf, traffic: &Arc<Traffic>) -> Self {
        Self::with_buffer(half, traffic, 1)
    }

    fn with_buffer(half: OwnedReadHalf, traffic: &Arc<Traffic>, size: usize) -> Self {
        Self {
            half,
            buffer: vec![0; size].into(),
            start: 0,
            end: 0,
            shown: 0,
            length: None,
            filling: None,
            closed: false,
            traffic: Arc::clone(traffic),
        }
    }

    /// The connection.
    pub(super) fn stream(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// Whether the peer has closed it. There may be something in the buffer still.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether nothing is in the buffer or under way.
    pub(super) fn is_idle(&self) -> bool {
        self.start + self.shown == self.end && self.length.is_none()
    }

    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start >= self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// The next frame, of elements of this width. `check` judges its length before anything is done about it.
    ///
    /// None if the peer has closed the connection before the first byte of it.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        width: usize,
        check: impl FnOnce(u64) -> Result<(), PipeError>,
    ) -> Poll<Result<Option<Frame<'_>>, PipeError>> {
        let shown = std::mem::take(&mut self.shown);
        self.consume(shown);
        let length = match self.length {
            Some(length) => length,
            None => {
                while self.buffered().len() < PREFIX {
                    let more = ready!(self.poll_buffer(cx))?;
                    if !more && self.start == self.end {
                        return Poll::Ready(Ok(None));
                    }
                    if !more {
                        return Poll::Ready(Err(PipeError::Closed("in the middle of a frame")));
                    }
                }
                let prefix = self.buffered().first_chunk().copied();
                let announced = u64::from_le_bytes(prefix.unwrap_or_default());
                check(announced)?;
                let length =
                    usize::try_from(announced).map_err(|_| PipeError::OutOfMemory(announced))?;
                self.consume(PREFIX);
                *self.length.insert(length)
            }
        };
        if length <= SMALL {
            while self.buffered().len() < length {
                if !ready!(self.poll_buffer(cx))? {
                    return Poll::Ready(Err(PipeError::Closed("in the middle of a frame")));
                }
            }
            self.length = None;
            self.shown = length;
            let end = self.start + length;
            let frame = self.buffer.get(self.start..end).unwrap_or_default();
            return Poll::Ready(Ok(Some(Frame::Here(frame))));
        }
        ready!(self.poll_filling(cx, length, width))?;
        self.length = None;
        let storage = self.filling.take().map(Filling::finish);
        Poll::Ready(Ok(storage.map(Frame::Own)))
    }

    /// Reads ahead, if there is nothing in the buffer: to have it early, and to see the end of the connection.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), PipeError> {
        let shown = std::mem::take(&mut self.shown);
        self.consume(shown);
        if self.start == self.end && self.filling.is_none() && !self.closed {
            let _: Poll<bool> = self.poll_buffer(cx)?;
        }
        Ok(())
    }

    /// Reads into the buffer. Says whether anything came; if not, the peer has closed the connection.
    fn poll_buffer(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, PipeError>> {
        if self.closed {
            return Poll::Ready(Ok(false));
        }
        // A small frame fits behind the start once that is in the first half.
        if self.start > BUFFER - SMALL - PREFIX {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let came = ready!(poll_read(&mut self.half, cx, room)).map_err(reading)?;
        self.end += came;
        Poll::Ready(Ok(self.note(came)))
    }

    /// Reads a large frame.
    fn poll_filling(
        &mut self,
        cx: &mut Context<'_>,
        length: usize,
        width: usize,
    ) -> Poll<Result<(), PipeError>> {
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => {
                let mut filling = Filling::new(length, width);
                let taken = filling.take(self.buffered())?;
                self.consume(taken);
                filling
            }
        };
        while !filling.is_full() {
            let came = match filling.room()? {
                Room::Behind(bytes, room) => {
                    let mut rest = bytes.limit(room);
                    let read = pin!(self.half.read_buf(&mut rest));
                    read.poll(cx)
                }
                Room::Here(room) => poll_read(&mut self.half, cx, room),
            };
            let Poll::Ready(came) = came else {
                self.filling = Some(filling);
                return Poll::Pending;
            };
            let came = came.map_err(reading)?;
            filling.advance(came);
            if !self.note(came) {
                return Poll::Ready(Err(PipeError::Closed("in the middle of a frame")));
            }
        }
        self.filling = Some(filling);
        Poll::Ready(Ok(()))
    }

    fn note(&mut self, came: usize) -> bool {
        count(&self.traffic.bytes_received, came);
        self.closed = came == 0;
        came > 0
    }
}

fn poll_read(
    half: &mut OwnedReadHalf,
    cx: &mut Context<'_>,
    room: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(room);
    ready!(Pin::new(half).poll_read(cx, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}

fn reading(error: io::Error) -> PipeError {
    PipeError::Broken {
        doing: "while reading",
        error,
    }
}

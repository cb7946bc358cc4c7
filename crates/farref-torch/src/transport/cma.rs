//! Tensors through memory: the channel `cma` at both ends of a pipe.
//!
//! A sender says where a tensor is and keeps it there until the receiver says that it has read it. Both say so on two
//! connections that carry nothing else, in both directions.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::shared::{Traffic, count};
use super::storage::{Filling, Room, Storage};
use super::{Outgoing, PeerProcess, PipeError, StorageBytes};
use crate::pipe::{LONGEST_MEMORY_DESCRIPTOR, MemoryDescriptor};

/// A frame without bytes: that something has been read.
const COMPLETION: [u8; 8] = [0; 8];
/// So many of them are written and read at once.
const COMPLETIONS: usize = 64;
/// The most tensors that wait to be read by the peer. PyTorch's workers read them as they come.
const MOST_LENT: usize = 4096;
/// So much is read at once, before others have their turn.
const STEP: usize = 1 << 20;

/// The end at which tensors leave.
#[derive(Debug)]
pub(super) struct CmaSender {
    places: FrameWriter,
    completions: OwnedReadHalf,
    /// How many bytes of the next completion have come.
    begun: usize,
    /// What the peer has not read yet, in the order in which it was told.
    lent: VecDeque<Bytes>,
    traffic: Arc<Traffic>,
}

impl CmaSender {
    pub(super) fn new(
        places: OwnedWriteHalf,
        completions: OwnedReadHalf,
        traffic: &Arc<Traffic>,
    ) -> Self {
        Self {
            places: FrameWriter::new(places),
            completions,
            begun: 0,
            lent: VecDeque::new(),
            traffic: Arc::clone(traffic),
        }
    }

    /// How many tensors the peer has not read.
    pub(super) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Appends where a storage of so many bytes is.
    pub(super) fn append(
        &mut self,
        storage: &impl StorageBytes,
        length: usize,
    ) -> Result<(), PipeError> {
        let pinned = storage.pinned().filter(|bytes| bytes.len() == length);
        let pinned = pinned.ok_or(PipeError::Storage)?;
        let place = MemoryDescriptor {
            pid: std::process::id(),
            address: pinned.as_ptr().addr() as u64,
        };
        self.places
            .frame(|bytes| bytes.extend_from_slice(&place.encode()));
        self.lent.push_back(pinned);
        Ok(())
    }

    /// Forgets what was appended and not written: all but the first so many.
    pub(super) fn clear(&mut self, lent: usize) {
        self.places.clear();
        self.lent.truncate(lent);
    }

    pub(super) fn poll_write<S: StorageBytes>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &[Outgoing<S>],
        traffic: &Traffic,
    ) -> Poll<Result<(), PipeError>> {
        self.places.poll_write(cx, batch, traffic)
    }

    /// Waits until there is room for more.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PipeError>> {
        self.poll_lent(cx, MOST_LENT)
    }

    /// Waits until the peer has read all but so many.
    pub(super) fn poll_lent(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<(), PipeError>> {
        while self.lent.len() > most {
            ready!(self.poll_completion(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes in what the peer says that it has read. Ready when that was something.
    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PipeError>> {
        let mut said = [0; COMPLETION.len() * COMPLETIONS];
        let came = loop {
            ready!(self.completions.as_ref().poll_read_ready(cx)).map_err(reading)?;
            match self.completions.try_read(&mut said) {
                Ok(0) => return Poll::Ready(Err(PipeError::Over)),
                Ok(came) => break came,
                // Not so ready after all.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(reading(error))),
            }
        };
        count(&self.traffic.bytes_received, came);
        let said = said.get(..came).unwrap_or_default();
        let complete = (self.begun + came) / COMPLETION.len();
        self.begun = (self.begun + came) % COMPLETION.len();
        if said.iter().any(|byte| *byte != 0) || complete > self.lent.len() {
            let claim = "it says that it has read what it was not told of";
            return Poll::Ready(Err(PipeError::Rules(claim)));
        }
        let read: usize = self.lent.drain(..complete).map(|bytes| bytes.len()).sum();
        count(&self.traffic.bytes_sent, read);
        Poll::Ready(Ok(()))
    }

    /// Nobody will read what is lent any more.
    pub(super) fn forget_lent(&mut self) {
        self.lent.clear();
    }

    /// Nothing more is written. Dropping the half that writes would say so to the peer.
    pub(super) fn forget(self) {
        self.places.into_half().forget();
    }
}

/// The end at which tensors arrive.
#[derive(Debug)]
pub(super) struct CmaReceiver {
    places: FrameReader,
    /// There until the end.
    completions: Option<OwnedWriteHalf>,
    /// How many bytes of completions are to be written.
    owed: usize,
    /// The tensor that is being read: where the rest of it is.
    reading: Option<(MemoryDescriptor, Filling)>,
    peer: PeerProcess,
    traffic: Arc<Traffic>,
}

impl CmaReceiver {
    pub(super) fn new(
        places: OwnedReadHalf,
        completions: OwnedWriteHalf,
        peer: PeerProcess,
        traffic: &Arc<Traffic>,
    ) -> Self {
        Self {
            places: FrameReader::new(places, traffic),
            completions: Some(completions),
            owed: 0,
            reading: None,
            peer,
            traffic: Arc::clone(traffic),
        }
    }

    /// The connection on which the peer says where tensors are.
    pub(super) fn places(&mut self) -> &mut FrameReader {
        &mut self.places
    }

    /// The next tensor, of so many bytes and elements of this width. None if the peer has closed the connection.
    pub(super) fn poll_storage(
        &mut self,
        cx: &mut Context<'_>,
        width: usize,
        length: u64,
    ) -> Poll<Result<Option<Storage>, PipeError>> {
        let (place, filling) = match &mut self.reading {
            Some(reading) => reading,
            none => {
                let check = |length| match length <= LONGEST_MEMORY_DESCRIPTOR {
                    true => Ok(()),
                    false => Err(PipeError::Rules("a place in memory takes few bytes")),
                };
                let Some(frame) = ready!(self.places.poll_frame(cx, 1, check))? else {
                    return Poll::Ready(Ok(None));
                };
                let place = MemoryDescriptor::decode(frame.bytes());
                let place = place.map_err(|error| PipeError::Malformed {
                    what: "a place in memory",
                    error,
                })?;
                let length = usize::try_from(length).map_err(|_| PipeError::OutOfMemory(length))?;
                none.insert((place, Filling::new(length, width)))
            }
        };
        let read = match filling.room()? {
            Room::Behind(bytes, room) => {
                let read = room.min(STEP);
                self.peer.read(*place, read, &mut bytes.limit(read))?;
                read
            }
            Room::Here(room) => {
                let read = room.len().min(STEP);
                let mut room = room.get_mut(..read).unwrap_or_default();
                self.peer.read(*place, read, &mut room)?;
                read
            }
        };
        filling.advance(read);
        place.address = place.address.saturating_add(read as u64);
        count(&self.traffic.bytes_received, read);
        if !filling.is_full() {
            // There is more at once, but others have their turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let storage = self.reading.take().map(|(_, filling)| filling.finish());
        self.owed += COMPLETION.len();
        self.poll_owed(cx);
        Poll::Ready(Ok(storage))
    }

    /// Writes what the peer is to hear, as far as there is room for it. If the peer does not listen any more, that
    /// shows elsewhere.
    pub(super) fn poll_owed(&mut self, cx: &mut Context<'_>) {
        let zeros = [0; COMPLETION.len() * COMPLETIONS];
        while let (Some(half), Some(some)) = (
            &mut self.completions,
            zeros.get(..self.owed.min(zeros.len())),
        ) {
            if some.is_empty() {
                return;
            }
            match Pin::new(half).poll_write(cx, some) {
                Poll::Ready(Ok(written)) => {
                    count(&self.traffic.bytes_sent, written);
                    self.owed -= written;
                }
                Poll::Ready(Err(_)) => self.owed = 0,
                Poll::Pending => return,
            }
        }
    }
}

impl Drop for CmaReceiver {
    fn drop(&mut self) {
        // The sender may still have something to say: the pipe is not over yet.
        if let Some(completions) = self.completions.take() {
            completions.forget();
        }
    }
}

fn reading(error: io::Error) -> PipeError {
    PipeError::Broken {
        doing: "while reading",
        error,
    }
}

//! Tensors through memory: the channel `cma` at both ends of a pipe.
//!
//! A sender says where a tensor is and keeps it there until the receiver says that it has read it. Both say so on two
//! connections that carry nothing else, in both directions.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use tokio::io::AsyncWrite;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::{JoinHandle, spawn_blocking};

use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::shared::{Traffic, count};
use super::storage::{Filling, Room, Storage};
use super::{Lent, Outgoing, PeerProcess, PipeError, StorageBytes};
use crate::pipe::{LONGEST_MEMORY_DESCRIPTOR, MemoryDescriptor};

/// A frame without bytes: that something has been read.
const COMPLETION: [u8; 8] = [0; 8];
/// So many of them are written and read at once.
const COMPLETIONS: usize = 64;
/// The most tensors, and their bytes, that wait to be read by the peer before more are shown to it. PyTorch's workers
/// read them as they come.
const MOST_LENT: usize = 4096;
pub(super) const MOST_LENT_BYTES: u64 = 256 << 20;
/// Tensors up to this size are read at once, if it is known whose they are; others by a thread that may wait for them.
const AT_ONCE: usize = 64 << 10;

/// The end at which tensors leave.
#[derive(Debug)]
pub(super) struct CmaSender {
    places: FrameWriter,
    completions: OwnedReadHalf,
    /// How many bytes of the next completion have come.
    begun: usize,
    /// What the peer has not read yet, in the order in which it was told.
    lent: VecDeque<Lent>,
    lent_bytes: u64,
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
            lent_bytes: 0,
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
        let lent = storage.lend().filter(|lent| lent.length == length);
        let lent = lent.ok_or(PipeError::Storage)?;
        let place = MemoryDescriptor {
            pid: std::process::id(),
            address: lent.address,
        };
        self.places
            .frame(|bytes| bytes.extend_from_slice(&place.encode()));
        self.lent_bytes += lent.length as u64;
        self.lent.push_back(lent);
        Ok(())
    }

    /// Forgets what was appended and not written: all but the first so many.
    pub(super) fn clear(&mut self, lent: usize) {
        self.places.clear();
        self.lent.truncate(lent);
        self.lent_bytes = self.lent.iter().map(|lent| lent.length as u64).sum();
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
        while self.lent.len() > MOST_LENT || self.lent_bytes > MOST_LENT_BYTES {
            ready!(self.poll_completion(cx))?;
        }
        Poll::Ready(Ok(()))
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
            ready!(self.completions.as_ref().poll_read_ready(cx)).map_err(reading_failed)?;
            match self.completions.try_read(&mut said) {
                Ok(0) => return Poll::Ready(Err(PipeError::Over)),
                Ok(came) => break came,
                // Not so ready after all.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(reading_failed(error))),
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
        let read: usize = self.lent.drain(..complete).map(|lent| lent.length).sum();
        self.lent_bytes -= read as u64;
        count(&self.traffic.bytes_sent, read);
        Poll::Ready(Ok(()))
    }

    /// What is lent is not to be read any more (TR-13).
    pub(super) fn give_up(&mut self) {
        self.places.shut_down();
        self.lent.clear();
        self.lent_bytes = 0;
    }

    /// Nothing more is written. Unless something is lent, the peer does not hear of that.
    pub(super) fn forget(mut self) {
        if !self.lent.is_empty() {
            self.give_up();
        }
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
    /// Whose memory it is. Not here while a thread reads.
    peer: Option<PeerProcess>,
    reading: Option<JoinHandle<(PeerProcess, Result<Filling, PipeError>)>>,
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
            peer: Some(peer),
            reading: None,
            traffic: Arc::clone(traffic),
        }
    }

    /// The connection on which the peer says where tensors are.
    pub(super) fn places(&mut self) -> &mut FrameReader {
        &mut self.places
    }

    /// Nothing more is read.
    pub(super) fn end(&mut self) {
        self.reading = None;
    }

    /// The next tensor, of so many bytes and elements of this width. None if the peer has closed the connection.
    pub(super) fn poll_storage(
        &mut self,
        cx: &mut Context<'_>,
        width: usize,
        length: u64,
    ) -> Poll<Result<Option<Storage>, PipeError>> {
        if self.reading.is_none() {
            let Some(place) = ready!(self.poll_place(cx))? else {
                return Poll::Ready(Ok(None));
            };
            let length = usize::try_from(length).map_err(|_| PipeError::OutOfMemory(length))?;
            let filling = Filling::new(length, width);
            let mut peer = self.peer.take().ok_or(PipeError::Over)?;
            if length <= AT_ONCE && peer.is_known() {
                let filled = fill(&mut peer, place, filling);
                self.peer = Some(peer);
                return Poll::Ready(self.arrived(cx, filled).map(Some));
            }
            self.reading = Some(spawn_blocking(move || {
                let filled = fill(&mut peer, place, filling);
                (peer, filled)
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(Err(PipeError::Over));
        };
        let (peer, filled) = ready!(Pin::new(reading).poll(cx)).map_err(|error| {
            let error = io::Error::other(error);
            reading_failed(error)
        })?;
        self.reading = None;
        self.peer = Some(peer);
        Poll::Ready(self.arrived(cx, filled).map(Some))
    }

    /// Where the next tensor is.
    fn poll_place(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<MemoryDescriptor>, PipeError>> {
        let check = |length| match length <= LONGEST_MEMORY_DESCRIPTOR {
            true => Ok(()),
            false => Err(PipeError::Rules("a place in memory takes few bytes")),
        };
        let Some(frame) = ready!(self.places.poll_frame(cx, 1, check))? else {
            return Poll::Ready(Ok(None));
        };
        let place = MemoryDescriptor::decode(frame.bytes());
        Poll::Ready(place.map(Some).map_err(|error| PipeError::Malformed {
            what: "a place in memory",
            error,
        }))
    }

    /// A tensor has been read, or cannot be. The peer hears of it, if it has not given up (TR-13): then there is no other
    /// reason.
    fn arrived(
        &mut self,
        cx: &mut Context<'_>,
        filled: Result<Filling, PipeError>,
    ) -> Result<Storage, PipeError> {
        if !PeerProcess::is_connected(self.places.stream()) {
            return Err(PipeError::Closed("in the middle of a tensor"));
        }
        let storage = filled?.finish();
        let read = storage.bytes().len();
        count(&self.traffic.bytes_received, read);
        count(&self.traffic.bytes_from_memory, read);
        self.owed += COMPLETION.len();
        self.poll_owed(cx);
        Ok(storage)
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

/// Reads all of a tensor.
fn fill(
    peer: &mut PeerProcess,
    mut place: MemoryDescriptor,
    mut filling: Filling,
) -> Result<Filling, PipeError> {
    while !filling.is_full() {
        let read = match filling.room()? {
            Room::Behind(bytes, room) => {
                peer.read(place, room, &mut bytes.limit(room))?;
                room
            }
            Room::Here(mut room) => {
                let length = room.len();
                peer.read(place, length, &mut room)?;
                length
            }
        };
        filling.advance(read);
        place.address = place.address.saturating_add(read as u64);
    }
    Ok(filling)
}

fn reading_failed(error: io::Error) -> PipeError {
    PipeError::Broken {
        doing: "while reading",
        error,
    }
}

//! What is to be written to one connection, and how far that has got.
//!
//! Small pieces are copied together, so that they leave in one write; large ones leave from where they are.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;

use super::shared::{Traffic, count};
use super::{Outgoing, PipeError, StorageBytes};

/// Pieces up to this size are copied: cheaper than an entry in a vectored write.
pub(crate) const COPY_LIMIT: usize = 16 << 10;
/// The most slices of one write.
const MAX_SLICES: usize = 64;
/// The most bytes that are looked at for one write: a lock may be around them.
const LOOK_LIMIT: usize = 1 << 20;
/// A copy buffer above this size is not kept.
const KEEP: usize = 256 << 10;

/// Writes the frames of one connection.
#[derive(Debug)]
pub(super) struct FrameWriter {
    half: OwnedWriteHalf,
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    /// The first piece that is not written, and how much of it is.
    next: usize,
    offset: usize,
}

#[derive(Clone, Debug)]
enum Piece {
    Copied(Range<usize>),
    /// Part of a message of the batch, by its index.
    Shared {
        message: usize,
        part: Part,
        length: usize,
    },
}

/// Which bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Payload,
    TensorList,
    Storage(usize),
}

/// Where bytes are.
enum Place<'a, S> {
    Here(&'a [u8]),
    Behind(&'a S),
}

impl FrameWriter {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self {
            half,
            copied: Vec::new(),
            pieces: Vec::new(),
            next: 0,
            offset: 0,
        }
    }

    /// Lets the peer know at once that nothing follows.
    pub(super) fn shut_down(&self) {
        drop(SockRef::from(self.half.as_ref()).shutdown(Shutdown::Write));
    }

    pub(super) fn into_half(self) -> OwnedWriteHalf {
        self.half
    }

    /// Appends what `write` writes.
    pub(super) fn copy(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.copied.len();
        write(&mut self.copied);
        let end = self.copied.len();
        match self.pieces.last_mut() {
            Some(Piece::Copied(range)) => range.end = end,
            _ if start < end => self.pieces.push(Piece::Copied(start..end)),
            _ => {}
        }
    }

    /// Appends a frame of what `write` writes.
    pub(super) fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.copy(|bytes| {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 8]);
            write(bytes);
            let length = (bytes.len() - start - 8) as u64;
            if let Some(prefix) = bytes.get_mut(start..start + 8) {
                prefix.copy_from_slice(&length.to_le_bytes());
            }
        });
    }

    /// Appends a frame of bytes of a message: number `index` of the batch. So many were announced.
    pub(super) fn share<S: StorageBytes>(
        &mut self,
        index: usize,
        message: &Outgoing<S>,
        part: Part,
        length: usize,
    ) -> Result<(), PipeError> {
        let place = message.place(part);
        if let Place::Here(bytes) = &place
            && bytes.len() != length
        {
            return Err(PipeError::Storage);
        }
        self.copy(|bytes| bytes.extend_from_slice(&(length as u64).to_le_bytes()));
        if length > COPY_LIMIT {
            self.pieces.push(Piece::Shared {
                message: index,
                part,
                length,
            });
            return Ok(());
        }
        match place {
            Place::Here(here) => self.copy(|bytes| bytes.extend_from_slice(here)),
            Place::Behind(storage) => {
                let start = self.copied.len();
                self.copy(|bytes| {
                    storage.look(0..length, &mut |seen| {
                        if bytes.len() == start && seen.len() == length {
                            bytes.extend_from_slice(seen);
                        }
                    });
                });
                if self.copied.len() != start + length {
                    return Err(PipeError::Storage);
                }
            }
        }
        Ok(())
    }

    /// Writes all that was appended, of this batch.
    pub(super) fn poll_write<S: StorageBytes>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &[Outgoing<S>],
        traffic: &Traffic,
    ) -> Poll<Result<(), PipeError>> {
        while self.next < self.pieces.len() {
            let written = ready!(self.poll_once(cx, batch))?;
            count(&traffic.bytes_sent, written);
            self.advance(written);
        }
        self.clear();
        Poll::Ready(Ok(()))
    }

    fn poll_once<S: StorageBytes>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &[Outgoing<S>],
    ) -> Poll<Result<usize, PipeError>> {
        let Self {
            half,
            copied,
            pieces,
            next,
            offset,
        } = self;
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut count = 0;
        let mut skip = *offset;
        let mut behind = None;
        for piece in pieces.iter().skip(*next).take(MAX_SLICES) {
            let place = match piece {
                Piece::Copied(range) => Place::Here(copied.get(range.clone()).unwrap_or_default()),
                Piece::Shared { message, part, .. } => match batch.get(*message) {
                    Some(message) => message.place(*part),
                    None => return Poll::Ready(Err(PipeError::Torn)),
                },
            };
            match (place, slices.get_mut(count)) {
                (Place::Here(bytes), Some(slice)) => {
                    *slice = IoSlice::new(bytes.get(skip..).unwrap_or_default());
                }
                (Place::Behind(storage), _) => {
                    // The last of this write: no two locks are held at a time.
                    behind = Some((storage, piece.length()));
                    break;
                }
                _ => break,
            }
            skip = 0;
            count += 1;
        }
        let Some((storage, length)) = behind else {
            let slices = slices.get(..count).unwrap_or_default();
            return written(ready!(poll_write(half, cx, slices)));
        };
        // TR-5: there is no need to look if nothing can be written.
        ready!(half.as_ref().poll_write_ready(cx)).map_err(writing)?;
        let range = skip..length.min(skip.saturating_add(LOOK_LIMIT));
        let mut result = None;
        storage.look(range.clone(), &mut |bytes| {
            if bytes.len() == range.len() && result.is_none() {
                let mut slices = slices;
                if let Some(slice) = slices.get_mut(count) {
                    *slice = IoSlice::new(bytes);
                }
                let slices = slices.get(..=count).unwrap_or_default();
                result = Some(poll_write(half, cx, slices));
            }
        });
        match result {
            Some(result) => written(ready!(result)),
            None => Poll::Ready(Err(PipeError::Storage)),
        }
    }

    fn advance(&mut self, written: usize) {
        let mut left = written + self.offset;
        while let Some(piece) = self.pieces.get(self.next) {
            if left < piece.length() {
                break;
            }
            left -= piece.length();
            self.next += 1;
        }
        self.offset = left;
    }

    /// Forgets all that was appended.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.pieces.shrink_to(1024);
        self.copied.clear();
        self.copied.shrink_to(KEEP);
        self.next = 0;
        self.offset = 0;
    }
}

impl Piece {
    fn length(&self) -> usize {
        match self {
            Self::Copied(range) => range.len(),
            Self::Shared { length, .. } => *length,
        }
    }
}

impl<S: StorageBytes> Outgoing<S> {
    fn place(&self, part: Part) -> Place<'_, S> {
        match part {
            Part::Payload => Place::Here(&self.payload),
            Part::TensorList => Place::Here(&self.tensor_list),
            Part::Storage(index) => match self.storages.get(index) {
                None => Place::Here(&[]),
                Some(storage) => match storage.here() {
                    Some(bytes) => Place::Here(bytes),
                    None => Place::Behind(storage),
                },
            },
        }
    }
}

fn poll_write(
    half: &mut OwnedWriteHalf,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    match slices {
        [slice] => Pin::new(half).poll_write(cx, slice),
        _ => Pin::new(half).poll_write_vectored(cx, slices),
    }
}

fn written(result: io::Result<usize>) -> Poll<Result<usize, PipeError>> {
    Poll::Ready(match result {
        Ok(0) => Err(writing(io::ErrorKind::WriteZero.into())),
        Ok(written) => Ok(written),
        Err(error) => Err(writing(error)),
    })
}

fn writing(error: io::Error) -> PipeError {
    PipeError::Broken {
        doing: "while writing",
        error,
    }
}

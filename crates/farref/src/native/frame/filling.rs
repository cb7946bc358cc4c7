//! A large piece on its way into memory of its own, which grows with what has come of it (FR-2).
//!
//! Bytes are read into memory that nothing was written to before. Wider elements are read into zeros,
//! written a little ahead of what comes, while they are in the cache: a vector of them has no safe way
//! to be filled otherwise.

use bytes::{Buf, BufMut, BytesMut, buf};

use super::error::FrameError;
use crate::codec::{Elements, Width};

/// What the memory of one large piece begins with, whatever was announced.
const FIRST_RESERVE: usize = 1 << 20;
/// How many times as much as has arrived of a large piece is reserved when its memory is full.
pub(super) const RESERVE_AHEAD: usize = 64;
/// From this size on fresh memory is asked for in huge pages: the system hands them out in a third of the time, of which it
/// takes more than the copy into them. In two of them, at least one is whole.
const HUGE_FROM: usize = 4 << 20;
/// How many zeros are written ahead of what comes.
const ZEROS_AHEAD: usize = 256 << 10;

/// Where the next bytes go.
#[derive(Debug)]
pub(crate) enum Space<'a> {
    /// Into the common buffer.
    Buffer(&'a mut BytesMut),
    /// Into the buffer of one large piece.
    Piece(buf::Limit<&'a mut Vec<u8>>),
    /// Into elements of more than one byte. Whoever puts bytes there adds their number to the second.
    Elements(&'a mut [u8], &'a mut usize),
}

/// A large piece on its way into memory of its own.
#[derive(Debug)]
pub(crate) struct Filling {
    elements: Elements,
    /// How many bytes have come, if the elements are not bytes: those are as many as have come.
    filled: usize,
    length: usize,
}

impl Filling {
    /// A piece of this length, in memory that was used before if there is some.
    pub(super) fn new(
        length: usize,
        width: Width,
        used: Option<Elements>,
    ) -> Result<Self, FrameError> {
        let mut elements = used.unwrap_or_else(|| Elements::empty(width));
        match &mut elements {
            Elements::One(bytes) => bytes.clear(),
            // What is left in it is as good as zeros.
            wider => wider.resize(wider.bytes().len().min(length)),
        }
        let mut filling = Self {
            elements,
            filled: 0,
            length,
        };
        filling.grow(FIRST_RESERVE)?;
        Ok(filling)
    }

    /// What has come, once that is all.
    pub(super) fn finish(self) -> Elements {
        self.elements
    }

    fn filled(&self) -> usize {
        match &self.elements {
            Elements::One(bytes) => bytes.len(),
            _ => self.filled,
        }
    }

    /// How much can be put into it now.
    fn room(&self) -> usize {
        match &self.elements {
            Elements::One(bytes) => self.length.min(bytes.capacity()) - bytes.len(),
            wider => wider.bytes().len() - self.filled,
        }
    }

    /// Makes the memory `capacity` bytes large, or as large as the piece (FR-2).
    fn grow(&mut self, capacity: usize) -> Result<(), FrameError> {
        let before = self.elements.capacity();
        self.elements
            .try_reserve_exact(capacity.min(self.length))
            .map_err(|_| FrameError::OutOfMemory(self.length as u64))?;
        let now = self.elements.capacity();
        if now > before && now >= HUGE_FROM {
            self.elements.prefer_huge_pages();
        }
        Ok(())
    }

    /// Has `read` bring at most `most` of the bytes that are missing: it is told from which on, and how many, and puts
    /// so many where it is told to. Says how many are still missing.
    pub(crate) fn read_with<E: From<FrameError>>(
        &mut self,
        most: usize,
        read: impl FnOnce(usize, usize, &mut dyn BufMut) -> Result<(), E>,
    ) -> Result<usize, E> {
        if self.room() == 0 && self.filled() < self.length {
            self.make_room()?;
        }
        let (at, count) = (self.filled(), self.room().min(most));
        match &mut self.elements {
            Elements::One(bytes) => read(at, count, &mut bytes.limit(count))?,
            wider => {
                let rest = wider.bytes_mut().get_mut(at..).unwrap_or_default();
                read(at, count, &mut rest.limit(count))?;
                self.filled += count;
            }
        }
        Ok(self.length - self.filled())
    }

    /// How many bytes it is to have.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Makes room where there is none.
    fn make_room(&mut self) -> Result<(), FrameError> {
        let filled = self.filled();
        if filled == self.elements.capacity() {
            self.grow(filled.saturating_mul(RESERVE_AHEAD))?;
        }
        if self.elements.width() != Width::One {
            let there = self.elements.capacity().min(self.length);
            self.elements.resize(there.min(filled + ZEROS_AHEAD));
        }
        Ok(())
    }

    /// Takes what the common buffer has of it. Says whether it is complete; if not, there is room.
    pub(super) fn take_from(&mut self, buffer: &mut BytesMut) -> Result<bool, FrameError> {
        loop {
            let take = self.room().min(buffer.len());
            let from = buffer.get(..take).unwrap_or_default();
            match self.space() {
                Space::Elements(room, filled) => {
                    if let Some(room) = room.get_mut(..take) {
                        room.copy_from_slice(from);
                    }
                    *filled += take;
                }
                Space::Piece(mut piece) => piece.put_slice(from),
                Space::Buffer(_) => {}
            }
            buffer.advance(take);
            if self.filled() == self.length {
                return Ok(true);
            }
            if self.room() > 0 {
                return Ok(false);
            }
            self.make_room()?;
        }
    }

    /// Where the next bytes go.
    pub(super) fn space(&mut self) -> Space<'_> {
        let room = self.room();
        match &mut self.elements {
            Elements::One(bytes) => Space::Piece(bytes.limit(room)),
            wider => {
                let rest = wider.bytes_mut().get_mut(self.filled..);
                Space::Elements(rest.unwrap_or_default(), &mut self.filled)
            }
        }
    }
}

//! A large piece on its way into memory of its own, which grows with what has come of it (FR-2).
//!
//! Bytes are read into memory that nothing was written to before.

use bytes::buf::Limit;
use bytes::{Buf, BufMut, BytesMut};
use farref_shm::PartialVec;

use super::error::FrameError;
use crate::codec::{Elements, Width};

/// What the memory of one large piece begins with, whatever was announced.
const FIRST_RESERVE: usize = 1 << 20;
/// How many times as much as has arrived of a large piece is reserved when its memory is full.
pub(super) const RESERVE_AHEAD: usize = 64;
/// From this size on fresh memory is asked for in huge pages: the system hands them out in a third of the time, of which it
/// takes more than the copy into them. In two of them, at least one is whole.
const HUGE_FROM: usize = 4 << 20;

/// Where the next bytes go.
pub(crate) enum Space<'a> {
    /// Into the common buffer.
    Buffer(&'a mut BytesMut),
    /// Into the memory of one large piece.
    Piece(Limit<&'a mut (dyn BufMut + Send)>),
}

/// A large piece on its way into memory of its own.
#[derive(Debug)]
pub(crate) struct Filling {
    elements: Partial,
    length: usize,
}

/// Elements of one width, of which some have come.
#[derive(Debug)]
enum Partial {
    One(PartialVec<u8>),
    Two(PartialVec<u16>),
    Four(PartialVec<u32>),
    Eight(PartialVec<u64>),
}

/// Does the same with the elements, whatever their width.
macro_rules! each {
    ($partial:expr, $elements:ident => $does:expr) => {
        match $partial {
            Partial::One($elements) => $does,
            Partial::Two($elements) => $does,
            Partial::Four($elements) => $does,
            Partial::Eight($elements) => $does,
        }
    };
}

impl From<Elements> for Partial {
    fn from(used: Elements) -> Self {
        match used {
            Elements::One(vector) => Self::One(PartialVec::new(vector)),
            Elements::Two(vector) => Self::Two(PartialVec::new(vector)),
            Elements::Four(vector) => Self::Four(PartialVec::new(vector)),
            Elements::Eight(vector) => Self::Eight(PartialVec::new(vector)),
        }
    }
}

impl Filling {
    /// A piece of this length, in memory that was used before if there is some.
    pub(super) fn new(
        length: usize,
        width: Width,
        used: Option<Elements>,
    ) -> Result<Self, FrameError> {
        let mut filling = Self {
            elements: used.unwrap_or_else(|| Elements::empty(width)).into(),
            length,
        };
        filling.grow(FIRST_RESERVE)?;
        Ok(filling)
    }

    /// What has come, once that is all.
    pub(super) fn finish(self) -> Elements {
        match self.elements {
            Partial::One(elements) => Elements::One(elements.finish()),
            Partial::Two(elements) => Elements::Two(elements.finish()),
            Partial::Four(elements) => Elements::Four(elements.finish()),
            Partial::Eight(elements) => Elements::Eight(elements.finish()),
        }
    }

    /// How many bytes have come.
    pub(super) fn filled(&self) -> usize {
        each!(&self.elements, elements => elements.filled())
    }

    fn capacity(&self) -> usize {
        each!(&self.elements, elements => elements.capacity())
    }

    /// How much can be put into it now.
    fn room(&self) -> usize {
        self.length.min(self.capacity()) - self.filled()
    }

    /// Makes the memory `capacity` bytes large, or as large as the piece (FR-2).
    fn grow(&mut self, capacity: usize) -> Result<(), FrameError> {
        let before = self.capacity();
        let wanted = capacity.min(self.length);
        each!(&mut self.elements, elements => elements.try_reserve_exact(wanted))
            .map_err(|_| FrameError::OutOfMemory(self.length as u64))?;
        let now = self.capacity();
        if now > before && now >= HUGE_FROM {
            each!(&mut self.elements, elements => elements.prefer_huge_pages());
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
        each!(&mut self.elements, elements => read(at, count, &mut elements.limit(count))?);
        Ok(self.length - self.filled())
    }

    /// How many bytes it is to have.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Makes room where there is none.
    fn make_room(&mut self) -> Result<(), FrameError> {
        self.grow(self.filled().saturating_mul(RESERVE_AHEAD))
    }

    /// Takes what the common buffer has of it. Says whether it is complete; if not, there is room.
    pub(super) fn take_from(&mut self, buffer: &mut BytesMut) -> Result<bool, FrameError> {
        loop {
            let take = self.room().min(buffer.len());
            let from = buffer.get(..take).unwrap_or_default();
            each!(&mut self.elements, elements => elements.put_slice(from));
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
        let elements: &mut (dyn BufMut + Send) = each!(&mut self.elements, elements => elements);
        Space::Piece(elements.limit(room))
    }
}

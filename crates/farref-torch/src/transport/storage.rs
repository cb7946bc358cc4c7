//! Memory that fills with the bytes of a tensor, or of anything large.
//!
//! Memory is given to the program as what it was allocated as, so a vector of bytes never becomes one of `f32`;
//! one of `u32` does, at no cost. That is why the width of the elements is known before the first byte is
//! read.
//!
//! Bytes are read into memory that nothing was written to before. Wider elements are read into zeros that are
//! written a little ahead of what comes, while they are in the cache.

use std::collections::TryReserveError;

use super::PipeError;

/// What the memory of a storage begins with, whatever was announced. From there on it doubles (TR-2).
const FIRST_STEP: usize = 1 << 20;
/// How many zeros are written ahead of what comes.
const ZEROS_AHEAD: usize = 256 << 10;

/// The bytes of a storage, aligned to its elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Storage {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    /// Also elements of 16 bytes: those are pairs of numbers of eight.
    Eight(Vec<u64>),
}

/// Does the same with the vector, whatever its width.
macro_rules! each {
    ($storage:expr, $vector:ident => $does:expr) => {
        match $storage {
            Storage::One($vector) => $does,
            Storage::Two($vector) => $does,
            Storage::Four($vector) => $does,
            Storage::Eight($vector) => $does,
        }
    };
}

fn size_of_element<T>(_: &[T]) -> usize {
    size_of::<T>()
}

impl Storage {
    /// No bytes yet. A width that is none, or that does not divide the length, counts as one.
    pub(super) fn empty(width: usize, length: usize) -> Self {
        match width {
            2 if length.is_multiple_of(2) => Self::Two(Vec::new()),
            4 if length.is_multiple_of(4) => Self::Four(Vec::new()),
            8 | 16 if length.is_multiple_of(8) => Self::Eight(Vec::new()),
            _ => Self::One(Vec::new()),
        }
    }

    /// A copy of bytes.
    pub(super) fn copied(width: usize, bytes: &[u8]) -> Self {
        match Self::empty(width, bytes.len()) {
            Self::One(_) => Self::One(bytes.to_vec()),
            Self::Two(_) => Self::Two(bytemuck::pod_collect_to_vec(bytes)),
            Self::Four(_) => Self::Four(bytemuck::pod_collect_to_vec(bytes)),
            Self::Eight(_) => Self::Eight(bytemuck::pod_collect_to_vec(bytes)),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        each!(self, vector => bytemuck::cast_slice(vector))
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, vector => bytemuck::cast_slice_mut(vector))
    }

    /// The size of an element.
    pub(crate) fn width(&self) -> usize {
        each!(self, vector => size_of_element(vector))
    }

    fn capacity(&self) -> usize {
        each!(self, vector => vector.capacity()) * self.width()
    }

    fn try_reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let count = bytes.div_ceil(self.width());
        each!(self, vector => vector.try_reserve_exact(count.saturating_sub(vector.len())))
    }

    fn resize(&mut self, bytes: usize) {
        let count = bytes / self.width();
        each!(self, vector => vector.resize(count, 0));
    }
}

/// A storage on its way in.
#[derive(Debug)]
pub(super) struct Filling {
    storage: Storage,
    /// How many bytes have come, if the elements are not bytes: those are as many as have come.
    filled: usize,
    length: usize,
}

/// Where the next bytes go.
pub(super) enum Room<'a> {
    /// Behind the bytes of the vector, so many.
    Behind(&'a mut Vec<u8>, usize),
    /// Here.
    Here(&'a mut [u8]),
}

impl Filling {
    pub(super) fn new(length: usize, width: usize) -> Self {
        Self {
            storage: Storage::empty(width, length),
            filled: 0,
            length,
        }
    }

    fn filled(&self) -> usize {
        match &self.storage {
            Storage::One(bytes) => bytes.len(),
            _ => self.filled,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled() == self.length
    }

    pub(super) fn finish(self) -> Storage {
        self.storage
    }

    /// Where the next bytes go. There is room unless it is full.
    pub(super) fn room(&mut self) -> Result<Room<'_>, PipeError> {
        let filled = self.filled();
        if filled == self.storage.capacity() && filled < self.length {
            // TR-2
            let capacity = filled.saturating_mul(2).max(FIRST_STEP).min(self.length);
            let grown = self.storage.try_reserve(capacity);
            grown.map_err(|_| PipeError::OutOfMemory(self.length as u64))?;
        }
        let there = self.storage.capacity().min(self.length);
        if self.storage.width() > 1 && self.storage.bytes().len() == filled {
            let ahead = there.min(filled.saturating_add(ZEROS_AHEAD));
            self.storage.resize(ahead);
        }
        Ok(match &mut self.storage {
            Storage::One(bytes) => {
                let room = there - bytes.len();
                Room::Behind(bytes, room)
            }
            wider => Room::Here(wider.bytes_mut().get_mut(filled..).unwrap_or_default()),
        })
    }

    /// So many bytes were written to [`Room::Here`].
    pub(super) fn advance(&mut self, bytes: usize) {
        if self.storage.width() > 1 {
            self.filled += bytes;
        }
    }

    /// Takes as much as it can. Returns how much that is.
    pub(super) fn take(&mut self, from: &[u8]) -> Result<usize, PipeError> {
        let mut rest = from;
        while !rest.is_empty() && !self.is_full() {
            let taken = match self.room()? {
                Room::Behind(bytes, room) => {
                    let taken = room.min(rest.len());
                    bytes.extend_from_slice(rest.get(..taken).unwrap_or_default());
                    taken
                }
                Room::Here(room) => {
                    let taken = room.len().min(rest.len());
                    if let (Some(to), Some(from)) = (room.get_mut(..taken), rest.get(..taken)) {
                        to.copy_from_slice(from);
                    }
                    taken
                }
            };
            self.advance(taken);
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(from.len() - rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
    }

    #[test]
    fn bytes_arrive_as_they_were_whatever_the_width_and_the_pieces() {
        for width in [0, 1, 2, 3, 4, 8, 16] {
            for length in [0, 1, 6, 8, 48, 300_000, 3 << 20] {
                let bytes = pattern(length);
                for piece in [1, 13, 65_536] {
                    if length / piece > 100_000 {
                        continue;
                    }
                    let mut filling = Filling::new(length, width);
                    for piece in bytes.chunks(piece) {
                        assert_eq!(filling.take(piece).expect("memory"), piece.len());
                    }
                    assert!(filling.is_full());
                    let storage = filling.finish();
                    assert!(storage.bytes() == bytes);
                    assert_eq!(storage, Storage::copied(width, &bytes));
                }
            }
        }
    }

    #[test]
    fn a_width_is_kept_where_it_divides_the_length() {
        let width = |width, length| Storage::empty(width, length).width();
        assert_eq!(
            [width(1, 8), width(2, 8), width(4, 8), width(8, 8)],
            [1, 2, 4, 8]
        );
        assert_eq!(
            [width(16, 16), width(4, 6), width(3, 6), width(0, 6)],
            [8, 1, 1, 1]
        );
    }

    #[test]
    fn tr_2_memory_grows_with_what_has_come() {
        for width in [1, 4] {
            let mut filling = Filling::new(1 << 40, width);
            filling.take(&[1; 4]).expect("memory");
            assert!(filling.storage.capacity() <= FIRST_STEP);
            let more = vec![1; 3 << 20];
            filling.take(&more).expect("memory");
            assert!(filling.storage.capacity() <= 2 * (more.len() + 4));
        }
    }

    #[test]
    fn nothing_is_taken_beyond_the_length() {
        for width in [1, 2] {
            let mut filling = Filling::new(4, width);
            assert_eq!(filling.take(b"abcdef").expect("memory"), 4);
            assert_eq!(filling.finish().bytes(), b"abcd");
        }
    }
}

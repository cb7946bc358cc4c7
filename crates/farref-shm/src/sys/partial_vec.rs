//! A vector of numbers that is filled with bytes.

use std::collections::TryReserveError;
use std::mem::size_of;

use bytes::BufMut;
use bytes::buf::UninitSlice;

use crate::prefer_huge_pages;

/// A number of which any bytes are a value: `u8`, `u16`, `u32` or `u64`.
///
/// # Safety
///
/// Any bytes of its size are a value of it.
pub unsafe trait Number: Copy + 'static {}

// SAFETY: any bytes are.
unsafe impl Number for u8 {}
// SAFETY: any bytes are.
unsafe impl Number for u16 {}
// SAFETY: any bytes are.
unsafe impl Number for u32 {}
// SAFETY: any bytes are.
unsafe impl Number for u64 {}

/// A vector of `u8`, `u16`, `u32` or `u64` on its way: bytes are appended to it, into memory that nothing was written to
/// before. To write zeros there first takes as long as a good part of what is read into them.
///
/// ```
/// use bytes::BufMut;
/// use farref_shm::PartialVec;
///
/// let mut numbers = PartialVec::<u32>::new(Vec::new());
/// numbers.try_reserve_exact(8)?;
/// numbers.put_slice(&7_u32.to_ne_bytes());
/// numbers.put_slice(&8_u32.to_ne_bytes()[..1]);
/// numbers.put_slice(&8_u32.to_ne_bytes()[1..]);
/// assert_eq!(numbers.finish(), [7, 8]);
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Debug)]
pub struct PartialVec<T> {
    /// As many as have come, be it in part: the rest of the last one is zeros then.
    vector: Vec<T>,
    /// How many bytes have come.
    filled: usize,
}

impl<T: Number> PartialVec<T> {
    /// Uses the memory of a vector, not what is in it.
    pub fn new(mut vector: Vec<T>) -> Self {
        vector.clear();
        Self { vector, filled: 0 }
    }

    /// How many bytes have come.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// For how many bytes there is memory.
    pub fn capacity(&self) -> usize {
        self.vector.capacity() * size_of::<T>()
    }

    /// Makes room for exactly so many bytes in all, rounded up to whole elements.
    pub fn try_reserve_exact(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let count = bytes.div_ceil(size_of::<T>());
        let missing = count.saturating_sub(self.vector.len());
        self.vector.try_reserve_exact(missing)
    }

    /// Has the memory that nothing was written to yet be in huge pages, if there are any.
    pub fn prefer_huge_pages(&mut self) {
        prefer_huge_pages(self.vector.spare_capacity_mut());
    }

    /// What has come. If that is no whole number of elements, the last one ends with zeros.
    pub fn finish(self) -> Vec<T> {
        self.vector
    }
}

// SAFETY: the chunk is all the room there is, and what is said to be filled of it becomes part of the vector.
unsafe impl<T: Number> BufMut for PartialVec<T> {
    fn remaining_mut(&self) -> usize {
        self.capacity() - self.filled
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        let room = self.remaining_mut();
        let start = self.vector.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector has memory for `filled + room` bytes, which is borrowed mutably. What is initialised of it
        // stays so: nothing but bytes can be written to such a slice.
        unsafe { UninitSlice::from_raw_parts_mut(start.add(self.filled), room) }
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "beyond the vector's memory");
        self.filled += count;
        let elements = self.filled.div_ceil(size_of::<T>());
        let rest = elements * size_of::<T>() - self.filled;
        let start = self.vector.as_mut_ptr().cast::<u8>();
        // SAFETY: `filled` bytes have been written, as the caller promises, and `rest` is what is left of the last of
        // the elements, which are no more than there is memory for. Any bytes are numbers.
        unsafe {
            start.add(self.filled).write_bytes(0, rest);
            self.vector.set_len(elements);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_in_steps<T: Number>(bytes: &[u8], step: usize) -> Vec<T> {
        let mut partial = PartialVec::<T>::new(Vec::new());
        for some in bytes.chunks(step) {
            // Room for a little more than there was, so that it moves in the middle of elements, too.
            let room = partial.filled() + some.len();
            partial.try_reserve_exact(room).unwrap();
            partial.put_slice(some);
        }
        assert_eq!(partial.filled(), bytes.len());
        partial.finish()
    }

    #[test]
    fn numbers_are_what_their_bytes_are_however_they_came() {
        let bytes: Vec<u8> = (0..240).collect();
        for step in [1, 2, 3, 7, 8, 100, 240] {
            assert_eq!(filled_in_steps::<u8>(&bytes, step), bytes);
            let expected: Vec<u32> = bytes
                .chunks(4)
                .map(|four| u32::from_ne_bytes(four.try_into().unwrap()))
                .collect();
            assert_eq!(filled_in_steps::<u32>(&bytes, step), expected);
            let expected: Vec<u64> = bytes
                .chunks(8)
                .map(|eight| u64::from_ne_bytes(eight.try_into().unwrap()))
                .collect();
            assert_eq!(filled_in_steps::<u64>(&bytes, step), expected);
        }
    }

    #[test]
    fn the_rest_of_an_element_is_zeros_and_what_was_there_before_is_gone() {
        let mut partial = PartialVec::new(vec![u32::MAX; 3]);
        assert_eq!((partial.filled(), partial.capacity()), (0, 12));
        partial.put_slice(&[0xFF; 5]);
        let expected = [u32::MAX, u32::from_ne_bytes([0xFF, 0, 0, 0])];
        assert_eq!(partial.finish(), expected);
    }

    #[test]
    #[should_panic]
    fn nothing_is_put_beyond_its_memory() {
        let mut partial = PartialVec::<u16>::new(Vec::new());
        partial.try_reserve_exact(4).unwrap();
        let room = partial.remaining_mut();
        partial.put_slice(&vec![1; room + 1]);
    }
}

//! Vectors of numbers whose bytes travel: what a buffer is made of, in memory that its owner can give
//! back as what it is.
//!
//! Memory is given back with the alignment that it was allocated with, so a vector of bytes never
//! becomes one of `f32`; one of `u32` does, at no cost. That is why a buffer knows its [`Width`] from
//! the socket on.

use bytemuck::Pod;
use bytemuck::allocation::{try_cast_vec, try_zeroed_vec};
use serde::{Deserialize, Serialize};

use super::error::CodecError;

/// How large one element of a buffer is.
///
/// ```
/// use farref::{Buffer, Width};
///
/// assert_eq!(Buffer::from_vec(vec![0_u8; 8]).width(), Width::One);
/// assert_eq!(Buffer::from_vec(vec![0.0_f64; 8]).width(), Width::Eight);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Width {
    /// One byte, as of `u8`.
    #[default]
    One,
    /// Two bytes, as of `u16` and of floats of half precision.
    Two,
    /// Four bytes, as of `f32`.
    Four,
    /// Eight bytes, as of `f64`.
    Eight,
}

impl Width {
    /// As a number of bytes.
    ///
    /// ```
    /// use farref::{Buffer, Width};
    ///
    /// assert_eq!(Width::Four.bytes(), size_of::<f32>());
    ///
    /// // How many elements a buffer has.
    /// let buffer = Buffer::from_vec(vec![0_u16; 5]);
    /// assert_eq!(buffer.len() / buffer.width().bytes(), 5);
    /// ```
    pub const fn bytes(self) -> usize {
        1 << self.log2()
    }

    /// That of the numbers that `T` consists of.
    pub(super) const fn of<T>() -> Self {
        match align_of::<T>() {
            1 => Self::One,
            2 => Self::Two,
            4 => Self::Four,
            _ => Self::Eight,
        }
    }

    pub(crate) const fn log2(self) -> u32 {
        match self {
            Self::One => 0,
            Self::Two => 1,
            Self::Four => 2,
            Self::Eight => 3,
        }
    }
}

/// A vector of numbers of one width.
#[derive(Debug)]
pub(crate) enum Elements {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
}

/// Does the same with the vector, whatever its width.
macro_rules! each {
    ($elements:expr, $vector:ident => $does:expr) => {
        match $elements {
            Elements::One($vector) => $does,
            Elements::Two($vector) => $does,
            Elements::Four($vector) => $does,
            Elements::Eight($vector) => $does,
        }
    };
}

impl Default for Elements {
    fn default() -> Self {
        Self::One(Vec::new())
    }
}

impl Elements {
    /// No elements, and no memory.
    pub(crate) const fn empty(width: Width) -> Self {
        match width {
            Width::One => Self::One(Vec::new()),
            Width::Two => Self::Two(Vec::new()),
            Width::Four => Self::Four(Vec::new()),
            Width::Eight => Self::Eight(Vec::new()),
        }
    }

    /// The vector itself, as numbers of the width that `T` is aligned to. Copied only if it is aligned
    /// to more than any number here.
    pub(crate) fn from_vec<T: Pod>(vector: Vec<T>) -> Self {
        // An empty one may say a capacity that cannot be expressed otherwise.
        let cast = match align_of::<T>() {
            _ if vector.is_empty() => Err(vector),
            at if at == align_of::<u8>() => cast_or_back(vector).map(Self::One),
            at if at == align_of::<u16>() => cast_or_back(vector).map(Self::Two),
            at if at == align_of::<u32>() => cast_or_back(vector).map(Self::Four),
            at if at == align_of::<u64>() => cast_or_back(vector).map(Self::Eight),
            _ => Err(vector),
        };
        cast.unwrap_or_else(|vector| {
            let mut copy = Self::empty(Width::of::<T>());
            let bytes: &[u8] = bytemuck::cast_slice(&vector);
            copy.resize(bytes.len());
            copy.bytes_mut().copy_from_slice(bytes);
            copy
        })
    }

    /// The vector itself as elements of another type, if it can be that.
    pub(crate) fn into_vec<T: Pod>(self) -> Result<Vec<T>, Self> {
        match self {
            Self::One(vector) => cast_or_back(vector).map_err(Self::One),
            Self::Two(vector) => cast_or_back(vector).map_err(Self::Two),
            Self::Four(vector) => cast_or_back(vector).map_err(Self::Four),
            Self::Eight(vector) => cast_or_back(vector).map_err(Self::Eight),
        }
    }

    pub(crate) const fn width(&self) -> Width {
        match self {
            Self::One(_) => Width::One,
            Self::Two(_) => Width::Two,
            Self::Four(_) => Width::Four,
            Self::Eight(_) => Width::Eight,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        each!(self, vector => bytemuck::cast_slice(vector))
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, vector => bytemuck::cast_slice_mut(vector))
    }

    /// How many bytes it has memory for.
    pub(crate) fn capacity(&self) -> usize {
        each!(self, vector => vector.capacity()) << self.width().log2()
    }

    /// Makes it `bytes` long, which is a multiple of the width, with zeros where there was nothing.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let count = bytes >> self.width().log2();
        each!(self, vector => vector.resize(count, 0));
    }
}

fn cast_or_back<A: Pod, B: Pod>(vector: Vec<A>) -> Result<Vec<B>, Vec<A>> {
    try_cast_vec(vector).map_err(|(_, vector)| vector)
}

/// A vector of `T` that `fill` writes so many bytes into.
pub(crate) fn copied<T: Pod>(
    bytes: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), CodecError>,
) -> Result<Vec<T>, CodecError> {
    let uneven = || {
        CodecError::new(format_args!(
            "{bytes} bytes are no whole number of elements of {} bytes",
            size_of::<T>()
        ))
    };
    let count = bytes.checked_div(size_of::<T>()).ok_or_else(uneven)?;
    if count * size_of::<T>() != bytes {
        return Err(uneven());
    }
    let mut vector = try_zeroed_vec::<T>(count)
        .map_err(|()| CodecError::new(format_args!("there is no memory for {bytes} bytes")))?;
    fill(bytemuck::cast_slice_mut(&mut vector))?;
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T: Pod + PartialEq + std::fmt::Debug>(values: Vec<T>, width: Width) {
        let (at, copy) = (values.as_ptr(), values.clone());
        let elements = Elements::from_vec(values);
        assert_eq!(elements.width(), width);
        assert_eq!(elements.bytes().as_ptr(), at.cast());
        assert_eq!(elements.bytes(), bytemuck::cast_slice::<T, u8>(&copy));
        let back = elements.into_vec::<T>().expect("the same type");
        assert_eq!((back.as_ptr(), &back), (at, &copy));
    }

    #[test]
    fn a_vector_stays_where_it_is() {
        there_and_back(vec![1_u8, 2, 3], Width::One);
        there_and_back(vec![1_i16, 2, 3], Width::Two);
        there_and_back(vec![1_f32, 2.0, 3.0], Width::Four);
        there_and_back(vec![1_u64, 2, 3], Width::Eight);
        // Elements of elements, and memory for more of them than there are.
        there_and_back(vec![[1_f32; 3]; 5], Width::Four);
        let mut roomy = Vec::with_capacity(7);
        roomy.extend([[1_u8; 5]; 2]);
        there_and_back(roomy, Width::One);
    }

    #[test]
    fn another_alignment_is_refused_and_nothing_is_lost() {
        let elements = Elements::from_vec(vec![1_u8; 8]);
        let back = elements.into_vec::<u32>().expect_err("aligned to one byte");
        assert_eq!(back.bytes(), [1; 8]);
        let elements = Elements::from_vec(vec![1_u32; 3]);
        assert!(elements.into_vec::<[u32; 2]>().is_err(), "one is left over");
    }

    #[test]
    fn what_is_aligned_to_more_is_copied() {
        let elements = Elements::from_vec(vec![1_u128, 2]);
        assert_eq!(elements.width(), Width::Eight);
        assert_eq!(elements.bytes().len(), 32);
        assert_eq!(Elements::from_vec(vec![(); 3]).bytes().len(), 0);
    }

    #[test]
    fn a_copy_has_whole_elements_only() {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(1);
            Ok(())
        };
        assert_eq!(copied::<u32>(8, fill), Ok(vec![0x0101_0101; 2]));
        assert_eq!(copied::<u32>(0, fill), Ok(vec![]));
        assert!(copied::<u32>(7, fill).is_err());
        assert!(copied::<()>(1, fill).is_err());
        assert!(copied::<u32>(usize::MAX - 3, fill).is_err(), "no memory");
    }
}

//! Vectors of numbers whose elements travel beside the value that they are in, as those of a [`Buffer`](crate::Buffer)
//! do: nobody has to know of it.
//!
//! serde gives a vector element by element, which for a long one takes longer than all else. So vectors of numbers
//! are found by their type before serde sees them, in places that can be known without it: an argument, a result, a
//! fetched value or an item of a stream, or what such a one is a list or an option of. (What else is inside of it
//! only serde can tell.) If they are [large](OUT_OF_BAND), their elements are taken out and the value is written with
//! empty vectors; the reader puts them back. What is [given](Outgoing::Given) away is not copied.
//!
//! Before such a value there is in its body:
//!
//! | bytes | what |
//! | --- | --- |
//! | 2 | [`VECTORS`] |
//! | 2 | how many vectors were taken out: so many parts, the last ones that came with the value |
//! | 5 for each | its place, which is how many vectors come before it (4), and what numbers it has (1) |
//!
//! All numbers have their lowest byte first, those in the vectors too.
//!
//! # Invariants
//!
//! - **VE-1** What comes is put where a vector of the same numbers is that has none, each once and all of them;
//!   anything else is an error. So a value arrives as it was sent, or not at all.
//! - **VE-2** Nothing is made of what is announced: what a reader has to have memory for has come.
//! - **VE-3** Vectors are taken out only where a value is written to be sent, by farref's own codec. Others see them as
//!   what they are.

use std::any::Any;

use bytemuck::Pod;

use super::blob::OUT_OF_BAND;
use super::error::CodecError;
use super::part::Part;
use super::scope;

/// What the body of a value begins with whose vectors travel beside it.
pub(super) const VECTORS: [u8; 2] = [0xfe, 0xff];

/// So many of a value's vectors at most. There is a limit to parts, and blobs have no other way.
const MOST: usize = 1024;

/// What is done with each of several vectors.
pub type Look<'a> = &'a mut dyn FnMut(&mut dyn Numbers);

/// Finds the vectors in a value.
pub type EachVector<T> = fn(&mut T, Look<'_>);

/// A vector of numbers.
pub trait Numbers {
    /// What numbers they are, and all of them: it has none afterwards. None if there are few.
    fn take_out(&mut self) -> Option<(u8, Part)>;

    /// Gives it the numbers of a part (VE-1).
    fn put_back(&mut self, kind: u8, part: Part) -> Result<(), CodecError>;
}

/// A value that is to be written.
#[derive(Debug)]
pub enum Outgoing<'a, T> {
    /// It stays where it is.
    Kept(&'a T),
    /// Nobody needs it afterwards: its vectors may be taken.
    Given(&'a mut T, EachVector<T>),
}

/// The arguments of a function.
pub trait ArgumentList {
    /// Looks at the vectors of numbers among them.
    fn each_vector(&mut self, look: Look<'_>);
}

macro_rules! argument_lists {
    ($(($($type:ident $place:tt)*))*) => {$(
        impl<$($type: 'static),*> ArgumentList for ($($type,)*) {
            #[inline]
            fn each_vector(&mut self, _look: Look<'_>) {
                $(each_in(&mut self.$place, _look);)*
            }
        }
    )*};
}

argument_lists! {
    ()
    (A 0)
    (A 0 B 1)
    (A 0 B 1 C 2)
    (A 0 B 1 C 2 D 3)
    (A 0 B 1 C 2 D 3 E 4)
    (A 0 B 1 C 2 D 3 E 4 F 5)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11 M 12)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11 M 12 N 13)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11 M 12 N 13 O 14)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11 M 12 N 13 O 14 P 15)
}

/// What vectors may consist of.
trait Number: Pod {
    /// What it is called in a body.
    const KIND: u8;
}

macro_rules! numbers {
    ($($number:ty = $kind:expr;)*) => {
        $(impl Number for $number {
            const KIND: u8 = $kind;
        })*

        /// [`each_in`] for a value that may be a vector, by its size.
        fn each_in_any(value: &mut dyn Any, look: Look<'_>) {
            $(
                if let Some(vector) = value.downcast_mut::<Vec<$number>>() {
                    return look(vector);
                }
                if let Some(vector) = value.downcast_mut::<Option<Vec<$number>>>() {
                    return vector.iter_mut().for_each(|vector| look(vector));
                }
                if let Some(vectors) = value.downcast_mut::<Vec<Vec<$number>>>() {
                    return vectors.iter_mut().for_each(|vector| look(vector));
                }
            )*
        }

        /// [`copy_of`] for a value that may be a vector, by its size.
        fn copy_of_any(value: &dyn Any) -> Option<Box<dyn Any>> {
            $(
                if let Some(vector) = value.downcast_ref::<Vec<$number>>() {
                    return copy_if(is_large(vector), vector);
                }
                if let Some(vector) = value.downcast_ref::<Option<Vec<$number>>>() {
                    return copy_if(vector.iter().any(|vector| is_large(vector)), vector);
                }
                if let Some(vectors) = value.downcast_ref::<Vec<Vec<$number>>>() {
                    return copy_if(vectors.iter().any(|vector| is_large(vector)), vectors);
                }
            )*
            None
        }
    };
}

/// Looks at the vectors of numbers that a value is, or is an option or a list of.
#[inline]
pub(crate) fn each_in<T: 'static>(value: &mut T, look: Look<'_>) {
    // For most types that is all that is left of this function when it is compiled.
    if size_of::<T>() == size_of::<Vec<u8>>() {
        each_in_any(value, look);
    }
}

/// A copy of a value, if [that](each_in) has large vectors.
#[inline]
pub(super) fn copy_of<T: 'static>(value: &T) -> Option<T> {
    if size_of::<T>() != size_of::<Vec<u8>>() {
        return None;
    }
    Some(*copy_of_any(value)?.downcast().ok()?)
}

/// A `usize` is not the same on all machines, and those of another width do not take it.
const SIZE: u8 = if size_of::<usize>() == 8 { 10 } else { 12 };

numbers! {
    u8 = 0;
    u16 = 1;
    u32 = 2;
    u64 = 3;
    i8 = 4;
    i16 = 5;
    i32 = 6;
    i64 = 7;
    f32 = 8;
    f64 = 9;
    usize = SIZE;
    isize = SIZE + 1;
}

fn is_large<N>(numbers: &[N]) -> bool {
    size_of_val(numbers) >= OUT_OF_BAND
}

fn copy_if<A: Clone + 'static>(wanted: bool, value: &A) -> Option<Box<dyn Any>> {
    if wanted {
        Some(Box::new(value.clone()))
    } else {
        None
    }
}

impl<N: Number> Numbers for Vec<N> {
    fn take_out(&mut self) -> Option<(u8, Part)> {
        // Whoever has the highest byte first writes them one by one.
        let is_taken = is_large(self) && cfg!(target_endian = "little");
        is_taken.then(|| {
            let mut numbers = std::mem::take(self);
            // It is kept until it has arrived, and counts as what is in it.
            if numbers.capacity() / 2 > numbers.len() {
                numbers.shrink_to_fit();
            }
            (N::KIND, Part::from_vec(numbers))
        })
    }

    fn put_back(&mut self, kind: u8, part: Part) -> Result<(), CodecError> {
        if kind != N::KIND || !self.is_empty() {
            return Err(CodecError::new(
                "it brings a vector of other numbers than it is read with, or one that is there already",
            ));
        }
        *self = part.into_vec()?;
        if cfg!(target_endian = "big") {
            turn_around(self);
        }
        Ok(())
    }
}

/// The last byte of each number comes first.
pub(super) fn turn_around<N: Pod>(numbers: &mut [N]) {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
    bytes
        .chunks_exact_mut(size_of::<N>())
        .for_each(<[u8]>::reverse);
}

/// Vectors that were taken out of a value which is being written. Hardly any value has some.
#[derive(Default)]
pub(super) struct TakenOut(Option<Box<Taken>>);

#[derive(Default)]
struct Taken {
    /// What the body begins with.
    lead: Vec<u8>,
    parts: Vec<Part>,
}

impl TakenOut {
    /// Takes the large ones out.
    #[inline]
    pub(super) fn of<T>(value: &mut T, each: impl FnOnce(&mut T, Look<'_>)) -> Self {
        let (mut taken, mut place) = (Self::default(), 0_u32);
        each(value, &mut |numbers| {
            taken.take(place, numbers);
            place = place.saturating_add(1);
        });
        taken
    }

    fn take(&mut self, place: u32, numbers: &mut dyn Numbers) {
        let count = self.0.as_ref().map_or(0, |taken| taken.parts.len());
        let may_be_taken = place < u32::MAX && count < MOST && scope::is_writing();
        let Some((kind, part)) = may_be_taken.then(|| numbers.take_out()).flatten() else {
            return;
        };
        let Taken { lead, parts } = &mut **self.0.get_or_insert_default();
        if parts.is_empty() {
            lead.extend_from_slice(&VECTORS);
            lead.extend_from_slice(&[0; 2]);
        }
        lead.extend_from_slice(&place.to_le_bytes());
        lead.push(kind);
        parts.push(part);
        let count = (parts.len() as u16).to_le_bytes();
        if let Some(said) = lead.get_mut(2..4) {
            said.copy_from_slice(&count);
        }
    }

    /// What the body begins with.
    #[inline]
    pub(super) fn lead(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |taken| &taken.lead)
    }

    /// The value is written: they go after whatever else it took along.
    #[inline]
    pub(super) fn attach(self) {
        if let Some(taken) = self.0 {
            for part in taken.parts {
                scope::attach(|| part);
            }
        }
    }
}

/// Vectors that came with a value which is being read.
pub(super) struct Brought<'a> {
    places: std::slice::Iter<'a, [u8; 5]>,
    parts: std::vec::IntoIter<Part>,
}

impl<'a> Brought<'a> {
    /// Those that a body speaks of, and the rest of it.
    #[inline]
    pub(super) fn with(body: &'a [u8]) -> Result<(Option<Self>, &'a [u8]), CodecError> {
        match body.split_first_chunk() {
            Some((&VECTORS, said)) => {
                let (brought, rest) = Self::read(said)?;
                Ok((Some(brought), rest))
            }
            _ => Ok((None, body)),
        }
    }

    #[cold]
    fn read(said: &'a [u8]) -> Result<(Self, &'a [u8]), CodecError> {
        let cut_off = || CodecError::new("its bytes end before the value begins");
        let (count, said) = said.split_first_chunk().ok_or_else(cut_off)?;
        let count = usize::from(u16::from_le_bytes(*count));
        let (places, rest) = said.split_at_checked(5 * count).ok_or_else(cut_off)?;
        // VE-2
        let parts = scope::take_last(count).ok_or_else(|| {
            CodecError::new("it speaks of vectors beside it that did not come with it")
        })?;
        let brought = Self {
            places: places.as_chunks().0.iter(),
            parts: parts.into_iter(),
        };
        Ok((brought, rest))
    }

    /// VE-1
    #[cold]
    pub(super) fn put_into<T>(
        mut self,
        value: &mut T,
        each: impl FnOnce(&mut T, Look<'_>),
    ) -> Result<(), CodecError> {
        let (mut place, mut put) = (0_u32, Ok(()));
        each(value, &mut |numbers| {
            if let [[a, b, c, d, kind], ..] = *self.places.as_slice()
                && u32::from_le_bytes([a, b, c, d]) == place
                && put.is_ok()
                && let Some(part) = self.parts.next()
            {
                self.places.next();
                put = numbers.put_back(kind, part);
            }
            place = place.saturating_add(1);
        });
        put?;
        match self.places.len() {
            0 => Ok(()),
            left => Err(CodecError::new(format_args!(
                "it brings {left} vectors of numbers that it has no place for: it is not read as it was written"
            ))),
        }
    }
}

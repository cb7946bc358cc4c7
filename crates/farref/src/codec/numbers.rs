//! Long sequences of numbers, which travel as their bytes.
//!
//! serde gives a sequence element by element, and postcard looks at each of them. For a long vector of numbers
//! that takes longer than all else. So the elements of a sequence of [`LONG`] or more are put side by side, for
//! as long as they turn out to be numbers of one [`Kind`], and if they are large they become a
//! [part](super::part) of the value, as a [`Blob`](crate::Blob) would. No type has to know of it: such a vector
//! may be anywhere in a value.
//!
//! After its length a long sequence has a byte that says how its elements come:
//!
//! | byte | what follows |
//! | --- | --- |
//! | 0 | the elements, one after the other |
//! | 1 | their kind, and their bytes with a length of its own |
//! | 2 | their kind, and the number of the part that they are |
//!
//! Numbers have their lowest byte first.
//!
//! # Invariants
//!
//! - **NU-1** An element is serialized once, whatever it turns out to be: that may have effects, such as a buffer
//!   that is taken along. A sequence that is not of numbers after all goes on as any other from the element on that
//!   shows it.
//! - **NU-2** Numbers are read only where there are as many bytes as were announced, and each part once: what a
//!   reader has to make is bounded by what came.

use bytemuck::allocation::try_zeroed_vec;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::blob::OUT_OF_BAND;
use super::fault::Fault;
use super::part::Part;
use super::scope;
use super::writer::{Several, Writer};

/// How many elements make a sequence long.
pub(super) const LONG: usize = 2048;

/// Numbers of so many bytes travel beside their value. They are copied in any case, so it is more than of a blob.
const BESIDE_BYTES: usize = 4 * OUT_OF_BAND;

/// So many parts of a message at most are numbers. There is a limit to parts, and blobs have no other way.
const MAX_PARTS: usize = 1024;

/// How the elements of a long sequence come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    OneByOne,
    Inside,
    Beside,
}

impl Way {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::OneByOne, Self::Inside, Self::Beside]
            .into_iter()
            .find(|way| *way as u8 == byte)
    }
}

/// The elements of a sequence, on their way out.
pub(super) struct Sequence<'a> {
    writer: &'a mut Writer,
    announced: usize,
    written: usize,
    packing: Packing,
    /// Room for all numbers that were announced; those that were written are there.
    packed: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// It is too short, or not of numbers.
    Off,
    /// There is no element yet.
    Undecided,
    /// All so far are numbers.
    On(Kind),
}

impl<'a> Sequence<'a> {
    /// Its length has been written.
    #[inline]
    pub(super) fn new(writer: &'a mut Writer, announced: usize) -> Self {
        Self {
            writer,
            announced,
            written: 0,
            packing: match announced < LONG {
                true => Packing::Off,
                false => Packing::Undecided,
            },
            packed: Vec::new(),
        }
    }

    /// NU-1: it is no sequence of numbers, or not any more. Its elements come one by one, those too that are
    /// there already.
    #[cold]
    fn unpack(&mut self) -> Result<&mut Writer, Fault> {
        let packing = std::mem::replace(&mut self.packing, Packing::Off);
        if packing != Packing::Off {
            self.writer.serialize_u8(Way::OneByOne as u8)?;
        }
        if let Packing::On(kind) = packing {
            let packed = std::mem::take(&mut self.packed);
            let there = packed.get(..self.written.saturating_mul(kind.width()));
            kind.write_each(there.unwrap_or(&packed), self.writer)?;
        }
        Ok(self.writer)
    }

    /// The first number makes room for all. False if it is another one, or there is no such room.
    #[cold]
    fn begin(&mut self, kind: Kind, number: &[u8]) -> bool {
        if self.packing != Packing::Undecided {
            return false;
        }
        // The memory is the system's until there is something in it: a sequence may announce what it likes.
        let room = self.announced.saturating_mul(kind.width());
        let Ok(mut packed) = try_zeroed_vec::<u8>(room) else {
            return false;
        };
        match packed.get_mut(..number.len()) {
            Some(place) => place.copy_from_slice(number),
            None => return false,
        }
        (self.packed, self.packing) = (packed, Packing::On(kind));
        true
    }

    /// All of them are numbers.
    #[cold]
    fn finish(self, kind: Kind) -> Result<(), Fault> {
        let Self { writer, packed, .. } = self;
        let is_large = packed.len() >= BESIDE_BYTES;
        let mut packed = Some(packed);
        let part = is_large.then(|| {
            scope::attach_within(MAX_PARTS, || {
                Part::from_vec(packed.take().unwrap_or_default())
            })
        });
        let part = part.flatten();
        let way = part.map_or(Way::Inside, |_| Way::Beside);
        writer.serialize_u8(way as u8)?;
        writer.serialize_u8(kind as u8)?;
        match (part, packed) {
            (Some(part), _) => writer.serialize_u32(part),
            (None, packed) => writer.serialize_bytes(&packed.unwrap_or_default()),
        }
    }
}

impl SerializeSeq for Sequence<'_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        match self.packing {
            Packing::Off => value.serialize(&mut *self.writer)?,
            Packing::Undecided | Packing::On(_) => value.serialize(Element(self))?,
        }
        self.written += 1;
        Ok(())
    }

    #[inline]
    fn end(self) -> Result<(), Fault> {
        if self.written != self.announced {
            return Err(Fault::not_compact());
        }
        match self.packing {
            Packing::On(kind) => self.finish(kind),
            Packing::Off | Packing::Undecided => Ok(()),
        }
    }
}

/// An element of a sequence that may be one of numbers.
struct Element<'a, 'w>(&'a mut Sequence<'w>);

/// What a number is not: the sequence is none of numbers.
macro_rules! others {
    ($($method:ident($($value:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[inline]
        fn $method(self $(, $value: $type)*) -> Result<$result, Fault> {
            self.0.unpack()?.$method($($value),*)
        }
    )*};
}

macro_rules! kinds {
    ($($kind:ident = $byte:literal: $type:ident, $serialize:ident, $deserialize:ident, $visit:ident;)*) => {
        /// What numbers a sequence has.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Kind {
            $($kind = $byte,)*
        }

        impl Kind {
            pub(super) fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// How many bytes each of them has.
            #[inline]
            pub(super) const fn width(self) -> usize {
                match self {
                    $(Self::$kind => size_of::<$type>(),)*
                }
            }
        }

        impl Kind {
            /// Writes numbers as if nobody had packed them.
            fn write_each(self, packed: &[u8], writer: &mut Writer) -> Result<(), Fault> {
                match self {
                    $(Self::$kind => {
                        for bytes in packed.as_chunks().0 {
                            writer.$serialize($type::from_le_bytes(*bytes))?;
                        }
                    })*
                }
                Ok(())
            }
        }

        impl<'a> Serializer for Element<'a, '_> {
            type Ok = ();
            type Error = Fault;
            type SerializeSeq = Sequence<'a>;
            type SerializeTuple = Several<'a>;
            type SerializeTupleStruct = Several<'a>;
            type SerializeTupleVariant = Several<'a>;
            type SerializeMap = Several<'a>;
            type SerializeStruct = Several<'a>;
            type SerializeStructVariant = Several<'a>;

            $(
                #[inline]
                fn $serialize(self, number: $type) -> Result<(), Fault> {
                    let bytes = number.to_le_bytes();
                    if self.0.packing == Packing::On(Kind::$kind)
                        && let Some(place) = self.0.packed.as_chunks_mut().0.get_mut(self.0.written)
                    {
                        *place = bytes;
                        return Ok(());
                    }
                    match self.0.begin(Kind::$kind, &bytes) {
                        true => Ok(()),
                        false => self.0.unpack()?.$serialize(number),
                    }
                }
            )*

            /// A number that has a type of its own is one.
            #[inline]
            fn serialize_newtype_struct<T: Serialize + ?Sized>(
                self,
                _: &'static str,
                value: &T,
            ) -> Result<(), Fault> {
                value.serialize(self)
            }

            others! {
                serialize_bool(value: bool) -> ();
                serialize_i128(value: i128) -> ();
                serialize_u128(value: u128) -> ();
                serialize_char(value: char) -> ();
                serialize_str(value: &str) -> ();
                serialize_bytes(value: &[u8]) -> ();
                serialize_none() -> ();
                serialize_unit() -> ();
                serialize_unit_struct(name: &'static str) -> ();
                serialize_unit_variant(name: &'static str, index: u32, variant: &'static str) -> ();
                serialize_seq(length: Option<usize>) -> Sequence<'a>;
                serialize_map(length: Option<usize>) -> Several<'a>;
                serialize_tuple(length: usize) -> Several<'a>;
                serialize_tuple_struct(name: &'static str, length: usize) -> Several<'a>;
                serialize_tuple_variant(
                    name: &'static str, index: u32, variant: &'static str, length: usize
                ) -> Several<'a>;
                serialize_struct(name: &'static str, length: usize) -> Several<'a>;
                serialize_struct_variant(
                    name: &'static str, index: u32, variant: &'static str, length: usize
                ) -> Several<'a>;
            }

            #[inline]
            fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Fault> {
                self.0.unpack()?.serialize_some(value)
            }

            #[inline]
            fn serialize_newtype_variant<T: Serialize + ?Sized>(
                self,
                name: &'static str,
                index: u32,
                variant: &'static str,
                value: &T,
            ) -> Result<(), Fault> {
                self.0.unpack()?.serialize_newtype_variant(name, index, variant, value)
            }

            #[inline]
            fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<(), Fault> {
                self.0.unpack()?.collect_str(value)
            }

            fn is_human_readable(&self) -> bool {
                false
            }
        }

        impl<'de> Deserializer<'de> for Number<'_> {
            type Error = Fault;

            $(
                #[inline]
                fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
                    match self.bytes.first_chunk() {
                        Some(bytes) if self.kind == Kind::$kind => {
                            visitor.$visit($type::from_le_bytes(*bytes))
                        }
                        _ => self.deserialize_any(visitor),
                    }
                }
            )*

            /// As what it was written: whoever asked for another number may take it all the same.
            #[cold]
            fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
                let uneven = || Fault::said("a number in it has another size");
                match self.kind {
                    $(Kind::$kind => {
                        let bytes = self.bytes.try_into().map_err(|_| uneven())?;
                        visitor.$visit($type::from_le_bytes(bytes))
                    })*
                }
            }

            #[inline]
            fn deserialize_newtype_struct<V: Visitor<'de>>(
                self,
                _: &'static str,
                visitor: V,
            ) -> Result<V::Value, Fault> {
                visitor.visit_newtype_struct(self)
            }

            serde::forward_to_deserialize_any! {
                bool i128 u128 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct
                map struct enum identifier ignored_any
            }

            fn is_human_readable(&self) -> bool {
                false
            }
        }
    };
}

kinds! {
    U8 = 0: u8, serialize_u8, deserialize_u8, visit_u8;
    U16 = 1: u16, serialize_u16, deserialize_u16, visit_u16;
    U32 = 2: u32, serialize_u32, deserialize_u32, visit_u32;
    U64 = 3: u64, serialize_u64, deserialize_u64, visit_u64;
    I8 = 4: i8, serialize_i8, deserialize_i8, visit_i8;
    I16 = 5: i16, serialize_i16, deserialize_i16, visit_i16;
    I32 = 6: i32, serialize_i32, deserialize_i32, visit_i32;
    I64 = 7: i64, serialize_i64, deserialize_i64, visit_i64;
    F32 = 8: f32, serialize_f32, deserialize_f32, visit_f32;
    F64 = 9: f64, serialize_f64, deserialize_f64, visit_f64;
}

/// The numbers of a sequence, on their way in.
pub(super) struct Numbers<'a> {
    kind: Kind,
    width: usize,
    rest: &'a [u8],
}

impl<'a> Numbers<'a> {
    /// So many numbers in these bytes (NU-2).
    pub(super) fn new(kind: Kind, count: usize, bytes: &'a [u8]) -> Result<Self, Fault> {
        let width = kind.width();
        if count.checked_mul(width) != Some(bytes.len()) {
            return Err(Fault::said(format_args!(
                "it announces {count} numbers of {width} bytes, and brings {} bytes",
                bytes.len()
            )));
        }
        Ok(Self {
            kind,
            width,
            rest: bytes,
        })
    }

    /// All of them are to be read.
    pub(super) fn finish(self) -> Result<(), Fault> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Fault::said(format_args!(
                "{left} bytes of numbers are left over: it is not read as it was written"
            ))),
        }
    }
}

impl<'de> SeqAccess<'de> for &mut Numbers<'_> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some((bytes, rest)) = self.rest.split_at_checked(self.width) else {
            return Ok(None);
        };
        // Whether it is looked at or not.
        self.rest = rest;
        let kind = self.kind;
        seed.deserialize(Number { kind, bytes }).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len() / self.width)
    }
}

/// One of them.
struct Number<'a> {
    kind: Kind,
    bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::codec::{Blob, Codec, CodecError, Payload};

    fn written<T: Serialize + 'static>(value: &T) -> Payload {
        let (payload, _) = scope::write(|| Codec::Postcard.encode(value)).unwrap();
        payload
    }

    fn read<T: DeserializeOwned>(payload: Payload) -> Result<T, CodecError> {
        scope::read(payload, &[], |body| Codec::Postcard.decode(body))
    }

    fn there_and_back<T>(value: T, parts: usize)
    where
        T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug + 'static,
    {
        let payload = written(&value);
        assert_eq!(payload.parts.len(), parts, "{}", std::any::type_name::<T>());
        let inside = payload.body.len();
        assert!(
            [0, MAX_PARTS].contains(&parts) || inside < BESIDE_BYTES,
            "{inside} bytes"
        );
        assert_eq!(read::<T>(payload).unwrap(), value);
        // Outside of a call nothing can go beside it.
        let body = Codec::Postcard.encode(&value).unwrap();
        assert_eq!(Codec::Postcard.decode::<T>(&body).unwrap(), value);
    }

    #[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
    struct Meters(f64);

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Sheet {
        name: String,
        rows: Vec<Vec<f32>>,
        mask: Option<Vec<u8>>,
        heights: (Vec<Meters>, u8),
    }

    #[test]
    fn vectors_of_numbers_travel_beside_their_value_wherever_they_are() {
        let count = 20_000;
        there_and_back((0..count).map(|i| i as u8).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| i as i8).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| i as u16).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| -i as i16).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| i as u32 * 99).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| -i).collect::<Vec<i32>>(), 1);
        there_and_back((0..count).map(|i| i as u64 * 99).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| i as usize).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| -i as i64).collect::<Vec<_>>(), 1);
        there_and_back((0..count).map(|i| i as f32 / 3.0).collect::<Vec<_>>(), 1);
        there_and_back(
            (0..count).map(|i| f64::from(i) / 3.0).collect::<Vec<_>>(),
            1,
        );
        there_and_back(
            Sheet {
                name: "heights".to_owned(),
                rows: vec![vec![0.5; 5000], vec![1.5; 3], vec![2.5; 4096]],
                mask: Some(vec![7; BESIDE_BYTES]),
                heights: (vec![Meters(0.25); LONG], 9),
            },
            4,
        );
    }

    #[test]
    fn sequences_that_are_not_large_or_not_of_numbers_stay_inside() {
        for count in [0, 1, LONG - 1, LONG, BESIDE_BYTES - 1] {
            there_and_back(vec![7_u8; count], 0);
        }
        there_and_back(vec![true; 2 * LONG], 0);
        there_and_back(vec!['x'; 2 * LONG], 0);
        there_and_back(vec![u128::MAX; 2 * LONG], 0);
        there_and_back(vec![Some(1.5_f64); 2 * LONG], 0);
        there_and_back(vec![(1_u32, 2.5_f32); 2 * LONG], 0);
        there_and_back(vec!["text".to_owned(); 2 * LONG], 0);
        there_and_back(vec![vec![1_u8]; 2 * LONG], 0);
        there_and_back(vec![Ok::<u8, ()>(3); 2 * LONG], 0);
        there_and_back(vec![(); 2 * LONG], 0);
        // More of them than a message has parts for.
        there_and_back(vec![vec![1.5_f64; LONG]; MAX_PARTS + 3], MAX_PARTS);
    }

    /// Numbers, and then something else.
    #[derive(Clone, PartialEq, Debug)]
    enum Mixed {
        Small(u8),
        Large(f64),
        Word(String),
    }

    impl Serialize for Mixed {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self {
                Self::Small(number) => serializer.serialize_u8(*number),
                Self::Large(number) => serializer.serialize_f64(*number),
                Self::Word(word) => serializer.serialize_str(word),
            }
        }
    }

    /// Reads what `Mixed` writes as each element says.
    struct Reads(Vec<Mixed>);

    impl<'de> DeserializeSeed<'de> for &Mixed {
        type Value = Mixed;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Mixed, D::Error> {
            Ok(match self {
                Mixed::Small(_) => Mixed::Small(u8::deserialize(deserializer)?),
                Mixed::Large(_) => Mixed::Large(f64::deserialize(deserializer)?),
                Mixed::Word(_) => Mixed::Word(String::deserialize(deserializer)?),
            })
        }
    }

    impl<'de> Visitor<'de> for &Reads {
        type Value = Vec<Mixed>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a mixed sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<Mixed>, A::Error> {
            let mut read = Vec::new();
            for expected in &self.0 {
                read.extend(all.next_element_seed(expected)?);
            }
            Ok(read)
        }
    }

    impl<'de> DeserializeSeed<'de> for &Reads {
        type Value = Vec<Mixed>;

        fn deserialize<D: Deserializer<'de>>(
            self,
            deserializer: D,
        ) -> Result<Vec<Mixed>, D::Error> {
            deserializer.deserialize_seq(self)
        }
    }

    #[test]
    fn nu_1_a_sequence_that_is_not_of_numbers_after_all_is_written_one_by_one() {
        let last = [
            Mixed::Large(1.5),
            Mixed::Word("seven".to_owned()),
            Mixed::Small(9),
        ];
        for first in [0, 1, LONG, 3 * BESIDE_BYTES] {
            let mut all = vec![Mixed::Small(200); first];
            for other in &last {
                all.push(other.clone());
                all.resize(all.len() + LONG, Mixed::Small(3));
            }
            let payload = written(&all);
            assert!(payload.parts.is_empty());
            let mut reader = crate::codec::reader::Reader::new(&payload.body[2..]);
            let read = Reads(all.clone()).deserialize(&mut reader).unwrap();
            assert!(read == all, "{first} numbers first");
            assert!(reader.finish().unwrap().0.is_empty());
        }
    }

    #[test]
    fn nu_1_what_is_not_a_number_is_serialized_once() {
        let blobs: Vec<_> = (0..LONG)
            .map(|i| Blob::from(vec![i as u8; OUT_OF_BAND]))
            .collect();
        let payload = written(&blobs);
        assert_eq!(payload.parts.len(), LONG);
        assert_eq!(read::<Vec<Blob>>(payload), Ok(blobs));
    }

    #[test]
    fn nu_2_lengths_that_lie_are_refused() {
        let good = written(&vec![1.5_f32; 5000]);
        assert_eq!(good.parts.len(), 1);
        let part = |bytes: usize| Part::from_vec(vec![0_u8; bytes]);
        for bytes in [0, 19_996, 20_001, 20_004] {
            let payload = Payload {
                parts: vec![part(bytes)],
                ..good.clone()
            };
            let error = read::<Vec<f32>>(payload).unwrap_err().to_string();
            assert!(
                error.contains("announces 5000 numbers of 4 bytes"),
                "{error}"
            );
        }
        // None at all, or one for two vectors.
        let payload = Payload {
            parts: Vec::new(),
            ..good.clone()
        };
        assert!(read::<Vec<f32>>(payload).is_err());
        let mut twice = good.body[2..].to_vec();
        twice.extend_from_slice(&good.body[2..]);
        let both = written(&(vec![1.5_f32; 5000], vec![1.5_f32; 5000]));
        let payload = Payload {
            body: [&both.body[..2], &twice].concat().into(),
            parts: vec![part(20_000)],
        };
        assert!(read::<(Vec<f32>, Vec<f32>)>(payload).is_err());
        // Ways and kinds that there are not, and endings before the end.
        for at in 4..good.body.len() {
            for byte in [3, 10, 77, 255] {
                let mut body = good.body.to_vec();
                body[at] = byte;
                let parts = good.parts.clone();
                let body = body.into();
                assert!(
                    read::<Vec<f32>>(Payload { body, parts }).is_err(),
                    "{byte} at {at}"
                );
            }
            let payload = Payload {
                body: good.body.slice(..at),
                parts: good.parts.clone(),
            };
            assert!(read::<Vec<f32>>(payload).is_err(), "cut off at {at}");
        }
    }

    #[test]
    fn numbers_are_read_as_wider_ones_and_as_nothing_that_they_are_not() {
        let payload = written(&vec![7_u32; 5000]);
        assert_eq!(read::<Vec<u64>>(payload.clone()), Ok(vec![7; 5000]));
        assert_eq!(read::<Vec<u8>>(payload.clone()), Ok(vec![7; 5000]));
        assert!(read::<Vec<String>>(payload.clone()).is_err());
        assert!(read::<Vec<bool>>(payload).is_err());
        let large = written(&vec![700_u32; 5000]);
        assert!(read::<Vec<u8>>(large).is_err());
    }

    /// Takes the first of them and no more.
    #[derive(Debug)]
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Self;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self, A::Error> {
            all.next_element::<f32>()?;
            Ok(self)
        }
    }

    impl<'de> Deserialize<'de> for First {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_seq(Self)
        }
    }

    /// Does not look at what came.
    #[derive(PartialEq, Debug)]
    struct Blind;

    impl<'de> Deserialize<'de> for Blind {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }

    #[test]
    fn whoever_reads_them_carelessly_comes_to_an_end() {
        let error = read::<First>(written(&vec![1.5_f32; 5000])).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("19996 bytes of numbers are left over"),
            "{error}"
        );
        let read = read::<Vec<Blind>>(written(&vec![1.5_f32; 5000]));
        assert_eq!(read.map(|all| all.len()), Ok(5000));
    }
}

//! Writing a value in the compact form: as postcard writes it.
//!
//! Postcard trusts a type to write what it announces. This looks after it: what the compact form cannot
//! carry (a field that is left out, a sequence or map that does not know its length, or has another one
//! than it said) ends with [`Fault::not_compact`], and the value is written in the described form
//! instead. Everything else is left to postcard.

use postcard::Serializer as Postcard;
use postcard::ser_flavors::Flavor;
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::count::FieldCounts;
use super::fault::Fault;

/// The bytes written so far.
pub(super) struct Body<'b>(pub(super) &'b mut Vec<u8>);

impl Flavor for Body<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Writes one value.
pub(super) struct Writer<'b> {
    postcard: Postcard<Body<'b>>,
    counts: FieldCounts,
}

impl<'b> Writer<'b> {
    /// Writes after what is there already.
    #[inline]
    pub(super) fn new(body: &'b mut Vec<u8>) -> Self {
        Self {
            postcard: Postcard { output: Body(body) },
            counts: FieldCounts::new(),
        }
    }

    /// How many fields were in what was written.
    #[inline]
    pub(super) fn finish(self) -> FieldCounts {
        self.counts
    }

    /// Begins something that announces how long it is.
    #[inline]
    fn several(&mut self, announced: usize) -> Several<'_, 'b> {
        Several {
            writer: self,
            announced,
            written: 0,
        }
    }

    #[inline]
    fn length(&mut self, length: Option<usize>) -> Result<usize, Fault> {
        let length = length.ok_or_else(Fault::not_compact)?;
        self.postcard.serialize_u64(length as u64)?;
        Ok(length)
    }
}

macro_rules! leave_to_postcard {
    ($($method:ident($($value:ident: $type:ty)?);)*) => {$(
        #[inline]
        fn $method(self $(, $value: $type)?) -> Result<(), Fault> {
            Ok(self.postcard.$method($($value)?)?)
        }
    )*};
}

impl<'a, 'b> Serializer for &'a mut Writer<'b> {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Several<'a, 'b>;
    type SerializeTuple = Several<'a, 'b>;
    type SerializeTupleStruct = Several<'a, 'b>;
    type SerializeTupleVariant = Several<'a, 'b>;
    type SerializeMap = Several<'a, 'b>;
    type SerializeStruct = Several<'a, 'b>;
    type SerializeStructVariant = Several<'a, 'b>;

    leave_to_postcard! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_f32(value: f32);
        serialize_f64(value: f64);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Fault> {
        self.postcard.serialize_u8(1)?;
        value.serialize(self)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
    ) -> Result<(), Fault> {
        self.serialize_u32(index)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        self.postcard.serialize_u32(index)?;
        value.serialize(self)
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Several<'a, 'b>, Fault> {
        let length = self.length(length)?;
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_map(self, length: Option<usize>) -> Result<Several<'a, 'b>, Fault> {
        let length = self.length(length)?;
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_tuple(self, length: usize) -> Result<Several<'a, 'b>, Fault> {
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        length: usize,
    ) -> Result<Several<'a, 'b>, Fault> {
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        length: usize,
    ) -> Result<Several<'a, 'b>, Fault> {
        self.postcard.serialize_u32(index)?;
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Several<'a, 'b>, Fault> {
        Ok(self.several(length))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        length: usize,
    ) -> Result<Several<'a, 'b>, Fault> {
        self.postcard.serialize_u32(index)?;
        Ok(self.several(length))
    }

    #[inline]
    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<(), Fault> {
        Ok(self.postcard.collect_str(value)?)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements, entries or fields of something.
pub(super) struct Several<'a, 'b> {
    writer: &'a mut Writer<'b>,
    announced: usize,
    written: usize,
}

impl Several<'_, '_> {
    #[inline]
    fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        self.written += 1;
        value.serialize(&mut *self.writer)
    }

    /// The end of a sequence or map, which the reader knows the length of.
    #[inline]
    fn end_counted(self) -> Result<(), Fault> {
        if self.written == self.announced {
            Ok(())
        } else {
            Err(Fault::not_compact())
        }
    }

    /// The end of what the reader has to know the length of.
    #[inline]
    fn end_fields(self) -> Result<(), Fault> {
        self.writer.counts.add(self.written);
        self.end_counted()
    }
}

macro_rules! several {
    ($($trait:ident: $method:ident, $end:ident;)*) => {$(
        impl $trait for Several<'_, '_> {
            type Ok = ();
            type Error = Fault;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
                self.write(value)
            }

            #[inline]
            fn end(self) -> Result<(), Fault> {
                self.$end()
            }
        }
    )*};
}

several! {
    SerializeSeq: serialize_element, end_counted;
    SerializeTuple: serialize_element, end_fields;
    SerializeTupleStruct: serialize_field, end_fields;
    SerializeTupleVariant: serialize_field, end_fields;
}

macro_rules! with_names {
    ($($trait:ident)*) => {$(
        impl $trait for Several<'_, '_> {
            type Ok = ();
            type Error = Fault;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Result<(), Fault> {
                self.write(value)
            }

            /// The reader would take the next field for this one.
            fn skip_field(&mut self, _: &'static str) -> Result<(), Fault> {
                Err(Fault::not_compact())
            }

            #[inline]
            fn end(self) -> Result<(), Fault> {
                self.end_fields()
            }
        }
    )*};
}

with_names!(SerializeStruct SerializeStructVariant);

impl SerializeMap for Several<'_, '_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Fault> {
        self.write(key)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        value.serialize(&mut *self.writer)
    }

    #[inline]
    fn end(self) -> Result<(), Fault> {
        self.end_counted()
    }
}

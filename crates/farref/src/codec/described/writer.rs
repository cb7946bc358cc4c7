//! Writing the described form.

use postcard::Serializer as Postcard;
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::super::bounded::Bounded;
use super::super::fault::Fault;
use super::tag;

/// Writes one value.
pub(in crate::codec) struct Writer<'b> {
    postcard: Postcard<Bounded<'b>>,
}

impl<'b> Writer<'b> {
    /// Writes after what is there already.
    pub(in crate::codec) fn new(body: &'b mut Vec<u8>) -> Self {
        Self::at_most(body, usize::MAX)
    }

    /// The same, up to so many bytes in all, but for a few.
    pub(in crate::codec) fn at_most(body: &'b mut Vec<u8>, most: usize) -> Self {
        let output = Bounded { bytes: body, most };
        Self {
            postcard: Postcard { output },
        }
    }

    fn tag(&mut self, tag: u8) {
        self.postcard.output.bytes.push(tag);
    }

    /// Begins the map that a variant with content is.
    fn variant(&mut self, name: &str) -> Result<(), Fault> {
        self.tag(tag::MAP);
        self.serialize_str(name)
    }

    /// Begins something that ends with `ends` ends.
    fn open(&mut self, tag: u8, ends: u8) -> Open<'_, 'b> {
        self.tag(tag);
        Open { writer: self, ends }
    }
}

macro_rules! tagged {
    ($($method:ident: $tag:ident($type:ty);)*) => {$(
        fn $method(self, value: $type) -> Result<(), Fault> {
            self.tag(tag::$tag);
            Ok(self.postcard.$method(value)?)
        }
    )*};
}

impl<'a, 'b> Serializer for &'a mut Writer<'b> {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Open<'a, 'b>;
    type SerializeTuple = Open<'a, 'b>;
    type SerializeTupleStruct = Open<'a, 'b>;
    type SerializeTupleVariant = Open<'a, 'b>;
    type SerializeMap = Open<'a, 'b>;
    type SerializeStruct = Open<'a, 'b>;
    type SerializeStructVariant = Open<'a, 'b>;

    tagged! {
        serialize_i8: I8(i8);
        serialize_i16: I16(i16);
        serialize_i32: I32(i32);
        serialize_i64: I64(i64);
        serialize_i128: I128(i128);
        serialize_u8: U8(u8);
        serialize_u16: U16(u16);
        serialize_u32: U32(u32);
        serialize_u64: U64(u64);
        serialize_u128: U128(u128);
        serialize_f32: F32(f32);
        serialize_f64: F64(f64);
        serialize_char: CHAR(char);
        serialize_str: STR(&str);
        serialize_bytes: BYTES(&[u8]);
    }

    fn serialize_bool(self, value: bool) -> Result<(), Fault> {
        self.tag(if value { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Fault> {
        self.tag(tag::NONE);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Fault> {
        self.tag(tag::SOME);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Fault> {
        self.tag(tag::UNIT);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Fault> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Fault> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        self.variant(variant)?;
        value.serialize(&mut *self)?;
        self.tag(tag::END);
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Open<'a, 'b>, Fault> {
        Ok(self.open(tag::SEQ, 1))
    }

    fn serialize_tuple(self, _: usize) -> Result<Open<'a, 'b>, Fault> {
        Ok(self.open(tag::SEQ, 1))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Open<'a, 'b>, Fault> {
        Ok(self.open(tag::SEQ, 1))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Open<'a, 'b>, Fault> {
        self.variant(variant)?;
        Ok(self.open(tag::SEQ, 2))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Open<'a, 'b>, Fault> {
        Ok(self.open(tag::MAP, 1))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Open<'a, 'b>, Fault> {
        Ok(self.open(tag::MAP, 1))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Open<'a, 'b>, Fault> {
        self.variant(variant)?;
        Ok(self.open(tag::MAP, 2))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// A sequence or map that has begun.
pub(in crate::codec) struct Open<'a, 'b> {
    writer: &'a mut Writer<'b>,
    ends: u8,
}

impl Open<'_, '_> {
    fn close(self) {
        (0..self.ends).for_each(|_| self.writer.tag(tag::END));
    }
}

macro_rules! elements {
    ($($trait:ident: $method:ident;)*) => {$(
        impl $trait for Open<'_, '_> {
            type Ok = ();
            type Error = Fault;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
                value.serialize(&mut *self.writer)
            }

            fn end(self) -> Result<(), Fault> {
                self.close();
                Ok(())
            }
        }
    )*};
}

elements! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

macro_rules! fields {
    ($($trait:ident)*) => {$(
        impl $trait for Open<'_, '_> {
            type Ok = ();
            type Error = Fault;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Fault> {
                self.writer.serialize_str(key)?;
                value.serialize(&mut *self.writer)
            }

            fn end(self) -> Result<(), Fault> {
                self.close();
                Ok(())
            }
        }
    )*};
}

fields!(SerializeStruct SerializeStructVariant);

impl SerializeMap for Open<'_, '_> {
    type Ok = ();
    type Error = Fault;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Fault> {
        key.serialize(&mut *self.writer)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Result<(), Fault> {
        self.close();
        Ok(())
    }
}

//! serde to pickle.

use serde::ser::{self, Serialize, Serializer};

use super::captured::{Captured, Fields};
use super::error::ValueError;
use super::names::{text_of, write_name};
use crate::pickle::Writer;

/// What a set writes itself as.
const SETS: [&str; 2] = ["farref_pickle::Set", "farref_torch::Set"];

/// What becomes of what is no plain data, on its way into a pickle.
pub trait Outward {
    /// Writes the reference that the message carries under this number.
    fn reference(&mut self, writer: &mut Writer, number: u32) -> Result<(), ValueError>;

    /// Writes the memory that the message carries as this part: of a blob, or of a buffer.
    fn memory(&mut self, writer: &mut Writer, is_blob: bool, part: u32) -> Result<(), ValueError>;

    /// Writes a worker, if it is more here than the plain data that it writes of itself.
    fn peer(&mut self, _writer: &mut Writer, _inside: Captured) -> Result<(), ValueError> {
        Ok(())
    }

    /// Whether workers are more than plain data.
    fn knows_peers(&self) -> bool {
        false
    }

    /// Whether structs of this name are no plain data.
    fn catches(&self, _name: &'static str) -> bool {
        false
    }

    /// Writes such a struct.
    fn caught(
        &mut self,
        _writer: &mut Writer,
        name: &'static str,
        _fields: Fields,
    ) -> Result<(), ValueError> {
        Err(ValueError::new(format_args!(
            "a {name} cannot be written here"
        )))
    }

    /// Whether structs of this name are calls: of a function, its arguments, and those that have names.
    fn is_call(&self, _name: &'static str) -> bool {
        false
    }

    /// Begins a call of that function.
    fn begin_call(&mut self, _writer: &mut Writer, _function: &str) -> Result<(), ValueError> {
        Ok(())
    }

    /// Ends it.
    fn end_call(&mut self, _writer: &mut Writer) {}

    /// Notes that all of the value is what a newtype struct of this name has in it.
    fn note(&mut self, _name: &'static str) {}
}

/// Writes a value.
pub fn write_value(
    value: &dyn erased_serde::Serialize,
    outward: &mut dyn Outward,
) -> Result<Vec<u8>, ValueError> {
    let mut output = Output {
        writer: Writer::new(4),
        outward,
    };
    value.serialize(&mut output)?;
    Ok(output.writer.finish())
}

/// A pickle under way.
struct Output<'o> {
    writer: Writer,
    outward: &'o mut dyn Outward,
}

impl Output<'_> {
    /// A number of more than eight bytes, in the fewest that keep its sign.
    fn long(&mut self, bytes: &[u8; 17]) {
        let sign = if bytes[16] & 0x80 == 0 { 0 } else { 0xff };
        let mut length = bytes.len();
        while length > 1 && bytes[length - 1] == sign && (bytes[length - 2] ^ sign) & 0x80 == 0 {
            length -= 1;
        }
        self.writer.long(&bytes[..length]);
    }
}

fn small_number(captured: &Captured) -> Result<u32, ValueError> {
    u32::try_from(captured.number()?).map_err(ValueError::new)
}

/// What becomes of a sequence's items when they have all been written.
struct Items<'a, 'o> {
    output: &'a mut Output<'o>,
    kind: Collection,
}

#[derive(Clone, Copy)]
enum Collection {
    List,
    Tuple,
    Set,
    Dict,
    /// The value of a variant: in a dict, under the variant's name.
    VariantTuple,
    VariantDict,
}

impl<'a, 'o> Items<'a, 'o> {
    fn begin(output: &'a mut Output<'o>, kind: Collection) -> Self {
        match kind {
            Collection::List => drop(output.writer.empty_list().mark()),
            Collection::Tuple | Collection::VariantTuple => drop(output.writer.mark()),
            Collection::Set => drop(output.writer.empty_set().mark()),
            Collection::Dict | Collection::VariantDict => {
                output.writer.empty_dict().mark();
            }
        }
        Self { output, kind }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        value.serialize(&mut *self.output)
    }

    fn finish(self) {
        let writer = &mut self.output.writer;
        match self.kind {
            Collection::List => writer.appends(),
            Collection::Tuple => writer.tuple(),
            Collection::Set => writer.add_items(),
            Collection::Dict => writer.set_items(),
            Collection::VariantTuple => writer.tuple().set_items(),
            Collection::VariantDict => writer.set_items().set_items(),
        };
    }
}

/// A struct on its way into a pickle.
enum Struct<'a, 'o> {
    Dict(Items<'a, 'o>),
    /// A type of the runtime's, which says something of itself.
    Caught {
        output: &'a mut Output<'o>,
        name: &'static str,
        fields: Fields,
    },
    /// A call of a Python function.
    Call(&'a mut Output<'o>),
}

macro_rules! as_int {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<(), ValueError> {
            self.writer.int(i64::from(value));
            Ok(())
        })*
    };
}

impl<'a, 'o> Serializer for &'a mut Output<'o> {
    type Ok = ();
    type Error = ValueError;
    type SerializeSeq = Items<'a, 'o>;
    type SerializeTuple = Items<'a, 'o>;
    type SerializeTupleStruct = Items<'a, 'o>;
    type SerializeTupleVariant = Items<'a, 'o>;
    type SerializeMap = Items<'a, 'o>;
    type SerializeStruct = Struct<'a, 'o>;
    type SerializeStructVariant = Items<'a, 'o>;

    as_int!(
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32
    );

    fn serialize_u64(self, value: u64) -> Result<(), ValueError> {
        self.serialize_u128(value.into())
    }

    fn serialize_u128(self, value: u128) -> Result<(), ValueError> {
        if let Ok(value) = i64::try_from(value) {
            return self.serialize_i64(value);
        }
        let mut bytes = [0; 17];
        bytes[..16].copy_from_slice(&value.to_le_bytes());
        self.long(&bytes);
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result<(), ValueError> {
        if let Ok(value) = i64::try_from(value) {
            return self.serialize_i64(value);
        }
        let mut bytes = [if value < 0 { 0xff } else { 0 }; 17];
        bytes[..16].copy_from_slice(&value.to_le_bytes());
        self.long(&bytes);
        Ok(())
    }

    fn serialize_bool(self, value: bool) -> Result<(), ValueError> {
        self.writer.bool(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), ValueError> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), ValueError> {
        self.writer.float(value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), ValueError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<(), ValueError> {
        self.writer.text(text.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), ValueError> {
        self.writer.byte_string(bytes);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), ValueError> {
        self.writer.none();
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), ValueError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), ValueError> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), ValueError> {
        self.serialize_none()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), ValueError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        match name {
            "farref::RRef" => {
                let number = small_number(&Captured::of(value)?)?;
                self.outward.reference(&mut self.writer, number)
            }
            "farref::Blob" | "farref::Buffer" => match Captured::of(value)? {
                Captured::Variant("Part", part) => {
                    let (is_blob, part) = (name == "farref::Blob", small_number(&part)?);
                    self.outward.memory(&mut self.writer, is_blob, part)
                }
                Captured::Variant(_, bytes) => match *bytes {
                    Captured::Bytes(bytes) => self.serialize_bytes(&bytes),
                    // A buffer, with the size of its elements.
                    Captured::List(parts) => match &parts[..] {
                        [_, Captured::Bytes(bytes)] => self.serialize_bytes(bytes),
                        _ => Err(ValueError::new("a buffer without bytes")),
                    },
                    _ => Err(ValueError::new("a buffer without bytes")),
                },
                _ => Err(ValueError::new("a buffer without bytes")),
            },
            "farref::Peer" if self.outward.knows_peers() => {
                self.outward.peer(&mut self.writer, Captured::of(value)?)
            }
            "farref::ForeignClass" => {
                let class = text_of(value)?;
                write_name(&mut self.writer, &class)
            }
            _ => {
                self.outward.note(name);
                value.serialize(self)
            }
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        self.writer.empty_dict().mark().text(variant.as_bytes());
        value.serialize(&mut *self)?;
        self.writer.set_items();
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a, 'o>, ValueError> {
        Ok(Items::begin(self, Collection::List))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a, 'o>, ValueError> {
        Ok(Items::begin(self, Collection::Tuple))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Items<'a, 'o>, ValueError> {
        let kind = match SETS.contains(&name) {
            true => Collection::Set,
            false => Collection::Tuple,
        };
        Ok(Items::begin(self, kind))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a, 'o>, ValueError> {
        self.writer.empty_dict().mark().text(variant.as_bytes());
        Ok(Items::begin(self, Collection::VariantTuple))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Items<'a, 'o>, ValueError> {
        Ok(Items::begin(self, Collection::Dict))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Struct<'a, 'o>, ValueError> {
        Ok(match name {
            name if self.outward.catches(name) => Struct::Caught {
                output: self,
                name,
                fields: Vec::new(),
            },
            name if self.outward.is_call(name) => Struct::Call(self),
            _ => Struct::Dict(Items::begin(self, Collection::Dict)),
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a, 'o>, ValueError> {
        self.writer.empty_dict().mark().text(variant.as_bytes());
        Ok(Items::begin(self, Collection::VariantDict))
    }
}

/// serde has a trait for each kind of sequence; here they differ in how they begin and end only.
macro_rules! sequences {
    ($($trait:ident: $method:ident),*) => {
        $(impl ser::$trait for Items<'_, '_> {
            type Ok = ();
            type Error = ValueError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
                self.push(value)
            }

            fn end(self) -> Result<(), ValueError> {
                self.finish();
                Ok(())
            }
        })*
    };
}

sequences!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

impl ser::SerializeMap for Items<'_, '_> {
    type Ok = ();
    type Error = ValueError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ValueError> {
        self.push(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        self.push(value)
    }

    fn end(self) -> Result<(), ValueError> {
        self.finish();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Items<'_, '_> {
    type Ok = ();
    type Error = ValueError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        self.push(name)?;
        self.push(value)
    }

    fn end(self) -> Result<(), ValueError> {
        self.finish();
        Ok(())
    }
}

impl ser::SerializeStruct for Struct<'_, '_> {
    type Ok = ();
    type Error = ValueError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        field: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        match self {
            Self::Dict(items) => {
                items.push(field)?;
                items.push(value)
            }
            Self::Caught { fields, .. } => {
                fields.push((field, Captured::of(value)?));
                Ok(())
            }
            Self::Call(output) if field == "function" => {
                let function = text_of(value)?;
                output.outward.begin_call(&mut output.writer, &function)
            }
            Self::Call(output) => value.serialize(&mut **output),
        }
    }

    fn end(self) -> Result<(), ValueError> {
        match self {
            Self::Dict(items) => items.finish(),
            Self::Caught {
                output,
                name,
                fields,
            } => output.outward.caught(&mut output.writer, name, fields)?,
            Self::Call(output) => output.outward.end_call(&mut output.writer),
        }
        Ok(())
    }
}

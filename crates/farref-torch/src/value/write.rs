//! serde to pickle.

use serde::ser::{self, Serialize, Serializer};

use super::body::{Body, Placeholder, Replacement, TensorEntry};
use super::captured::Captured;
use super::error::ValueError;
use super::{python, tensor};
use crate::pickle::Writer;
use crate::rpc;

/// Writes a value.
pub(super) fn to_body(value: &dyn erased_serde::Serialize) -> Result<Body, ValueError> {
    let mut output = Output {
        writer: Writer::new(4),
        placeholders: Vec::new(),
        tensors: Vec::new(),
    };
    value.serialize(&mut output)?;
    Ok(Body {
        pickle: output.writer.finish(),
        placeholders: output.placeholders,
        tensors: output.tensors,
        ..Body::default()
    })
}

/// A pickle under way.
struct Output {
    writer: Writer,
    placeholders: Vec<Placeholder>,
    tensors: Vec<TensorEntry>,
}

impl Output {
    /// Leaves a placeholder. What stands there meanwhile is read back as what belongs there, if the value never
    /// leaves this process.
    fn leave(&mut self, replacement: Replacement) -> Result<(), ValueError> {
        let too_long = |_| ValueError::new("the value is longer than 4 GiB");
        let at = self.writer.len();
        let id = match replacement {
            Replacement::Reference(number) => i64::from(number),
            Replacement::Part(number) => -1 - i64::from(number),
        };
        self.writer.int(id).persistent();
        self.placeholders.push(Placeholder {
            at: u32::try_from(at).map_err(too_long)?,
            len: u32::try_from(self.writer.len() - at).map_err(too_long)?,
            replacement,
        });
        Ok(())
    }

    fn tensor(&mut self, entry: TensorEntry) {
        rpc::write_tensor(&mut self.writer, self.tensors.len());
        self.tensors.push(entry);
    }

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
struct Items<'a> {
    output: &'a mut Output,
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

impl<'a> Items<'a> {
    fn begin(output: &'a mut Output, kind: Collection) -> Self {
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
enum Struct<'a> {
    Dict(Items<'a>),
    /// A type of the runtime's, which says something of itself.
    Caught {
        output: &'a mut Output,
        name: &'static str,
        fields: Vec<(&'static str, Captured)>,
    },
    /// A call of a Python function.
    Udf(&'a mut Output),
}

macro_rules! as_int {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<(), ValueError> {
            self.writer.int(i64::from(value));
            Ok(())
        })*
    };
}

impl<'a> Serializer for &'a mut Output {
    type Ok = ();
    type Error = ValueError;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Items<'a>;
    type SerializeStruct = Struct<'a>;
    type SerializeStructVariant = Items<'a>;

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
                self.leave(Replacement::Reference(number))
            }
            "farref::Blob" | "farref::Buffer" => match Captured::of(value)? {
                Captured::Variant("Part", part) => {
                    self.leave(Replacement::Part(small_number(&part)?))
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
            "farref::ForeignClass" => {
                let class = python::text_of(value)?;
                python::write_name(&mut self.writer, &class)
            }
            _ => value.serialize(self),
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

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, ValueError> {
        Ok(Items::begin(self, Collection::List))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, ValueError> {
        Ok(Items::begin(self, Collection::Tuple))
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Items<'a>, ValueError> {
        let kind = match name {
            python::SET => Collection::Set,
            _ => Collection::Tuple,
        };
        Ok(Items::begin(self, kind))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, ValueError> {
        self.writer.empty_dict().mark().text(variant.as_bytes());
        Ok(Items::begin(self, Collection::VariantTuple))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Items<'a>, ValueError> {
        Ok(Items::begin(self, Collection::Dict))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Struct<'a>, ValueError> {
        Ok(match name {
            tensor::TENSOR | tensor::RAW_TENSOR => Struct::Caught {
                output: self,
                name,
                fields: Vec::new(),
            },
            python::UDF_STRUCT => Struct::Udf(self),
            _ => Struct::Dict(Items::begin(self, Collection::Dict)),
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, ValueError> {
        self.writer.empty_dict().mark().text(variant.as_bytes());
        Ok(Items::begin(self, Collection::VariantDict))
    }
}

/// serde has a trait for each kind of sequence; here they differ in how they begin and end only.
macro_rules! sequences {
    ($($trait:ident: $method:ident),*) => {
        $(impl ser::$trait for Items<'_> {
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

impl ser::SerializeMap for Items<'_> {
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

impl ser::SerializeStructVariant for Items<'_> {
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

impl ser::SerializeStruct for Struct<'_> {
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
            Self::Udf(output) if field == "function" => {
                let function = python::text_of(value)?;
                let (module, name) = python::split_name(&function)?;
                rpc::Udf::begin(&mut output.writer, module, name);
                Ok(())
            }
            Self::Udf(output) => value.serialize(&mut **output),
        }
    }

    fn end(self) -> Result<(), ValueError> {
        match self {
            Self::Dict(items) => items.finish(),
            Self::Caught {
                output,
                name,
                fields,
            } => output.tensor(tensor::entry_of(name, &fields)?),
            Self::Udf(output) => rpc::Udf::end(&mut output.writer),
        }
        Ok(())
    }
}

//! The described form of a value: each part says what it is, and fields go by their names.
//!
//! It carries what the compact form cannot: types that look at what came before they know what they are
//! (`#[serde(untagged)]`, `#[serde(tag = "..")]`, `#[serde(flatten)]`, `serde_json::Value`), fields that
//! are left out (`#[serde(skip_serializing_if = "..")]`), and sequences and maps whose length is not
//! known beforehand. It takes more bytes and time, so it is used for these only.
//!
//! | part | bytes |
//! | --- | --- |
//! | number, char, text, bytes | its [`tag`], then as postcard writes it |
//! | `false`, `true`, unit, none | its tag |
//! | some | its tag, then the content |
//! | sequence, tuple | its tag, the elements, [`END`](tag::END) |
//! | map, struct | its tag, keys and values in turn, [`END`](tag::END); the keys of a struct are texts |
//! | variant without content | its name, as a text |
//! | variant with content | a map of one entry, from its name to its content |
//!
//! A newtype is its content.

mod reader;
mod writer;

pub(super) use reader::Reader;
pub(super) use writer::Writer;

/// What a part begins with.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const I8: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const I128: u8 = 7;
    pub(super) const U8: u8 = 8;
    pub(super) const U16: u8 = 9;
    pub(super) const U32: u8 = 10;
    pub(super) const U64: u8 = 11;
    pub(super) const U128: u8 = 12;
    pub(super) const F32: u8 = 13;
    pub(super) const F64: u8 = 14;
    pub(super) const CHAR: u8 = 15;
    pub(super) const STR: u8 = 16;
    pub(super) const BYTES: u8 = 17;
    pub(super) const NONE: u8 = 18;
    pub(super) const SOME: u8 = 19;
    pub(super) const UNIT: u8 = 20;
    pub(super) const SEQ: u8 = 21;
    pub(super) const MAP: u8 = 22;
}

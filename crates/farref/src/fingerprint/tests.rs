//! What fingerprints tell apart, and that tracing ends. The numbers are those of the invariants in
//! the module's documentation.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::found::MAX_DEPTH;
use super::shape::{MAX_STEPS, MAX_STEPS_PER_PART, steps_of};
use super::*;

/// Compares the shapes of two types of the same name, each inside another type.
macro_rules! differ {
    ($($law:ident: { $one:item } { $other:item })*) => {$(
        #[test]
        fn $law() {
            assert_ne!(shape!($one), shape!($other));
        }
    )*};
}

macro_rules! shape {
    ($item:item) => {{
        #[derive(Deserialize)]
        #[allow(dead_code, reason = "only its shape counts; some have nothing but that")]
        $item
        shape_of::<(u8, Vec<T>)>()
    }};
}

// FP-2.
differ! {
    another_field_name_is_another_shape: { struct T { a: u8 } } { struct T { b: u8 } }
    another_field_order_is_another_shape: { struct T { a: u8, b: u8 } } { struct T { b: u8, a: u8 } }
    another_field_type_is_another_shape: { struct T { a: u8 } } { struct T { a: String } }
    another_integer_width_is_another_shape: { struct T { a: u32 } } { struct T { a: u64 } }
    another_sign_is_another_shape: { struct T { a: u32 } } { struct T { a: i32 } }
    one_more_field_is_another_shape: { struct T { a: u8 } } { struct T { a: u8, b: u8 } }
    an_optional_field_is_another_shape: { struct T { a: u8 } } { struct T { a: Option<u8> } }
    another_element_is_another_shape: { struct T { a: Vec<u8> } } { struct T { a: Vec<u16> } }
    another_key_is_another_shape:
        { struct T { a: HashMap<u8, u8> } } { struct T { a: HashMap<u16, u8> } }
    another_map_value_is_another_shape:
        { struct T { a: HashMap<u8, u8> } } { struct T { a: HashMap<u8, u16> } }
    another_arity_is_another_shape: { struct T(u8, u8); } { struct T(u8, u8, u8); }
    another_array_length_is_another_shape: { struct T { a: [u8; 3] } } { struct T { a: [u8; 4] } }
    another_tuple_element_is_another_shape: { struct T(u8, u8); } { struct T(u8, u16); }
    another_serde_name_is_another_shape:
        { struct T { a: u8 } } { #[serde(rename = "S")] struct T { a: u8 } }
    another_variant_name_is_another_shape: { enum T { A, B } } { enum T { A, C } }
    another_variant_order_is_another_shape: { enum T { A, B } } { enum T { B, A } }
    content_of_a_variant_is_part_of_the_shape: { enum T { A, B } } { enum T { A, B(u8) } }
    another_content_of_a_late_variant_is_another_shape:
        { enum T { A(u8, u8), B(u8, u8) } } { enum T { A(u8, u8), B(u8, u16) } }
    another_field_of_a_variant_is_another_shape:
        { enum T { A { a: u8 } } } { enum T { A { b: u8 } } }
    another_field_type_in_a_variant_is_another_shape:
        { enum T { A { a: u8, b: u8 } } } { enum T { A { a: u8, b: u16 } } }
    a_change_after_a_recursive_field_is_another_shape:
        { struct T { next: Option<Box<Self>>, a: u8 } } { struct T { next: Option<Box<Self>>, a: u16 } }
    a_change_after_recursive_elements_is_another_shape:
        { enum T { Both(Box<Self>, Box<Self>, u8), Leaf } } { enum T { Both(Box<Self>, Box<Self>, u16), Leaf } }
    uses_of_one_generic_type_are_told_apart:
        { struct T { a: Pair<u8>, b: Pair<u8> } } { struct T { a: Pair<u8>, b: Pair<u16> } }
    // FP-4.
    a_change_after_a_field_that_cannot_be_made_is_another_shape:
        { struct T { a: Never, b: u8 } } { struct T { a: Never, b: u16 } }
    a_change_inside_a_validated_type_is_another_shape:
        { struct T { a: Validated<u8> } } { struct T { a: Validated<u16> } }
    a_change_after_a_reference_in_a_struct_is_another_shape:
        { struct T { a: Far<false>, b: u8 } } { struct T { a: Far<false>, b: u16 } }
    a_change_after_a_hollow_reference_in_a_tuple_is_another_shape:
        { struct T(Far<true>, u8); } { struct T(Far<true>, u16); }
    a_change_after_validated_elements_is_another_shape:
        { struct T(NonZeroU32, IpAddr, Duration, SystemTime, char, Filled, u8); }
        { struct T(NonZeroU32, IpAddr, Duration, SystemTime, char, Filled, u16); }
    a_change_after_an_enum_whose_first_variants_fail_is_another_shape:
        { struct T(Picky, u8); } { struct T(Picky, u16); }
    a_change_after_recursive_values_is_another_shape:
        { struct T(Expr, Tree, Named, Even, u8); } { struct T(Expr, Tree, Named, Even, u16); }
    a_change_in_a_struct_that_knows_positions_only_is_another_shape:
        { struct T { a: Positional<u8> } } { struct T { a: Positional<u16> } }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
struct Pair<T> {
    a: T,
    b: T,
}

/// Refuses every value.
#[derive(Deserialize)]
#[serde(try_from = "u8")]
struct Never;

impl TryFrom<u8> for Never {
    type Error = &'static str;
    fn try_from(_: u8) -> Result<Self, &'static str> {
        Err("never")
    }
}

#[derive(Deserialize)]
#[serde(try_from = "Pair<T>", bound = "T: Deserialize<'de>")]
struct Validated<T>(PhantomData<T>);

impl<T> TryFrom<Pair<T>> for Validated<T> {
    type Error = &'static str;
    fn try_from(_: Pair<T>) -> Result<Self, &'static str> {
        Err("no pair is good enough")
    }
}

/// Not empty.
#[derive(Deserialize)]
#[serde(try_from = "Vec<u8>")]
struct Filled;

impl TryFrom<Vec<u8>> for Filled {
    type Error = &'static str;
    fn try_from(bytes: Vec<u8>) -> Result<Self, &'static str> {
        if bytes.is_empty() {
            Err("empty")
        } else {
            Ok(Self)
        }
    }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
enum Picky {
    A(Never),
    B { a: u8, never: Never },
    C(u8, Box<Self>),
    D(u8),
}

/// Stands in for a reference, which can be made only if its visitor knows how to make a hollow one.
struct Far<const HOLLOW: bool>;

impl<'de, const HOLLOW: bool> Deserialize<'de> for Far<HOLLOW> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reference<const HOLLOW: bool>;
        impl<'de, const HOLLOW: bool> Visitor<'de> for Reference<HOLLOW> {
            type Value = Far<HOLLOW>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a reference")
            }
            fn visit_unit<E: Error>(self) -> Result<Far<HOLLOW>, E> {
                if HOLLOW {
                    Ok(Far)
                } else {
                    Err(E::custom("outside a call"))
                }
            }
        }
        deserializer.deserialize_newtype_struct("farref::RRef", Reference)
    }
}

struct Positional<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Positional<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Positions<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Positions<T> {
            type Value = Positional<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two fields")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Positional<T>, A::Error> {
                seq.next_element::<u8>()?;
                seq.next_element::<T>()?;
                Ok(Positional(PhantomData))
            }
        }
        deserializer.deserialize_struct("Positional", &["a", "b"], Positions(PhantomData))
    }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
enum Expr {
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    If {
        a: Box<Self>,
        b: Box<Self>,
        c: Box<Self>,
    },
    All(Vec<Self>, Vec<Vec<Self>>),
    Const(bool),
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
struct Tree {
    left: Vec<Self>,
    right: Vec<Self>,
    value: u8,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
struct Named {
    children: HashMap<String, Self>,
    sorted: BTreeMap<String, Self>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
enum Even {
    After(Box<Odd>),
    Zero,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
enum Odd {
    After(Box<Even>),
    Twice(Box<Self>, Box<Even>),
}

/// Is made of itself.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
struct Endless {
    a: Box<Self>,
    b: Box<Self>,
    c: u8,
}

#[test]
fn functions_that_differ_in_name_arguments_or_output_differ() {
    // FP-2.
    let one = of_function::<(u8, String), u8>("f", None);
    assert_eq!(
        one,
        of_function::<(u8, String), u8>("f", None),
        "from the cache"
    );
    assert_ne!(one, of_function::<(u8, String), u8>("g", None));
    assert_ne!(one, of_function::<(u16, String), u8>("f", None));
    assert_ne!(one, of_function::<(u8, String), u16>("f", None));
    assert_ne!(one, of_function::<(u8, String, ()), u8>("f", None));
    let fails = |error| of_function::<(u8, String), u8>("f", Some(&error));
    assert_ne!(one, fails(ErrorType::of::<u8>()));
    assert_ne!(fails(ErrorType::of::<u8>()), fails(ErrorType::of::<u16>()));
    assert_ne!(of_type::<u8>(), of_type::<u16>());
    assert_eq!(of_type::<Tree>(), of_type::<Tree>());
}

#[test]
fn types_that_ask_for_the_same_have_one_shape() {
    // FP-1: what is traced does not depend on where the type is.
    mod elsewhere {
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "only its shape counts")]
        pub(super) struct Pair {
            a: u8,
            b: u8,
        }
    }
    assert_eq!(shape_of::<Pair<u8>>(), shape_of::<elsewhere::Pair>());
    assert_ne!(
        of_function::<(Pair<u8>,), ()>("f", None),
        of_function::<(elsewhere::Pair,), ()>("f", None)
    );
}

#[test]
fn what_serde_attributes_do_is_part_of_the_shape() {
    // FP-4.
    #[derive(Deserialize)]
    #[serde(tag = "t", content = "c")]
    #[expect(dead_code, reason = "only its shape counts")]
    enum Adjacent {
        A(u8),
        B(u16),
    }
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Attributes {
        #[serde(alias = "d")]
        a: u8,
        #[serde(skip)]
        b: u16,
        #[serde(default)]
        c: u32,
        adjacent: Adjacent,
    }
    let expected = "\
struct 10:Attributes 1:a 1:d 1:c 8:adjacent #1 #1 #2 #3
u8
u32
struct 8:Adjacent 1:t 1:c #4 #5
enum 8:Adjacent 1:A 1:B #6 #6
any
unit variant
";
    assert_eq!(shape_of::<Attributes>().text(), expected);

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Flat {
        a: u8,
        #[serde(flatten)]
        rest: Pair<u8>,
    }
    assert_eq!(shape_of::<Flat>().text(), "map #1 #2\nidentifier\nany\n");
}

#[test]
fn a_hash_is_the_published_fnv_1a_and_keeps_parts_apart() {
    // FP-1.
    assert_eq!(Hash::new().bytes(b"").0, 0xcbf2_9ce4_8422_2325);
    assert_eq!(Hash::new().bytes(b"a").0, 0xaf63_dc4c_8601_ec8c);
    assert_eq!(Hash::new().bytes(b"foobar").0, 0x8594_4171_f739_67e8);
    assert_ne!(
        Hash::new().part("ab").part("c").0,
        Hash::new().part("a").part("bc").0
    );
}

#[test]
fn a_shape_is_the_same_in_every_process() {
    // FP-1: held by writing one down. A change to it makes old and new builds refuse each other.
    let expected = "\
tuple 4 #1 #2 #3 #4
enum 4:Expr 3:Not 3:And 2:If 3:All 5:Const #5 #6 #7 #8 #9
own 12:farref::RRef
struct 4:Pair 1:a 1:b #10 #10
option #11
newtype variant #1
tuple variant 2 #1 #1
struct variant 1:a 1:b 1:c #1 #1 #1
tuple variant 2 #12 #13
newtype variant #14
u16
str
seq #1
seq #12
bool
";
    type Arguments = (Expr, Far<true>, Pair<u16>, Option<String>);
    assert_eq!(shape_of::<Arguments>().text(), expected);
}

#[test]
fn every_part_of_a_recursive_type_is_traced() {
    // FP-3, FP-4.
    fn check<T: DeserializeOwned>() {
        let shape = shape_of::<T>();
        assert!(!shape.text().contains("opaque"), "{}", shape.text());
        assert!(steps_of::<T>() < 2_000, "{}", steps_of::<T>());
    }
    check::<Expr>();
    check::<Tree>();
    check::<Named>();
    check::<Even>();
    check::<(Even, Odd, Expr, Tree, Named)>();
    check::<Endless>();
}

#[test]
fn types_of_the_standard_library_are_traced_in_full() {
    // FP-4.
    type Nets = (IpAddr, std::net::SocketAddr, std::net::Ipv6Addr);
    type Times = (
        Duration,
        SystemTime,
        std::ops::Range<u8>,
        std::ops::Bound<u8>,
    );
    type Texts = (
        char,
        String,
        Box<str>,
        std::path::PathBuf,
        std::ffi::CString,
    );
    type Others = (
        NonZeroU32,
        Result<u8, u16>,
        PhantomData<u8>,
        [u128; 4],
        (),
        f64,
    );
    let shape = shape_of::<(Nets, Times, Texts, Others, HashMap<(u8, char), Option<u8>>)>();
    assert!(!shape.text().contains("opaque"), "{}", shape.text());
}

#[test]
fn a_buffer_and_a_blob_are_known_by_name() {
    let shape = shape_of::<(crate::Buffer, crate::Blob, u32)>();
    assert_eq!(
        shape.text(),
        "tuple 3 #1 #2 #3\nown 14:farref::Buffer\nown 12:farref::Blob\nu32\n"
    );
}

#[test]
fn an_element_that_cannot_be_made_hides_only_the_elements_after_it() {
    // FP-4: the exception, and no more than that.
    let shape = shape_of::<(u16, Never, u32)>();
    assert_eq!(shape.text(), "tuple 3 #1 #2 #3\nu16\nu8\nopaque\n");
    let shape = shape_of::<(Far<false>, u32)>();
    assert_eq!(shape.text(), "tuple 2 #1 #2\nown 12:farref::RRef\nopaque\n");
}

#[test]
fn a_type_that_reads_whatever_comes_is_a_leaf() {
    // FP-3.
    #[derive(Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only its shape counts")]
    enum Untagged {
        A(u8),
    }
    assert_eq!(shape_of::<Untagged>().text(), "any\n");
    let shape = shape_of::<(serde_json::Value, u8)>();
    assert_eq!(shape.text(), "tuple 2 #1 #2\nany\nu8\n");
}

#[test]
fn a_type_that_cannot_be_traced_is_opaque() {
    // FP-3.
    struct Refuses;
    impl<'de> Deserialize<'de> for Refuses {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Err(D::Error::custom("not today"))
        }
    }
    struct Panics;
    impl<'de> Deserialize<'de> for Panics {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("a type that panics, on purpose")
        }
    }
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Both {
        a: Refuses,
        b: Panics,
        c: u8,
    }
    assert_eq!(shape_of::<Refuses>().text(), "opaque\n");
    let expected = "struct 4:Both 1:a 1:b 1:c #1 #1 #2\nopaque\nu8\n";
    assert_eq!(shape_of::<Both>().text(), expected);
}

static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| (0..10_000).map(|n| &*format!("n{n}").leak()).collect());

/// Nests as many newtype structs as there are names, each another one.
struct Deep(usize);

impl<'de> Deserialize<'de> for Deep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self(0).deserialize(deserializer)
    }
}

impl<'de> DeserializeSeed<'de> for Deep {
    type Value = Self;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
        match NAMES.get(self.0) {
            Some(name) => deserializer.deserialize_newtype_struct(name, self),
            None => u8::deserialize(deserializer).map(|_| self),
        }
    }
}

impl<'de> Visitor<'de> for Deep {
    type Value = Self;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("depth")
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Self, D::Error> {
        DeserializeSeed::deserialize(Self(self.0 + 1), inner)
    }
}

#[test]
fn deep_nesting_is_bounded() {
    // FP-3.
    let shape = shape_of::<Deep>();
    assert_eq!(shape.text().lines().count(), MAX_DEPTH + 1);
    assert!(shape.text().ends_with("opaque\n"));
    assert!(steps_of::<Deep>() < MAX_DEPTH * MAX_DEPTH);

    let shape = shape_of::<(Deep, u8)>();
    assert!(shape.text().starts_with("tuple 2 #1 #2\n"));
    assert!(steps_of::<(Deep, u8)>() < MAX_DEPTH * (MAX_DEPTH + 2));
}

#[test]
fn values_that_double_with_every_level_are_bounded() {
    // FP-3: making an `E` takes as many steps as there are leaves.
    type Four<T> = ((T, T), (T, T));
    type A = Four<Four<Four<u8>>>;
    type E = Four<Four<Four<Four<A>>>>;
    let shape = shape_of::<(E, u8, u16)>();
    assert!(steps_of::<(E, u8, u16)>() < 100 * MAX_STEPS_PER_PART);
    assert!(shape.text().contains("opaque"));
    assert_eq!(
        shape.text(),
        shape_of::<(E, u8, u16)>().text(),
        "FP-1 all the same"
    );

    assert!(steps_of::<(Endless, Endless, u8)>() < MAX_STEPS_PER_PART);
}

/// One of as many enums as there are names.
#[derive(Clone, Copy)]
struct Wide {
    name: usize,
    variants: usize,
}

impl<'de> DeserializeSeed<'de> for Wide {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_enum(NAMES[self.name], &NAMES[..self.variants], self)
    }
}

impl<'de> Visitor<'de> for Wide {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a variant")
    }
    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<(), A::Error> {
        let (_, variant) = data.variant::<u32>()?;
        variant.newtype_variant::<Option<u16>>().map(drop)
    }
}

/// A struct of a hundred such enums.
struct Hundred;

impl<'de> Deserialize<'de> for Hundred {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Hundred", &NAMES[..100], Self)
    }
}

impl<'de> Visitor<'de> for Hundred {
    type Value = Self;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hundred")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let name = NAMES.iter().position(|name| *name == key).unwrap_or(0);
            map.next_value_seed(Wide {
                name,
                variants: 100,
            })?;
        }
        Ok(self)
    }
}

#[test]
fn a_hundred_enums_of_a_hundred_variants_are_traced_in_full() {
    // FP-3, FP-4.
    let shape = shape_of::<Hundred>();
    assert!(!shape.text().contains("opaque"));
    assert_eq!(shape.text().lines().count(), 1 + 100 + 10_000 + 2);
    assert!(steps_of::<Hundred>() < MAX_STEPS / 10);
}

#[test]
fn an_enum_of_ten_thousand_variants_is_traced_in_full() {
    // FP-3, FP-4.
    struct Widest;
    impl<'de> Deserialize<'de> for Widest {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let all = Wide {
                name: 0,
                variants: NAMES.len(),
            };
            DeserializeSeed::deserialize(all, deserializer).map(|()| Self)
        }
    }
    let shape = shape_of::<(Widest, u8)>();
    assert!(!shape.text().contains("opaque"));
    assert!(steps_of::<(Widest, u8)>() < MAX_STEPS / 10);
}

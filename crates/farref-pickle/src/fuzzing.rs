//! Entry points for fuzzers. Each takes any bytes at all and must neither panic, nor hang, nor take more than in
//! proportion to the bytes; and what it reads must come out the same when it is written and read again.
//!
//! The target in `fuzz/` calls them, through the feature `fuzzing`; the tests below call each for a moment, with
//! the seeds that are there, changed a little. `PROPTEST_CASES` makes the moment longer.

use std::collections::BTreeMap;

use farref::{Blob, Buffer, CodecError, Peer, RRef, ValueCodec};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::native::fuzzing::{PickleCodec, body_of};
use crate::{Keywords, PyValue, Rest};

/// As a tensor of candle's reads itself.
#[derive(Debug, Deserialize)]
#[serde(rename = "farref_autograd::Tensor")]
#[expect(dead_code, reason = "only read")]
struct Tensor {
    element: Element,
    shape: Vec<usize>,
    requires_grad: bool,
    link: Option<(u64, u32)>,
    data: Buffer,
}

#[derive(Debug, Deserialize)]
enum Element {
    U8,
    U32,
    I16,
    I32,
    I64,
    BF16,
    F16,
    F32,
    F64,
    F8E4M3,
    F8E8M0,
}

/// A struct, and what may be in one.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only read")]
struct Point {
    x: i64,
    y: Option<f64>,
    kind: Kind,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only read")]
enum Kind {
    Plain,
    Named(String),
    Both(u8, i128),
    Fields { text: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only read")]
enum Either {
    Tensor(Tensor),
    Number(f64),
    Memory(Blob),
    Text(String),
    Many(Vec<Self>),
}

/// A value, or the arguments of a function, in Python's form. The first byte says whether the rest is all of its bytes, or its
/// pickle only, of a value or of a call, with some memory beside it.
pub fn values(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let body = match first % 3 {
        0 => rest.to_vec(),
        form => body_of(rest, form == 2),
    };
    if let Ok(value) = read::<PyValue>(&body)
        && let Ok(written) = PickleCodec.encode(&value)
    {
        match read::<PyValue>(&written) {
            // Not compared as values: there are floats that are not equal to themselves.
            Ok(again) if !has_name(&again) => {
                assert_eq!(PickleCodec.encode(&again).as_deref(), Ok(&written[..]));
            }
            Ok(_) => {}
            Err(error) => panic!("{value:?} cannot be read again: {error}"),
        }
    }
    drop(read::<Tensor>(&body));
    drop(read::<Vec<Tensor>>(&body));
    drop(read::<Vec<f32>>(&body));
    drop(read::<Vec<Vec<i64>>>(&body));
    drop(read::<(f64, i64, bool)>(&body));
    drop(read::<BTreeMap<String, (u64, Vec<Option<f64>>)>>(&body));
    drop(read::<Point>(&body));
    drop(read::<Either>(&body));
    drop(read::<Blob>(&body));
    drop(read::<Buffer>(&body));
    drop(read::<Peer>(&body));
    drop(read::<RRef<PyValue>>(&body));
    drop(read::<(i64, Rest<PyValue>, Keywords<Either>)>(&body));
    drop(read::<IgnoredAny>(&body));
}

/// Names with colons and line breaks mean something else when they are written.
fn has_name(value: &PyValue) -> bool {
    match value {
        PyValue::Name(_) => true,
        PyValue::List(items) | PyValue::Tuple(items) | PyValue::Set(items) => {
            items.iter().any(has_name)
        }
        PyValue::Dict(items) => items
            .iter()
            .any(|(key, value)| has_name(key) || has_name(value)),
        _ => false,
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let mut value = None;
    PickleCodec.decode(body, &mut |deserializer| {
        value = Some(erased_serde::deserialize(deserializer)?);
        Ok(())
    })?;
    value.ok_or_else(|| CodecError::new("nothing was read"))
}

#[cfg(test)]
mod tests {
    use farref_testkit::seeds;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_seeds_are_values() {
        let all = seeds("python_values");
        assert!(all.len() > 5);
        for seed in all.iter().map(|seed| seed.bytes) {
            values(seed);
            let is_read = match seed[0] {
                1 => read::<IgnoredAny>(&body_of(&seed[1..], false)).is_ok(),
                _ => read::<(Rest<IgnoredAny>, Keywords<IgnoredAny>)>(&body_of(&seed[1..], true))
                    .is_ok(),
            };
            assert!(is_read, "{seed:?}");
        }
    }

    proptest! {
        #[test]
        fn no_changed_value_makes_its_reader_panic(
            which in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            cuts: bool,
        ) {
            let all = seeds("python_values");
            let mut seed = all[which.index(all.len())].bytes.to_vec();
            for (place, byte) in changes {
                let place = place.index(seed.len());
                seed[place] = byte;
            }
            if cuts {
                seed.truncate(cut.index(seed.len()));
            }
            values(&seed);
        }
    }
}

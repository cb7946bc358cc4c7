//! Entry points for fuzzers. Each takes any bytes at all and must neither panic nor hang.
//!
//! The targets in `fuzz/` call them, through the feature `fuzzing`; the tests below call each for a
//! moment, with bytes that are more likely than others to mean something.

use bytes::{Buf, BytesMut};

use super::dialect::StoreDialect;
use super::protocol::{Request, take_bytes, take_flag, take_i64};

/// Bytes that a client sends to the store.
pub fn store_request(data: &[u8]) {
    for dialect in [StoreDialect::Old, StoreDialect::Greeted] {
        let mut buffer = BytesMut::from(data);
        while let Ok(Some(request)) = Request::parse(dialect, &mut buffer, 1 << 20) {
            // What was understood means the same when it is said again.
            let mut again = BytesMut::new();
            assert_eq!(request.encode(dialect, &mut again), Ok(()));
            let parsed = Request::parse(dialect, &mut again, usize::MAX);
            assert_eq!(parsed, Ok(Some(request)));
        }
    }
}

/// Bytes that a store answers.
pub fn store_answer(data: &[u8]) {
    // The first byte of each round says what was asked.
    let mut buffer = BytesMut::from(data);
    while buffer.has_remaining() {
        let before = buffer.len();
        let taken = match buffer.get_u8() % 3 {
            0 => take_flag(&mut buffer).map(|flag| flag.map(|_| 1)),
            1 => take_i64(&mut buffer).map(|number| number.map(|_| 8)),
            _ => take_bytes(&mut buffer).map(|bytes| bytes.map(|bytes| 8 + bytes.len())),
        };
        match taken {
            // Exactly the bytes of the answer are gone.
            Ok(Some(size)) => assert_eq!(before - 1 - size, buffer.len()),
            // Nothing is gone that more bytes could complete.
            Ok(None) => return assert_eq!(before - 1, buffer.len()),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::thorough;
    use proptest::prelude::*;

    use super::*;

    /// Small numbers are worth more than large ones: they are tags and lengths that exist.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![6 => 0..4_u8, 3 => 0..20_u8, 1 => any::<u8>()];
        proptest::collection::vec(byte, 0..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if thorough() { 5_000 } else { 250 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_request_makes_the_store_panic(data in bytes()) {
            store_request(&data);
        }

        #[test]
        fn no_answer_makes_a_client_of_the_store_panic(data in bytes()) {
            store_answer(&data);
        }
    }
}

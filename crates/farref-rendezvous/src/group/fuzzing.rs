//! Entry point for fuzzers: what workers write about themselves and their group into a store, where anybody may have
//! written something else.

use super::card::Card;
use super::failure::FailureNotice;
use super::founding::Founding;

/// The first byte says which record it is taken for.
pub fn store_records(data: &[u8]) {
    let Some((&kind, record)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        0 => {
            if let Ok(card) = Card::decode(record) {
                // What was understood means the same when it is said again, and again has the right length.
                let again = card.encode();
                assert_eq!(again.and_then(|bytes| Card::decode(&bytes)), Ok(card));
            }
        }
        1 => {
            if let Ok(founding) = Founding::decode("key", record) {
                let again = founding.encode().ok();
                let again = again.and_then(|bytes| Founding::decode("key", &bytes).ok());
                assert_eq!(again, Some(founding));
            }
        }
        _ => drop(FailureNotice::decode(record)),
    }
}

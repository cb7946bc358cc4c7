//! Guarantees D1-D5: calls arrive once, in time, cancellably, and bounded.

use crate::Tests;

pub(crate) fn tests() -> Tests {
    vec![]
}

//! Guarantees R1-R8: values live exactly as long as somebody holds them.

use crate::Tests;

pub(crate) fn tests() -> Tests {
    vec![]
}

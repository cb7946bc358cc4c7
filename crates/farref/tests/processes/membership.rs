//! Guarantees S1-S4: joining, leaving, shutting down, starting again.

use crate::Tests;

pub(crate) fn tests() -> Tests {
    vec![]
}

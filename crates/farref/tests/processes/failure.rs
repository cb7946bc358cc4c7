//! Guarantees F1-F4: what happens when a process dies, stops or comes back.

use crate::Tests;

pub(crate) fn tests() -> Tests {
    vec![]
}

//! Whether memory of a result is nobody's but the result's.
//!
//! A function that has returned does not know when its result has been sent: an array that it keeps, and changes later, would
//! arrive torn. So of what a function returns only memory that nobody else has is lent to the message; the rest is copied.
//!
//! # Invariants
//!
//! - **OW-1** What is found to be the result's own is reached from it through lists, tuples and dicts alone, and on the whole
//!   way nothing has a second owner. Where that is not certain it is not so.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::buffers::references;

/// Objects with memory that are a result's own, by their addresses.
#[derive(Default)]
pub(crate) struct Owned(HashSet<usize>);

/// How many values of a result are looked at: one with more is copied where it has arrays.
const MOST: usize = 10_000;

impl Owned {
    /// Of a result, which has no owner but this reference to it.
    pub(crate) fn of(result: &Bound<'_, PyAny>) -> Self {
        let mut owned = Self::default();
        let mut left = MOST;
        owned.look(result, &mut left);
        owned
    }

    /// Whether memory that this object shows is the result's own.
    pub(crate) fn has(&self, object: &Bound<'_, PyAny>) -> bool {
        self.0.contains(&object.as_ptr().addr())
    }

    /// One reference to it is `value`'s, and if it is in a container, another is that one's.
    fn look(&mut self, value: &Bound<'_, PyAny>, left: &mut usize) {
        // The result itself has no container.
        let owners = match *left {
            MOST => 1,
            _ => 2,
        };
        *left = left.saturating_sub(1);
        if *left == 0 || references(value) > owners {
            return;
        }
        if let Ok(list) = value.cast_exact::<PyList>() {
            list.iter().for_each(|item| self.look(&item, left));
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            tuple.iter().for_each(|item| self.look(&item, left));
        } else if let Ok(dict) = value.cast_exact::<PyDict>() {
            dict.iter().for_each(|(_, item)| self.look(&item, left));
        } else if has_its_memory(value) {
            self.0.insert(value.as_ptr().addr());
        }
    }
}

/// A view shows memory of another object (`base`), which nobody else may have either.
fn has_its_memory(value: &Bound<'_, PyAny>) -> bool {
    let base = match value.getattr_opt("base") {
        Ok(base) => base.filter(|base| !base.is_none()),
        Err(_) => return false,
    };
    match base {
        None => true,
        // One reference is the view's, one is ours.
        Some(base) => references(&base) <= 2 && has_its_memory(&base),
    }
}

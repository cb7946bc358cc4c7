//! Large buffers on their way into or out of an encoded value, and what is wrong with the value.
//!
//! While a value is being written, buffers that must not be copied into its body are collected here; while
//! it is being read, they are found here again. The scope belongs to the thread, because serde has no place
//! to carry one along. References travel the same way; they are the runtime's (`runtime/value_scope`).

use std::cell::{Cell, RefCell};

use super::error::CodecError;
use super::part::Part;
use super::payload::Payload;
use crate::support::thread_scope::{Entered, Scopes, innermost, innermost_mut};

thread_local! {
    static SCOPES: Scopes<Scope> = const { RefCell::new(Vec::new()) };
    /// Whether anything may have been collected for a value that is one of several.
    static COLLECTED: Cell<bool> = const { Cell::new(false) };
}

/// Something is collected for the value being written, here or elsewhere.
pub(crate) fn collects() {
    COLLECTED.set(true);
}

/// What this thread is doing.
enum Scope {
    Writing {
        parts: Vec<Part>,
        /// How often the value was begun anew.
        attempt: u32,
    },
    Reading {
        /// What the arguments are called, if it is arguments.
        parameters: &'static [&'static str],
        /// Those that nothing has taken out yet.
        parts: Vec<Option<Part>>,
        /// How often each may still be lent, if what is read may be read again.
        lent: Vec<u8>,
        /// What is wrong with the value. Not every codec keeps the words of such an error.
        complaint: Option<CodecError>,
    },
}

fn left_too_early() -> CodecError {
    CodecError::new("the scope of a value was left too early")
}

/// Writes a value. Says in which [attempt](attempt) that was done, if it was.
pub(crate) fn write(
    encode: impl FnOnce() -> Result<Vec<u8>, CodecError>,
) -> Result<(Payload, u32), CodecError> {
    let scope = Entered::new(
        &SCOPES,
        Scope::Writing {
            parts: Vec::new(),
            attempt: 0,
        },
    );
    let body = encode();
    let Some(Scope::Writing { parts, attempt }) = scope.leave() else {
        return Err(left_too_early());
    };
    let body = body?.into();
    Ok((Payload { body, parts }, attempt))
}

/// Writes values one after the other, until this is dropped.
pub(crate) struct WritingItems {
    _scope: Entered<Scope>,
    /// Whether something was collected before, for a value that this goes on inside of.
    collected_outside: bool,
}

impl Drop for WritingItems {
    fn drop(&mut self) {
        if self.collected_outside {
            collects();
        }
    }
}

impl WritingItems {
    pub(crate) fn begin() -> Self {
        let scope = Scope::Writing {
            parts: Vec::new(),
            attempt: 0,
        };
        Self {
            _scope: Entered::new(&SCOPES, scope),
            collected_outside: COLLECTED.take(),
        }
    }

    /// Whether something may have been collected since this was last asked. Hardly any work, where most values have
    /// nothing that goes along.
    #[inline]
    pub(crate) fn has_collected(&self) -> bool {
        COLLECTED.get() && COLLECTED.take()
    }

    /// What goes along with the value that was written last, and in which [attempt](attempt) that was.
    pub(crate) fn take(&self) -> (Vec<Part>, u32) {
        let taken = innermost_mut(&SCOPES, |scope| match scope {
            Scope::Writing { parts, attempt } => (std::mem::take(parts), *attempt),
            Scope::Reading { .. } => Default::default(),
        });
        taken.unwrap_or_default()
    }
}

/// Reads a value.
pub(crate) fn read<T>(
    payload: Payload,
    parameters: &'static [&'static str],
    decode: impl FnOnce(&[u8]) -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    let Payload { body, parts } = payload;
    if let Some(why) = parts.first().and_then(Part::why_refused) {
        return Err(CodecError::new(why));
    }
    let scope = Entered::new(
        &SCOPES,
        Scope::Reading {
            parameters,
            parts: match parts.is_empty() {
                true => Vec::new(),
                false => parts.into_iter().map(Some).collect(),
            },
            lent: Vec::new(),
            complaint: None,
        },
    );
    let value = decode(&body);
    let Some(Scope::Reading { complaint, .. }) = scope.leave() else {
        return Err(left_too_early());
    };
    value.map_err(|error| complaint.unwrap_or(error))
}

/// The value being written is written once more from its beginning.
pub(super) fn start_over() {
    collects();
    let first = innermost_mut(&SCOPES, |scope| match scope {
        Scope::Writing { parts, attempt } => {
            *attempt += 1;
            std::mem::take(parts)
        }
        Scope::Reading { .. } => Vec::new(),
    });
    // Buffers may be dropped by code of the program: not while the scope is borrowed.
    drop(first);
}

/// How often the value being written was begun anew. What was collected elsewhere for an earlier attempt is
/// of no use.
pub(crate) fn attempt() -> u32 {
    let attempt = innermost(&SCOPES, |scope| match scope {
        Scope::Writing { attempt, .. } => *attempt,
        Scope::Reading { .. } => 0,
    });
    attempt.unwrap_or(0)
}

/// Says what is wrong with the value being read, in words that the codec may not keep.
pub(super) fn complain(complaint: CodecError) {
    innermost_mut(&SCOPES, |scope| {
        if let Scope::Reading {
            complaint: said, ..
        } = scope
        {
            *said = Some(complaint);
        }
    });
}

/// What the arguments are called that are being read on this thread. For codecs that can name them.
///
/// ```
/// // Outside of a call there are none.
/// assert!(farref::agent::parameters().is_empty());
/// ```
pub fn parameters() -> &'static [&'static str] {
    let parameters = innermost(&SCOPES, |scope| match scope {
        Scope::Reading { parameters, .. } => *parameters,
        Scope::Writing { .. } => &[],
    });
    parameters.unwrap_or_default()
}

/// Takes a buffer along with the value being written, if one is; says under which number.
pub(super) fn attach(part: impl FnOnce() -> Part) -> Option<u32> {
    collects();
    let attached = innermost_mut(&SCOPES, |scope| match scope {
        Scope::Writing { parts, .. } => {
            parts.push(part());
            Some(parts.len() as u32 - 1)
        }
        Scope::Reading { .. } => None,
    });
    attached.flatten()
}

/// Whether a value is being written on this thread, and not read.
pub(super) fn is_writing() -> bool {
    let is_writing = innermost(&SCOPES, |scope| matches!(scope, Scope::Writing { .. }));
    is_writing.unwrap_or(false)
}

/// Takes out so many buffers that came with the value being read, the last ones.
pub(super) fn take_last(count: usize) -> Option<Vec<Part>> {
    let taken = innermost_mut(&SCOPES, |scope| match scope {
        Scope::Reading { parts, .. } => {
            let others = parts.len().checked_sub(count)?;
            Some(parts.split_off(others))
        }
        Scope::Writing { .. } => None,
    });
    taken.flatten()?.into_iter().collect()
}

/// How often one buffer may be read again. It bounds what copies of it may take (D5).
const READ_AGAIN: u8 = 16;

/// The value being read may read parts of itself again: serde tries the variants of an untagged enum one after the
/// other.
pub(super) fn may_read_again() {
    innermost_mut(&SCOPES, |scope| {
        if let Scope::Reading { parts, lent, .. } = scope {
            *lent = vec![READ_AGAIN; parts.len()];
        }
    });
}

/// The value being read on this thread has the buffer with this number in it more than once: it is lent some times, and
/// copied by those who want to own it. For codecs that see so.
///
/// ```
/// farref::agent::read_again(0); // outside of a value there is none
/// ```
pub fn read_again(index: u32) {
    innermost_mut(&SCOPES, |scope| {
        if let Scope::Reading { parts, lent, .. } = scope
            && (index as usize) < parts.len()
        {
            lent.resize(parts.len(), 0);
            lent[index as usize] = READ_AGAIN;
        }
    });
}

/// The buffer with this number for the value being read: taken out, so that its elements can be had without a
/// copy right now, unless somebody else may ask for it, too.
pub(super) fn attached(index: u32) -> Result<Part, String> {
    let lent = innermost_mut(&SCOPES, |scope| match scope {
        Scope::Reading { parts, lent, .. } => {
            let left = lent.get_mut(index as usize)?;
            *left = left.checked_sub(1)?;
            parts.get(index as usize)?.clone()
        }
        Scope::Writing { .. } => None,
    });
    lent.flatten().map_or_else(|| take_attached(index), Ok)
}

/// Takes out the buffer with this number for the value being read.
pub(super) fn take_attached(index: u32) -> Result<Part, String> {
    let taken = innermost_mut(&SCOPES, |scope| match scope {
        Scope::Reading { parts, .. } => parts.get_mut(index as usize)?.take(),
        Scope::Writing { .. } => None,
    });
    taken
        .flatten()
        .ok_or_else(|| format!("part {index} did not come with the value, or is in it too often"))
}

/// Leaves a buffer that was taken out for whoever asks for the same number.
pub(super) fn put_back(index: u32, part: Part) {
    innermost_mut(&SCOPES, |scope| {
        if let Scope::Reading { parts, .. } = scope
            && let Some(place) = parts.get_mut(index as usize)
        {
            *place = Some(part);
        }
    });
}

//! References and buffers on their way into or out of an encoded value.
//!
//! While a value is being written, what must not be copied into its body is collected here; while it is
//! being read, it is found here again. The scope belongs to the thread, because serde has no place to
//! carry one along.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use farref_proto::{ContextId, NodeId};
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, Part, Payload};
use crate::error::Error;
use crate::face::context::{Message, Record};
use crate::runtime::Core;
use crate::runtime::handle::Handle;

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope::None) };
}

/// What this thread is doing.
enum Scope {
    None,
    Writing(Writing),
    Reading(Reading),
}

struct Writing {
    core: Arc<Core>,
    /// What was noted for the context that the message will be made in, if it is made in one.
    noted: Option<Box<Noted>>,
    references: Vec<Arc<Handle>>,
    parts: Vec<Part>,
    /// What a reference had to complain about. Not every codec keeps the words of such an error.
    complaint: Option<Error>,
}

struct Reading {
    /// What the arguments are called, if it is arguments.
    parameters: &'static [&'static str],
    /// Who reads, the context that the message belongs to, and who sent it.
    origin: Option<(Arc<Core>, ContextId, NodeId)>,
    references: Vec<Arc<Handle>>,
    /// Those that nothing has taken out yet.
    parts: Vec<Option<Part>>,
    /// What is wrong with the value. Not every codec keeps the words of such an error, and none its
    /// kind.
    complaint: Option<Unread>,
}

/// A value ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) payload: Payload,
    /// Kept until forks have been made of them.
    pub(crate) references: Vec<Arc<Handle>>,
    /// What its context is to know of it.
    noted: Option<Box<Noted>>,
}

impl Encoded {
    /// It goes to this worker, in this context or outside of any. To be said once, before it is sent.
    pub(crate) fn made_in(&mut self, core: &Arc<Core>, context: Option<ContextId>, to: NodeId) {
        let Some(noted) = self.noted.take() else {
            return;
        };
        let Some(context) = context else {
            return;
        };
        let message = Message::new(core, context, to, noted.number);
        for (_, record) in noted.records {
            record.made(&message);
        }
    }
}

/// What values noted of the message that they go into.
struct Noted {
    number: u64,
    /// One of each type.
    records: Vec<(TypeId, Box<dyn Record>)>,
}

impl fmt::Debug for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Noted({})", self.number)
    }
}

/// Why a value was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unwritten {
    /// The codec could not, or a reference in the value leads nowhere.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A reference in it is another worker's.
    #[error(transparent)]
    Foreign(Error),
}

/// Why a value was not read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// The bytes are not such a value's, or a reference did not come with it.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A reference in it leads to a value of another type (R8).
    #[error("{0}")]
    Mismatch(String),
}

/// Puts the former scope back, also when a user's `Serialize` panics.
struct Restore(Option<Scope>);

impl Restore {
    fn enter(scope: Scope) -> Self {
        Self(Some(SCOPE.replace(scope)))
    }

    fn leave(mut self) -> Scope {
        match self.0.take() {
            Some(former) => SCOPE.replace(former),
            None => Scope::None,
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(former) = self.0.take() {
            SCOPE.set(former);
        }
    }
}

/// Writes something that `core` is going to send.
pub(crate) fn write(
    core: &Arc<Core>,
    encode: impl FnOnce() -> Result<Vec<u8>, CodecError>,
) -> Result<Encoded, Unwritten> {
    let scope = Restore::enter(Scope::Writing(Writing {
        core: Arc::clone(core),
        noted: None,
        references: Vec::new(),
        parts: Vec::new(),
        complaint: None,
    }));
    let body = encode();
    let Scope::Writing(writing) = scope.leave() else {
        return Err(CodecError::new("the scope of a value was left too early").into());
    };
    let body = body.map_err(|error| match writing.complaint {
        Some(foreign @ Error::ForeignReference { .. }) => Unwritten::Foreign(foreign),
        Some(complaint) => CodecError::new(complaint).into(),
        None => error.into(),
    })?;
    Ok(Encoded {
        payload: Payload {
            body: body.into(),
            parts: writing.parts,
        },
        references: writing.references,
        noted: writing.noted,
    })
}

/// Reads a value that came with these references.
pub(crate) fn read_value<T: DeserializeOwned>(
    codec: &Codec,
    payload: Payload,
    references: Vec<Arc<Handle>>,
    origin: Option<(Arc<Core>, ContextId, NodeId)>,
    parameters: &'static [&'static str],
) -> Result<T, Unread> {
    let Payload { body, parts } = payload;
    let scope = Restore::enter(Scope::Reading(Reading {
        parameters,
        origin,
        references,
        parts: parts.into_iter().map(Some).collect(),
        complaint: None,
    }));
    let value = codec.decode(&body);
    let Scope::Reading(reading) = scope.leave() else {
        return Err(CodecError::new("the scope of a value was left too early").into());
    };
    value.map_err(|error| reading.complaint.unwrap_or_else(|| error.into()))
}

/// Takes a reference along with the value being written; says under which number.
pub(crate) fn carry(handle: &Arc<Handle>) -> Result<u32, String> {
    SCOPE.with_borrow_mut(|scope| {
        let Scope::Writing(writing) = scope else {
            return Err("a reference can only be sent inside a call or an answer; \
                 to keep one elsewhere, keep the RRef itself"
                .to_owned());
        };
        if let Err(complaint) = handle.check_sendable(&writing.core) {
            let text = complaint.to_string();
            writing.complaint = Some(complaint);
            return Err(text);
        }
        let index = writing.references.len() as u32;
        writing.references.push(Arc::clone(handle));
        Ok(index)
    })
}

/// Finds the reference with this number for the value being read. `check` may refuse it.
pub(crate) fn carried(
    index: u32,
    check: impl FnOnce(&Handle) -> Result<(), Unread>,
) -> Result<Arc<Handle>, Unread> {
    SCOPE.with_borrow_mut(|scope| {
        let Scope::Reading(reading) = scope else {
            let reason = "a reference can only be read out of a call or an answer";
            return Err(CodecError::new(reason).into());
        };
        let found = match reading.references.get(index as usize) {
            Some(handle) => check(handle).map(|()| Arc::clone(handle)),
            None => Err(CodecError::new(format_args!(
                "reference number {index} did not come with the value"
            ))
            .into()),
        };
        if let Err(complaint) = &found {
            reading.complaint = Some(complaint.clone());
        }
        found
    })
}

/// The value being written is written once more from its beginning.
pub(super) fn start_over() {
    let first = SCOPE.with_borrow_mut(|scope| match scope {
        Scope::Writing(writing) => Some((
            std::mem::take(&mut writing.references),
            std::mem::take(&mut writing.parts),
            writing.noted.take(),
        )),
        _ => None,
    });
    // What others put there may be dropped by code of theirs: not while the scope is borrowed.
    drop(first);
}

/// Says what is wrong with the value being read, in words that the codec may not keep.
pub(super) fn complain(complaint: String) {
    SCOPE.with_borrow_mut(|scope| {
        if let Scope::Reading(reading) = scope {
            reading.complaint = Some(CodecError::new(complaint).into());
        }
    });
}

/// Notes something of the message being written, for the context that it will be made in. Says the
/// message's number.
pub(crate) fn note<R: Record + Default, T>(note: impl FnOnce(&mut R) -> T) -> Option<(u64, T)> {
    let key = TypeId::of::<R>();
    let (number, record) = SCOPE.with_borrow_mut(|scope| {
        let Scope::Writing(writing) = scope else {
            return None;
        };
        let core = &writing.core;
        let noted = writing.noted.get_or_insert_with(|| {
            Box::new(Noted {
                number: core.next_number(),
                records: Vec::new(),
            })
        });
        let place = noted.records.iter().position(|(other, _)| *other == key);
        let record = place.map(|place| noted.records.swap_remove(place).1);
        Some((noted.number, record))
    })?;
    // Nothing is borrowed while the user's code runs.
    let mut record = record
        .and_then(|record| (record as Box<dyn Any>).downcast::<R>().ok())
        .unwrap_or_default();
    let result = note(&mut record);
    SCOPE.with_borrow_mut(|scope| {
        if let Scope::Writing(Writing {
            noted: Some(noted), ..
        }) = scope
        {
            noted.records.push((key, record));
        }
    });
    Some((number, result))
}

/// The context and sender of the message being read.
pub(crate) fn incoming() -> Option<(Arc<Core>, ContextId, NodeId)> {
    SCOPE.with_borrow(|scope| match scope {
        Scope::Reading(reading) => reading.origin.clone(),
        _ => None,
    })
}

/// What the arguments are called that are being read.
pub(crate) fn parameters() -> &'static [&'static str] {
    SCOPE.with_borrow(|scope| match scope {
        Scope::Reading(reading) => reading.parameters,
        _ => &[],
    })
}

/// Takes a buffer along with the value being written, if one is; says under which number.
pub(super) fn attach(part: impl FnOnce() -> Part) -> Option<u32> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Scope::Writing(writing) => {
            writing.parts.push(part());
            Some(writing.parts.len() as u32 - 1)
        }
        _ => None,
    })
}

/// Takes out the buffer with this number for the value being read.
pub(super) fn take_attached(index: u32) -> Result<Part, String> {
    SCOPE
        .with_borrow_mut(|scope| match scope {
            Scope::Reading(reading) => reading.parts.get_mut(index as usize)?.take(),
            _ => None,
        })
        .ok_or_else(|| format!("part {index} did not come with the value"))
}

/// Leaves a buffer that was taken out for whoever asks for the same number.
pub(super) fn put_back(index: u32, part: Part) {
    SCOPE.with_borrow_mut(|scope| {
        if let Scope::Reading(reading) = scope
            && let Some(place) = reading.parts.get_mut(index as usize)
        {
            *place = Some(part);
        }
    });
}

//! References, peers, and notes for contexts, on their way into or out of an encoded value.
//!
//! As with large buffers (`codec/scope`), a scope of the thread collects them while a value is being written,
//! and has them while it is being read: the codec sees their numbers only.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use farref_proto::{ContextId, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Core;
use super::context_scope::{Message, Record};
use super::handle::{self, Handle};
use crate::codec::vectors::Look;
use crate::codec::{Codec, CodecError, Part, Payload, items, scope};
use crate::error::Error;
use crate::support::thread_scope::{Entered, Scopes, innermost, innermost_mut};

thread_local! {
    static CARRIED: Scopes<Carried> = const { RefCell::new(Vec::new()) };
}

/// What travels with the value that this thread writes or reads.
enum Carried {
    Out(WriteScope),
    In(ReadScope),
}

struct WriteScope {
    core: Arc<Core>,
    /// Whom it goes to, if that is known: items of a stream go to whoever reads it.
    to: Option<NodeId>,
    /// The attempt at writing the value that all of this belongs to.
    attempt: u32,
    /// What was noted for the context that the message will be made in, if it is made in one.
    noted: Option<Box<Noted>>,
    references: Vec<Arc<Handle>>,
    /// Whether a worker is named in it: who reads it has to say on which worker.
    names_peer: bool,
    /// What a reference had to complain about. Not every codec keeps the words of such an error.
    complaint: Option<Box<Error>>,
}

struct ReadScope {
    reading: Option<Reading>,
    references: Vec<Arc<Handle>>,
    /// What is wrong with a reference. Not every codec keeps the words of such an error, and none its
    /// kind.
    complaint: Option<Box<Unread>>,
}

/// Who reads a value, who sent it, and the context that its message belongs to, if any.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) core: Arc<Core>,
    pub(crate) from: NodeId,
    pub(crate) context: Option<ContextId>,
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
    /// Something that is written already, and that no context is to know of.
    pub(crate) fn data(payload: Payload, references: Vec<Arc<Handle>>) -> Self {
        Self {
            payload,
            references,
            noted: None,
        }
    }

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
    /// A reference or a peer in it is another worker's.
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

fn left_too_early() -> CodecError {
    CodecError::new("the scope of a value was left too early")
}

/// Writes a `T` that `core` is going to send.
pub(crate) fn write_typed<T: 'static>(
    core: &Arc<Core>,
    to: Option<NodeId>,
    encode: impl FnOnce() -> Result<Vec<u8>, CodecError>,
) -> Result<Encoded, Unwritten> {
    if TypeId::of::<T>() != TypeId::of::<()>() {
        return write(core, to, encode);
    }
    // No arguments, or no result: nothing goes along with it.
    let payload = Payload {
        body: encode()?.into(),
        parts: Vec::new(),
    };
    Ok(Encoded {
        payload,
        ..Encoded::default()
    })
}

/// Writes something that `core` is going to send.
pub(crate) fn write(
    core: &Arc<Core>,
    to: Option<NodeId>,
    encode: impl FnOnce() -> Result<Vec<u8>, CodecError>,
) -> Result<Encoded, Unwritten> {
    let carried = Entered::new(
        &CARRIED,
        Carried::Out(WriteScope {
            core: Arc::clone(core),
            to,
            attempt: 0,
            noted: None,
            references: Vec::new(),
            names_peer: false,
            complaint: None,
        }),
    );
    let written = scope::write(encode);
    let Some(Carried::Out(mut outgoing)) = carried.leave() else {
        return Err(left_too_early().into());
    };
    let (payload, written_in) =
        written.map_err(|error| unwritten(error, outgoing.complaint.take()))?;
    drop(outgoing.begin_attempt(written_in));
    Ok(Encoded {
        payload,
        references: outgoing.references,
        noted: outgoing.noted,
    })
}

/// Why a value was not written, of what the codec and something in the value say.
fn unwritten(error: CodecError, complaint: Option<Box<Error>>) -> Unwritten {
    match complaint {
        Some(own) if matches!(*own, Error::ForeignReference { .. } | Error::Misuse(_)) => {
            Unwritten::Foreign(*own)
        }
        Some(complaint) => CodecError::new(complaint).into(),
        None => error.into(),
    }
}

/// Writes values one after the other, until this is dropped.
pub(crate) struct WritingItems {
    codec: scope::WritingItems,
    _carried: Entered<Carried>,
}

/// What goes along with one of several values.
#[derive(Default)]
pub(crate) struct Along {
    pub(crate) parts: Vec<Part>,
    pub(crate) references: Vec<Arc<Handle>>,
    names_peer: bool,
}

impl Along {
    /// Whether nothing does, so that the value can be read by itself.
    pub(crate) fn is_nothing(&self) -> bool {
        self.parts.is_empty() && self.references.is_empty() && !self.names_peer
    }
}

impl WritingItems {
    /// They are sent by `core`, outside of any context.
    pub(crate) fn begin(core: &Arc<Core>) -> Self {
        Self {
            codec: scope::WritingItems::begin(),
            _carried: Entered::new(
                &CARRIED,
                Carried::Out(WriteScope {
                    core: Arc::clone(core),
                    to: None,
                    attempt: 0,
                    noted: None,
                    references: Vec::new(),
                    names_peer: false,
                    complaint: None,
                }),
            ),
        }
    }

    /// Writes one after what is in `body`. Says what goes along with it, if anything may.
    #[inline]
    pub(crate) fn write<T: Serialize + 'static>(
        &self,
        value: &T,
        body: &mut Vec<u8>,
    ) -> Result<Option<Along>, Unwritten> {
        let written = items::write(value, body);
        if written.is_ok() && !self.codec.has_collected() {
            return Ok(None);
        }
        self.collected(written).map(Some)
    }

    fn collected(&self, written: Result<(), CodecError>) -> Result<Along, Unwritten> {
        let (parts, attempt) = self.codec.take();
        let taken = innermost_mut(&CARRIED, |carried| match carried {
            Carried::Out(outgoing) if outgoing.has_something() => {
                let outdated = outgoing.begin_attempt(attempt);
                let references = std::mem::take(&mut outgoing.references);
                let names_peer = std::mem::take(&mut outgoing.names_peer);
                let noted = outgoing.noted.take();
                let complaint = outgoing.complaint.take();
                Some((references, names_peer, complaint, noted, outdated))
            }
            Carried::Out(_) | Carried::In(_) => None,
        });
        // What was noted for a context, and what is outdated, goes now that nothing is borrowed.
        let (references, names_peer, complaint, ..) = taken.flatten().unwrap_or_default();
        match written {
            Ok(()) => Ok(Along {
                parts,
                references,
                names_peer,
            }),
            Err(error) => Err(unwritten(error, complaint)),
        }
    }
}

/// The worker that sends the value being written, if one is.
pub(crate) fn sender() -> Option<Arc<Core>> {
    with_outgoing(|outgoing| Arc::clone(&outgoing.core))
}

/// The same, and whom the value goes to.
pub(crate) fn destination() -> Option<(Arc<Core>, NodeId)> {
    let destination = innermost(&CARRIED, |carried| match carried {
        Carried::Out(outgoing) => Some((Arc::clone(&outgoing.core), outgoing.to?)),
        Carried::In(_) => None,
    });
    destination.flatten()
}

/// Says what is wrong with the value being written. Not every codec keeps the words of such an error, and none its
/// kind.
pub(crate) fn complain(complaint: Error) {
    with_outgoing(|outgoing| outgoing.complaint = Some(Box::new(complaint)));
}

/// Says that the value being read is not what it was written as (R8).
pub(crate) fn refuse(reason: String) {
    innermost_mut(&CARRIED, |carried| {
        if let Carried::In(incoming) = carried {
            incoming.complaint = Some(Box::new(Unread::Mismatch(reason)));
        }
    });
}

/// Reads one of several values, which is what the body begins with. Says how many bytes it takes.
pub(crate) fn read_item<T: DeserializeOwned + 'static>(
    payload: Payload,
    references: Vec<Arc<Handle>>,
    reading: Option<Reading>,
) -> Result<(T, usize), Unread> {
    read_with(payload, references, reading, &[], |body| {
        let (value, rest) = items::read(body)?;
        Ok((value, body.len() - rest.len()))
    })
}

/// Reads a value that came with these references, and whose vectors of numbers `each_vector` finds.
pub(crate) fn read<T: DeserializeOwned>(
    codec: &Codec,
    payload: Payload,
    references: Vec<Arc<Handle>>,
    reading: Option<Reading>,
    parameters: &'static [&'static str],
    each_vector: impl FnOnce(&mut T, Look<'_>),
) -> Result<T, Unread> {
    // Nothing came along with it, and there is no room in it for anything that might have.
    let came_alone = payload.parts.is_empty() && references.is_empty();
    if size_of::<T>() == 0 && payload.body.is_empty() && came_alone {
        return Ok(codec.decode_with(&payload.body, each_vector)?);
    }
    read_with(payload, references, reading, parameters, |body| {
        codec.decode_with(body, each_vector)
    })
}

fn read_with<T>(
    payload: Payload,
    references: Vec<Arc<Handle>>,
    reading: Option<Reading>,
    parameters: &'static [&'static str],
    decode: impl FnOnce(&[u8]) -> Result<T, CodecError>,
) -> Result<T, Unread> {
    let carried = Entered::new(
        &CARRIED,
        Carried::In(ReadScope {
            reading,
            references,
            complaint: None,
        }),
    );
    let value = scope::read(payload, parameters, decode);
    let Some(Carried::In(incoming)) = carried.leave() else {
        return Err(left_too_early().into());
    };
    value.map_err(|error| match incoming.complaint {
        Some(complaint) => *complaint,
        None => error.into(),
    })
}

/// What was collected for an earlier attempt at a value. What others put there may be dropped by code of
/// theirs: not while the scope is borrowed.
#[must_use = "to be dropped when nothing is borrowed"]
#[expect(dead_code, reason = "only dropped")]
struct Outdated(Vec<Arc<Handle>>, Option<Box<Noted>>);

impl WriteScope {
    /// Whether anything was collected.
    fn has_something(&self) -> bool {
        let carries = !self.references.is_empty() || self.names_peer;
        carries || self.noted.is_some() || self.complaint.is_some()
    }

    /// What was collected for an earlier attempt at the value goes.
    fn begin_attempt(&mut self, attempt: u32) -> Option<Outdated> {
        (self.attempt != attempt).then(|| {
            self.attempt = attempt;
            Outdated(std::mem::take(&mut self.references), self.noted.take())
        })
    }
}

/// Uses what goes along with the value being written, if one is.
fn with_outgoing<T>(f: impl FnOnce(&mut WriteScope) -> T) -> Option<T> {
    scope::collects();
    let attempt = scope::attempt();
    let (outdated, result) = innermost_mut(&CARRIED, |carried| match carried {
        Carried::Out(outgoing) => Some((outgoing.begin_attempt(attempt), f(outgoing))),
        Carried::In(_) => None,
    })??;
    drop(outdated);
    Some(result)
}

/// Takes a reference along with the value being written; says under which number.
pub(crate) fn carry(handle: &Arc<Handle>) -> Result<u32, String> {
    let carried = with_outgoing(|outgoing| {
        if let Err(complaint) = handle.check_sendable(&outgoing.core) {
            let text = complaint.to_string();
            outgoing.complaint = Some(Box::new(complaint));
            return Err(text);
        }
        let index = outgoing.references.len() as u32;
        outgoing.references.push(Arc::clone(handle));
        Ok(index)
    });
    carried.unwrap_or_else(|| {
        Err(
            "a reference can only be sent inside a call or an answer, not in an error; \
             to keep one elsewhere, keep the RRef itself"
                .to_owned(),
        )
    })
}

/// Notes that the value being written names a worker that `core` knows.
pub(crate) fn name_peer(core: &Arc<Core>) -> Result<(), String> {
    let named = with_outgoing(|outgoing| match Arc::ptr_eq(core, &outgoing.core) {
        true => {
            outgoing.names_peer = true;
            Ok(())
        }
        false => {
            let complaint = handle::foreign(core, &outgoing.core);
            let text = complaint.to_string();
            outgoing.complaint = Some(Box::new(complaint));
            Err(text)
        }
    });
    named.unwrap_or_else(|| {
        Err(
            "a peer can only be sent inside a call or an answer, not in an error; \
             elsewhere, keep its name, and get it with `Worker::peer`"
                .to_owned(),
        )
    })
}

/// Who reads the value being read.
pub(crate) fn reading() -> Option<Reading> {
    let reading = innermost(&CARRIED, |carried| match carried {
        Carried::In(incoming) => incoming.reading.clone(),
        Carried::Out(_) => None,
    });
    reading.flatten()
}

/// Finds the reference with this number for the value being read. `check` may refuse it.
pub(crate) fn carried(
    index: u32,
    check: impl FnOnce(&Handle) -> Result<(), Unread>,
) -> Result<Arc<Handle>, Unread> {
    let found = innermost_mut(&CARRIED, |carried| {
        let Carried::In(incoming) = carried else {
            return None;
        };
        let found = match incoming.references.get(index as usize) {
            Some(handle) => check(handle).map(|()| Arc::clone(handle)),
            None => Err(CodecError::new(format_args!(
                "reference number {index} did not come with the value"
            ))
            .into()),
        };
        if let Err(complaint) = &found {
            incoming.complaint = Some(Box::new(complaint.clone()));
        }
        Some(found)
    });
    found.flatten().unwrap_or_else(|| {
        let reason = "a reference can only be read out of a call or an answer";
        Err(CodecError::new(reason).into())
    })
}

/// Notes something of the message being written, for the context that it will be made in. Says the
/// message's number.
pub(crate) fn note<R: Record + Default, T>(note: impl FnOnce(&mut R) -> T) -> Option<(u64, T)> {
    let key = TypeId::of::<R>();
    let (number, record) = with_outgoing(|outgoing| {
        let core = &outgoing.core;
        let noted = outgoing.noted.get_or_insert_with(|| {
            Box::new(Noted {
                number: core.next_number(),
                records: Vec::new(),
            })
        });
        let place = noted.records.iter().position(|(other, _)| *other == key);
        let record = place.map(|place| noted.records.swap_remove(place).1);
        (noted.number, record)
    })?;
    // Nothing is borrowed while the user's code runs.
    let mut record = record
        .and_then(|record| (record as Box<dyn Any>).downcast::<R>().ok())
        .unwrap_or_default();
    let result = note(&mut record);
    with_outgoing(|outgoing| {
        if let Some(noted) = &mut outgoing.noted {
            noted.records.push((key, record));
        }
    });
    Some((number, result))
}

/// The context and sender of the message being read.
pub(crate) fn origin() -> Option<(Arc<Core>, ContextId, NodeId)> {
    let Reading {
        core,
        from,
        context,
    } = reading()?;
    context.map(|context| (core, context, from))
}

//! Whether the wire takes a message, and what becomes of one that it does not take.
//!
//! What is too large is refused before it is queued wherever that can be known, so that the runtime takes it back (R5):
//! [`AgentShared::judge_call`]. What is found out when a message is composed concerns this message only, never those
//! that are written together with it: it is undone as if the peer had got it and refused it.

use std::sync::Arc;

use farref::agent::{
    AnswerHead, AnswerMessage, CallHead, Carried, Control, Failure, Message, Origins,
};
use farref::{CodecError, Part, Payload};
use farref_proto::{DeclineReason, Declined};

use super::state::links::{Link, Pending};
use super::state::{AgentShared, ids};
use crate::transport::{COPY_LIMIT, Outgoing, PipeError, PipeSender, Size};
use crate::value::{Body, Replacement, TensorData, TensorEntry};

/// The most bytes that a reference takes in a pickle: a name of a type, and numbers.
const REFERENCE: u64 = 2048;
/// The most bytes that a tensor takes in the list of tensors, and each of its dimensions.
const LISTED: u64 = 1024;
const DIMENSION: u64 = 32;
/// The most bytes of a call besides its arguments: names of functions, numbers, contexts.
const AROUND: u64 = 8192;
/// A tensor takes at least this of what it is part of.
const TENSOR: usize = 64;

impl AgentShared {
    /// Whether the wire takes a call, judged by what it may come to at most.
    pub(super) fn judge_call(
        &self,
        head: &CallHead,
        arguments: &Payload,
    ) -> Result<(), CodecError> {
        let references = head.carried.len() as u64 * REFERENCE;
        let body = arguments.body.len();
        let listed = (body / TENSOR) as u64 * LISTED;
        let bound = AROUND + references + listed + arguments.len() as u64;
        // So is almost every call, which need not be looked at any closer.
        if bound <= self.limits.payload.min(self.limits.message) / 2
            && body / TENSOR <= self.limits.tensors
        {
            return Ok(());
        }
        let measured = Body::measure(&arguments.body).map_err(CodecError::new)?;
        let part = |number: u32| {
            let part = arguments.parts.get(number as usize);
            part.map_or(0, |part| part.len() as u64)
        };
        let placeholders =
            measured
                .placeholders
                .iter()
                .map(|placeholder| match placeholder.replacement {
                    Replacement::Reference(_) => REFERENCE,
                    Replacement::Part(number) => 16 + part(number),
                });
        let of_tensor = |entry: &TensorEntry| match &entry.data {
            TensorData::Parts(parts) => parts.first().map_or(0, |first| part(*first)),
            TensorData::Here(_, bytes) => bytes.len() as u64,
        };
        let listed = |entry: &TensorEntry| LISTED + DIMENSION * entry.shape.len() as u64;
        let tensors = &measured.tensors;
        let size = Size {
            payload: AROUND + measured.pickle.len() as u64 + placeholders.sum::<u64>(),
            tensor_list: tensors.iter().map(listed).sum(),
            storages: tensors.len(),
            storage_bytes: tensors.iter().map(of_tensor).sum(),
        };
        self.limits.judge(&size).map_err(CodecError::new)
    }

    /// Whether the wire takes a message, and what is written together with others is to be had.
    pub(super) fn judge(&self, message: &Outgoing<Part>) -> Result<(), CodecError> {
        self.limits
            .judge(&message.size())
            .map_err(CodecError::new)?;
        // Of one that is larger some may have left before that shows, and the pipe is given up.
        let copied = |storage: &&Part| storage.len() <= COPY_LIMIT;
        for storage in message.storages.iter().filter(copied) {
            storage.look(0..storage.len(), |_| ())?;
        }
        Ok(())
    }

    /// A request of ours certainly has not left and never will. Whoever waits for it is told.
    pub(super) fn not_sent(
        self: &Arc<Self>,
        link: &Arc<Link>,
        id: i64,
        carried: &[Carried],
        error: &CodecError,
    ) {
        tracing::warn!(worker = %self.name, peer = %link.name, %error, "a call cannot be sent");
        self.let_go(link, carried);
        let context = match link.answered(id) {
            Some(Pending::Call { request, context }) => {
                let answer = AnswerMessage {
                    head: AnswerHead {
                        id: request,
                        carried: Vec::new(),
                    },
                    origins: Origins::default(),
                    outcome: Err(Failure::BadArguments(error.to_string())),
                };
                self.give(link, Message::Answer(answer));
                context
            }
            Some(Pending::Create {
                share,
                context,
                weight: bytes,
            }) => {
                let unheard = link.created(share.rref);
                debug_assert!(unheard.is_empty(), "of what nobody was told of");
                let reason = DeclineReason::Freed;
                self.control(link, Control::Decline(vec![Declined { share, reason }]));
                self.give(link, Message::Credit { calls: 1, bytes });
                context
            }
            // Nothing else is as large, or is judged before.
            _ => None,
        };
        if let Some(context) = context {
            self.control(link, Control::ContextDone(vec![(context, 1)]));
        }
    }

    /// References that were made for a message which never leaves are taken back, in the words by which the peer
    /// would let go of them.
    pub(super) fn let_go(self: &Arc<Self>, link: &Arc<Link>, carried: &[Carried]) {
        for reference in carried {
            let control = match ids::number_of(reference.owner) == self.me {
                true => Control::Release(vec![reference.share]),
                false => Control::Accept(vec![reference.share]),
            };
            self.control(link, control);
        }
    }

    /// Writes messages one by one that were refused together.
    pub(super) async fn send_singly(
        &self,
        peer: &str,
        sender: &mut PipeSender,
        messages: &[Outgoing<Part>],
    ) -> Result<(), PipeError> {
        for message in messages {
            match sender.send(std::slice::from_ref(message)).await {
                Err(error) if sender.is_open() => {
                    tracing::error!(worker = %self.name, peer, %error, id = message.id, "a message was not sent");
                }
                sent => sent?,
            }
        }
        Ok(())
    }
}

//! A message that has arrived: put together of its head and its payload.

use std::time::Duration;

use super::error::FrameError;
use super::message_head::MessageHead;
use crate::agent::{AnswerMessage, CallMessage, Message};
use crate::codec::Payload;

/// A message that has arrived. On the heap, because it is large and passed on a lot.
#[derive(Debug)]
pub(crate) struct ReceivedMessage(pub(crate) Box<Message>);

/// The message that a peer sent `age` after it had been queued, without its payload, in the place of one that has
/// been delivered if there is one.
#[inline(always)]
pub(super) fn assemble(
    head: MessageHead,
    age: Duration,
    spare: &mut Vec<ReceivedMessage>,
) -> ReceivedMessage {
    let message = match head {
        MessageHead::Call {
            head,
            function,
            remaining,
            trace,
            callers,
            origins,
        } => Message::Call(CallMessage {
            head,
            function,
            remaining: remaining.map(|remaining| remaining.saturating_sub(age)),
            trace,
            callers,
            origins,
            arguments: Payload::default(),
        }),
        MessageHead::Answer {
            head,
            origins,
            failure,
        } => Message::Answer(AnswerMessage {
            head,
            origins,
            outcome: failure.map_or_else(|| Ok(Payload::default()), Err),
        }),
        MessageHead::Control(control) => Message::Control(control),
        MessageHead::Cancel(id) => Message::Cancel(id),
        MessageHead::Credit { calls, bytes } => Message::Credit { calls, bytes },
    };
    ReceivedMessage::place(message, spare)
}

impl ReceivedMessage {
    /// Puts a message in the place of one that has been delivered, if there is one.
    #[inline(always)]
    pub(super) fn place(message: Message, spare: &mut Vec<Self>) -> Self {
        match spare.pop() {
            Some(mut place) => {
                *place.0 = message;
                place
            }
            None => Self(Box::new(message)),
        }
    }

    /// Lets go of what is left of a message that has been delivered, if that is more than a place.
    pub(super) fn empty(&mut self) {
        let is_empty = match &*self.0 {
            Message::Call(call) => {
                call.head.carried.capacity() == 0
                    && call.callers.capacity() == 0
                    && call.origins.is_empty()
                    && call.arguments.is_empty()
            }
            Message::Answer(AnswerMessage {
                head,
                origins,
                outcome: Ok(value),
            }) => head.carried.capacity() == 0 && origins.is_empty() && value.is_empty(),
            Message::Cancel(_) | Message::Credit { .. } => true,
            Message::Answer(_) | Message::Control(_) => false,
        };
        if !is_empty {
            drop(self.0.take());
        }
    }

    /// Where its payload belongs, if it is of a kind that has one.
    pub(super) fn payload_mut(&mut self) -> Option<&mut Payload> {
        match &mut *self.0 {
            Message::Call(call) => Some(&mut call.arguments),
            Message::Answer(answer) => answer.outcome.as_mut().ok(),
            Message::Control(_) | Message::Cancel(_) | Message::Credit { .. } => None,
        }
    }

    /// Adds the payload, which has come after the head.
    pub(super) fn add_payload(&mut self, payload: Payload) -> Result<(), FrameError> {
        match self.payload_mut() {
            Some(place) => *place = payload,
            None if payload.body.is_empty() && payload.parts.is_empty() => {}
            None => return Err(FrameError::UnexpectedPayload),
        }
        Ok(())
    }
}

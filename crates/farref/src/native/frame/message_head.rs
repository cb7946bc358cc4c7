//! All of a message but its payload, as postcard writes and reads it.

use std::fmt;
use std::time::Duration;

use farref_proto::{AnswerHead, CallHead, Control, MessageId};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::agent::{Caller, Failure, FunctionRef, MAX_CALLERS, Message, Origins, TraceContext};

/// A head of up to this length needs no memory of its own: that of a call, say, that carries one reference.
pub(super) const SHORT: usize = 192;

/// All of a message but its payload, as it is read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum MessageHead {
    Control(Control),
    Call {
        head: CallHead,
        function: Option<FunctionRef>,
        remaining: Option<Duration>,
        trace: TraceContext,
        #[serde(deserialize_with = "few_callers")]
        callers: Vec<Caller>,
        origins: Origins,
    },
    Answer {
        head: AnswerHead,
        origins: Origins,
        failure: Option<Failure>,
    },
    Cancel(MessageId),
    Credit {
        calls: u32,
        bytes: u64,
    },
}

/// The same of a message that is here, as it is written.
#[derive(Serialize)]
pub(super) enum HeadOf<'a> {
    Control(&'a Control),
    Call {
        head: &'a CallHead,
        function: &'a Option<FunctionRef>,
        remaining: &'a Option<Duration>,
        trace: &'a TraceContext,
        callers: &'a [Caller],
        origins: &'a Origins,
    },
    Answer {
        head: &'a AnswerHead,
        origins: &'a Origins,
        failure: Option<&'a Failure>,
    },
    Cancel(MessageId),
    Credit {
        calls: u32,
        bytes: u64,
    },
}

impl<'a> HeadOf<'a> {
    pub(super) fn new(message: &'a Message) -> Self {
        match message {
            Message::Control(control) => Self::Control(control),
            Message::Call(call) => Self::Call {
                head: &call.head,
                function: &call.function,
                remaining: &call.remaining,
                trace: &call.trace,
                callers: &call.callers,
                origins: &call.origins,
            },
            Message::Answer(answer) => Self::Answer {
                head: &answer.head,
                origins: &answer.origins,
                failure: answer.outcome.as_ref().err(),
            },
            Message::Cancel(id) => Self::Cancel(*id),
            Message::Credit { calls, bytes } => Self::Credit {
                calls: *calls,
                bytes: *bytes,
            },
        }
    }
}

/// FR-2: reads no more callers than any correct peer sends.
fn few_callers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Caller>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Caller>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_CALLERS} callers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut callers: A) -> Result<Vec<Caller>, A::Error> {
            let mut few = Vec::new();
            while let Some(caller) = callers.next_element()? {
                if few.len() == MAX_CALLERS {
                    return Err(A::Error::invalid_length(MAX_CALLERS + 1, &self));
                }
                few.push(caller);
            }
            Ok(few)
        }
    }

    deserializer.deserialize_seq(Few)
}

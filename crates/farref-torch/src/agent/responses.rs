//! Answers of peers, as the runtime takes them.

use std::sync::Arc;

use farref::Payload;
use farref::agent::{self, AnswerHead, AnswerMessage, Control, Failure, MessageId, Origins};
use farref_proto::{DeclineReason, Declined, Share};

use super::pickled::{Found, references_of};
use super::state::AgentShared;
use super::state::links::{Link, Pending};
use crate::PyException;
use crate::pickle::Pickle;
use crate::rpc::{Fork, Kind, Message, RemoteException, RpcError};
use crate::transport::Incoming;
use crate::value::{Body, Form};

impl AgentShared {
    /// An answer of a peer's to a request of ours.
    pub(super) fn response(self: &Arc<Self>, link: &Arc<Link>, message: Incoming) {
        let Some(pending) = link.answered(message.id) else {
            return self.misbehaves(link, "it answers what nobody asked");
        };
        match pending {
            Pending::Own(waiting) => drop(waiting.send(message)),
            Pending::Quiet => {}
            Pending::Call { request, context } => {
                let answer = self.answer(link, request, message);
                self.give(link, agent::Message::Answer(answer));
                if let Some(context) = context {
                    self.control(link, Control::ContextDone(vec![(context, 1)]));
                }
            }
            Pending::Create {
                share,
                context,
                weight: bytes,
            } => {
                for deleted in link.created(share.rref) {
                    self.delete(link, deleted);
                }
                self.registered(link, share, &message);
                self.give(link, agent::Message::Credit { calls: 1, bytes });
                if let Some(context) = context {
                    self.control(link, Control::ContextDone(vec![(context, 1)]));
                }
            }
            Pending::Register(share) => self.registered(link, share, &message),
            Pending::Cleanup(context) => {
                self.control(link, Control::ContextCleaned(vec![context]));
            }
        }
    }

    /// The owner has taken a reference in, or will not.
    fn registered(self: &Arc<Self>, link: &Arc<Link>, share: Share, message: &Incoming) {
        if message.kind != Kind::Exception.code() {
            return self.control(link, Control::Confirm(vec![share]));
        }
        let text = String::from_utf8_lossy(&message.payload);
        tracing::warn!(worker = %self.name, peer = %link.name, "the peer will not take a reference in: {text}");
        let reason = DeclineReason::Freed;
        self.control(link, Control::Decline(vec![Declined { share, reason }]));
    }

    fn answer(&self, link: &Link, request: MessageId, message: Incoming) -> AnswerMessage {
        let (outcome, carried) = self.value(link, message);
        let carried = self.carried(&carried);
        let head = AnswerHead {
            id: request,
            carried,
        };
        AnswerMessage {
            head,
            // PyTorch's messages have no room for it.
            origins: Origins::default(),
            outcome,
        }
    }

    /// The value that an answer brings, or what the peer says went wrong, and the references that it carries: all
    /// of them also if it cannot be read (TA-5).
    fn value(
        &self,
        link: &Link,
        message: Incoming,
    ) -> (Result<Payload, Failure>, Vec<(usize, Fork)>) {
        let payload = message.payload.clone();
        let bad = |error: RpcError| Failure::BadResult(error.to_string());
        let value = match written_value(message.kind, &payload) {
            Ok(Answered::Value(value)) => value,
            Ok(Answered::Nothing) => {
                // The call that stands for it returns how it failed, which it did not.
                let nothing = Body::nothing().into_bytes();
                let nothing = nothing.map_err(|error| Failure::BadResult(error.to_string()));
                let parts = Vec::new();
                return (nothing.map(|body| Payload { body, parts }), Vec::new());
            }
            Ok(Answered::Exception(text)) => {
                return (Err(Failure::Returned(vec![text], None)), Vec::new());
            }
            Err(error) => return (Err(bad(error)), Vec::new()),
        };
        let pickle = match Pickle::read(value.pickle) {
            Ok(pickle) => pickle,
            Err(error) => return (Err(bad(error.into())), Vec::new()),
        };
        let refused = |failure| (Err(failure), references_of(&pickle));
        let budget = pickle.budget();
        let view = pickle.view(&budget);
        match RemoteException::read(view) {
            Ok(None) => {}
            Ok(Some(exception)) => {
                return refused(Failure::Returned(messages_of(&exception), None));
            }
            Err(error) => return refused(bad(error)),
        }
        let mut found = Found::default();
        if let Err(error) = found.look(view) {
            return refused(bad(error));
        }
        let nodes = found.references.iter().map(|(node, _)| *node).collect();
        let tensors = (&message.tensor_list[..], message.storages);
        let Value {
            form,
            pickle: bytes,
            context,
        } = value;
        match self.receive_value(link, form, bytes, nodes, &found, tensors, context) {
            Ok(payload) => (Ok(payload), found.references),
            Err(error) => refused(bad(error)),
        }
    }
}

/// What an answer says.
enum Answered<'a> {
    Value(Value<'a>),
    /// That it is done.
    Nothing,
    Exception(String),
}

/// A value in an answer.
struct Value<'a> {
    form: Form,
    pickle: &'a [u8],
    /// The context, and what the sender has recorded the message as.
    context: Option<(i64, i64)>,
}

fn written_value(kind: i32, payload: &[u8]) -> Result<Answered<'_>, RpcError> {
    let mut context = None;
    let mut decoded = Message::decode(Kind::from_code(kind)?, payload)?;
    if let Message::Forward {
        kind,
        inner,
        context: number,
        autograd,
        ..
    } = decoded
    {
        context = Some((number, autograd));
        decoded = Message::decode(kind, inner)?;
    }
    let (form, pickle) = match decoded {
        Message::PythonRet { value } | Message::PythonFetchRet { value, .. } => {
            (Form::Whole, value)
        }
        Message::ScriptRet { value } => (Form::Whole, value),
        Message::ScriptFetchRet { value } => (Form::Only, value),
        Message::RRefBackwardDone => return Ok(Answered::Nothing),
        Message::Exception { text } => {
            let text = String::from_utf8_lossy(text).into_owned();
            return Ok(Answered::Exception(text));
        }
        other => {
            return Err(RpcError::Wrong {
                what: "an answer with a value is expected",
                found: other.kind().name().to_owned(),
            });
        }
    };
    Ok(Answered::Value(Value {
        form,
        pickle,
        context,
    }))
}

/// An exception as the messages of a remote error.
fn messages_of(exception: &RemoteException<'_>) -> Vec<String> {
    let text = String::from_utf8_lossy(exception.text).into_owned();
    match &exception.class {
        Some(class) => PyException::new(class.name.clone(), text).into_messages(),
        None => vec![text],
    }
}

/// What an exception says, and which one it is.
fn text_of(exception: &RemoteException<'_>) -> String {
    let text = String::from_utf8_lossy(exception.text);
    match &exception.class {
        Some(class) => format!("{}: {text}", class.name),
        None => text.into_owned(),
    }
}

/// The value of an answer to a call of this crate's own, if it needs none of its own reading.
pub(super) fn plain_answer(message: &Incoming) -> Result<Vec<u8>, String> {
    let decoded = Kind::from_code(message.kind)
        .and_then(|kind| Message::decode(kind, &message.payload))
        .map_err(|error| error.to_string())?;
    match decoded {
        Message::PythonRet { value } => {
            let read = Pickle::read(value).map_err(|error| error.to_string())?;
            let budget = read.budget();
            match RemoteException::read(read.view(&budget)) {
                Ok(None) => Ok(value.to_vec()),
                Ok(Some(exception)) => Err(text_of(&exception)),
                Err(error) => Err(error.to_string()),
            }
        }
        Message::Exception { text } => Err(String::from_utf8_lossy(text).into_owned()),
        other => Ok(other.kind().name().as_bytes().to_vec()),
    }
}

//! Answers of this worker, as PyTorch's messages.

use std::sync::Arc;

use farref::agent::{AnswerMessage, Failure};
use farref::{CodecError, Part};
use farref_autograd::engine::PassFailure;

use super::messages::{exception_message, profiled, ready};
use super::state::AgentShared;
use super::state::links::{AnswerKind, Served};
use super::{pickled, tensors};
use crate::pickle::Writer;
use crate::rpc::{Kind, Message, RemoteException};
use crate::transport::Outgoing;
use crate::value::TOO_LARGE;
use farref_pickle as exception;

/// The longest text of an error that is sent.
const MAX_TEXT: usize = 16 << 10;

impl AgentShared {
    /// An answer to a request of a peer's.
    pub(super) fn compose_answer(
        self: &Arc<Self>,
        served: &Served,
        answer: &AnswerMessage,
    ) -> Outgoing<Part> {
        let failure = match &answer.outcome {
            Ok(_) => match self.compose_value(served, answer) {
                Ok(message) => return message,
                Err(error) => {
                    if let Some(link) = self.link(served.from) {
                        self.let_go(&link, &answer.head.carried);
                    }
                    Failure::BadResult(error.to_string())
                }
            },
            Err(Failure::NoSuchFunction(None)) if served.method.is_some() => {
                Failure::NoSuchFunction(served.method.as_deref().map(str::to_owned))
            }
            Err(failure) => failure.clone(),
        };
        let (class, text) = explain(&failure);
        self.compose_failure(served, &class, &text)
    }

    fn compose_value(
        &self,
        served: &Served,
        answer: &AnswerMessage,
    ) -> Result<Outgoing<Part>, CodecError> {
        let Ok(payload) = &answer.outcome else {
            return Err(CodecError::new("a failure is no value"));
        };
        if served.how == AnswerKind::RRefBackward {
            let failure: Option<PassFailure> = self.decode(payload)?;
            if let Some(failure) = failure {
                return Err(CodecError::new(failure));
            }
            let (kind, bytes) = Message::RRefBackwardDone.encode();
            return Ok(ready(kind, served.id, bytes));
        }
        let body = pickled::body_of(payload)?;
        let carried = &answer.head.carried;
        let pickle = pickled::whole(&body, carried, &payload.parts, &self.types)?;
        let jit = || pickled::jit_value(&pickle).map_err(CodecError::new);
        let message = match served.how {
            AnswerKind::Script => {
                let value = &jit()?.encode();
                Message::ScriptRet { value }.encode()
            }
            AnswerKind::ScriptFetch => (Kind::ScriptFetchRet, jit()?.encode_fetched()),
            AnswerKind::PythonFetch => python_fetch_ret(&pickle, body.tensors.len()),
            AnswerKind::Python | AnswerKind::RRefBackward => {
                Message::PythonRet { value: &pickle }.encode()
            }
        };
        let (kind, bytes) = match (served.context, body.recorded()) {
            (Some(context), Some(number)) => self.wrap(false, message, context, number),
            _ => message,
        };
        let (tensor_list, storages) =
            tensors::send(&body.tensors, &payload.parts).map_err(CodecError::new)?;
        let (kind, bytes) = profiled((kind, bytes), served.profile);
        let message = Outgoing {
            tensor_list,
            storages,
            ..ready(kind, served.id, bytes)
        };
        self.judge(&message)?;
        Ok(message)
    }

    /// The answer to a request that failed.
    pub(super) fn compose_failure(
        &self,
        served: &Served,
        class: &str,
        text: &str,
    ) -> Outgoing<Part> {
        let (class, text) = exception::builtin(class, text);
        let text: String = text.chars().take(MAX_TEXT).collect();
        let text = format!("On WorkerInfo(id={}, name={}):\n{text}", self.me, self.name);
        let (kind, bytes) = match served.how {
            AnswerKind::Python | AnswerKind::PythonFetch => {
                let mut writer = Writer::new(4);
                RemoteException::write(&mut writer, &text, "builtins", class);
                let pickle = writer.finish();
                match served.how {
                    AnswerKind::PythonFetch => python_fetch_ret(&pickle, 0),
                    _ => Message::PythonRet { value: &pickle }.encode(),
                }
            }
            _ => return ready_pair(exception_message(&text), served.id),
        };
        ready_pair(profiled((kind, bytes), served.profile), served.id)
    }
}

fn python_fetch_ret(value: &[u8], tensors: usize) -> (Kind, Vec<u8>) {
    Message::PythonFetchRet { tensors, value }.encode()
}

fn ready_pair((kind, payload): (Kind, Vec<u8>), id: i64) -> Outgoing<Part> {
    ready(kind, id, payload)
}

/// The Python exception that says the same, and in what words.
fn explain(failure: &Failure) -> (String, String) {
    explain_with(failure, |unmade| {
        let (class, text) = explain_with(&unmade.failure, |never| match *never {});
        match unmade
            .name
            .as_deref()
            .filter(|name| !name.starts_with("farref_torch::"))
        {
            Some(name) => (
                class,
                format!("{text} (in {name}, which was to make the value)"),
            ),
            None => (class, text),
        }
    })
}

fn explain_with<U>(
    failure: &Failure<U>,
    unmade: impl FnOnce(&U) -> (String, String),
) -> (String, String) {
    let (class, text) = match failure {
        Failure::Returned(chain, _) => {
            let (class, text) = exception::split(chain);
            return (class.unwrap_or("RuntimeError").to_owned(), text);
        }
        Failure::Panicked(text) => ("RuntimeError", format!("the function panicked: {text}")),
        Failure::NoSuchFunction(name) => {
            let name = name.as_deref().unwrap_or("of that name");
            (
                "AttributeError",
                format!(
                    "the value has no method {name}: it is a Rust program's, whose methods are declared by \
                     #[farref::remote(python = \"module.Class\")] on an impl block"
                ),
            )
        }
        Failure::SignatureMismatch(signature) => {
            ("TypeError", format!("the function is {signature}"))
        }
        // Python's numbers have no end, and its users expect this one if a number is too large.
        Failure::BadArguments(reason) if reason.contains(TOO_LARGE) => {
            ("OverflowError", reason.clone())
        }
        Failure::BadArguments(reason) => {
            ("TypeError", format!("the arguments do not fit: {reason}"))
        }
        Failure::TypeMismatch(reason) => ("TypeError", reason.clone()),
        Failure::ValueMismatch { rref, found, .. } => {
            ("TypeError", format!("{rref} leads to {found}"))
        }
        Failure::BadResult(reason) => ("TypeError", format!("the result cannot be sent: {reason}")),
        Failure::NotSerializable(name) => (
            "TypeError",
            format!(
                "a value of the Rust type `{name}` cannot be sent: call its methods where it is"
            ),
        ),
        Failure::DeadlineExceeded => ("TimeoutError", "the time was up".to_owned()),
        Failure::Cancelled => ("RuntimeError", "the call was cancelled".to_owned()),
        Failure::Deadlock(cycle) => (
            "RuntimeError",
            format!(
                "the call would wait for its own caller: {}",
                cycle.join(" -> ")
            ),
        ),
        Failure::NotAuthorized => (
            "PermissionError",
            "the worker does not let its caller call that function".to_owned(),
        ),
        Failure::ShuttingDown => ("RuntimeError", "the worker is shutting down".to_owned()),
        Failure::Protocol(error) => ("RuntimeError", error.to_string()),
        Failure::Unmade(value) => return unmade(value),
        _ => ("RuntimeError", "the call failed".to_owned()),
    };
    (class.to_owned(), text)
}

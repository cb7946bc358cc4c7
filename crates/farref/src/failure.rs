//! What a failure that came over the wire means to the caller.

use std::sync::Arc;

use farref_proto::{CallError, NodeId, RefError};

use crate::agent::{Failure, Unmade};
use crate::codec::CodecError;
use crate::error::{Error, FunctionName, RemoteError};
use crate::protocol::Core;
use crate::registry::Entry;

/// What a caller is told of an error of this worker's protocol. Only this worker knows what its types are
/// called (R8).
pub(crate) fn of_protocol(core: &Core, error: CallError) -> Failure {
    match error {
        CallError::Reference(RefError::TypeMismatch {
            rref,
            expected,
            found,
        }) => Failure::ValueMismatch {
            rref,
            expected,
            found: core.type_name_of(rref, found),
        },
        error => Failure::Protocol(error),
    }
}

/// Turns a failure on `worker` into the caller's error.
pub(crate) fn to_error(
    core: &Core,
    worker: NodeId,
    function: FunctionName,
    failure: Failure,
) -> Error {
    explain(core, worker, function, failure, |unmade| {
        constructor_failed(core, worker, unmade)
    })
}

/// What users of a value that was never made get: what its constructor would have told its caller.
fn constructor_failed(core: &Core, worker: NodeId, unmade: Unmade) -> Error {
    let entry = core.registry.by_id(unmade.function);
    let name = match (entry, unmade.name) {
        (Some(entry), _) => FunctionName::ours(entry.name()),
        (None, Some(name)) => FunctionName::theirs(name),
        (None, None) => FunctionName::theirs(format!("function {:#x}", unmade.function)),
    };
    let mut error = explain(core, worker, name, *unmade.failure, |never| match never {});
    match &mut error {
        Error::Timeout { limit, .. } => *limit = unmade.limit.unwrap_or_default(),
        Error::SignatureMismatch { ours, .. } => {
            **ours = entry.map(Entry::signature).unwrap_or_default();
        }
        _ => {}
    }
    error
}

fn explain<U>(
    core: &Core,
    worker: NodeId,
    function: FunctionName,
    failure: Failure<U>,
    unmade: impl FnOnce(U) -> Error,
) -> Error {
    let peer = core.name_of(worker);
    match failure {
        Failure::Returned(messages) => remote(peer, function, false, messages),
        Failure::Panicked(message) => remote(peer, function, true, vec![message]),
        Failure::NoSuchFunction(similar) => Error::NoSuchFunction {
            peer,
            function,
            similar,
        },
        Failure::SignatureMismatch(theirs) => Error::SignatureMismatch {
            peer,
            function,
            ours: Box::default(),
            theirs,
        },
        Failure::BadArguments(reason) => codec(function, "the arguments", "read", reason),
        Failure::TypeMismatch(reason) => Error::TypeMismatch(reason),
        Failure::ValueMismatch {
            rref,
            expected,
            found,
        } => Error::TypeMismatch(format!(
            "{rref} leads to {found} on worker `{peer}`, but to {} as worker `{}` knows it: build all \
             workers from the same source",
            core.type_name_of(rref, expected),
            core.name,
        )),
        Failure::BadResult(reason) => codec(function, "the result", "written", reason),
        Failure::NotSerializable(type_name) => Error::NotSerializable { type_name },
        // The caller's own clock tells how long it was; see `Pending`.
        Failure::DeadlineExceeded => Error::Timeout {
            peer,
            function,
            limit: std::time::Duration::ZERO,
        },
        Failure::Cancelled => Error::Cancelled { peer, function },
        Failure::ShuttingDown => Error::PeerLost { peer, function },
        Failure::Protocol(CallError::Reference(
            error @ (RefError::OwnerLost { .. }
            | RefError::CreatorLost { .. }
            | RefError::TypeMismatch { .. }),
        )) => core.explain(error),
        Failure::Protocol(CallError::Context(error)) => core.explain_context(error),
        Failure::Protocol(error) => Error::Reference(error.to_string()),
        Failure::Unmade(value) => unmade(value),
        Failure::Deadlock(cycle) => Error::Deadlock {
            peer,
            function,
            cycle,
        },
    }
}

fn remote(
    worker: Arc<str>,
    function: FunctionName,
    panicked: bool,
    messages: Vec<String>,
) -> Error {
    Error::Remote(RemoteError {
        worker,
        function,
        panicked,
        messages,
    })
}

fn codec(
    function: FunctionName,
    what: &'static str,
    action: &'static str,
    reason: String,
) -> Error {
    Error::Codec {
        what,
        function,
        action,
        reason: CodecError::new(reason),
    }
}

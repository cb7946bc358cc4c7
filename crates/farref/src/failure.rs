//! What a failure that came over the wire means to the caller.

use std::sync::Arc;

use farref_proto::{CallError, NodeId, RefError};

use crate::agent::Failure;
use crate::codec::CodecError;
use crate::error::{Error, FunctionName, RemoteError};
use crate::protocol::Core;

/// Turns a failure on `worker` into the caller's error.
pub(crate) fn to_error(
    core: &Core,
    worker: NodeId,
    function: FunctionName,
    failure: Failure,
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
            ours: String::new(),
            theirs,
        },
        Failure::BadArguments(reason) => codec(function, "the arguments", "read", reason),
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

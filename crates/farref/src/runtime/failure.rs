//! What a failure that came over the wire means to the caller.

use std::sync::Arc;

use farref_proto::{CallError, ContextError, Fingerprint, NodeId, RefError};

use crate::agent::{Failure, MAX_CALLERS, Unmade};
use crate::codec::CodecError;
use crate::error::{Error, ErrorValue, FunctionName, RemoteError};
use crate::fingerprint::foreign::{self, FOREIGN_VALUE};
use crate::runtime::Core;
use crate::runtime::registry::FunctionEntry;
use crate::support::mutation::mutated;
// On its way to the caller the text of a failure counts towards no budget.
use crate::support::text::{MAX_TEXT, clean, prose, shorten};

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
            found: core.type_name(found),
        },
        error => Failure::Protocol(error),
    }
}

/// Bytes of a name that a failure may have.
const MAX_NAME: usize = 1 << 10;

/// A failure whose texts, which are the program's, are of a bounded length (D5).
pub(crate) fn shortened<U>(failure: Failure<U>) -> Failure<U> {
    let short = |mut text: String| {
        shorten(&mut text, MAX_TEXT);
        text
    };
    match failure {
        Failure::Returned(mut messages, value) => {
            let mut left = MAX_TEXT;
            messages.retain_mut(|message| {
                let was_cut = left == 0;
                shorten(message, left);
                left -= message.len().max(1).min(left);
                !was_cut
            });
            let value = value.map(|value| Box::new(value.bounded()));
            Failure::Returned(messages, value)
        }
        Failure::Panicked(text) => Failure::Panicked(short(text)),
        Failure::BadArguments(text) => Failure::BadArguments(short(text)),
        Failure::BadResult(text) => Failure::BadResult(short(text)),
        Failure::TypeMismatch(text) => Failure::TypeMismatch(short(text)),
        other => other,
    }
}

/// A failure as a peer may have sent it, fit for logs and terminals: its texts are of a bounded length, and
/// nothing in them but what a function returned can move a cursor. That is the program's, as any result is.
fn cleaned<U>(failure: Failure<U>) -> Failure<U> {
    let name = |mut text: String| {
        shorten(&mut text, MAX_NAME);
        clean(text, |_| false)
    };
    match shortened(failure) {
        Failure::Panicked(text) => Failure::Panicked(prose(text)),
        Failure::BadArguments(text) => Failure::BadArguments(prose(text)),
        Failure::BadResult(text) => Failure::BadResult(prose(text)),
        Failure::TypeMismatch(text) => Failure::TypeMismatch(prose(text)),
        Failure::NoSuchFunction(similar) => Failure::NoSuchFunction(similar.map(name)),
        Failure::NotSerializable(type_name) => Failure::NotSerializable(name(type_name)),
        Failure::SignatureMismatch(theirs) => {
            let clean = |text| clean(text, |character| character == '\n');
            Failure::SignatureMismatch(Box::new(theirs.received(clean)))
        }
        Failure::ValueMismatch {
            rref,
            expected,
            found,
        } => Failure::ValueMismatch {
            rref,
            expected,
            found: name(found),
        },
        Failure::Deadlock(mut cycle) => {
            // Those who wait, and whom they wait for.
            cycle.truncate(MAX_CALLERS + 1);
            Failure::Deadlock(cycle.into_iter().map(name).collect())
        }
        other => other,
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
        (None, Some(mut name)) => {
            shorten(&mut name, MAX_NAME);
            FunctionName::theirs(clean(name, |_| false))
        }
        (None, None) => FunctionName::theirs(format!("function {:#x}", unmade.function)),
    };
    let mut error = explain(core, worker, name, *unmade.failure, |never| match never {});
    match &mut error {
        Error::Timeout { limit, .. } => *limit = unmade.limit.unwrap_or_default(),
        Error::SignatureMismatch { ours, .. } => {
            **ours = entry.map(FunctionEntry::signature).unwrap_or_default();
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
    match cleaned(failure) {
        Failure::Returned(messages, value) => {
            let value = value.filter(|_| !mutated!(ErrorsAreText)).map(Arc::from);
            remote(peer, function, false, messages, value)
        }
        Failure::Panicked(message) => remote(peer, function, true, vec![message], None),
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
            core.type_name(expected),
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
        Failure::ShuttingDown => Error::PeerLost {
            peer,
            function,
            cause: None,
        },
        Failure::Protocol(CallError::Reference(
            error @ (RefError::OwnerLost { .. }
            | RefError::CreatorLost { .. }
            | RefError::TypeMismatch { .. }),
        )) => core.explain(error),
        Failure::Protocol(CallError::Context(error)) => core.explain_context(error),
        Failure::Protocol(error) => error.into(),
        Failure::Unmade(value) => unmade(value),
        Failure::Deadlock(cycle) => Error::Deadlock {
            peer,
            function,
            cycle,
        },
        Failure::NotAuthorized => Error::NotAuthorized { peer, function },
    }
}

fn remote(
    worker: Arc<str>,
    function: FunctionName,
    panicked: bool,
    messages: Vec<String>,
    value: Option<Arc<ErrorValue>>,
) -> Error {
    Error::Remote(RemoteError {
        worker,
        function,
        panicked,
        messages,
        value,
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

impl Core {
    /// What the peer's word about a reference means to the user.
    pub(crate) fn explain(&self, error: RefError) -> Error {
        match error {
            RefError::OwnerLost { owner, .. } => Error::OwnerLost {
                owner: self.name_of(owner),
            },
            RefError::CreatorLost { rref } => Error::CreatorLost {
                creator: self.name_of(rref.origin),
            },
            RefError::NotOwner { owner, .. } => Error::NotOwner {
                owner: self.name_of(owner),
            },
            RefError::TypeMismatch {
                rref,
                expected,
                found,
            } => Error::TypeMismatch(format!(
                "{rref} leads to {} on its owner, but to {} as its holder knows it: \
                 build all workers from the same source",
                self.type_name(found),
                self.type_name(expected),
            )),
            RefError::Destroyed => self.not_member(),
            other => other.into(),
        }
    }

    /// What is wrong with a context.
    pub(crate) fn explain_context(&self, error: ContextError) -> Error {
        match error {
            ContextError::ParticipantLost { node, .. } => Error::ContextLost {
                peer: self.name_of(node),
            },
            _ => Error::ContextReleased,
        }
    }

    /// Keeps what a type is called that references of this worker lead to.
    pub(crate) fn name_type(&self, fingerprint: Fingerprint, name: &'static str) {
        if self.registry.type_name(fingerprint).is_none() {
            self.holds.name_type(fingerprint, name);
        }
    }

    /// What a type is called, if this worker knows it.
    pub(crate) fn known_type(&self, fingerprint: Fingerprint) -> Option<&'static str> {
        if fingerprint == FOREIGN_VALUE
            && let Some(title) = foreign::title()
        {
            return Some(title);
        }
        let returned = self.registry.type_name(fingerprint);
        returned.or_else(|| self.holds.type_name(fingerprint))
    }

    /// What a type is called, for errors.
    pub(crate) fn type_name(&self, fingerprint: Fingerprint) -> String {
        match self.known_type(fingerprint) {
            Some(name) => format!("a `{name}`"),
            None => format!("a value of another type ({fingerprint})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use farref_proto::{Fingerprint, RRefId};

    use super::*;
    use crate::codec::Codec;
    use crate::fingerprint::signature::Signature;

    /// D5
    #[test]
    fn the_texts_of_a_failure_are_bounded_and_short_ones_stay_as_they_are() {
        let chain = vec!["it failed".to_owned(), String::new(), "no disk".to_owned()];
        let failure = Failure::<Unmade>::Returned(chain, None);
        assert_eq!(shortened(failure.clone()), failure);
        let long = "\u{e4}".repeat(MAX_TEXT);
        let Failure::Panicked(text) = shortened::<Unmade>(Failure::Panicked(format!("a{long}")))
        else {
            panic!("another failure");
        };
        assert_eq!(text.len(), MAX_TEXT - 1, "between two characters");
        assert!(text.starts_with("a\u{e4}"));
        let chain = (0..2 * MAX_TEXT).map(|_| "ab".to_owned());
        let Failure::Returned(chain, _) =
            shortened::<Unmade>(Failure::Returned(chain.collect(), None))
        else {
            panic!("another failure");
        };
        assert_eq!(chain.len(), MAX_TEXT / 2);
        let chain = vec![long.clone(), long];
        let Failure::Returned(chain, _) = shortened::<Unmade>(Failure::Returned(chain, None))
        else {
            panic!("another failure");
        };
        assert_eq!(chain.concat().len(), MAX_TEXT);
    }

    /// RE-2: a peer may send an error of any size.
    #[test]
    fn the_value_of_a_failure_is_bounded() {
        let large: Result<Vec<u8>, String> = Ok(vec![7; 1 << 20]);
        let bytes = Codec::Postcard.encode(&(Fingerprint(1), large)).unwrap();
        let value: ErrorValue = Codec::Postcard.decode(&bytes).unwrap();
        let failure = Failure::<Unmade>::Returned(Vec::new(), Some(Box::new(value)));
        let Failure::Returned(_, Some(value)) = cleaned(failure) else {
            panic!("another failure");
        };
        let text = format!("{value:?}");
        assert!(text.contains("not sent"), "{text}");
    }

    /// F4: what a peer says of a failure goes to logs and terminals.
    #[test]
    fn the_texts_of_a_peers_failure_are_bounded_and_move_no_cursor() {
        let harmful = format!("\u{1b}[2J\r\n\t{}", "x".repeat(4 * MAX_TEXT));
        let signature = Signature::said(&harmful);
        let value = RRefId::new(NodeId::new(0, 1), 1);
        for failure in [
            Failure::Panicked(harmful.clone()),
            Failure::NoSuchFunction(Some(harmful.clone())),
            Failure::SignatureMismatch(Box::new(signature)),
            Failure::BadArguments(harmful.clone()),
            Failure::TypeMismatch(harmful.clone()),
            Failure::BadResult(harmful.clone()),
            Failure::NotSerializable(harmful.clone()),
            Failure::Deadlock(vec![harmful.clone(); 100]),
            Failure::ValueMismatch {
                rref: value,
                expected: Fingerprint(1),
                found: harmful,
            },
        ] {
            let kind = std::mem::discriminant(&failure);
            let cleaned = cleaned::<Unmade>(failure);
            assert_eq!(std::mem::discriminant(&cleaned), kind);
            let text = format!("{cleaned:?}");
            assert!(text.len() < MAX_TEXT + 100, "{}: {text:.40}", text.len());
            let shown = text.replace("\\n", "").replace("\\t", "");
            assert!(!shown.contains('\\'), "{text:.80}");
        }
        let returned = Failure::<Unmade>::Returned(vec!["\u{1b}[1mbold\u{1b}[0m".to_owned()], None);
        assert_eq!(cleaned(returned.clone()), returned, "the program's own");
    }
}

//! Calls of functions by the names that another language has for them, on farref's own wire.
//!
//! Nobody has to know in which language the callee is written. A worker that has a Rust function of that name
//! (`#[farref::remote(python = "..")]`) runs it; one whose functions are written in the other language finds it there,
//! by its [`ForeignHandlers`]. Arguments and answers are in the [form](crate::Codec::Foreign) of that language: a Rust
//! program reads and writes it with the [`ForeignCodec`] that it has.

use std::sync::Arc;

use serde::Serialize;

use super::call::Call;
use super::peer::Peer;
use super::rref::RRef;
use crate::agent::{Fingerprint, FunctionRef};
use crate::error::FunctionName;
use crate::fingerprint;
use crate::runtime::registry::{BY_FOREIGN_NAME, BY_FOREIGN_NAME_WAITING, BY_METHOD};

pub use crate::codec::{ForeignCodec, OwnValues};
pub use crate::fingerprint::foreign::ForeignType;
pub use crate::runtime::registry::ForeignHandlers;

/// Whether a function needs a thread while it waits, as far as its caller knows. A Rust function knows better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// On its thread.
    OnThread,
    /// As a coroutine does.
    Without,
}

/// Builds a call of a function by its foreign name: `module.function` of Python.
///
/// `arguments` are all that the other language needs to know, the name included: what a [`ForeignCodec`] makes of them.
/// Programs do not use this, but what is built on it: `farref_pickle::py_call`.
#[track_caller]
pub fn call_foreign<T>(
    on: &Peer,
    name: &str,
    waits: Waits,
    arguments: &(impl Serialize + 'static),
) -> Call<T> {
    let title = FunctionName::theirs(name.to_owned());
    let signature = match waits {
        Waits::OnThread => BY_FOREIGN_NAME,
        Waits::Without => BY_FOREIGN_NAME_WAITING,
    };
    match on.core() {
        Ok(core) => {
            let life = on.life(core, title.clone());
            let function = named(name, signature);
            Call::foreign(core, life, None, function, title, arguments)
        }
        Err(error) => Call::broken(title, error),
    }
}

/// Builds a call of a method, by what it is called on the value, whatever the value is.
#[track_caller]
pub fn call_foreign_method<T, V>(
    on: &RRef<V>,
    method: &str,
    arguments: &(impl Serialize + 'static),
) -> Call<T> {
    let title = FunctionName::theirs(method.to_owned());
    match on.handle.held() {
        Ok(held) => {
            let receiver = Some(Arc::clone(&on.handle));
            let function = named(method, BY_METHOD);
            let to = Ok(held.owner);
            Call::foreign(&held.core, to, receiver, function, title, arguments)
        }
        Err(error) => Call::broken(title, error),
    }
}

fn named(name: &str, signature: Fingerprint) -> FunctionRef {
    FunctionRef {
        id: fingerprint::of_name(name),
        signature,
        on_first_reference: false,
    }
}

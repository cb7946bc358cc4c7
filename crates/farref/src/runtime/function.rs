//! What `#[farref::remote]` generates code against: functions as types.
//!
//! Everything here is public because generated code lives in the user's crate, and hidden because
//! nobody else is to use it.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agent::Failure;
use crate::fingerprint;
use crate::values::{Access, Encode};

/// Where a function runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As a task. What an `async fn` does unless told otherwise.
    Task,
    /// On the blocking pool. What a plain `fn` does unless told otherwise.
    Blocking,
}

/// One remote function. The type that implements it has the function's name.
pub trait Function: 'static {
    /// What callers call it: unique in the program.
    const NAME: &'static str;
    /// How it is declared, for error messages.
    const SIGNATURE: &'static str;
    /// The time limit of a call that does not set its own.
    const TIMEOUT: Option<Duration>;
    /// Where it runs.
    const MODE: Mode;
    /// What workers of another system call it, such as `module.function` in Python. Of a method, the
    /// last part is what it is called on a value.
    const FOREIGN_NAME: Option<&'static str> = None;
    /// What its arguments are called.
    const PARAMETERS: &'static [&'static str] = &[];
    /// Whether it needs a value to be called on, and how.
    type Access: Access;
    /// All arguments but the receiver, as a tuple.
    type Arguments: Serialize + DeserializeOwned + Send + 'static;
    /// What it returns; of a `Result`, the good part.
    type Output: Send + Sync + 'static;

    /// Calls it.
    fn run(
        receiver: <Self::Access as Access>::Guard,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send + 'static;

    /// How to write the output, if it can be written.
    fn encoder() -> Option<Encode<Self::Output>>;

    /// Traces the output if it can be read, so that the encoder knows what it has to be read with.
    fn trace_output() {}
}

/// What workers of another system call the class of a value. A codec writes it as that class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignClass(pub &'static str);

impl Serialize for ForeignClass {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct("farref::ForeignClass", self.0)
    }
}

/// Compiles if a type can be an argument: what [`Function::Arguments`] asks of all of them, asked of one.
pub fn is_sent<T: Serialize + DeserializeOwned + Send + 'static>() {}

/// What a function's error becomes on its way back.
pub fn returned(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    let error = error.into();
    let mut chain = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        chain.push(cause.to_string());
        source = cause.source();
    }
    Failure::Returned(chain)
}

/// Finds out whether a type can be written: `(&Probe::<T>::new()).encoder()` is `Some` if it is
/// `Serialize`. (The compiler prefers [`CanEncode`], whose method needs one reference less.)
pub struct Probe<T>(PhantomData<T>);

impl<T> Probe<T> {
    /// A probe.
    #[expect(clippy::new_without_default, reason = "only generated code makes one")]
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> fmt::Debug for Probe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

/// Of types that can be written.
pub trait CanEncode<T> {
    /// How.
    fn encoder(&self) -> Option<Encode<T>>;
}

impl<T: Serialize + 'static> CanEncode<T> for Probe<T> {
    fn encoder(&self) -> Option<Encode<T>> {
        Some(|value, codec| codec.encode(value))
    }
}

/// Of all types.
pub trait CannotEncode<T> {
    /// Not at all.
    fn encoder(&self) -> Option<Encode<T>>;
}

impl<T> CannotEncode<T> for &Probe<T> {
    fn encoder(&self) -> Option<Encode<T>> {
        None
    }
}

/// Of types that can be read. As with [`CanEncode`], the compiler prefers it to [`CannotTrace`].
pub trait CanTrace {
    /// Finds out what the type asks of a deserializer.
    fn trace(&self);
}

impl<T: DeserializeOwned + 'static> CanTrace for Probe<T> {
    fn trace(&self) {
        fingerprint::trace::<T>();
    }
}

/// Of all types.
pub trait CannotTrace {
    /// Does nothing.
    fn trace(&self);
}

impl<T> CannotTrace for &Probe<T> {
    fn trace(&self) {}
}

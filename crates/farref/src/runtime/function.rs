//! What `#[farref::remote]` generates code against: functions as types.
//!
//! Everything here is public because generated code lives in the user's crate, and hidden because
//! nobody else is to use it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::Failure;
use crate::codec::vectors::{ArgumentList, Look, each_in};
use crate::error::{Error, ErrorValue, RemoteError};
use crate::fingerprint::{self, ErrorType};
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
    type Arguments: Serialize + DeserializeOwned + Send + ArgumentList + 'static;
    /// What it returns; of a `Result`, the good part.
    type Output: Send + Sync + 'static;

    /// Calls it.
    fn run(
        receiver: <Self::Access as Access>::Guard,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send + 'static;

    /// How to write the output, if it can be written.
    fn encoder() -> Option<Encode<Self::Output>>;

    /// Looks at the vectors of numbers in the output.
    fn each_vector(output: &mut Self::Output, look: Look<'_>) {
        each_in(output, look);
    }

    /// Traces the output if it can be read, so that the encoder knows what it has to be read with.
    fn trace_output() {}

    /// The type of its errors, if they are sent as what they are.
    fn error_type() -> Option<ErrorType> {
        None
    }
}

/// A `Result`, whatever it is called where it is declared.
#[diagnostic::on_unimplemented(
    message = "a remote function's `Result` is the standard library's, and `{Self}` is not",
    label = "give this type another name, or return `std::result::Result`"
)]
pub trait Fallible {
    /// Of its errors.
    type Error;
}

impl<T, E> Fallible for Result<T, E> {
    type Error = E;
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

/// Writes a function's error as what it is, or what another function raised and it hands on.
pub type WriteError<E> = fn(&E) -> Option<ErrorValue>;

/// What a function's error becomes on its way back.
pub fn returned<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    error: E,
    write: Option<WriteError<E>>,
) -> Failure {
    let written = write.and_then(|write| write(&error));
    let error = error.into();
    let value = written.or_else(|| raised_elsewhere(&*error));
    let messages = causes(&*error).map(ToString::to_string).collect();
    Failure::Returned(messages, value.map(Box::new))
}

/// An error and its sources, the outermost first.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| cause.source())
}

/// What another function raised, if that is among the causes of an error: it goes on to who may know it.
fn raised_elsewhere(error: &(dyn std::error::Error + 'static)) -> Option<ErrorValue> {
    causes(error).find_map(|cause| {
        let remote = match of_farref(cause) {
            Some(Error::Remote(remote)) => remote,
            Some(_) => return None,
            None => cause.downcast_ref::<RemoteError>()?,
        };
        remote.value.as_deref().cloned()
    })
}

/// A `farref::Error`, also one that was made smaller or shared.
fn of_farref<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    let boxed = || cause.downcast_ref::<Box<Error>>().map(|error| &**error);
    let shared = || cause.downcast_ref::<Arc<Error>>().map(|error| &**error);
    cause.downcast_ref().or_else(boxed).or_else(shared)
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
        Some(|value, codec| codec.encode_outgoing(value))
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

/// Of errors that can be sent as what they are. As with [`CanEncode`], the compiler prefers it to
/// [`CannotRaise`].
pub trait CanRaise<E> {
    /// Their type.
    fn error_type(&self) -> Option<ErrorType>;

    /// How to write one.
    fn error_writer(&self) -> Option<WriteError<E>>;
}

// The compiler does not look at lifetimes when it chooses: of `DeserializeOwned`, a type that borrows for `'static`
// (behind an alias, where nobody sees it) would be chosen and then refused.
impl<E: Serialize + Deserialize<'static> + 'static> CanRaise<E> for Probe<E> {
    fn error_type(&self) -> Option<ErrorType> {
        Some(ErrorType::of::<E>())
    }

    fn error_writer(&self) -> Option<WriteError<E>> {
        Some(|error| Some(ErrorValue::write(error)))
    }
}

/// Of errors that hold any other, such as `anyhow::Error`: as a boxed error they would not tell which. As with
/// [`CanEncode`], the compiler prefers it to [`CannotLookInside`].
pub trait CanLookInside<E> {
    /// How to write what it holds, if another function raised it.
    fn cause_writer(&self) -> Option<WriteError<E>>;
}

impl<E> CanLookInside<E> for Probe<E>
where
    E: AsRef<dyn std::error::Error + Send + Sync>,
{
    fn cause_writer(&self) -> Option<WriteError<E>> {
        Some(|error| raised_elsewhere(error.as_ref()))
    }
}

/// Of all types.
pub trait CannotLookInside<E> {
    /// Not at all.
    fn cause_writer(&self) -> Option<WriteError<E>>;
}

impl<E> CannotLookInside<E> for &Probe<E> {
    fn cause_writer(&self) -> Option<WriteError<E>> {
        None
    }
}

/// Of all types.
pub trait CannotRaise<E> {
    /// None that is sent.
    fn error_type(&self) -> Option<ErrorType>;

    /// Not at all.
    fn error_writer(&self) -> Option<WriteError<E>>;
}

impl<E> CannotRaise<E> for &Probe<E> {
    fn error_type(&self) -> Option<ErrorType> {
        None
    }

    fn error_writer(&self) -> Option<WriteError<E>> {
        None
    }
}

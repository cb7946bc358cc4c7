//! What `#[farref::remote]` generates code against: functions as types.
//!
//! Everything here is public because generated code lives in the user's crate, and hidden because
//! nobody else is to use it.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;

use farref_proto::Fingerprint;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agent::Failure;
use crate::codec::{Codec, CodecError};
use crate::face::call::Call;
use crate::face::peer::Peer;
use crate::face::rref::RRef;
use crate::fingerprint;
use crate::fingerprint::signature::Signature;
use crate::runtime::serve::Job;
use crate::values::Access;

pub use inventory;

pub use crate::values::{Exclusive, NoReceiver, Shared};

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

/// Writes a value.
pub type Encode<T> = fn(&T, &Codec) -> Result<Vec<u8>, CodecError>;

/// A function as the program's list of functions has it.
pub struct Registration {
    pub(crate) name: &'static str,
    pub(crate) signature: &'static str,
    /// Where it is declared.
    pub(crate) place: &'static Location<'static>,
    pub(crate) fingerprint: fn() -> Fingerprint,
    pub(crate) trace_output: fn(),
    pub(crate) describe: fn() -> Signature,
    pub(crate) output: fn() -> (Fingerprint, &'static str),
    pub(crate) foreign_name: Option<&'static str>,
    /// What a method is called on a value.
    pub(crate) method: Option<&'static str>,
    /// The type that it is a method of.
    pub(crate) receiver: fn() -> TypeId,
    pub(crate) needs_receiver: bool,
    pub(crate) exclusive: bool,
    pub(crate) serve: fn(Job),
}

impl Registration {
    /// The entry of a function.
    #[track_caller]
    pub const fn of<F: Function>() -> Self {
        Self {
            name: F::NAME,
            signature: F::SIGNATURE,
            place: Location::caller(),
            fingerprint: signature_of::<F>,
            trace_output: F::trace_output,
            describe: describe::<F>,
            output: output_of::<F>,
            foreign_name: F::FOREIGN_NAME,
            method: method_name(F::Access::NEEDS_RECEIVER, F::FOREIGN_NAME, F::NAME),
            receiver: TypeId::of::<<F::Access as Access>::Target>,
            needs_receiver: F::Access::NEEDS_RECEIVER,
            exclusive: F::Access::EXCLUSIVE,
            serve: crate::runtime::serve::serve::<F>,
        }
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` at {}:{}",
            self.signature,
            self.place.file(),
            self.place.line()
        )
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}

fn describe<F: Function>() -> Signature {
    Signature::of::<F::Arguments, F::Output>(F::SIGNATURE)
}

inventory::collect!(Registration);

/// The last part of a method's name: what follows the last dot, or the last colon.
const fn method_name(
    is_method: bool,
    foreign: Option<&'static str>,
    own: &'static str,
) -> Option<&'static str> {
    if !is_method {
        return None;
    }
    let (name, separator) = match foreign {
        Some(name) => (name, b'.'),
        None => (own, b':'),
    };
    let bytes = name.as_bytes();
    let mut start = bytes.len();
    while start > 0 && bytes[start - 1] != separator {
        start -= 1;
    }
    // Names have no other bytes than whole letters after a separator.
    Some(name.split_at(start).1)
}

fn output_of<F: Function>() -> (Fingerprint, &'static str) {
    let fingerprint = fingerprint::of_type::<F::Output>();
    (fingerprint, std::any::type_name::<F::Output>())
}

/// What both sides of a call must agree on.
pub(crate) fn signature_of<F: Function>() -> Fingerprint {
    fingerprint::of_function::<F::Arguments, F::Output>(F::NAME)
}

/// Builds a call of a function on a worker.
#[track_caller]
pub fn call<F: Function<Access = NoReceiver>>(
    to: &Peer,
    arguments: &F::Arguments,
) -> Call<F::Output> {
    Call::on_worker::<F>(to, arguments)
}

/// Builds a call of a method on a far value.
#[track_caller]
pub fn call_method<F: Function>(
    on: &RRef<<F::Access as Access>::Target>,
    arguments: &F::Arguments,
) -> Call<F::Output> {
    Call::on_value::<F>(on, arguments)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_called_by_the_last_part_of_its_name() {
        let name = |foreign, own| method_name(true, foreign, own);
        assert_eq!(name(None, "shop::Till::put"), Some("put"));
        assert_eq!(name(None, "put"), Some("put"));
        assert_eq!(
            name(Some("shop.Till.insert"), "shop::Till::put"),
            Some("insert")
        );
        assert_eq!(name(Some("läden.Kasse.lege_ab"), "x"), Some("lege_ab"));
        assert_eq!(name(None, "läden::Kasse::ö"), Some("ö"));
        assert_eq!(
            method_name(false, Some("shop.Till"), "shop::Till::new"),
            None
        );
    }
}

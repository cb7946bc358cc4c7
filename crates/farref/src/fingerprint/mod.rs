//! Fingerprints of types and functions, by which two builds of a program notice that they disagree.
//!
//! The name of a type says nothing about its fields. So the fingerprint of a function also has the
//! *shape* of its arguments in it: what they ask of a deserializer, traced once by [`shape`].
//!
//! A fingerprint has `std::any::type_name` in it, which compilers may write differently. Builds by
//! two compilers may therefore refuse each other though they agree.
//!
//! # Invariants
//!
//! - **FP-1** The same source gives the same fingerprint in every process: no seed, address, clock
//!   or order of a hash map goes into one.
//! - **FP-2** Functions that differ in their name, in the names of their types or in the traced
//!   shape of their arguments, or of an error that is sent as what it is, differ in their fingerprint, save
//!   for collisions of a 64-bit hash.
//! - **FP-3** Tracing ends, within a number of steps that does not depend on the type, and does not
//!   fail: what cannot be traced is recorded as opaque.
//! - **FP-4** A part that fails does not hide its neighbours. Tuples and maps are the exception: an
//!   element that cannot be made hides those after it, and a key its value.

pub(crate) mod foreign;
mod found;
mod hash;
mod probe;
mod shape;
pub(crate) mod signature;
#[cfg(test)]
mod tests;

use std::any::{TypeId, type_name};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use farref_proto::Fingerprint;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::foreign::{FOREIGN_VALUE, is_foreign};
use self::hash::Hash;
use self::shape::{Shape, shape_of};

/// The fingerprint of the type behind a reference: of its name only, as it need not be
/// deserializable. That of a type which stands for values of another language says nothing.
pub(crate) fn of_type<T: 'static>() -> Fingerprint {
    if is_foreign(TypeId::of::<T>()) {
        return FOREIGN_VALUE;
    }
    Hash::new()
        .part("type")
        .part(type_name::<T>())
        .fingerprint()
}

/// The fingerprint of an error that is sent as what it is: of its name and its shape.
pub(crate) fn of_error<E: Deserialize<'static> + 'static>() -> Fingerprint {
    Hash::new()
        .part("error")
        .part(type_name::<E>())
        .number(shape(TypeId::of::<E>(), shape_of::<E>).0)
        .fingerprint()
}

/// The fingerprint of a function: of its name, of the names of its arguments `A` and its output
/// `O`, of the shape of `A`, and of its error if that is sent as what it is.
///
/// The first call for an `A` traces it, later ones look the shape up.
pub(crate) fn of_function<A: DeserializeOwned + 'static, O: 'static>(
    name: &str,
    error: Option<&ErrorType>,
) -> Fingerprint {
    Hash::new()
        .part("function")
        .part(name)
        .part(type_name::<A>())
        .part(type_name::<O>())
        .number(shape(TypeId::of::<A>(), shape_of::<A>).0)
        .number(error.map_or(0, |error| error.fingerprint.0))
        .fingerprint()
}

/// The type of the errors of a function, which are sent as what they are.
#[derive(Debug)]
pub struct ErrorType {
    name: &'static str,
    fingerprint: Fingerprint,
    shape: Arc<str>,
}

impl ErrorType {
    /// Traces a type.
    pub(crate) fn of<E: Deserialize<'static> + 'static>() -> Self {
        Self {
            name: type_name::<E>(),
            fingerprint: of_error::<E>(),
            shape: shape_text::<E>(),
        }
    }
}

/// The shape of a type, in words.
pub(crate) fn shape_text<A: Deserialize<'static> + 'static>() -> Arc<str> {
    shape(TypeId::of::<A>(), shape_of::<A>).1
}

/// Traces a type, so that [`reads_any`] knows it.
pub(crate) fn trace<T: DeserializeOwned + 'static>() {
    shape(TypeId::of::<T>(), shape_of::<T>);
}

/// Whether a type is known to read whatever comes, somewhere in it. False as long as it has not been
/// traced.
#[inline]
pub(crate) fn reads_any(id: TypeId) -> bool {
    // Few programs have such types: those that have none take no lock.
    SOME_READ_ANY.load(Ordering::Acquire) && is_known_to_read_any(id)
}

fn is_known_to_read_any(id: TypeId) -> bool {
    let traced = TRACED.read().unwrap_or_else(PoisonError::into_inner);
    traced.get(&id).is_some_and(|traced| traced.reads_any)
}

/// What is kept of a type that has been traced.
struct Traced {
    hash: u64,
    text: Arc<str>,
    reads_any: bool,
}

static TRACED: RwLock<BTreeMap<TypeId, Traced>> = RwLock::new(BTreeMap::new());

/// Whether one of them reads whatever comes.
static SOME_READ_ANY: AtomicBool = AtomicBool::new(false);

/// The shape of a type and its hash, from the cache if it is there.
fn shape(id: TypeId, shape: fn() -> Shape) -> (u64, Arc<str>) {
    let cached = TRACED.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Traced { hash, text, .. }) = cached.get(&id) {
        return (*hash, Arc::clone(text));
    }
    // Tracing runs code of the user's: not under the lock. Two threads may both trace, with the
    // same result.
    drop(cached);
    let shape = shape();
    let Hash(hash) = Hash::new().part(shape.text());
    let text: Arc<str> = Arc::from(shape.text());
    let traced = Traced {
        hash,
        text: Arc::clone(&text),
        reads_any: shape.reads_any(),
    };
    if traced.reads_any {
        SOME_READ_ANY.store(true, Ordering::Release);
    }
    let mut cache = TRACED.write().unwrap_or_else(PoisonError::into_inner);
    cache.insert(id, traced);
    (hash, text)
}

/// The hash of a function's name, by which calls name it.
pub(crate) const fn of_name(name: &str) -> u64 {
    let Hash(hash) = Hash::new().part("name").part(name);
    hash
}

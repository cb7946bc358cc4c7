//! How a function becomes an entry of the program's list.

use std::any::{Any, TypeId};
use std::panic::Location;

use farref_proto::Fingerprint;

use super::serve;
use crate::codec::vectors::Look;
use crate::fingerprint;
use crate::fingerprint::signature::Signature;
use crate::runtime::function::Function;
use crate::runtime::registry::FunctionRegistration;
use crate::values::Access;

impl FunctionRegistration {
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
            serve: serve::<F>,
            each_vector: each_vector_of::<F>,
        }
    }
}

fn describe<F: Function>() -> Signature {
    Signature::of::<F::Arguments, F::Output>(F::SIGNATURE, F::error_type().as_ref())
}

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

fn each_vector_of<F: Function>(output: &mut dyn Any, look: Look<'_>) {
    if let Some(output) = output.downcast_mut() {
        F::each_vector(output, look);
    }
}

/// What both sides of a call must agree on.
fn signature_of<F: Function>() -> Fingerprint {
    fingerprint::of_function::<F::Arguments, F::Output>(F::NAME, F::error_type().as_ref())
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

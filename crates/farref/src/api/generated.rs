//! How the code that `#[farref::remote]` generates builds calls.

use super::call::Call;
use super::peer::Peer;
use super::rref::RRef;
use crate::runtime::function::Function;
use crate::values::{Access, NoReceiver};

/// Builds a call of a function on a worker. `E`: its errors.
#[track_caller]
pub fn call<F: Function<Access = NoReceiver>, E>(
    to: &Peer,
    mut arguments: F::Arguments,
) -> Call<F::Output, E> {
    Call::on_worker::<F>(to, &mut arguments).typed()
}

/// Builds a call of a method on a far value.
#[track_caller]
pub fn call_method<F: Function, E>(
    on: &RRef<<F::Access as Access>::Target>,
    mut arguments: F::Arguments,
) -> Call<F::Output, E> {
    Call::on_value::<F>(on, &mut arguments).typed()
}

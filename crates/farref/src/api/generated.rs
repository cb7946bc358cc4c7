//! How the code that `#[farref::remote]` generates builds calls.

use super::call::Call;
use super::peer::Peer;
use super::rref::RRef;
use crate::runtime::function::Function;
use crate::values::{Access, NoReceiver};

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

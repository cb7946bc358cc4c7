//! What the workers of the workload can be called for. Every function notes that it ran, with the number of its call.

use std::collections::BTreeMap;
use std::time::Duration;

use farref::{Blob, Peer, Worker};
use farref_autograd::Tensor;

use super::data::mixed;
use super::history::{self, Event, hop, ran};
use super::pool::{self, Far};
use super::probe::Probe;
use super::trouble::{Kind, Raised, Trouble};

#[farref::remote(name = "chaos::sum", python = "chaos.sum")]
pub(super) async fn sum(call: u64, a: u64, b: u64) -> Result<u64, Raised> {
    ran(call, "sum");
    Ok(a + b)
}

/// The same on a thread.
#[farref::remote(name = "chaos::sum_on_thread")]
pub(super) fn sum_on_thread(call: u64, a: u64, b: u64) -> Result<u64, Raised> {
    ran(call, "sum_on_thread");
    Ok(a + b)
}

/// The same on a third worker.
#[farref::remote(name = "chaos::relay")]
pub(super) async fn relay(call: u64, third: Peer, a: u64, b: u64) -> Result<u64, Raised> {
    ran(call, "relay");
    sum::on(&third, hop(call), a, b).result().await?
}

/// Sends back what it got.
#[farref::remote(name = "chaos::echo")]
pub(super) async fn echo(call: u64, blob: Blob) -> Result<Blob, Raised> {
    ran(call, "echo");
    Ok(blob)
}

/// Keeps a reference for a while.
#[farref::remote(name = "chaos::keep", python = "chaos.keep")]
pub(super) async fn keep(call: u64, far: Far) -> Result<u64, Raised> {
    ran(call, "keep");
    let value = far.value;
    pool::keep(far);
    Ok(mixed(value, call & !history::HOP))
}

/// Gives a reference to a third worker, which keeps it.
#[farref::remote(name = "chaos::hand_on")]
pub(super) async fn hand_on(call: u64, third: Peer, far: Far) -> Result<u64, Raised> {
    ran(call, "hand_on");
    keep::on(&third, hop(call), far).result().await?
}

/// References in several places: keeps the first of the list and what is in the map, sends the others back.
#[farref::remote(name = "chaos::keep_some")]
pub(super) async fn keep_some(
    call: u64,
    list: Vec<Option<(u32, Far)>>,
    map: BTreeMap<String, Far>,
) -> Result<Vec<Far>, Raised> {
    ran(call, "keep_some");
    let mut list = list.into_iter().flatten().map(|(_, far)| far);
    if let Some(first) = list.next() {
        pool::keep(first);
    }
    let back = list.collect();
    for far in map.into_values() {
        pool::keep(far);
    }
    Ok(back)
}

/// Lends a reference of its own: to a value that is here, there, or made for it.
#[farref::remote(name = "chaos::lend")]
pub(super) async fn lend(call: u64, index: usize) -> Result<Far, Raised> {
    ran(call, "lend");
    if let Some(far) = pool::look(index) {
        let value = far.value;
        history::note(Event::Lent { call, value });
        return Ok(far);
    }
    let me = Worker::current().ok_or_else(no_worker)?;
    let value = history::next_number();
    history::note(Event::Lent { call, value });
    let probe = me.rref_to_object(Probe::new(value))?;
    Ok(Far { value, probe })
}

/// Looks at the value, if it is here; asks for it, if this is another life of the worker that had it.
#[farref::remote(name = "chaos::visit")]
pub(super) async fn visit(call: u64, far: Far) -> Result<u64, Raised> {
    ran(call, "visit");
    if !far.probe.is_owner() {
        let there = Probe::mark_on(&far.probe, hop(call)).await?;
        // Nobody may answer for a life that is over.
        return Err(Raised::Trouble(Trouble {
            kind: Kind::Unexpected,
            worker: None,
            text: format!("a value of another life was found: {there}"),
        }));
    }
    let probe = far.probe.local().await?;
    history::note(Event::Used {
        value: probe.value(),
        call,
    });
    Ok(mixed(probe.value(), call))
}

/// Takes its time, with references in its hands.
#[farref::remote(name = "chaos::linger")]
pub(super) async fn linger(call: u64, ms: u64, fars: Vec<Far>) -> Result<u64, Raised> {
    ran(call, "linger");
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(fars.len() as u64)
}

/// So many numbers, which follow from the first.
#[farref::remote(name = "chaos::numbers")]
pub(super) async fn numbers(call: u64, first: u64, count: u32) -> Result<Vec<u64>, Raised> {
    ran(call, "numbers");
    Ok((first..).take(count as usize).collect())
}

#[farref::remote(name = "chaos::refuse")]
pub(super) async fn refuse(call: u64, number: u64) -> Result<u64, Raised> {
    ran(call, "refuse");
    Err(Raised::Refused(number))
}

/// A layer of a model.
#[farref::remote(name = "chaos::scale")]
pub(super) async fn scale(call: u64, x: Tensor, by: f64) -> Result<Tensor, Raised> {
    ran(call, "scale");
    scaled(&x, by)
}

/// Two layers, of which the first is elsewhere.
#[farref::remote(name = "chaos::scale_twice")]
pub(super) async fn scale_twice(
    call: u64,
    third: Peer,
    x: Tensor,
    by: f64,
) -> Result<Tensor, Raised> {
    ran(call, "scale_twice");
    let x = scale::on(&third, hop(call), x, by).result().await??;
    scaled(&x, by)
}

fn scaled(x: &Tensor, by: f64) -> Result<Tensor, Raised> {
    let scaled = (&**x * by).map_err(farref_autograd::Error::from)?;
    Ok(Tensor::from(scaled))
}

fn no_worker() -> farref::Error {
    farref::Error::Misuse(farref::Misuse::NoWorker)
}

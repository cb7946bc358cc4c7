//! What workers of a run can be called for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use farref::{RRef, Stream, Worker};
use tokio::time::sleep;

use crate::ledger::{self, Running};

/// What a function makes of the number of its call.
pub(crate) fn expected(token: u64) -> u64 {
    token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed
}

/// Takes a while, and answers.
#[farref::remote]
pub(crate) async fn work(token: u64, millis: u64) -> u64 {
    let _running = Running::begin(token);
    if millis > 0 {
        sleep(Duration::from_millis(millis)).await;
    }
    expected(token)
}

/// The same on a thread for plain functions.
#[farref::remote]
pub(crate) fn work_plainly(token: u64) -> u64 {
    let _running = Running::begin(token);
    expected(token)
}

/// Gives back what it is given.
#[farref::remote]
pub(crate) async fn echo(token: u64, data: Vec<u8>) -> Vec<u8> {
    let _running = Running::begin(token);
    data
}

/// Has another worker do the work.
#[farref::remote]
pub(crate) async fn relay(token: u64, to: String, inner: u64) -> farref::Result<u64> {
    let _running = Running::begin(token);
    let me = Worker::current().expect("inside of a remote function");
    work::on(&me.peer(&to)?, inner, 1).await
}

/// Numbers, one after the other.
#[farref::remote]
pub(crate) async fn numbers(token: u64, to: u64) -> impl Stream<Item = u64> {
    let _running = Running::begin(token);
    Numbers(0..to)
}

struct Numbers(std::ops::Range<u64>);

impl Stream for Numbers {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        Poll::Ready(self.0.next())
    }
}

/// A value that counts.
pub(crate) struct Counter {
    number: u64,
    count: u64,
}

impl Drop for Counter {
    fn drop(&mut self) {
        ledger::freed(self.number);
    }
}

#[farref::remote]
impl Counter {
    pub(crate) async fn new(token: u64) -> Self {
        let _running = Running::begin(token);
        let me = Worker::current().expect("inside of a remote function");
        ledger::note(|| format!("makes {token} on {}", me.name()));
        ledger::made(token, me.name());
        Self {
            number: token,
            count: 0,
        }
    }

    pub(crate) async fn add(&mut self, token: u64) -> u64 {
        let _running = Running::begin(token);
        self.count += 1;
        self.count
    }

    pub(crate) async fn count(&self, token: u64) -> u64 {
        let _running = Running::begin(token);
        self.count
    }
}

/// Uses a value that somebody else made.
#[farref::remote]
pub(crate) async fn add_to(token: u64, counter: RRef<Counter>, inner: u64) -> farref::Result<u64> {
    let _running = Running::begin(token);
    counter.add(inner).await
}

/// Hands a reference on, and has no other any more.
#[farref::remote]
pub(crate) async fn pass_on(
    token: u64,
    to: String,
    shelf: u64,
    counter: RRef<Counter>,
) -> farref::Result<()> {
    let _running = Running::begin(token);
    let me = Worker::current().expect("inside of a remote function");
    let call = keep::on(&me.peer(&to)?, shelf, shelf, counter);
    call.await
}

thread_local! {
    /// What workers keep for others, by the worker's name and a number.
    static SHELVES: RefCell<BTreeMap<(String, u64), RRef<Counter>>> = RefCell::default();
}

/// Keeps a reference.
#[farref::remote]
pub(crate) async fn keep(token: u64, shelf: u64, counter: RRef<Counter>) {
    let _running = Running::begin(token);
    let me = Worker::current().expect("inside of a remote function");
    let key = (me.name().to_owned(), shelf);
    SHELVES.with(|shelves| shelves.borrow_mut().insert(key, counter));
}

/// Uses what it keeps, and lets go of it. None if it does not keep that: it is another life of this worker.
#[farref::remote]
pub(crate) async fn use_kept(token: u64, shelf: u64, inner: u64) -> farref::Result<Option<u64>> {
    let _running = Running::begin(token);
    let me = Worker::current().expect("inside of a remote function");
    let key = (me.name().to_owned(), shelf);
    let kept = SHELVES.with(|shelves| shelves.borrow_mut().remove(&key));
    match kept {
        Some(counter) => Ok(Some(counter.add(inner).await?)),
        None => Ok(None),
    }
}

/// A worker keeps nothing any more; all of them if it has no name.
pub(crate) fn clear_shelves(worker: Option<&str>) {
    let cleared = SHELVES.with(|shelves| {
        let mut shelves = shelves.borrow_mut();
        let all = std::mem::take(&mut *shelves);
        let (cleared, kept): (BTreeMap<_, _>, _) = all
            .into_iter()
            .partition(|((owner, _), _)| worker.is_none_or(|worker| worker == owner));
        *shelves = kept;
        cleared
    });
    drop(cleared);
}

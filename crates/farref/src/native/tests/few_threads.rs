//! What becomes of large values where no thread can be had to read a peer's memory: PM-1, PM-4.
#![cfg(target_os = "linux")]

use std::time::Duration;

use farref_proto::Lane;

use super::fixture::Setup;
use super::shared_memory::{NEVER, acquaint, large, read_by};
use super::*;
use crate::support::lock::lock;

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(600);

/// Two workers that talk by Unix sockets, of which the second has this thread and waits so long for another.
async fn pair(io: Arc<IoThread>, patience: Duration) -> [Side; 2] {
    let book = Arc::default();
    let mut left = Setup::new(1, BindOptions::default(), &book);
    // PM-6
    left.config.memory_answer = NEVER;
    let left = left.start().await;
    let mut right = Setup::new(2, BindOptions::default(), &book);
    right.io = io;
    right.config.read_patience = patience;
    [left, right.start().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_can_have_no_thread_takes_large_values_through_the_socket() {
    let [left, right] = pair(IoThread::without_threads(), LONG).await;
    for number in 0..20 {
        left.send(&right, large(number));
        eventually("it arrives", || right.received_count() as u64 > number).await;
    }
    assert_eq!(right.received_on(Lane::Bulk), Vec::from_iter(0..20));
    assert_eq!(read_by(&right, &left), 0);
    assert_eq!(right.link_to(&left).expect("a link").connections, 1);
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

/// PM-4: also when it has said before that it would read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_runs_out_of_threads_loses_a_connection_and_then_takes_all_through_the_socket() {
    let io = IoThread::alone();
    let [left, right] = pair(Arc::clone(&io), Duration::from_millis(100)).await;
    let before = acquaint(&left, &right).await as u64;
    let read = read_by(&right, &left);
    io.waiting_threads().exhaust();
    for number in 0..20 {
        left.send(&right, large(number));
        eventually("it arrives", || {
            right.received_count() as u64 > before + number
        })
        .await;
    }
    assert_eq!(read_by(&right, &left), read);
    assert_eq!(right.link_to(&left).expect("a link").connections, 2);
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

/// PM-4: others may be done with theirs soon, so nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_all_threads_busy_waits_for_one() {
    let io = IoThread::alone();
    let [left, right] = pair(Arc::clone(&io), LONG).await;
    acquaint(&left, &right).await;
    let (received, read) = (right.received_count(), read_by(&right, &left));
    let busy = io.waiting_threads().occupy();
    let refused = io.waiting_threads().refusals();
    left.send(&right, large(1));
    eventually("it asks for a thread", || {
        io.waiting_threads().refusals() > refused
    })
    .await;
    drop(busy);
    eventually("it arrives", || right.received_count() > received).await;
    assert_eq!(read_by(&right, &left), read + (1 << 20), "out of memory");
    let link = right.link_to(&left).expect("a link");
    assert_eq!(link.connections, 1, "the same connection");
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

/// PM-4: also before it could be found whether the peer's memory can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_all_threads_busy_when_it_is_offered_memory_looks_at_it_later() {
    let io = IoThread::alone();
    let busy = io.waiting_threads().occupy();
    let refused = io.waiting_threads().refusals();
    let [left, right] = pair(Arc::clone(&io), LONG).await;
    left.send(&right, large(1));
    eventually("it arrives", || right.received_count() > 0).await;
    eventually("it asks for a thread", || {
        io.waiting_threads().refusals() > refused
    })
    .await;
    assert_eq!(read_by(&right, &left), 0);
    drop(busy);
    acquaint(&left, &right).await;
    assert_eq!(right.link_to(&left).expect("a link").connections, 1);
}

/// PM-4: also on a later connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pm_4_memory_that_is_offered_while_all_threads_are_busy_is_looked_at_each_time() {
    let io = IoThread::alone();
    let threads = io.waiting_threads();
    let [left, right] = pair(Arc::clone(&io), LONG).await;
    for _ in 0..2 {
        let busy = threads.occupy();
        let refused = threads.refusals();
        if let Some(link) = left.agent.links.link(right.node) {
            for stream in link.streams() {
                stream.send.write.hang_up();
            }
        }
        let (received, read) = (right.received_count(), read_by(&right, &left));
        left.send(&right, large(1));
        eventually("it arrives", || right.received_count() > received).await;
        eventually("it asks for a thread", || threads.refusals() > refused).await;
        assert_eq!(read_by(&right, &left), read);
        drop(busy);
        acquaint(&left, &right).await;
    }
}

/// PM-4: as who reads for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pm_4_who_waits_for_a_thread_for_long_is_not_taken_for_stuck() {
    let io = IoThread::alone();
    let threads = io.waiting_threads();
    let [left, right] = pair(Arc::clone(&io), LONG).await;
    acquaint(&left, &right).await;
    let busy = threads.occupy();
    let (refused, received) = (threads.refusals(), right.received_count());
    left.send(&right, large(1));
    // Every five milliseconds at most: several times as long as a connection may show no progress.
    eventually("it asks often", || threads.refusals() > refused + 1000).await;
    drop(busy);
    eventually("it arrives", || right.received_count() > received).await;
    let link = right.link_to(&left).expect("a link");
    assert_eq!(link.connections, 1, "the same connection");
}

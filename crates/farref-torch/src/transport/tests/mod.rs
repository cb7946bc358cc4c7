//! Pipes over loopback: with a scripted peer that sends TensorPipe's own bytes, with themselves, with
//! peers that mean harm.

mod bytes;
#[cfg(target_os = "linux")]
mod cma;
mod hostile;
mod pipes;
mod speed;

use std::net::SocketAddr;
use std::time::Duration;

use ::bytes::Bytes;
use farref_testkit::{TEST_TIMEOUT, eventually, thorough, within};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{
    Incoming, Limits, Listener, Outgoing, PipeReceiver, PipeSender, Storage, cma_domain, connect,
};

fn limits() -> Limits {
    Limits {
        payload: 64 << 20,
        message: 256 << 20,
        tensors: 100,
        // Nothing but the tests of deadlines depends on them.
        handshake: 4 * TEST_TIMEOUT,
        pipes: 8,
        unclaimed: 0,
        cma: None,
    }
}

/// The same, and tensors travel through memory.
fn through_memory() -> Limits {
    let cma = cma_domain(false);
    assert!(
        cma.is_some() || !cfg!(target_os = "linux"),
        "this system does not let processes read each other's memory"
    );
    Limits { cma, ..limits() }
}

/// Those for each way in which tensors travel.
fn both_channels() -> [Limits; 2] {
    [limits(), through_memory()]
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

async fn listener(limits: Limits) -> Listener {
    let bound = Listener::bind(anywhere(), limits).await;
    bound.expect("a listener")
}

/// Both ends of a pipe.
struct Both {
    listener: Listener,
    caller: (PipeSender, PipeReceiver),
    callee: (PipeSender, PipeReceiver),
}

async fn both(limits: Limits) -> Both {
    let mut listener = listener(limits.clone()).await;
    let address = format!("uv://{}", listener.local_addr());
    let caller = connect(&address, "worker1", limits).await.expect("a pipe");
    let (name, sender, receiver) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "worker1");
    Both {
        listener,
        caller,
        callee: (sender, receiver),
    }
}

async fn hang<T>(future: impl Future<Output = T>) -> T {
    within("a step", future).await.expect("no hanging")
}

/// Waits until something is so.
async fn until(is_so: impl FnMut() -> bool) {
    eventually("what is waited for", is_so)
        .await
        .expect("it happens");
}

/// Waits until a listener has nothing left of the peers that were there.
async fn until_empty(listener: &Listener) {
    until(|| {
        let census = listener.census();
        [
            census.strangers,
            census.half_open,
            census.expected,
            census.pipes,
        ] == [0; 4]
    })
    .await;
}

async fn raw(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect(listener.local_addr()).await;
    stream.expect("a connection")
}

/// Bytes that differ from each other, and repeat after a prime number of them.
fn pattern(length: usize, seed: usize) -> Bytes {
    let byte = |n| (n * 31 + n / 253 + seed) as u8;
    let block: Vec<u8> = (0..length.min(65_521)).map(byte).collect();
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let rest = length - bytes.len();
        bytes.extend_from_slice(&block[..rest.min(block.len())]);
    }
    bytes.into()
}

fn message(id: i64, payload: Bytes, storages: Vec<Bytes>) -> Outgoing {
    Outgoing {
        kind: 0x102,
        id,
        payload,
        tensor_list: Bytes::from_static(b"list"),
        storages,
    }
}

fn small(id: i64) -> Outgoing {
    message(id, pattern(100, id as usize), Vec::new())
}

async fn receive(receiver: &mut PipeReceiver) -> Incoming {
    let next = hang(receiver.next()).await;
    next.expect("a pipe").expect("a message")
}

#[track_caller]
fn assert_same(received: &Incoming, sent: &Outgoing) {
    assert_eq!((received.kind, received.id), (sent.kind, sent.id));
    assert!(received.payload == sent.payload);
    assert!(received.tensor_list == sent.tensor_list);
    let received: Vec<&[u8]> = received.storages.iter().map(Storage::bytes).collect();
    assert!(received == sent.storages);
}

/// The pipe carries messages both ways.
async fn assert_works(both: &mut Both) {
    for (from, to) in [
        (&mut both.caller.0, &mut both.callee.1),
        (&mut both.callee.0, &mut both.caller.1),
    ] {
        let sent = message(7, pattern(10, 0), vec![pattern(100, 1)]);
        hang(from.send(std::slice::from_ref(&sent)))
            .await
            .expect("sent");
        assert_same(&receive(to).await, &sent);
    }
}

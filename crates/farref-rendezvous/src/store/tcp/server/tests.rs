//! The server as a client sees it on the wire: every request, waiting, and bad company.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use farref_testkit::{TEST_TIMEOUT, eventually, eventually_async};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{StoreLimits, StoreServer};
use crate::store::tcp::TcpStoreClient;
use crate::store::tcp::dialect::{MAGIC, StoreDialect};
use crate::store::tcp::protocol::Request;
use crate::store::tcp::socket::{read_some, write_all};
use crate::store::{Store, StoreError};

const SHORT: Duration = Duration::from_millis(50);

/// A client that sends exactly what the test says.
struct Raw {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Raw {
    async fn connect(server: &StoreServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).await.unwrap();
        let buffer = BytesMut::new();
        Self { stream, buffer }
    }

    async fn greeted(server: &StoreServer) -> Self {
        let client = Self::connect(server).await;
        client.send(Request::Validate(MAGIC)).await;
        client
    }

    async fn send(&self, request: Request) {
        let mut bytes = BytesMut::new();
        request.encode(StoreDialect::Greeted, &mut bytes).unwrap();
        self.send_bytes(&bytes).await;
    }

    async fn send_bytes(&self, bytes: &[u8]) {
        write_all(&self.stream, bytes).await.unwrap();
    }

    async fn take(&mut self, size: usize) -> Bytes {
        while self.buffer.len() < size {
            let read = timeout(TEST_TIMEOUT, read_some(&self.stream, &mut self.buffer)).await;
            assert!(read.expect("an answer").expect("no error") > 0, "hung up");
        }
        self.buffer.split_to(size).freeze()
    }

    async fn flag(&mut self) -> u8 {
        self.take(1).await[0]
    }

    async fn number(&mut self) -> i64 {
        self.take(8).await.get_i64_le()
    }

    async fn bytes(&mut self) -> Bytes {
        let size = self.number().await;
        self.take(size as usize).await
    }

    /// Whether the server has hung up, without having said anything more.
    async fn is_cut(&mut self) -> bool {
        match timeout(TEST_TIMEOUT, read_some(&self.stream, &mut self.buffer)).await {
            Ok(Ok(size)) => size == 0,
            Ok(Err(_)) => true,
            Err(_) => false,
        }
    }

    async fn is_silent(&mut self) -> bool {
        let read = read_some(&self.stream, &mut self.buffer);
        timeout(SHORT, read).await.is_err() && self.buffer.is_empty()
    }
}

async fn server() -> StoreServer {
    StoreServer::bind("127.0.0.1:0").await.unwrap()
}

/// Teardown: when the clients are gone, nothing of them is left.
async fn assert_idle(server: &StoreServer) {
    let is_idle = eventually("no waiters or buffers are left behind", || server.is_idle());
    is_idle.await.unwrap();
}

#[tokio::test]
async fn every_request_is_answered_as_pytorch_answers_it() {
    let server = server().await;
    let mut client = Raw::greeted(&server).await;
    client.send(Request::Ping(77)).await;
    assert_eq!(client.take(4).await.get_u32_le(), 77);
    client.send(Request::Set("/a".into(), "1".into())).await;
    client.send(Request::Get("/a".into())).await;
    assert_eq!(client.bytes().await, "1");
    client.send(Request::Add("/a".into(), 41)).await;
    assert_eq!(client.number().await, 42);
    client.send(Request::Get("/a".into())).await;
    assert_eq!(client.bytes().await, "42");
    for (expected, desired, answer) in [("x", "y", "x"), ("", "z", "z"), ("q", "r", "z")] {
        let (expected, desired) = (expected.into(), desired.into());
        let key = "/c".into();
        client
            .send(Request::CompareSet {
                key,
                expected,
                desired,
            })
            .await;
        assert_eq!(client.bytes().await, answer);
    }
    let both = || vec![Bytes::from("/a"), Bytes::from("/c")];
    client.send(Request::Check(both())).await;
    assert_eq!(client.flag().await, 0);
    client.send(Request::Check(vec!["/no".into()])).await;
    assert_eq!(client.flag().await, 1);
    client.send(Request::Wait(both())).await;
    assert_eq!(client.flag().await, 0);
    client.send(Request::Append("/c".into(), "!".into())).await;
    client.send(Request::MultiGet(both())).await;
    assert_eq!(
        (client.bytes().await, client.bytes().await),
        ("42".into(), "z!".into())
    );
    let pairs = vec![("/d".into(), "4".into()), ("/e".into(), "5".into())];
    client.send(Request::MultiSet(pairs)).await;
    client.send(Request::KeyCount).await;
    assert_eq!(client.number().await, 4);
    client.send(Request::Delete("/d".into())).await;
    assert_eq!(client.number().await, 1);
    client.send(Request::Delete("/d".into())).await;
    assert_eq!(client.number().await, 0);
    client.send(Request::ListKeys).await;
    let mut keys = Vec::new();
    for _ in 0..client.number().await {
        keys.push(client.bytes().await);
    }
    keys.sort();
    assert_eq!(keys, ["/a", "/c", "/e"]);
    client.send(Request::CancelWait).await;
    assert_eq!(client.flag().await, 1);
    client
        .send(Request::QueuePush("/q".into(), "item".into()))
        .await;
    client.send(Request::QueueLen("/q".into())).await;
    assert_eq!(client.number().await, 1);
    client.send(Request::QueuePop("/q".into())).await;
    assert_eq!(
        (client.number().await, client.bytes().await),
        (1, "item".into())
    );
    client.send(Request::QueuePop("/q".into())).await;
    assert_eq!(client.number().await, 0);
    client.send(Request::Barrier("/b".into(), 1)).await;
    assert_eq!(client.flag().await, 0);
    drop(client);
    assert_idle(&server).await;
}

/// What PyTorch 1.13 sends, taken from its wire.
#[tokio::test]
async fn a_client_from_before_the_greeting_is_served() {
    const WAIT_A: &[u8] = b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/a";
    let server = server().await;
    let mut idle = Raw::connect(&server).await;
    let mut first = Raw::connect(&server).await;
    first
        .send_bytes(b"\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0")
        .await;
    assert_eq!(first.number().await, 1);

    let mut client = Raw::connect(&server).await;
    let set = b"\0\x02\0\0\0\0\0\0\0/a\x01\0\0\0\0\0\0\x001";
    client.send_bytes(&[set, WAIT_A].concat()).await;
    assert_eq!(client.flag().await, 0);
    client.send_bytes(b"\x02\x02\0\0\0\0\0\0\0/a").await;
    assert_eq!(client.bytes().await, "1");
    client
        .send_bytes(b"\x03\x02\0\0\0\0\0\0\0/n\xfe\xff\xff\xff\xff\xff\xff\xff")
        .await;
    assert_eq!(client.number().await, -2);
    client
        .send_bytes(b"\x01\x02\0\0\0\0\0\0\0/c\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0first")
        .await;
    assert_eq!(client.bytes().await, "first");
    for (key, answer) in [(b"/a", 0), (b"/x", 1)] {
        let check = b"\x04\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        client.send_bytes(&[&check[..], key].concat()).await;
        assert_eq!(client.flag().await, answer);
    }
    // It gives a wait up without a word.
    let wait_x = b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/x";
    client.send_bytes(wait_x).await;
    assert!(client.is_silent().await);
    client.send_bytes(WAIT_A).await;
    assert_eq!(client.flag().await, 0);
    for answer in [1, 0] {
        client.send_bytes(b"\x08\x02\0\0\0\0\0\0\0/a").await;
        assert_eq!(client.number().await, answer);
    }
    client.send_bytes(b"\x06").await;
    assert_eq!(client.number().await, 3);

    // The others see the same store.
    let mut greeted = Raw::greeted(&server).await;
    greeted.send(Request::Get("/c".into())).await;
    assert_eq!(greeted.bytes().await, "first");
    assert!(idle.is_silent().await);
    drop((idle, first, client, greeted));
    assert_idle(&server).await;
}

#[tokio::test]
async fn who_waits_holds_nobody_up_and_is_woken_by_any_way_to_set_a_key() {
    let server = server().await;
    let ways = [
        Request::Set("/k".into(), "v".into()),
        Request::Add("/k".into(), 1),
        Request::Append("/k".into(), "v".into()),
        Request::MultiSet(vec![("/k".into(), "v".into())]),
        Request::CompareSet {
            key: "/k".into(),
            expected: "".into(),
            desired: "v".into(),
        },
    ];
    for way in ways {
        let mut waiting = Raw::greeted(&server).await;
        let mut getting = Raw::greeted(&server).await;
        let other = Raw::greeted(&server).await;
        waiting
            .send(Request::Wait(vec!["/k".into(), "/k".into()]))
            .await;
        getting.send(Request::Get("/k".into())).await;
        assert!(waiting.is_silent().await && getting.is_silent().await);
        other.send(way).await;
        assert_eq!(waiting.flag().await, 0);
        assert!(!getting.bytes().await.is_empty());
        // The answers are not read, so that another connection has to tell that the key is gone.
        other.send(Request::Delete("/k".into())).await;
        let mut counting = Raw::greeted(&server).await;
        let is_gone = async || {
            counting.send(Request::KeyCount).await;
            Ok(counting.number().await == 0)
        };
        eventually_async("the key is gone", is_gone).await.unwrap();
    }
    assert_idle(&server).await;
}

#[tokio::test]
async fn a_cancelled_wait_is_over_and_a_lost_client_waits_no_more() {
    let server = server().await;
    let mut client = Raw::greeted(&server).await;
    client.send(Request::Wait(vec!["/k".into()])).await;
    client.send(Request::CancelWait).await;
    assert_eq!(client.flag().await, 1);
    client.send(Request::Set("/k".into(), "v".into())).await;
    client.send(Request::Ping(5)).await;
    assert_eq!(
        client.take(4).await.get_u32_le(),
        5,
        "and no late answer to the wait"
    );
    let gone = Raw::greeted(&server).await;
    gone.send(Request::Wait(vec!["/other".into()])).await;
    eventually("it waits", || server.waiters() > 0)
        .await
        .unwrap();
    drop((gone, client));
    assert_idle(&server).await;
}

#[tokio::test]
async fn an_item_feeds_one_waiter_and_a_barrier_opens_for_all() {
    let server = server().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Raw::greeted(&server).await);
    }
    for (before, client) in clients[..2].iter().enumerate() {
        client.send(Request::Wait(vec!["/q".into()])).await;
        // The first one to wait is the one that is fed.
        eventually("it waits", || server.waiters() > before)
            .await
            .unwrap();
    }
    clients[2]
        .send(Request::QueuePush("/q".into(), "x".into()))
        .await;
    assert_eq!(clients[0].flag().await, 0);
    assert!(clients[1].is_silent().await);
    clients[1].send(Request::CancelWait).await;
    assert_eq!(clients[1].flag().await, 1);
    for client in &clients {
        client.send(Request::Barrier("/b".into(), 3)).await;
    }
    for client in &mut clients {
        assert_eq!(client.flag().await, 0);
    }
    drop(clients);
    assert_idle(&server).await;
}

#[tokio::test]
async fn a_bad_client_is_cut_off_and_harms_nobody() {
    let limits = StoreLimits {
        memory: 1 << 20,
        message: 1 << 19,
        clients: 8,
    };
    let server = StoreServer::bind_with("127.0.0.1:0", limits).await.unwrap();
    let mut good = Raw::greeted(&server).await;
    good.send(Request::Set("/text".into(), "words".into()))
        .await;
    good.send(Request::Set("/large".into(), vec![7; 100_000].into()))
        .await;
    good.send(Request::Ping(1)).await;
    good.take(4).await;

    let bytes = |request: Request| {
        let mut bytes = BytesMut::new();
        request.encode(StoreDialect::Greeted, &mut bytes).unwrap();
        bytes.to_vec()
    };
    let greet = bytes(Request::Validate(MAGIC));
    let after_greeting = |request: Request| [greet.clone(), bytes(request)].concat();
    let offences: Vec<(&str, Vec<u8>)> = vec![
        ("no greeting", bytes(Request::KeyCount)),
        ("wrong magic", bytes(Request::Validate(!MAGIC))),
        ("old, unknown request", vec![7; 20]),
        ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("unknown request", [greet.clone(), vec![99]].concat()),
        (
            "not a number",
            after_greeting(Request::Add("/text".into(), 1)),
        ),
        ("out of turn", {
            let wait = after_greeting(Request::Wait(vec!["/never".into()]));
            [wait, bytes(Request::KeyCount)].concat()
        }),
        ("large request", {
            let value = |key: &'static str| (Bytes::from(key), Bytes::from(vec![0; 300_000]));
            after_greeting(Request::MultiSet(vec![value("/x"), value("/y")]))
        }),
        (
            "large answer",
            after_greeting(Request::MultiGet(vec!["/large".into(); 100])),
        ),
        ("endless append", {
            let more = Request::Append("/large".into(), vec![1; 200_000].into());
            [greet.clone(), bytes(more).repeat(8)].concat()
        }),
    ];
    for (name, bytes) in offences {
        let mut bad = Raw::connect(&server).await;
        // The server may cut the line before it has heard all.
        let _ = write_all(&bad.stream, &bytes).await;
        assert!(bad.is_cut().await, "{name}");
    }
    good.send(Request::Get("/text".into())).await;
    assert_eq!(good.bytes().await, "words");

    let mut crowd = Vec::new();
    for _ in 0..7 {
        let mut client = Raw::greeted(&server).await;
        client.send(Request::Ping(2)).await;
        client.take(4).await;
        crowd.push(client);
    }
    assert!(
        Raw::connect(&server).await.is_cut().await,
        "one client too many"
    );
    drop((crowd, good));
    assert_idle(&server).await;
}

#[tokio::test]
async fn a_slow_talker_is_understood() {
    let server = server().await;
    let mut client = Raw::connect(&server).await;
    let mut bytes = BytesMut::new();
    let greeted = StoreDialect::Greeted;
    Request::Validate(MAGIC)
        .encode(greeted, &mut bytes)
        .unwrap();
    Request::Set("/slow".into(), "talk".into())
        .encode(greeted, &mut bytes)
        .unwrap();
    Request::Get("/slow".into())
        .encode(greeted, &mut bytes)
        .unwrap();
    for byte in bytes {
        client.send_bytes(&[byte]).await;
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.bytes().await, "talk");
    drop(client);
    assert_idle(&server).await;
}

#[tokio::test]
async fn a_dropped_server_is_gone_and_its_clients_are_told() {
    let server = server().await;
    let address = server.local_addr();
    let client = TcpStoreClient::connect("127.0.0.1", address.port(), TEST_TIMEOUT)
        .await
        .unwrap();
    client.set("k", b"v").await.unwrap();
    let (waited, ()) = tokio::join!(client.get("never", TEST_TIMEOUT), async {
        sleep(SHORT).await;
        drop(server);
    });
    let error = waited.unwrap_err();
    assert!(matches!(error, StoreError::Lost { .. }), "{error}");
    let again = TcpStoreClient::connect("127.0.0.1", address.port(), SHORT).await;
    let error = again.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address.port().to_string()));
}

#[tokio::test]
async fn a_client_finds_a_host_that_starts_later_and_one_that_was_restarted() {
    let free = server().await;
    let port = free.local_addr().port();
    free.close().await;
    let early =
        tokio::spawn(async move { TcpStoreClient::connect("localhost", port, TEST_TIMEOUT).await });
    sleep(SHORT).await;
    let first = StoreServer::bind(("127.0.0.1", port)).await.unwrap();
    let client = early.await.unwrap().unwrap();
    client.set("k", b"v").await.unwrap();
    first.close().await;
    let second = StoreServer::bind(("127.0.0.1", port)).await.unwrap();
    assert_eq!(client.try_get("k").await.unwrap(), None);
    drop(client);
    assert_idle(&second).await;
}

#[tokio::test]
async fn what_is_no_store_is_called_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let impostor = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        write_all(&stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        // Closing a connection before all is read would reset it.
        let mut unread = BytesMut::new();
        while matches!(read_some(&stream, &mut unread).await, Ok(1..)) {}
    });
    let error = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Misbehaved { .. }), "{error}");
    impostor.await.unwrap();
}

#[tokio::test]
async fn an_abandoned_request_does_not_confuse_the_next() {
    let server = server().await;
    let port = server.local_addr().port();
    let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    client.set("large", &vec![5; 4 << 20]).await.unwrap();
    for micros in 0..60 {
        let _ = timeout(Duration::from_micros(micros * 20), client.try_get("large")).await;
        assert_eq!(client.add("n", 1).await.unwrap(), micros as i64 + 1);
    }
    drop(client);
    assert_idle(&server).await;
}

#[tokio::test]
async fn keys_of_farref_are_keys_of_pytorch() {
    let server = server().await;
    let port = server.local_addr().port();
    let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    client
        .set("rpc_prefix_0/names/1", b"trainer")
        .await
        .unwrap();
    let mut torch = Raw::greeted(&server).await;
    torch
        .send(Request::Get("/rpc_prefix_0/names/1".into()))
        .await;
    assert_eq!(torch.bytes().await, "trainer");
    drop((torch, client));
    assert_idle(&server).await;
}

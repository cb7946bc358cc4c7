//! The two dialects of the protocol: their bytes, and how a client finds out which one to speak.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::protocol::{NOT_READY, READY, Request, STOP_WAITING, put_bytes};
use super::socket::{read_some, write_all};
use super::{StoreDialect, StoreServer, TcpStoreClient};
use crate::store::{Store, StoreError};

const SHORT: Duration = Duration::from_millis(50);

/// A server in the manner of PyTorch 1.13: it knows the old requests only, and while one of them is not
/// all there it does nothing else, for anybody.
struct OldServer {
    port: u16,
    waits: Arc<AtomicU32>,
    _tasks: JoinSet<()>,
}

/// Key and value, and one at a time.
type Turn = Arc<Mutex<HashMap<Bytes, Bytes>>>;

impl OldServer {
    /// `late` is how long it takes to its first word on a connection.
    async fn start(late: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let waits = Arc::new(AtomicU32::new(0));
        let counted = waits.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let turn = Turn::default();
            let mut clients = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                clients.spawn(serve(stream, turn.clone(), counted.clone(), late));
            }
        });
        Self {
            port,
            waits,
            _tasks: tasks,
        }
    }
}

async fn serve(stream: TcpStream, turn: Turn, waits: Arc<AtomicU32>, late: Duration) {
    let mut buffer = BytesMut::new();
    let mut late = Some(late);
    while buffer.is_empty() {
        if !matches!(read_some(&stream, &mut buffer).await, Ok(1..)) {
            return;
        }
        let mut table = turn.lock().await;
        while !buffer.is_empty() {
            let Ok(request) = Request::parse(StoreDialect::Old, &mut buffer, 1 << 20) else {
                return;
            };
            let Some(request) = request else {
                // Its turn lasts until it has said all, or hangs up.
                match read_some(&stream, &mut buffer).await {
                    Ok(1..) => continue,
                    _ => return,
                }
            };
            if let Some(late) = late.take() {
                sleep(late).await;
            }
            let mut out = BytesMut::new();
            match request {
                Request::Set(key, value) => drop(table.insert(key, value)),
                Request::KeyCount => out.put_i64_le(table.len() as i64),
                Request::Check(keys) => {
                    let ready = keys.iter().all(|key| table.contains_key(key));
                    out.put_u8(if ready { READY } else { NOT_READY });
                }
                // Nobody is ever woken here: who comes back later finds what there is.
                Request::Wait(keys) => {
                    waits.fetch_add(1, Ordering::Relaxed);
                    if keys.iter().all(|key| table.contains_key(key)) {
                        out.put_u8(STOP_WAITING);
                    }
                }
                // PyTorch 2.15 would wake those who wait for the key, and they would find nothing.
                Request::CompareSet { key, .. } => {
                    let value = table
                        .get(&key)
                        .expect("no key is compared before it is there");
                    put_bytes(&mut out, value);
                }
                other => panic!("{other:?} is not asked here"),
            }
            if write_all(&stream, &out).await.is_err() {
                return;
            }
        }
    }
}

/// A server in the manner of PyTorch today: it waits for a greeting, and behind it is farref's.
async fn greeted_only(server: &StoreServer) -> (u16, JoinSet<()>) {
    let (listener, behind) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        server.local_addr(),
    );
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut clients = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            clients.spawn(async move {
                let mut first = [1];
                while !matches!(stream.peek(&mut first).await, Ok(0)) {
                    if first == [0] {
                        let mut behind = TcpStream::connect(behind).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
                        return;
                    }
                    sleep(SHORT).await;
                }
            });
        }
    });
    (port, tasks)
}

fn old(request: &Request) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    request.encode(StoreDialect::Old, &mut bytes).unwrap();
    bytes.to_vec()
}

/// Taken from the wire of PyTorch 1.13.
#[test]
fn the_bytes_of_the_old_dialect_are_those_of_old_pytorch() {
    let key = || Bytes::from("/k");
    let (length, one) = (b"\x02\0\0\0\0\0\0\0/k", b"\x01\0\0\0\0\0\0\0");
    let cases: [(Request, Vec<u8>); 7] = [
        (
            Request::Set(key(), "v".into()),
            [&b"\0"[..], length, one, b"v"].concat(),
        ),
        (
            Request::CompareSet {
                key: key(),
                expected: "".into(),
                desired: "v".into(),
            },
            [&b"\x01"[..], length, &[0; 8], one, b"v"].concat(),
        ),
        (
            Request::Add(key(), -2),
            [&b"\x03"[..], length, b"\xfe\xff\xff\xff\xff\xff\xff\xff"].concat(),
        ),
        (
            Request::Check(vec![key()]),
            [&b"\x04"[..], one, length].concat(),
        ),
        (
            Request::Wait(vec![key()]),
            [&b"\x05"[..], one, length].concat(),
        ),
        (Request::KeyCount, b"\x06".to_vec()),
        (Request::Delete(key()), [&b"\x08"[..], length].concat()),
    ];
    for (request, bytes) in cases {
        assert_eq!(old(&request), bytes, "{request:?}");
        let mut buffer = BytesMut::from(&bytes[..]);
        let parsed = Request::parse(StoreDialect::Old, &mut buffer, 1000);
        assert_eq!(parsed, Ok(Some(request)));
    }
    for newer in [Request::CancelWait, Request::Ping(1), Request::ListKeys] {
        let mut bytes = BytesMut::new();
        assert!(newer.encode(StoreDialect::Old, &mut bytes).is_err());
        assert!(bytes.is_empty());
    }
}

#[tokio::test]
async fn a_client_finds_out_how_its_server_speaks() {
    let farref = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let (greeted, _proxy) = greeted_only(&farref).await;
    let old = OldServer::start(Duration::ZERO).await;
    let servers = [
        (farref.local_addr().port(), StoreDialect::Greeted),
        (greeted, StoreDialect::Greeted),
        (old.port, StoreDialect::Old),
    ];
    for (port, dialect) in servers {
        let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT);
        let client = client.await.unwrap();
        assert_eq!(client.dialect(), dialect);
        assert_eq!(client.clients_dialect().await.unwrap(), dialect);
        client.set("k", b"v").await.unwrap();
        assert_eq!(client.try_get("k").await.unwrap().unwrap(), "v");
        assert_eq!(client.try_get("other").await.unwrap(), None);
    }
    // Finding out is not speaking.
    assert_eq!(farref.clients_dialect(), StoreDialect::Greeted);
}

#[tokio::test]
async fn a_slow_old_server_is_held_up_for_a_while_but_not_for_good() {
    let old = OldServer::start(Duration::from_millis(400)).await;
    let client = TcpStoreClient::connect("127.0.0.1", old.port, TEST_TIMEOUT);
    let client = client.await.unwrap();
    assert_eq!(client.dialect(), StoreDialect::Old);
    client.set("k", b"v").await.unwrap();
}

#[tokio::test]
async fn a_wait_at_an_old_server_is_begun_anew_and_given_up_without_a_trace() {
    let old = OldServer::start(Duration::ZERO).await;
    let dialect = StoreDialect::Old;
    let client = TcpStoreClient::connect_as(dialect, "127.0.0.1", old.port, TEST_TIMEOUT);
    let client = client.await.unwrap();
    let error = client.get("never", SHORT).await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { missing, .. } if missing == ["never"]));
    assert_eq!(old.waits.load(Ordering::Relaxed), 1);

    // This server forgets those who wait, so it is by asking again that the value is found.
    let (got, ()) = tokio::join!(client.get("later", TEST_TIMEOUT), async {
        let waits = || old.waits.load(Ordering::Relaxed) == 2;
        eventually("the client waits", waits).await.unwrap();
        client.set("later", b"now").await.unwrap();
    });
    assert_eq!(got.unwrap(), "now");
    assert_eq!(old.waits.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_farref_server_tells_whether_it_has_had_old_clients() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let new = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    new.set("k", b"v").await.unwrap();
    assert_eq!(new.clients_dialect().await.unwrap(), StoreDialect::Greeted);

    let dialect = StoreDialect::Old;
    let old = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, TEST_TIMEOUT);
    let old = old.await.unwrap();
    assert_eq!(server.clients_dialect(), StoreDialect::Greeted);
    assert_eq!(old.arrive().await.unwrap(), 1);
    assert_eq!(server.clients_dialect(), StoreDialect::Old);
    for client in [&new, &old] {
        let dialect = client.clients_dialect().await.unwrap();
        assert_eq!(dialect, StoreDialect::Old);
        assert_eq!(client.arrivals().await.unwrap(), 1);
    }
    // What tells it is no key of anybody.
    for key in ["farref", "farref/old clients"] {
        assert_eq!(new.try_get(key).await.unwrap(), None);
    }
}

//! Gloo's laws: the bytes of PyTorch, groups of every size in both forms, and no harm from anybody.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farref::{MemoryStore, Store};
use farref_testkit::TEST_TIMEOUT;
use proptest::prelude::*;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::message::{ALL_GATHER, HEADER, Header, Kind, slot};
use super::pair::{Pair, PairState};
use super::rank::{Published, connects};
use super::{Gloo, GlooDialect, GlooError, MeshConfig, fuzz};

const SHORT: Duration = Duration::from_millis(100);
const DIALECTS: [GlooDialect; 2] = [GlooDialect::PairIds, GlooDialect::PortPerPeer];

fn vectors(dialect: GlooDialect) -> Vec<Value> {
    let text = match dialect {
        GlooDialect::PairIds => include_str!("../../vectors/2.15.0/gloo.json"),
        GlooDialect::PortPerPeer => include_str!("../../vectors/1.13.0/gloo.json"),
    };
    serde_json::from_str(text).unwrap()
}

fn hex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes().chunks(2);
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
    digits.map(|pair| digit(pair).unwrap()).collect()
}

/// What a rank published when the vectors were taken.
fn captured(dialect: GlooDialect, rank: u16) -> Vec<u8> {
    let key = format!("/rpc_prefix_0/0/{rank}");
    let vectors = vectors(dialect);
    let value = vectors.iter().find(|entry| entry["key"] == key.as_str());
    hex(&value.unwrap()["hex"])
}

fn message_of(header: Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    header.encode(&mut bytes);
    [&bytes[..], body].concat()
}

/// Cuts what was written into messages.
fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER>() {
        let header = Header::decode(header).unwrap();
        let body = match header.kind {
            Kind::Data => header.length as usize,
            _ => 0,
        };
        let (message, rest) = bytes.split_at(HEADER + body);
        messages.push(message.to_vec());
        bytes = rest;
    }
    assert!(bytes.is_empty());
    messages
}

async fn group(dialect: GlooDialect, world: u16) -> Vec<Gloo> {
    let store = MemoryStore::new();
    let mut ranks = JoinSet::new();
    for rank in 0..world {
        let store = store.clone();
        ranks.spawn(async move {
            (
                rank,
                config(&store, dialect, rank, world)
                    .connect()
                    .await
                    .unwrap(),
            )
        });
    }
    let mut all = ranks.join_all().await;
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, gloo)| gloo).collect()
}

fn config(store: &dyn Store, dialect: GlooDialect, rank: u16, world: u16) -> MeshConfig<'_> {
    MeshConfig {
        store,
        keys: "rpc_prefix_0/0/".to_owned(),
        rank,
        world,
        dialect,
        ip: [127, 0, 0, 1].into(),
        hostname: "vm".to_owned(),
        patience: TEST_TIMEOUT,
    }
}

#[test]
fn headers_are_those_of_gloo() {
    for dialect in DIALECTS {
        let mut seen = 0;
        for entry in vectors(dialect) {
            if entry["what"] != "message" {
                continue;
            }
            let bytes = hex(&entry["hex"]);
            let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
            let kind = match entry["op"].as_str().unwrap() {
                "data" => Kind::Data,
                "send ready" => Kind::SendReady,
                _ => Kind::ReceiveReady,
            };
            assert_eq!(header.kind, kind);
            assert_eq!(header.length, entry["length"].as_u64().unwrap());
            let slot = format!("{:#018x}", header.slot);
            assert_eq!(slot, entry["slot"].as_str().unwrap());
            assert_eq!(message_of(header, &bytes[HEADER..]), bytes);
            seen += 1;
        }
        assert!(seen > 20);
    }
}

#[test]
fn what_a_rank_publishes_is_what_gloo_publishes() {
    for dialect in DIALECTS {
        for rank in 0..3 {
            let bytes = captured(dialect, rank);
            let published = Published::decode(dialect, &bytes, 3).unwrap();
            // Behind the address, PyTorch leaves what was in its memory. Here it is zeros.
            let mut clean = bytes.clone();
            let addresses: Vec<usize> = match dialect {
                GlooDialect::PairIds => vec![8 + 2 + 8],
                GlooDialect::PortPerPeer => vec![0, 136],
            };
            for at in addresses {
                clean[at + 8..at + 128].fill(0);
            }
            assert_eq!(published.encode(), clean);
            assert_eq!(Published::decode(dialect, &clean, 3), Ok(published));
            for size in 0..bytes.len() {
                let part = Published::decode(dialect, &bytes[..size], 3);
                // Who has no numbers for the others means their ranks.
                assert_eq!(
                    part.is_ok(),
                    dialect == GlooDialect::PairIds && size == 8 + 2 + 8 + 136
                );
            }
            let other = match dialect {
                GlooDialect::PairIds => GlooDialect::PortPerPeer,
                GlooDialect::PortPerPeer => GlooDialect::PairIds,
            };
            let error = Published::decode(other, &bytes, 3).unwrap_err();
            assert!(error.contains("another generation"), "{error}");
        }
    }
}

#[test]
fn who_connects_is_whom_gloo_makes_connect() {
    for dialect in DIALECTS {
        let read = |rank| Published::decode(dialect, &captured(dialect, rank), 3).unwrap();
        let at = |own, peer| read(own).for_peer(own, peer).unwrap();
        let message = vectors(dialect).pop().unwrap();
        assert_eq!(message["listener_rank"], 1);
        let (listener, id) = at(1, 0);
        assert_eq!(message["port"], listener.port());
        let said = message["pair_id"]
            .as_str()
            .map(|_| hex(&message["pair_id"]));
        assert_eq!(said, id.map(|id| id.to_le_bytes().to_vec()));
        assert_eq!(connects(at(0, 1).0, listener), Some(true));
        assert_eq!(connects(listener, at(0, 1).0), Some(false));
    }
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    // 0x0100 and 0x00ff, of which Gloo sees 0x0001 and 0xff00.
    let (a, b) = (address("127.0.0.1:256"), address("127.0.0.1:255"));
    assert_eq!(connects(a, b), Some(false));
    let (a, b) = (address("127.0.0.2:1"), address("127.0.0.1:9999"));
    assert_eq!(connects(a, b), Some(true));
    assert_eq!(connects(a, address("[::1]:1")), None);
}

#[test]
fn addresses_of_ipv6_survive() {
    let address: SocketAddr = "[fd00::2]:4711".parse().unwrap();
    let published = Published::PortPerPeer(vec![address]);
    let bytes = published.encode();
    assert_eq!(bytes[..4], [10, 0, 0x12, 0x67]);
    assert_eq!(
        Published::decode(GlooDialect::PortPerPeer, &bytes, 2),
        Ok(published)
    );
}

#[tokio::test]
async fn everybody_hears_from_everybody_in_groups_of_any_size() {
    for dialect in DIALECTS {
        for world in [1, 2, 3, 4, 5, 8] {
            let mut ranks = JoinSet::new();
            for (rank, mut gloo) in group(dialect, world).await.into_iter().enumerate() {
                ranks.spawn(async move {
                    for turn in 0..3 {
                        // Lengths that differ, one of them 0, and one that is no multiple of two.
                        let object = |rank: usize| vec![rank as u8; rank * 1001 * (turn + 1)];
                        let objects = gloo
                            .all_gather_objects(&object(rank), TEST_TIMEOUT)
                            .await
                            .unwrap();
                        let expected: Vec<_> = (0..usize::from(world)).map(object).collect();
                        assert_eq!(objects, expected);
                        gloo.barrier(TEST_TIMEOUT).await.unwrap();
                    }
                    let block = vec![rank as u8; 700_000];
                    let blocks = gloo.all_gather(&block, TEST_TIMEOUT).await.unwrap();
                    for (rank, block) in blocks.iter().enumerate() {
                        assert!(*block == vec![rank as u8; 700_000]);
                    }
                    gloo.barrier(TEST_TIMEOUT).await.unwrap();
                    gloo.close().await;
                });
            }
            ranks.join_all().await;
        }
    }
}

/// GL-4.
#[tokio::test]
async fn nobody_leaves_a_barrier_before_all_have_come() {
    for dialect in DIALECTS {
        let mut ranks = group(dialect, 3).await;
        let mut late = ranks.remove(1);
        let mut early = JoinSet::new();
        for mut gloo in ranks {
            early.spawn(async move { (gloo.barrier(SHORT).await, gloo) });
        }
        // They hang up when they are dropped: neither of them before both have given up.
        let gave_up = early.join_all().await;
        for (left, _gloo) in &gave_up {
            let error = left.as_ref().unwrap_err();
            assert!(matches!(error, GlooError::TimedOut { .. }), "{error}");
        }
        drop(gave_up);
        let error = late.barrier(TEST_TIMEOUT).await.unwrap_err();
        assert!(matches!(error, GlooError::Lost { .. }), "{error}");
    }
}

#[tokio::test]
async fn the_messages_are_those_of_pytorch() {
    for dialect in DIALECTS {
        let name = |rank: usize| format!("worker{rank}");
        // `pickle.dumps((name, 0, {}, []))`
        let object = move |rank: usize| {
            let (before, after) = (
                &b"\x80\x04\x95\x14\0\0\0\0\0\0\0(\x8c\x07"[..],
                &b"\x94K\0}\x94]\x94t\x94."[..],
            );
            [before, name(rank).as_bytes(), after].concat()
        };
        let mut ranks = JoinSet::new();
        for (rank, mut gloo) in group(dialect, 3).await.into_iter().enumerate() {
            ranks.spawn(async move {
                gloo.all_gather_objects(&object(rank), TEST_TIMEOUT)
                    .await
                    .unwrap();
                gloo.barrier(TEST_TIMEOUT).await.unwrap();
                (rank, gloo)
            });
        }
        let mut ranks = ranks.join_all().await;
        ranks.sort_by_key(|(rank, _)| *rank);
        for (from, own, peer) in [("connector", 0, 1), ("listener", 1, 0)] {
            let pair = ranks[own].1.pairs[peer].as_ref().unwrap();
            let mut sent = messages(&pair.written);
            let captured = vectors(dialect).into_iter();
            let captured = captured.filter(|entry| entry["from"] == from);
            let mut captured: Vec<_> = captured.map(|entry| hex(&entry["hex"])).collect();
            let data = |messages: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let data = messages.iter().filter(|message| message[8] == 1);
                data.cloned().collect()
            };
            assert_eq!(data(&sent), data(&captured), "in this order");
            // Announcements overtake data as they like.
            sent.sort();
            captured.sort();
            assert_eq!(sent, captured);
        }
    }
}

async fn pair() -> (Pair, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).await;
    let (accepted, _) = listener.accept().await.unwrap();
    (Pair::new(1, accepted), connected.unwrap())
}

/// GL-1, GL-2.
#[tokio::test]
async fn a_rank_that_breaks_the_rules_is_named_and_nothing_of_it_is_kept() {
    let at = slot(ALL_GATHER, 0);
    let data = |slot, length: usize| {
        let header = Header {
            kind: Kind::Data,
            slot,
            length: length as u64,
        };
        message_of(header, &vec![7; length.min(100)])
    };
    let early = Header {
        kind: Kind::ReceiveReady,
        slot: slot(ALL_GATHER, 9),
        length: 4,
    };
    let mut unknown = data(at, 4);
    unknown[8] = 9;
    let mut longer = data(at, 4);
    longer[0] += 1;
    let offences: [(&str, Vec<u8>); 6] = [
        ("unasked", data(slot(ALL_GATHER, 1), 4)),
        ("where 4 should", data(at, 5)),
        ("where 4 should", data(at, 1 << 60)),
        ("unknown", unknown),
        ("says that it has", longer),
        ("too early", message_of(early, b"").repeat(1025)),
    ];
    for (reason, bytes) in offences {
        let (pair, mut peer) = pair().await;
        let mut gloo = Gloo::new(0, vec![None, Some(pair)]);
        // It may be hung up on before it has said all.
        let talk = tokio::spawn(async move {
            let _ = peer.write_all(&bytes).await;
            peer
        });
        let error = gloo.all_gather(&[1; 8], TEST_TIMEOUT).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        assert!(matches!(error, GlooError::Misbehaved { rank: 1, .. }));
        talk.await.unwrap();
    }
}

#[tokio::test]
async fn a_rank_that_hangs_up_or_is_silent_is_named() {
    let (first, peer) = pair().await;
    drop(peer);
    let mut gloo = Gloo::new(0, vec![None, Some(first)]);
    let error = gloo.all_gather(&[1; 8], TEST_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, GlooError::Lost { rank: 1, .. }), "{error}");

    let (second, _peer) = pair().await;
    let mut gloo = Gloo::new(0, vec![None, Some(second)]);
    let error = gloo.all_gather(&[1; 8], SHORT).await.unwrap_err();
    assert!(matches!(&error, GlooError::TimedOut { ranks, .. } if *ranks == [1]));
}

#[tokio::test]
async fn an_object_of_an_absurd_size_is_refused_by_name() {
    let mut ranks = group(GlooDialect::PairIds, 2).await;
    let (mut liar, mut honest) = (ranks.remove(1), ranks.remove(0));
    let size = (1i64 << 40).to_le_bytes();
    let (_, error) = tokio::join!(
        liar.all_gather(&size, TEST_TIMEOUT),
        honest.all_gather_objects(b"x", TEST_TIMEOUT)
    );
    let error = error.unwrap_err();
    assert!(
        matches!(error, GlooError::Misbehaved { rank: 1, .. }),
        "{error}"
    );
}

/// GL-3.
#[test]
fn what_comes_early_is_found_later() {
    let at = slot(ALL_GATHER, 5);
    let ready = Header {
        kind: Kind::ReceiveReady,
        slot: at,
        length: 3,
    };
    let mut state = PairState::default();
    let mut incoming = BytesMut::from(&message_of(ready, b"")[..]);
    assert_eq!(state.take_in(&mut incoming), Ok(true));
    state.send(at, Bytes::from_static(b"abc"));
    state.send(at, Bytes::from_static(b"def"));
    // The first is sent at once, the second when it is waited for.
    let out = messages(state.outgoing());
    assert_eq!(out.len(), 3);
    assert!(out[1].ends_with(b"abc"));
    incoming.extend_from_slice(&message_of(ready, b""));
    assert_eq!(state.take_in(&mut incoming), Ok(true));
    assert!(state.outgoing().ends_with(b"def"));
    assert_eq!(state.open(at), 0);
}

#[tokio::test]
async fn strangers_at_the_door_keep_nobody_out() {
    let store = MemoryStore::new();
    let first = config(&store, GlooDialect::PairIds, 0, 2);
    let strangers = async {
        let key = "rpc_prefix_0/0/0";
        let published = store.get(key, TEST_TIMEOUT).await.unwrap();
        let published = Published::decode(GlooDialect::PairIds, &published, 2).unwrap();
        let (address, _) = published.for_peer(0, 1).unwrap();
        let mut open = Vec::new();
        for words in [
            &b""[..],
            b"x",
            b"GET / HTTP/1.1\r\n\r\n",
            &[0; 8],
            &[255; 8],
        ] {
            let mut stranger = TcpStream::connect(address).await.unwrap();
            stranger.write_all(words).await.unwrap();
            open.push(stranger);
        }
        // Now the right one comes, at an address that lets it connect.
        let second = MeshConfig {
            ip: [127, 0, 0, 2].into(),
            ..config(&store, GlooDialect::PairIds, 1, 2)
        };
        let gloo = second.connect().await.unwrap();
        (gloo, open)
    };
    let (first, (mut second, _strangers)) = tokio::join!(first.connect(), strangers);
    let mut first = first.unwrap();
    let (one, other) = tokio::join!(first.barrier(TEST_TIMEOUT), second.barrier(TEST_TIMEOUT));
    one.unwrap();
    other.unwrap();
}

#[tokio::test]
async fn a_rank_that_does_not_come_is_named() {
    for dialect in DIALECTS {
        let store = MemoryStore::new();
        let patience = Duration::from_secs(1);
        let alone = MeshConfig {
            patience,
            ..config(&store, dialect, 0, 2)
        };
        let error = alone.connect().await.unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");

        // It has published an address and is not there: the one that would connect, or the one to be
        // connected to.
        for ip in ["127.0.0.2", "127.0.0.0"] {
            let address = SocketAddr::new(ip.parse().unwrap(), 1);
            let published = match dialect {
                GlooDialect::PairIds => Published::PairIds {
                    hostname: b"elsewhere".to_vec(),
                    address,
                    ids: Vec::new(),
                },
                GlooDialect::PortPerPeer => Published::PortPerPeer(vec![address]),
            };
            let bytes = published.encode();
            store.set("rpc_prefix_0/0/1", &bytes).await.unwrap();
            let error = alone.connect().await.unwrap_err();
            assert!(
                matches!(&error, GlooError::Missing { ranks, .. } if *ranks == [1]),
                "{error}"
            );
        }
        let published = Published::PortPerPeer(vec!["[::1]:9".parse().unwrap()]);
        if dialect == GlooDialect::PortPerPeer {
            store
                .set("rpc_prefix_0/0/1", &published.encode())
                .await
                .unwrap();
            let error = alone.connect().await.unwrap_err();
            assert!(
                matches!(error, GlooError::Family { rank: 1, .. }),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn who_connects_to_a_rank_without_numbers_says_its_own_rank() {
    let store = MemoryStore::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let published = Published::PairIds {
        hostname: b"vm".to_vec(),
        address: listener.local_addr().unwrap(),
        ids: Vec::new(),
    };
    let bytes = published.encode();
    store.set("rpc_prefix_0/0/0", &bytes).await.unwrap();
    let config = MeshConfig {
        ip: [127, 0, 0, 2].into(),
        ..config(&store, GlooDialect::PairIds, 3, 4)
    };
    let met = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u64_le().await.unwrap()
    };
    tokio::select! {
        _ = config.connect() => panic!("two ranks are missing"),
        said = met => assert_eq!(said, 3),
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_rank_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz(&bytes);
    }

    #[test]
    fn no_bytes_that_look_like_gloo_make_a_rank_panic(
        dialect in 0..2usize,
        start in 0..40usize,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let vectors = vectors(DIALECTS[dialect]);
        let mut bytes: Vec<u8> = vectors.iter().skip(start).flat_map(|entry| hex(&entry["hex"])).collect();
        if !bytes.is_empty() {
            for (at, with) in flips {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
        }
        fuzz(&bytes);
    }
}

//! The bytes on the wire are TensorPipe's, as captured from PyTorch's workers.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::pipe::{Descriptor, TensorSlot};
use crate::transport::StorageBytes;

const HANDSHAKES: [&str; 2] = [
    include_str!("../../../vectors/1.13.0/handshakes.json"),
    include_str!("../../../vectors/2.15.0/handshakes.json"),
];
const MESSAGES: [&str; 2] = [
    include_str!("../../../vectors/1.13.0/messages.jsonl"),
    include_str!("../../../vectors/2.15.0/messages.jsonl"),
];
/// What the captures call "no tensors".
const NO_TENSORS: &[u8] = b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.";

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).expect("a digit") as u8;
    let pairs = text.as_bytes().as_chunks().0.iter();
    pairs
        .map(|&[high, low]| digit(high) << 4 | digit(low))
        .collect()
}

/// The frames of a captured handshake: hello, brochure, answer, both registrations; and the name in it.
fn captured(vectors: &str, scenario: &str, nth: usize) -> ([Vec<u8>; 5], String) {
    let all: Vec<Value> = serde_json::from_str(vectors).expect("handshakes");
    let mut found = all.iter().filter(|entry| entry["scenario"] == scenario);
    let mut take = |what: &str| {
        let entry = found.next().expect("another entry");
        assert_eq!(entry["what"], what);
        unhex(entry["frame"].as_str().expect("a frame"))
    };
    let kinds = [
        "hello",
        "brochure",
        "answer",
        "registration",
        "registration",
    ];
    let mut frames = kinds.map(&mut take);
    for _ in 0..nth {
        frames = kinds.map(&mut take);
    }
    let name = frames[0][8 + 6..].to_vec();
    (frames, String::from_utf8(name).expect("a name"))
}

/// A captured answer, with another address of a listener in it.
fn with_address(answer: &[u8], address: SocketAddr) -> Vec<u8> {
    let address = address.to_string();
    let old_length = usize::from(answer[8 + 2 + 4 + 1]);
    let (head, rest) = answer[8..].split_at(2 + 4);
    let object = [
        head,
        &[0xbd, address.len() as u8],
        address.as_bytes(),
        &rest[2 + old_length..],
    ]
    .concat();
    framed(&object)
}

pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

async fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    hang(stream.read_exact(&mut bytes)).await.expect("bytes");
    assert_eq!(bytes, expected);
}

/// A peer that says what PyTorch's workers say: its first connection, for replies, for tensors.
pub(super) async fn scripted_caller(
    listener: &Listener,
    vectors: &str,
    nth: usize,
) -> [TcpStream; 3] {
    let ([hello, brochure, answer, reply, channel], _) = captured(vectors, "static", nth);
    let mut first = raw(listener).await;
    first.write_all(&hello).await.expect("sent");
    first.write_all(&brochure).await.expect("sent");
    expect(&mut first, &with_address(&answer, listener.local_addr())).await;
    let mut connections = [first, raw(listener).await, raw(listener).await];
    connections[1].write_all(&reply).await.expect("sent");
    connections[2].write_all(&channel).await.expect("sent");
    connections
}

pub(super) fn base() -> &'static str {
    HANDSHAKES[1]
}

#[tokio::test]
async fn tr_1_a_listener_answers_as_pytorch_does() {
    for vectors in HANDSHAKES {
        let mut listener = listener(limits()).await;
        // The second pipe of a listener gets other numbers, which the captures have, too.
        for nth in 0..2 {
            let connections = scripted_caller(&listener, vectors, nth).await;
            let (name, ..) = hang(listener.accept()).await.expect("a pipe");
            assert_eq!(name, captured(vectors, "static", nth).1);
            drop(connections);
        }
        until_empty(&listener).await;
        assert_eq!(listener.census().refused, 0);
    }
}

#[tokio::test]
async fn a_worker_with_default_options_gets_the_transport_and_channel_that_are_here() {
    for vectors in HANDSHAKES {
        let all: Vec<Value> = serde_json::from_str(vectors).expect("handshakes");
        let brochure = all
            .iter()
            .find(|entry| entry["scenario"] == "defaults" && entry["what"] == "brochure");
        let brochure = brochure.expect("a brochure")["frame"].as_str();
        let ([hello, _, answer, ..], _) = captured(vectors, "static", 0);
        let listener = listener(limits()).await;
        let mut first = raw(&listener).await;
        first.write_all(&hello).await.expect("sent");
        let brochure = unhex(brochure.expect("a frame"));
        first.write_all(&brochure).await.expect("sent");
        expect(&mut first, &with_address(&answer, listener.local_addr())).await;
    }
}

#[tokio::test]
async fn tr_1_a_caller_says_what_pytorch_says() {
    for vectors in HANDSHAKES {
        let server = TcpListener::bind(anywhere()).await.expect("a listener");
        let address = server.local_addr().expect("an address");
        let (frames, name) = captured(vectors, "static", 1);
        let [hello, brochure, answer, reply, channel] = frames;
        let serve = async {
            let (mut first, _) = server.accept().await.expect("a connection");
            expect(&mut first, &[hello, brochure].concat()).await;
            let answer = with_address(&answer, address);
            first.write_all(&answer).await.expect("sent");
            // They may come in any order.
            let mut further = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = server.accept().await.expect("a connection");
                let mut greeting = vec![0; reply.len()];
                stream.read_exact(&mut greeting).await.expect("a greeting");
                further.push((greeting, stream));
            }
            further.sort_by(|one, other| one.0.cmp(&other.0));
            let [(one, _), (other, _)] = &further[..] else {
                panic!("two more connections");
            };
            assert_eq!((one, other), (&reply, &channel));
            (first, further)
        };
        let address = address.to_string();
        let pipe = connect(&address, &name, limits());
        let (pipe, _peer) = hang(async { tokio::join!(pipe, serve) }).await;
        pipe.expect("a pipe");
    }
}

fn described(payloads: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let lengths: Vec<_> = payloads.iter().map(|bytes| bytes.len() as u64).collect();
    let slot = |bytes: &Vec<u8>| TensorSlot {
        bytes: bytes.len() as u64,
        on_cpu: true,
    };
    let descriptor = Descriptor {
        payloads: lengths.try_into().expect("four payloads"),
        tensors: tensors.iter().map(slot).collect(),
    };
    descriptor.encode()
}

/// A captured message, the bytes of its descriptor and payloads, and of its tensors, as they travel.
fn messages(vectors: &str) -> Vec<(Outgoing, Vec<u8>, Vec<u8>)> {
    let mut messages = Vec::new();
    for line in vectors.lines() {
        let entry: Value = serde_json::from_str(line).expect("a message");
        // Its lengths are of what was cut off.
        if entry.get("cut").is_some() {
            continue;
        }
        let payloads = entry["payloads"].as_array().expect("payloads");
        let payloads: Vec<Vec<u8>> = payloads
            .iter()
            .map(|payload| match payload.as_str().expect("hex") {
                "no tensors" => NO_TENSORS.to_vec(),
                hex => unhex(hex),
            })
            .collect();
        let tensors = entry["tensor_bytes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let tensors: Vec<Vec<u8>> = tensors
            .iter()
            .map(|tensor| unhex(tensor.as_str().expect("hex")))
            .collect();
        // All descriptors are the same but for the lengths, so some are enough.
        let descriptor = match entry["descriptor"].as_str() {
            Some(hex) => unhex(hex),
            None => described(&payloads, &tensors),
        };
        let mut first = framed(&descriptor);
        for payload in &payloads {
            first.extend(framed(payload));
        }
        let there = tensors.iter().filter(|tensor| !tensor.is_empty());
        let channel = there
            .map(|tensor| framed(tensor))
            .collect::<Vec<_>>()
            .concat();
        let outgoing = Outgoing {
            kind: i32::from_le_bytes(payloads[0][..].try_into().expect("four bytes")),
            id: i64::from_le_bytes(payloads[1][..].try_into().expect("eight bytes")),
            payload: payloads[2].clone().into(),
            tensor_list: payloads[3].clone().into(),
            storages: tensors.into_iter().map(Bytes::from).collect(),
        };
        messages.push((outgoing, first, channel));
    }
    messages
}

#[tokio::test]
async fn tr_1_messages_are_written_and_read_as_pytorch_writes_them() {
    let captured: Vec<_> = MESSAGES.into_iter().flat_map(messages).collect();
    let storages = |message: &Outgoing| message.storages.len();
    let with_tensors = captured
        .iter()
        .filter(|(message, ..)| storages(message) > 0);
    assert_eq!((captured.len(), with_tensors.count()), (248, 99));
    let mut listener = listener(limits()).await;
    let [mut first, _reply, mut channel] = scripted_caller(&listener, base(), 0).await;
    let (_, mut sender, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    for (message, first_bytes, channel_bytes) in &captured {
        // Tensors may be there before their message is.
        channel.write_all(channel_bytes).await.expect("sent");
        first.write_all(first_bytes).await.expect("sent");
        assert_same(&receive(&mut receiver).await, message);
        sender
            .send(std::slice::from_ref(message))
            .await
            .expect("sent");
        expect(&mut first, first_bytes).await;
        expect(&mut channel, channel_bytes).await;
    }
    // All of them at once, too.
    let (batch, rest): (Vec<_>, Vec<_>) = captured.into_iter().map(|(m, f, c)| (m, (f, c))).unzip();
    let (firsts, channels): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
    let (firsts, channels) = (firsts.concat(), channels.concat());
    let (sent, ..) = tokio::join!(
        sender.send(&batch),
        expect(&mut first, &firsts),
        expect(&mut channel, &channels),
    );
    sent.expect("sent");
    let traffic = sender.traffic();
    let all = (firsts.len() + channels.len()) as u64;
    let load =
        |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        (load(&traffic.bytes_sent), load(&traffic.bytes_received)),
        (2 * all, all)
    );
    let count = batch.len() as u64;
    assert_eq!(
        (
            load(&traffic.messages_sent),
            load(&traffic.messages_received)
        ),
        (2 * count, count)
    );
}

#[tokio::test]
async fn a_message_waits_for_the_connection_of_its_tensors() {
    let ([hello, brochure, answer, ..], _) = captured(base(), "static", 0);
    let (sent, first_bytes, channel_bytes) = messages(MESSAGES[1])
        .into_iter()
        .find(|(message, ..)| message.storages.iter().any(|storage| !storage.is_empty()))
        .expect("a message with tensors");
    let mut listener = listener(limits()).await;
    let mut first = raw(&listener).await;
    let hello = [hello, brochure, first_bytes].concat();
    first.write_all(&hello).await.expect("sent");
    expect(&mut first, &with_address(&answer, listener.local_addr())).await;
    // Another pipe in between, whose connections have other numbers.
    let address = listener.local_addr().to_string();
    let other = connect(&address, "other", limits()).await.expect("a pipe");
    let (name, ..) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "other");
    let mut channel = raw(&listener).await;
    let greeting = framed(b"\xb8\x01\xb9\x01\x01");
    let with_tensors = [greeting, channel_bytes].concat();
    // Byte by byte: nothing depends on how they are cut.
    for byte in with_tensors.chunks(1) {
        channel.write_all(byte).await.expect("sent");
    }
    let mut reply = raw(&listener).await;
    reply
        .write_all(&framed(b"\xb8\x01\xb9\x01\x00"))
        .await
        .expect("sent");
    let (_, _sender, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    assert_same(&receive(&mut receiver).await, &sent);
    drop(other);
}

/// A storage behind a lock. It tells how often it was looked at.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) bytes: std::sync::Mutex<(Bytes, usize)>,
    pub(super) length: usize,
}

impl StorageBytes for Locked {
    fn len(&self) -> usize {
        self.length
    }

    fn look(&self, range: std::ops::Range<usize>, look: &mut dyn FnMut(&[u8])) {
        let mut bytes = self.bytes.lock().expect("a lock");
        bytes.1 += 1;
        if let Some(bytes) = bytes.0.get(range) {
            look(bytes);
        }
    }
}

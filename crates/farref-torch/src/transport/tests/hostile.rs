//! Peers that mean harm: they harm nobody else, and nothing is left of them.

use std::slice::from_ref;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::bytes::{base, framed, scripted_caller};
use super::*;
use crate::pipe::{Answer, Brochure, ChannelNumbers, Descriptor, Greeting, TensorSlot};
use crate::transport::PipeError;

pub(super) fn hello() -> Vec<u8> {
    let from = "mallory".to_owned();
    framed(&Greeting::Spontaneous { from }.encode())
}

fn brochure() -> Vec<u8> {
    framed(&Brochure::ours(None).encode())
}

/// The other side has closed the connection, one way or the other.
pub(super) async fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // Unread bytes make it a reset.
    drop(hang(stream.read_to_end(&mut rest)).await);
}

#[tokio::test]
async fn garbage_is_refused_and_harms_nobody() {
    let mut both = both(limits()).await;
    let unknown = framed(&Greeting::Requested { number: 99 }.encode());
    let used = framed(&Greeting::Requested { number: 1 }.encode());
    let strange = framed(b"\xb9\x02\xbb\x01\xbd\x03ibv\xbd\x01x\xbb\x00");
    let openings = [
        b"GET / HTTP/1.1\r\nHost: you\r\n\r\n".to_vec(),
        vec![0xff; 100],
        vec![0; 8],
        framed(b""),
        framed(b"\xb8\x02\xb9\x01\x00"),
        framed(b"\xb8\x00\xb9\x01\xbd\x83\xff\xff\xff\xff\xff\xff\xff\xff"),
        unknown,
        used,
        [hello(), vec![0xff; 100]].concat(),
        [hello(), framed(b"\xb9\x02\xbb\x7f")].concat(),
        [hello(), strange].concat(),
        [hello(), hello()].concat(),
    ];
    for (refused, opening) in openings.iter().enumerate() {
        assert_eq!(both.listener.census().refused, refused as u64);
        let mut stream = raw(&both.listener).await;
        stream.write_all(opening).await.expect("sent");
        assert_closed(&mut stream).await;
        let listener = &both.listener;
        until(|| listener.census().refused == refused as u64 + 1).await;
    }
    assert_works(&mut both).await;
    drop((both.caller, both.callee));
    until_empty(&both.listener).await;
}

#[tokio::test]
async fn tr_7_half_a_handshake_is_given_up_when_the_peer_goes() {
    let mut both = both(limits()).await;
    let all = [hello(), brochure()].concat();
    for size in 0..=all.len() {
        let mut stream = raw(&both.listener).await;
        stream.write_all(&all[..size]).await.expect("sent");
        if size == all.len() {
            // The answer has come: the rest of its connections is expected.
            stream.read_u64_le().await.expect("an answer");
            assert_eq!(both.listener.census().half_open, 1);
        }
        drop(stream);
        let listener = &both.listener;
        until(|| listener.census().refused == size as u64 + 1).await;
        let census = both.listener.census();
        assert_eq!((census.strangers, census.half_open), (0, 0));
        assert_eq!((census.expected, census.pipes), (0, 1));
    }
    assert_works(&mut both).await;
}

#[tokio::test]
async fn tr_6_silence_costs_a_place_for_a_while() {
    // The limit has to pass. On a busy machine it may be too short for those who speak, too: then
    // they get more.
    for seconds in [1, 10, 60] {
        if silence_is_given_up_after(Duration::from_secs(seconds)).await {
            return;
        }
    }
    panic!("those who are silent hold others up");
}

/// False if the limit was too short for those who speak.
async fn silence_is_given_up_after(handshake: Duration) -> bool {
    let brief = Limits {
        handshake,
        ..limits()
    };
    let mut listener = listener(brief).await;
    let Some((caller, callee)) = pipe_within(handshake, &mut listener, "worker1").await else {
        return false;
    };
    let mut silent = Vec::new();
    for opening in [vec![], vec![1], hello(), [hello(), brochure()].concat()] {
        let mut stream = raw(&listener).await;
        if stream.write_all(&opening).await.is_err() {
            return false;
        }
        silent.push(stream);
    }
    // They hold up nobody meanwhile.
    let Some(another) = pipe_within(handshake, &mut listener, "another").await else {
        return false;
    };
    for stream in &mut silent {
        assert_closed(stream).await;
    }
    until(|| listener.census().refused == 4).await;
    let census = listener.census();
    assert_eq!((census.strangers, census.half_open), (0, 0));
    assert_eq!((census.expected, census.pipes), (0, 2));
    drop(another);
    let mut both = Both {
        listener,
        caller,
        callee,
    };
    assert_works(&mut both).await;
    true
}

type Pipe = (PipeSender, PipeReceiver);

/// Both ends of a pipe, of the caller and of the callee, if the listener does not give it up.
async fn pipe_within(
    handshake: Duration,
    listener: &mut Listener,
    name: &str,
) -> Option<(Pipe, Pipe)> {
    let address = listener.local_addr().to_string();
    let caller = hang(connect(&address, name, limits())).await.ok()?;
    // It has begun already: if it is set up at all, it arrives within the limit.
    let arrived = timeout(handshake, listener.accept()).await.ok()?;
    let (from, sender, receiver) = arrived.expect("a listener");
    assert_eq!(from, name);
    Some((caller, (sender, receiver)))
}

#[tokio::test]
async fn tr_6_many_silent_ones_push_each_other_out() {
    let few = Limits {
        pipes: 2,
        ..limits()
    };
    let mut listener = listener(few.clone()).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(raw(&listener).await);
    }
    let address = listener.local_addr().to_string();
    let mut caller = connect(&address, "worker1", few.clone())
        .await
        .expect("a pipe");
    let (name, _, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "worker1");
    caller.0.send(&[small(1)]).await.expect("sent");
    assert_same(&receive(&mut receiver).await, &small(1));
    assert!(listener.census().strangers <= 3 * few.pipes + 1);
    assert!(listener.census().refused >= 50 - 3 * few.pipes as u64 - 1);
    assert_closed(&mut silent[0]).await;
}

/// Whoever greets and then says nothing takes nobody's place: neither that of a pipe, nor for long that of one that is
/// being set up.
#[tokio::test]
async fn tr_7_many_that_only_greet_push_each_other_out() {
    let few = Limits {
        pipes: 2,
        ..limits()
    };
    let mut listener = listener(few.clone()).await;
    let mut greeted = Vec::new();
    for _ in 0..50 {
        let mut stream = raw(&listener).await;
        stream.write_all(&hello()).await.expect("sent");
        greeted.push(stream);
    }
    let address = listener.local_addr().to_string();
    let mut caller = connect(&address, "worker1", few.clone())
        .await
        .expect("a pipe");
    let (name, _, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "worker1");
    caller.0.send(&[small(1)]).await.expect("sent");
    assert_same(&receive(&mut receiver).await, &small(1));
    let census = listener.census();
    assert!(census.half_open <= few.pipes && census.expected <= 2 * few.pipes);
    assert_eq!(census.pipes, 1);
    assert_closed(&mut greeted[0]).await;
    drop((greeted, caller, receiver));
    until_empty(&listener).await;
}

#[tokio::test]
async fn tr_7_there_are_no_more_pipes_than_places() {
    let few = Limits {
        pipes: 2,
        ..limits()
    };
    let mut listener = listener(few.clone()).await;
    let address = listener.local_addr().to_string();
    let mut pipes = Vec::new();
    for name in ["one", "two"] {
        let first = connect(&address, name, few.clone()).await.expect("a pipe");
        let accepted = hang(listener.accept()).await.expect("a pipe");
        pipes.push((first, accepted));
    }
    // It is set up and closed again: nothing is ever read of it.
    let mut third = connect(&address, "three", few.clone()).await;
    if let Ok((_, receiver)) = &mut third {
        let end = hang(receiver.next()).await;
        assert!(!matches!(end, Ok(Some(_))));
    }
    until(|| listener.census().refused == 1).await;
    drop(pipes.pop());
    until(|| listener.census().pipes == 1).await;
    let _third = connect(&address, "three", few).await.expect("a pipe");
    let (name, ..) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "three");
    drop(pipes);
    until_empty(&listener).await;
}

pub(super) fn descriptor(payloads: [u64; 4], tensors: &[u64]) -> Vec<u8> {
    let slot = |&bytes| TensorSlot {
        bytes,
        on_cpu: true,
    };
    let tensors = tensors.iter().map(slot).collect();
    framed(&Descriptor { payloads, tensors }.encode())
}

/// The frames of payloads of these lengths.
pub(super) fn payloads(lengths: &[usize]) -> Vec<u8> {
    lengths
        .iter()
        .flat_map(|&length| framed(&vec![0; length]))
        .collect()
}

/// A peer with a pipe writes this to the first and the third connection, and nothing more. The receiver says why
/// that is wrong.
async fn error_of(both: &mut Both, first: &[u8], third: &[u8], then_close: bool) -> PipeError {
    let before = both.listener.census().pipes;
    let nth = both.listener.census().refused;
    assert_eq!(nth, 0);
    let address = both.listener.local_addr().to_string();
    let mut streams = raw_pipe(&address).await;
    let (_, sender, mut receiver) = hang(both.listener.accept()).await.expect("a pipe");
    streams[0].write_all(first).await.expect("sent");
    streams[2].write_all(third).await.expect("sent");
    if then_close {
        for stream in &mut streams {
            stream.shutdown().await.expect("an end");
        }
    }
    let error = hang(receiver.next()).await.expect_err("no message");
    assert!(hang(receiver.next()).await.expect("nothing more").is_none());
    assert!(!sender.is_open());
    drop((sender, receiver));
    for stream in &mut streams {
        assert_closed(stream).await;
    }
    let listener = &both.listener;
    until(|| listener.census().pipes == before).await;
    assert_works(both).await;
    error
}

/// The three connections of a pipe, whatever numbers the listener gives.
async fn raw_pipe(address: &str) -> [TcpStream; 3] {
    let open = || async { TcpStream::connect(address).await.expect("a connection") };
    let mut first = open().await;
    first
        .write_all(&[hello(), brochure()].concat())
        .await
        .expect("sent");
    let length = first.read_u64_le().await.expect("an answer");
    let mut answer = vec![0; length as usize];
    first.read_exact(&mut answer).await.expect("an answer");
    let answer = Answer::decode(&answer).expect("an answer");
    let mut streams = [first, open().await, open().await];
    let ChannelNumbers::Basic { bytes } = answer.channel else {
        panic!("nothing else was offered");
    };
    for (index, number) in [(1, answer.reply), (2, bytes)] {
        let greeting = framed(&Greeting::Requested { number }.encode());
        streams[index].write_all(&greeting).await.expect("sent");
    }
    streams
}

#[tokio::test]
async fn messages_that_break_the_rules_end_their_pipe_only() {
    let mut both = both(limits()).await;
    let both = &mut both;
    let huge = u64::MAX.to_le_bytes();
    let good = [4, 8, 1, 1];
    let start = descriptor(good, &[]);
    let with_tensor = [descriptor(good, &[6]), payloads(&[4, 8, 1, 1])].concat();
    for (first, third) in [
        (framed(b"no descriptor"), vec![]),
        (framed(b""), vec![]),
        (descriptor([5, 8, 1, 1], &[]), vec![]),
        (descriptor([4, 0, 1, 1], &[]), vec![]),
        ([&start[..], &payloads(&[5])].concat(), vec![]),
        ([&start[..], &payloads(&[4, 8, 0])].concat(), vec![]),
        ([&start[..], &payloads(&[4, 8, 1]), &huge].concat(), vec![]),
        (with_tensor.clone(), framed(b"seven b")),
        (with_tensor.clone(), framed(b"")),
        (with_tensor.clone(), huge.to_vec()),
    ] {
        let error = error_of(both, &first, &third, false).await;
        assert!(
            matches!(error, PipeError::Rules(_) | PipeError::Malformed { .. }),
            "{error}"
        );
    }
    let limits = limits();
    for first in [
        huge.to_vec(),
        descriptor([4, 8, limits.payload + 1, 1], &[]),
        descriptor([4, 8, 1, limits.payload + 1], &[]),
        descriptor(good, &[limits.message]),
        descriptor(good, &[u64::MAX, u64::MAX]),
        descriptor(good, &[0; 101]),
    ] {
        let error = error_of(both, &first, &[], false).await;
        assert!(matches!(error, PipeError::TooLarge { .. }), "{error}");
    }
    let cuda = Descriptor {
        payloads: good,
        tensors: vec![],
    };
    let mut cuda = cuda.encode();
    cuda.pop();
    cuda.extend(b"\x01\xb9\x04\x08\xb9\x02\xbd\x04cuda\x00\xb9\x02\xbd\x03cpu\x00\xbd\x00");
    let error = error_of(both, &framed(&cuda), &[], false).await;
    assert!(matches!(error, PipeError::Device), "{error}");
}

#[tokio::test]
async fn messages_that_end_in_the_middle_end_their_pipe_only() {
    let mut both = both(limits()).await;
    let head = [
        descriptor([4, 8, 100_000, 1], &[6, 100_000]),
        payloads(&[4, 8, 100_000, 1]),
    ]
    .concat();
    let tensors = payloads(&[6, 100_000]);
    for size in [1, 7, 8, 9, 60, 100, 200, 70_000, head.len() - 1] {
        let error = error_of(&mut both, &head[..size], &tensors, true).await;
        assert!(matches!(error, PipeError::Closed(_)), "{error}");
    }
    // TR-2: lengths that are allowed, and next to nothing behind them.
    let claim = descriptor([4, 8, 60 << 20, 60 << 20], &[90 << 20]);
    let claim = [
        &claim[..],
        &payloads(&[4, 8]),
        &(60_u64 << 20).to_le_bytes(),
        b"few",
    ]
    .concat();
    let error = error_of(&mut both, &claim, &[], true).await;
    assert!(matches!(error, PipeError::Closed(_)), "{error}");
    for size in [0, 1, 8, 13, 14, 15, 22, 23, 70_000, tensors.len() - 1] {
        let error = error_of(&mut both, &head, &tensors[..size], true).await;
        assert!(matches!(error, PipeError::Closed(_)), "{error}");
    }
}

#[tokio::test]
async fn tr_8_a_pipe_is_over_when_one_of_its_connections_is() {
    for closed in 0..3 {
        let mut listener = listener(limits()).await;
        let mut streams = scripted_caller(&listener, base(), 0).await;
        let (_, mut sender, mut receiver) = hang(listener.accept()).await.expect("a pipe");
        // A sender that waits for room hears of it.
        let large = message(1, pattern(60 << 20, 0), vec![pattern(60 << 20, 0)]);
        let send = tokio::spawn(async move {
            let error = sender.send(&[large]).await.expect_err("over");
            (error, sender)
        });
        let close = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            streams[closed].shutdown().await.expect("an end");
        };
        let (end, ()) = hang(async { tokio::join!(receiver.next(), close) }).await;
        let (error, sender) = hang(send).await.expect("no panic");
        assert!(matches!(error, PipeError::Over), "{error}");
        match closed {
            0 => assert!(end.expect("an end").is_none()),
            _ => assert!(matches!(end.expect_err("alone"), PipeError::Closed(_))),
        }
        assert!(!sender.is_open());
    }
}

#[tokio::test]
async fn tr_8_a_message_counts_though_the_other_connections_are_closed_before_it_comes() {
    let mut listener = listener(limits()).await;
    let [mut first, reply, channel] = scripted_caller(&listener, base(), 0).await;
    let (_, _sender, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    drop((reply, channel));
    let send = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let message = [descriptor([4, 8, 1, 1], &[0]), payloads(&[4, 8, 1, 1])].concat();
        first.write_all(&message).await.expect("sent");
        drop(first);
    };
    let (received, ()) = hang(async { tokio::join!(receive(&mut receiver), send) }).await;
    assert_eq!(received.storages, [Storage::One(vec![])]);
    assert!(hang(receiver.next()).await.expect("an end").is_none());
}

#[tokio::test]
async fn bytes_where_none_belong_end_the_pipe() {
    let mut listener = listener(limits()).await;
    let mut streams = scripted_caller(&listener, base(), 0).await;
    let (_, _sender, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    streams[1].write_all(b"x").await.expect("sent");
    let error = hang(receiver.next()).await.expect_err("against the rules");
    assert!(matches!(error, PipeError::Rules(_)));
}

#[tokio::test]
async fn tr_4_a_peer_that_reads_one_connection_gets_all_of_it() {
    for reads in [0, 2] {
        let mut listener = listener(limits()).await;
        let mut streams = scripted_caller(&listener, base(), 0).await;
        let (_, mut sender, _receiver) = hang(listener.accept()).await.expect("a pipe");
        let large = message(1, pattern(40 << 20, 0), vec![pattern(40 << 20, 0)]);
        let send = async { sender.send(from_ref(&large)).await.expect("sent") };
        let read = async {
            for which in [reads, 2 - reads] {
                let mut buffer = vec![0; 40 << 20];
                streams[which].read_exact(&mut buffer).await.expect("bytes");
                // What is left of it: frames around the bytes.
            }
            let mut rest = vec![0; 8];
            streams[2].read_exact(&mut rest).await.expect("bytes");
            rest.resize(50, 0);
            streams[0].read_exact(&mut rest).await.expect("bytes");
        };
        hang(async { tokio::join!(send, read) }).await;
    }
}

#[tokio::test]
async fn tr_3_no_pipe_waits_for_another() {
    let mut both = both(limits()).await;
    let address = both.listener.local_addr().to_string();
    let mut stuck = raw_pipe(&address).await;
    let (_, _sender, mut receiver) = hang(both.listener.accept()).await.expect("a pipe");
    let head = [descriptor([4, 8, 1, 1], &[1000]), payloads(&[4, 8, 1, 1])].concat();
    stuck[0].write_all(&head).await.expect("sent");
    let waiting = tokio::spawn(async move { receiver.next().await });
    assert_works(&mut both).await;
    assert!(!waiting.is_finished());
    stuck[2].write_all(&framed(&[1; 1000])).await.expect("sent");
    let message = hang(waiting).await.expect("no panic");
    let message = message.expect("a pipe").expect("a message");
    assert_eq!(message.storages, [Storage::One(vec![1; 1000])]);
}

#[tokio::test]
async fn a_listener_that_answers_nonsense_is_no_pipe() {
    let server = TcpListener::bind(anywhere()).await.expect("a listener");
    let address = server.local_addr().expect("an address").to_string();
    let elsewhere = Answer {
        address: "nowhere".to_owned(),
        reply: 0,
        channel: ChannelNumbers::Basic { bytes: 1 },
    };
    for answer in [
        vec![0xff; 20],
        framed(b"nonsense"),
        framed(&elsewhere.encode()),
        vec![],
    ] {
        let serve = async {
            let (mut stream, _) = server.accept().await.expect("a connection");
            stream.write_all(&answer).await.expect("sent");
        };
        let pipe = connect(&address, "worker1", limits());
        let (pipe, ()) = hang(async { tokio::join!(pipe, serve) }).await;
        pipe.expect_err("no pipe");
    }
    // One that says nothing is given up in time.
    let brief = Limits {
        handshake: Duration::from_millis(50),
        ..limits()
    };
    let error = hang(connect(&address, "worker1", brief))
        .await
        .expect_err("silence");
    assert!(matches!(error, PipeError::Deadline(_)), "{error}");
    drop(server);
    let error = hang(connect(&address, "worker1", limits()))
        .await
        .expect_err("nobody");
    assert!(matches!(error, PipeError::Unreachable { .. }), "{error}");
}

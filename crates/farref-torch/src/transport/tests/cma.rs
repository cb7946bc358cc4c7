//! Tensors through memory: kept as long as they have to be, and nobody's memory read but the peer's.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bytes::{Locked, framed};
use super::hostile::{assert_closed, descriptor, hello, payloads};
use super::*;
use crate::pipe::{Answer, Brochure, ChannelNumbers, Greeting, MemoryDescriptor};
use crate::transport::PipeError;

/// Bytes that tell when they are gone.
struct Told(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

fn told(length: usize) -> (Bytes, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let told = Told(pattern(length, 1).to_vec(), Arc::clone(&gone));
    (Bytes::from_owner(told), gone)
}

/// TR-13: whatever became of the message.
#[tokio::test]
async fn tr_13_a_tensor_stays_where_it_is_until_the_peer_has_read_it() {
    let mut both = both(through_memory()).await;
    let (bytes, gone) = told(3 << 20);
    let sent = message(7, pattern(10, 0), vec![bytes]);
    let sender = &mut both.caller.0;
    hang(sender.send(from_ref(&sent))).await.expect("sent");
    let expected = sent.storages[0].to_vec();
    drop(sent);
    assert!(sender.has_lent());
    assert!(!gone.load(Ordering::Relaxed));
    let received = receive(&mut both.callee.1).await;
    assert!(received.storages[0].bytes() == expected);
    hang(sender.settled()).await;
    assert!(!sender.has_lent());
    assert!(gone.load(Ordering::Relaxed));
}

/// TR-13: nor is it kept when nobody will read it any more.
#[tokio::test]
async fn tr_13_a_tensor_that_nobody_will_read_is_not_kept() {
    let mut both = both(through_memory()).await;
    let (bytes, gone) = told(3 << 20);
    let sent = message(7, pattern(10, 0), vec![bytes]);
    let (sender, receiver) = &mut both.caller;
    hang(sender.send(&[sent])).await.expect("sent");
    drop(both.callee);
    let (_, end) = hang(async { tokio::join!(sender.settled(), receiver.next()) }).await;
    assert!(!matches!(end, Ok(Some(_))), "nothing came");
    assert!(gone.load(Ordering::Relaxed));
}

/// TR-13: nor is what was read of a sender that has given up believed, though its process goes on.
#[tokio::test]
async fn tr_13_what_a_sender_no_longer_lends_is_not_delivered() {
    for whole in [false, true] {
        let mut both = both(through_memory()).await;
        let (bytes, gone) = told(3 << 20);
        let sent = message(7, pattern(10, 0), vec![bytes]);
        let (mut sender, receiver) = both.caller;
        hang(sender.send(&[sent])).await.expect("sent");
        match whole {
            true => drop((sender, receiver)),
            // The other direction goes on.
            false => drop(sender),
        }
        assert!(gone.load(Ordering::Relaxed));
        let next = hang(both.callee.1.next()).await;
        assert!(matches!(next, Err(PipeError::Closed(_))), "{next:?}");
    }
}

/// Bytes behind a lock may move when it is not held: they are copied.
#[tokio::test]
async fn what_is_behind_a_lock_arrives_as_it_was() {
    let mut both = both(through_memory()).await;
    let locked = Locked {
        length: 2 << 20,
        bytes: (pattern(2 << 20, 3), 0).into(),
    };
    let sent = Outgoing {
        kind: 1,
        id: 2,
        payload: Bytes::new(),
        tensor_list: Bytes::new(),
        storages: vec![locked],
    };
    hang(both.caller.0.send(from_ref(&sent)))
        .await
        .expect("sent");
    drop(sent);
    let received = receive(&mut both.callee.1).await;
    assert!(received.storages[0].bytes() == pattern(2 << 20, 3));
}

/// Many more than the peer has read wait for it, and none is lost.
#[tokio::test]
async fn tensors_wait_for_a_peer_that_reads_slowly() {
    let mut both = both(through_memory()).await;
    let batch: Vec<_> = (0..100)
        .map(|id| {
            message(
                id,
                Bytes::new(),
                (0..90).map(|n| pattern(5 + n, n)).collect(),
            )
        })
        .collect();
    let (sender, receiver) = (&mut both.caller.0, &mut both.callee.1);
    let send = async {
        for message in &batch {
            sender.send(from_ref(message)).await.expect("sent");
        }
        sender.settled().await;
    };
    let receive_all = async {
        for sent in &batch {
            assert_same(&receive(receiver).await, sent);
        }
        // The last word is written when the next message is waited for, at the latest.
        receiver.next().await
    };
    tokio::select! {
        () = hang(send) => {}
        _ = receive_all => unreachable!("nothing follows"),
    }
    assert!(!sender.has_lent());
}

#[tokio::test]
async fn those_who_do_not_offer_it_alike_use_connections() {
    let other = Limits {
        cma: Some("cma:another"),
        ..limits()
    };
    for (here, there) in [
        (through_memory(), limits()),
        (limits(), through_memory()),
        (through_memory(), other.clone()),
        (other, through_memory()),
    ] {
        let mut listener = listener(there).await;
        let address = format!("uv://{}", listener.local_addr());
        let caller = connect(&address, "worker1", here).await.expect("a pipe");
        let (_, sender, receiver) = hang(listener.accept()).await.expect("a pipe");
        let mut both = Both {
            listener,
            caller,
            callee: (sender, receiver),
        };
        let sent = message(7, pattern(10, 0), vec![pattern(100, 1)]);
        hang(both.caller.0.send(from_ref(&sent)))
            .await
            .expect("sent");
        assert!(!both.caller.0.has_lent());
        assert_same(&receive(&mut both.callee.1).await, &sent);
        assert_works(&mut both).await;
    }
}

/// A pipe through memory by hand: for descriptors, for replies, for places, for completions.
async fn raw_pipe(listener: &Listener) -> [TcpStream; 4] {
    let mut first = raw(listener).await;
    let brochure = Brochure::ours(through_memory().cma);
    let opening = [hello(), framed(&brochure.encode())].concat();
    first.write_all(&opening).await.expect("sent");
    let length = first.read_u64_le().await.expect("an answer");
    let mut answer = vec![0; length as usize];
    first.read_exact(&mut answer).await.expect("an answer");
    let answer = Answer::decode(&answer).expect("an answer");
    let ChannelNumbers::Cma {
        places,
        completions,
        ..
    } = answer.channel
    else {
        panic!("it was offered");
    };
    let mut streams = [
        first,
        raw(listener).await,
        raw(listener).await,
        raw(listener).await,
    ];
    for (index, number) in [(1, answer.reply), (2, places), (3, completions)] {
        let greeting = framed(&Greeting::Requested { number }.encode());
        streams[index].write_all(&greeting).await.expect("sent");
    }
    streams
}

/// What becomes of a message with a tensor of so many bytes, whose place is said by these bytes.
async fn error_of(both: &mut Both, length: u64, place: &[u8]) -> PipeError {
    let mut streams = raw_pipe(&both.listener).await;
    let (_, sender, mut receiver) = hang(both.listener.accept()).await.expect("a pipe");
    let head = [descriptor([4, 8, 1, 1], &[length]), payloads(&[4, 8, 1, 1])].concat();
    streams[0].write_all(&head).await.expect("sent");
    streams[2].write_all(place).await.expect("sent");
    let error = hang(receiver.next()).await.expect_err("no message");
    drop((sender, receiver));
    for stream in &mut streams {
        assert_closed(stream).await;
    }
    assert_works(both).await;
    error
}

/// TR-12
#[tokio::test]
async fn tr_12_a_peer_that_lies_about_its_memory_ends_its_pipe_only() {
    let mut both = both(through_memory()).await;
    let both = &mut both;
    let me = std::process::id();
    let value = pattern(100, 1);
    let place = |pid, address| framed(&MemoryDescriptor { pid, address }.encode());
    let address = value.as_ptr().addr() as u64;
    // It is readable, but it has not the other end.
    let init = error_of(both, 100, &place(1, address)).await;
    assert!(matches!(init, PipeError::Rules(_)), "{init}");
    for (length, place) in [
        (100, place(u32::MAX, address)),
        (100, place(0, address)),
        (100, place(me, 8)),
        (100, place(me, u64::MAX)),
        (200 << 20, place(me, 0x7fff_ffff_f000)),
    ] {
        let error = error_of(both, length, &place).await;
        assert!(matches!(error, PipeError::Broken { .. }), "{error}");
    }
    for place in [
        framed(b""),
        framed(&[0; 12]),
        framed(&[0xb9; 17]),
        vec![0xff; 8],
    ] {
        let error = error_of(both, 100, &place).await;
        let known = matches!(error, PipeError::Rules(_) | PipeError::Malformed { .. });
        assert!(known, "{error}");
    }
}

/// A peer that says that it has read what it was not told of, or something else than that.
#[tokio::test]
async fn completions_that_make_no_sense_end_their_pipe_only() {
    let mut both = both(through_memory()).await;
    for nonsense in [vec![0; 16], vec![0; 512], vec![1; 8], vec![0, 0, 0, 7]] {
        let mut streams = raw_pipe(&both.listener).await;
        let (_, mut sender, receiver) = hang(both.listener.accept()).await.expect("a pipe");
        let sent = message(7, Bytes::new(), vec![pattern(100, 1)]);
        hang(sender.send(&[sent])).await.expect("sent");
        streams[3].write_all(&nonsense).await.expect("sent");
        hang(sender.settled()).await;
        assert!(!sender.has_lent());
        let sent = message(8, Bytes::new(), vec![pattern(100, 1)]);
        let again = hang(sender.send(&[sent])).await;
        assert!(again.is_err(), "{nonsense:?}");
        drop((sender, receiver));
        assert_works(&mut both).await;
    }
}

//! SD-1 to SD-3 and AG-4: everybody writes, nobody is forgotten, and bulk holds nothing up.

use std::time::Duration;

use farref_proto::{Control, ForkId, Lane, RRefId, Share};

use super::fixture::{Setup, impatient};
use super::proxy::Proxy;
use super::tls::certificates::{Authority, worker_tls};
use super::*;
use crate::rendezvous::Address;

/// Settings under which nothing but `flush` makes anybody write.
fn no_timers() -> NativeConfig {
    let never = Duration::from_secs(3600);
    NativeConfig {
        peer_timeout: 4 * never,
        heartbeat_interval: never,
        ack_delay: never,
        ack_every: u32::MAX,
        ack_timeout: never,
        ..impatient()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_left_behind_when_eight_threads_write_at_once() {
    // SD-1, SD-2
    const THREADS: u64 = 8;
    const MESSAGES: u64 = 4000;
    for capacity in [1 << 20, 500] {
        let network = MemoryNetwork::new();
        network.set_capacity(capacity);
        let [left, right] = Side::memory_pair_with(&network, no_timers()).await;
        left.meet(&right).await;
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (agent, to) = (Arc::clone(&left.agent), right.node);
                std::thread::spawn(move || {
                    for number in 0..MESSAGES {
                        agent.enqueue(to, call(thread * MESSAGES + number, 20));
                        agent.flush(to);
                        if number % 64 == 0 {
                            // Lets the stream run dry now and then.
                            std::thread::sleep(Duration::from_micros(200));
                        }
                    }
                })
            })
            .collect();
        eventually("all messages arrive", || {
            right.received_count() as u64 == 1 + THREADS * MESSAGES
        })
        .await;
        writers
            .into_iter()
            .for_each(|writer| writer.join().expect("a writer"));
        let received = right.received_on(Lane::Call);
        for thread in 0..THREADS {
            let of_thread = received
                .iter()
                .filter(|number| **number / MESSAGES == thread)
                .copied();
            let expected = thread * MESSAGES..(thread + 1) * MESSAGES;
            assert!(of_thread.eq(expected), "out of order");
        }
    }
}

/// That a reference was dropped: nobody waits to hear it.
fn release(counter: u64) -> Message {
    let node = NodeId::new(1, 1);
    Message::Control(Control::Release(vec![Share {
        rref: RRefId::new(node, counter),
        fork: ForkId::new(node, counter + 1),
    }]))
}

#[tokio::test]
async fn what_nobody_waits_for_is_written_all_the_same() {
    // SD-1
    let [left, right] = Side::memory_pair_with(&MemoryNetwork::new(), no_timers()).await;
    left.meet(&right).await;
    for round in 1..=20 {
        left.send(&right, release(round));
        eventually("it arrives", || right.received_count() as u64 == 1 + round).await;
    }
}

#[tokio::test]
async fn what_nobody_waits_for_leaves_with_what_is_urgent() {
    // SD-1, SD-2: on one thread, so no task runs before this one waits.
    let [left, right] = Side::memory_pair_with(&MemoryNetwork::new(), no_timers()).await;
    left.meet(&right).await;
    let sent = || left.link_to(&right).expect("a link").bytes_sent;
    let before = sent();
    left.send(&right, release(1));
    left.send(&right, release(2));
    assert_eq!(sent(), before, "it is not worth a write of its own");
    left.send(&right, call(1, 20));
    assert!(sent() > before, "the call does not wait for the task");
    eventually("all arrive", || right.received_count() == 4).await;
    assert!(matches!(
        right.received()[1..],
        [
            Message::Control(Control::Release(_)),
            Message::Control(Control::Release(_)),
            Message::Call(_)
        ]
    ));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_what_was_encrypted_does_not_wait_for_the_next_message() {
    // SD-1, TL-2
    let (authority, book) = (Authority::new(), Arc::default());
    let proxy = Proxy::with_receive_buffer(32 << 10);
    let setup = |worker: u32| {
        let bind = BindOptions {
            unix: false,
            ..BindOptions::default()
        };
        let mut setup = Setup::new(worker, bind, &book);
        setup.tls = Some(worker_tls(&authority, &setup.node.to_string()));
        setup.config = no_timers();
        setup
    };
    let mut left = setup(1);
    left.has_little_room = true;
    left.reached_at = Some(Address::Tcp(proxy.address));
    let (left, right) = (left.start().await, setup(2).start().await);
    proxy.forward_to(left.tcp_address());
    // Who was dialed has little room.
    right.send(&left, control(0));
    eventually("they are connected", || left.received_count() == 1).await;
    for number in 1..=5 {
        // All of it is encrypted at once, and the sockets do not take it at once.
        left.send(&right, call(number, 120 << 10));
        eventually("it arrives", || right.received_count() as u64 == number).await;
    }
    let link = left.link_to(&right).expect("a link");
    assert_eq!(link.transport, Some("tls"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_overtake_bulk_data_that_is_under_way() {
    // AG-4, D5
    let network = MemoryNetwork::new();
    network.set_capacity(16 << 10);
    // Nothing moves for a while below; that is no reason to give the connection up.
    let mut config = impatient();
    config.ack_timeout = Duration::from_secs(3600);
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.meet(&right).await;
    left.send(&right, call(1, 256 << 20));
    eventually("the bulk message is under way", || {
        left.link_to(&right)
            .is_some_and(|link| link.bytes_sent > 1 << 20)
    })
    .await;
    // From here on bulk data cannot arrive; whatever arrives has not waited for it.
    network.freeze_newest("w1#1", "w2#1");
    for round in 1..=50_usize {
        left.send(&right, control(round as u64));
        left.send(&right, call(round as u64, 100));
        eventually("control messages and calls arrive", || {
            right.received_count() == 2 * round + 1
        })
        .await;
        right.send(&left, control(round as u64));
        eventually("so do those the other way", || {
            left.received_count() == round + 1
        })
        .await;
    }
    assert!(right.received_on(Lane::Bulk).is_empty());
    network.heal("w1#1", "w2#1");
    eventually("the bulk message arrives", || {
        right.received_on(Lane::Bulk) == [1]
    })
    .await;
}

#[tokio::test]
async fn both_ends_may_be_the_first_with_bulk_data() {
    for first in [0, 1] {
        let network = MemoryNetwork::new();
        let sides = Side::memory_pair(&network).await;
        // The left end makes the connection.
        sides[0].send(&sides[1], control(0));
        eventually("they are connected", || sides[1].received_count() == 1).await;
        assert_eq!(network.connections("w1#1", "w2#1"), 1, "one stream will do");
        sides[first].send(&sides[1 - first], call(1, 1 << 20));
        eventually("the bulk message arrives", || {
            sides[1 - first].received_on(Lane::Bulk) == [1]
        })
        .await;
        assert_eq!(network.connections("w1#1", "w2#1"), 2);
        sides[1 - first].send(&sides[first], call(2, 1 << 20));
        eventually("one the other way too", || {
            sides[first].received_on(Lane::Bulk) == [2]
        })
        .await;
        assert_eq!(network.connections("w1#1", "w2#1"), 2);
    }
}

#[tokio::test]
async fn a_broken_bulk_stream_takes_the_connection_with_it() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.send(&right, call(1, 1 << 20));
    eventually("it arrives", || right.received_count() == 1).await;
    let before = left.link_to(&right).expect("a link").connections;
    // Only bulk data is long enough to blow these fuses.
    network.cut_after("w1#1", "w2#1", 1 << 20);
    left.send(&right, call(2, 2 << 20));
    eventually("it arrives after all", || {
        right.received_on(Lane::Bulk) == [1, 2]
    })
    .await;
    assert!(left.link_to(&right).expect("a link").connections > before);
}

#[tokio::test]
async fn buffers_are_let_go_when_their_message_is_acknowledged() {
    // SE-2, LI-4
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    let part = bytes::Bytes::from(vec![1; 1 << 20]);
    left.send(
        &right,
        answerable(1, bytes::Bytes::new(), vec![part.clone()]),
    );
    eventually("it arrives", || right.received_count() == 1).await;
    eventually("the sender lets go", || part.is_unique()).await;
}

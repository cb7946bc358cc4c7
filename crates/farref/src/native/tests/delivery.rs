//! AG-1, LI-2 and LI-3: what is sent arrives, once and in order, over any number of connections.

use std::time::Duration;

use bytes::Bytes;
use farref_proto::{Lane, MessageId};

use super::fixture::impatient;
use super::*;
use crate::agent::{AnswerMessage, Origins};
use crate::codec::Payload;
use crate::rendezvous::Address;
use crate::support::lock::lock;

const BULK: usize = 70 << 10;

/// Sends numbered messages on all lanes each way, a few ahead of what has come, until told to stop.
/// Returns how many of each went each way.
async fn converse(sides: &[Side; 2], mut go_on: impl FnMut() -> bool) -> u64 {
    let [left, right] = sides;
    let mut count = 0;
    while go_on() {
        for (from, to) in [(left, right), (right, left)] {
            from.agent.enqueue(to.node, control(count));
            from.agent.enqueue(to.node, call(count, 100));
            from.agent.enqueue(to.node, call(count, BULK));
            from.agent.flush(to.node);
        }
        count += 1;
        let ahead = || {
            sides
                .iter()
                .any(|side| (side.received_count() as u64) < 3 * count.saturating_sub(8))
        };
        eventually("messages go on arriving", || !ahead()).await;
    }
    eventually("all messages arrive", || {
        sides
            .iter()
            .all(|side| side.received_count() as u64 >= 3 * count)
    })
    .await;
    count
}

async fn assert_all_arrived_once_and_in_order(sides: &[Side; 2], count: u64) {
    for side in sides {
        for lane in Lane::ALL {
            let expected: Vec<u64> = (0..count).collect();
            assert_eq!(
                side.received_on(lane),
                expected,
                "{lane} lane of {}",
                side.node
            );
        }
        assert!(lock(&side.inbound.misbehaved).is_empty());
    }
    for side in sides {
        eventually("everything is acknowledged", || {
            side.agent
                .links()
                .iter()
                .all(|link| link.queued_messages == 0)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_once_and_in_order_over_a_thousand_cuts_in_the_middle_of_frames() {
    let network = MemoryNetwork::new();
    let sides = Side::memory_pair(&network).await;
    let mut seed = fastrand::Rng::with_seed(7);
    let count = converse(&sides, || {
        let (a, b) = if seed.bool() {
            ("w1#1", "w2#1")
        } else {
            ("w2#1", "w1#1")
        };
        match seed.u32(..4) {
            0 => network.cut(a, b),
            1 => network.cut_after(a, b, seed.u64(1..300)),
            _ => network.cut_after(a, b, seed.u64(1..BULK as u64)),
        };
        let link = sides[0].link_to(&sides[1]);
        link.is_none_or(|link| link.connections <= 1000)
    })
    .await;
    assert_all_arrived_once_and_in_order(&sides, count).await;
    let replayed: u64 = sides[0].agent.links().iter().map(|l| l.replayed).sum();
    assert!(replayed > 100, "{replayed} frames replayed");
    for side in &sides {
        side.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_once_and_in_order_over_tcp_connections_that_break() {
    // Each reaches the other through a proxy that cuts.
    let [(one, before_one), (two, before_two)] = Side::proxied_pair().await;
    let (sides, proxies) = ([one, two], [before_one, before_two]);
    let mut seed = fastrand::Rng::with_seed(8);
    let mut cuts = 0;
    let count = converse(&sides, || {
        cuts += 1;
        proxies[seed.usize(..2)].cut_after(seed.usize(1..2 * BULK));
        cuts < 150
    })
    .await;
    assert_all_arrived_once_and_in_order(&sides, count).await;
    for side in &sides {
        side.close().await;
    }
}

#[tokio::test]
async fn sockets_carry_all_lanes_both_ways() {
    for unix in [false, cfg!(unix)] {
        let sides = Side::socket_pair(unix).await;
        let mut rounds = 0;
        let count = converse(&sides, || {
            rounds += 1;
            rounds < 50
        })
        .await;
        assert_all_arrived_once_and_in_order(&sides, count).await;
        let transport = sides[0].link_to(&sides[1]).and_then(|link| link.transport);
        assert_eq!(transport, Some(if unix { "unix" } else { "tcp" }));
        for side in &sides {
            side.close().await;
        }
    }
}

#[tokio::test]
async fn of_two_connections_made_at_once_one_stays() {
    // CO-1
    for round in 0..50 {
        let network = MemoryNetwork::new();
        let sides = Side::memory_pair(&network).await;
        if round % 2 == 1 {
            network.set_latency("w1#1", "w2#1", Duration::from_millis(2));
        }
        sides[0].agent.enqueue(sides[1].node, control(1));
        sides[1].agent.enqueue(sides[0].node, control(2));
        eventually("both arrive", || {
            sides.iter().all(|side| side.received_count() == 1)
        })
        .await;
        assert_eq!(network.connections("w1#1", "w2#1"), 1);
        for (side, other) in [(0, 1), (1, 0)] {
            let link = sides[side].link_to(&sides[other]).expect("a link");
            assert_eq!(link.connections, 1, "{link:?}");
        }
        for side in &sides {
            side.close().await;
        }
    }
}

#[tokio::test]
async fn a_unix_socket_out_of_reach_gives_way_to_tcp() {
    // DI-2
    let sides = Side::socket_pair(true).await;
    let mut card = sides[1].card.clone();
    for address in &mut card.addresses {
        if let Address::Unix(name) = address {
            *name = "@farref-in-another-namespace".to_owned();
        }
    }
    let link = sides[0]
        .agent
        .links
        .link_or_new(sides[1].node)
        .expect("a link");
    link.state().card = Some(card);
    sides[0].send(&sides[1], control(1));
    eventually("it arrives", || sides[1].received_count() == 1).await;
    let transport = sides[0].link_to(&sides[1]).and_then(|link| link.transport);
    assert_eq!(transport, Some("tcp"));
    assert!(lock(&sides[0].inbound.suspected).is_empty());
}

#[tokio::test]
async fn a_cancellation_never_overtakes_its_call() {
    // LI-3
    let network = MemoryNetwork::new();
    let sides = Side::memory_pair(&network).await;
    let [left, right] = &sides;
    left.meet(right).await;
    for number in 0..100 {
        let size = if number % 2 == 0 { 10 } else { 1 << 20 };
        left.agent.enqueue(right.node, call(number, size));
        left.agent
            .enqueue(right.node, Message::Cancel(MessageId(number)));
        left.agent.flush(right.node);
    }
    eventually("all arrive", || right.received_count() == 201).await;
    let received = right.received();
    for number in 0..100 {
        let id = MessageId(number);
        let at = |wanted: &dyn Fn(&Message) -> bool| received.iter().position(wanted);
        let called = at(&|message| {
            matches!(message, Message::Call(call)
                if call.head.target == farref_proto::Target::Answer(id))
        });
        let cancelled = at(&|message| matches!(message, Message::Cancel(of) if *of == id));
        assert!(called < cancelled, "{number}: {called:?} {cancelled:?}");
    }
    let link = left.agent.links.link(right.node).expect("a link");
    assert!(link.state().bulk_calls.is_empty());
}

#[tokio::test]
async fn an_answer_ends_the_memory_of_a_bulk_call() {
    // LI-3
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.send(&right, call(5, 1 << 20));
    eventually("the call arrives", || right.received_count() == 1).await;
    let link = left.agent.links.link(right.node).expect("a link");
    assert_eq!(link.state().bulk_calls.len(), 1);
    right.send(
        &left,
        Message::Answer(AnswerMessage {
            head: farref_proto::AnswerHead {
                id: MessageId(5),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            outcome: Ok(Payload::default()),
        }),
    );
    eventually("the answer arrives", || left.received_count() == 1).await;
    assert!(link.state().bulk_calls.is_empty());
}

#[tokio::test]
async fn waiting_in_the_queue_counts_against_the_deadline() {
    // D3
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, call(1, 10));
    let wait = Duration::from_millis(50);
    tokio::time::sleep(wait).await;
    network.heal("w1#1", "w2#1");
    eventually("the call arrives", || right.received_count() == 1).await;
    match right.received().first() {
        Some(Message::Call(call)) => {
            let remaining = call.remaining.expect("a deadline");
            assert!(remaining <= Duration::from_secs(60) - wait, "{remaining:?}");
        }
        other => panic!("not a call: {other:?}"),
    }
}

#[tokio::test]
async fn payloads_arrive_as_they_were_whatever_their_shape() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    let pattern = |size: usize| Bytes::from_iter((0..size).map(|i| (i * 31) as u8));
    let shapes: [(usize, &[usize]); 7] = [
        (0, &[]),
        (10, &[0, 1, 0]),
        (5, &[16 << 10, 17 << 10, 3]),
        (40 << 10, &[]),
        (100 << 10, &[100]),
        (1, &[5 << 20, 0, 1 << 20, 7]),
        (3 << 20, &[2 << 20]),
    ];
    for (number, (body, parts)) in shapes.iter().enumerate() {
        let parts = parts.iter().map(|size| pattern(*size)).collect();
        left.agent
            .enqueue(right.node, answerable(number as u64, pattern(*body), parts));
    }
    left.agent.flush(right.node);
    eventually("all arrive", || right.received_count() == shapes.len()).await;
    for message in right.received() {
        let Message::Call(call) = message else {
            panic!("not a call")
        };
        let farref_proto::Target::Answer(MessageId(number)) = call.head.target else {
            panic!("not answerable")
        };
        let (body, parts) = shapes[number as usize];
        assert_eq!(call.arguments.body, pattern(body));
        let expected: Vec<_> = parts.iter().map(|size| pattern(*size)).collect();
        let came = call.arguments.parts.into_iter();
        let came: Vec<_> = came.map(|part| part.into_bytes().expect("bytes")).collect();
        assert_eq!(came, expected);
    }
}

#[tokio::test]
async fn both_ends_learn_who_the_other_is_and_what_it_bears() {
    let book = Arc::default();
    let network = MemoryNetwork::new();
    let side = |worker| {
        let bind = BindOptions::memory(&network, format!("w{worker}#1"));
        fixture::Setup::new(worker, bind, &book).start()
    };
    let (left, right) = (side(1).await, side(2).await);
    left.meet(&right).await;
    let mut met = lock(&book.met).clone();
    met.sort_unstable();
    assert_eq!(met, [(left.node, 101), (right.node, 102)]);
}

#[tokio::test]
async fn an_answer_beyond_the_limits_arrives_as_a_failure() {
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.max_message_bytes = 1 << 20;
    let [left, right] = Side::memory_pair_with(&network, config).await;
    let answer = |size: usize| {
        Message::Answer(AnswerMessage {
            head: farref_proto::AnswerHead {
                id: MessageId(5),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            outcome: Ok(Payload {
                body: Bytes::from(vec![0; size]),
                parts: Vec::new(),
            }),
        })
    };
    left.send(&right, answer(2 << 20));
    eventually("it arrives", || right.received_count() == 1).await;
    match right.received().first() {
        Some(Message::Answer(answer)) => {
            let failure = answer.outcome.as_ref().expect_err("a failure");
            assert!(matches!(failure, crate::agent::Failure::BadResult(_)));
        }
        other => panic!("not an answer: {other:?}"),
    }
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

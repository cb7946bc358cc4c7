//! SE-1 and SE-2 against a link that loses, doubles and swaps what it carries and breaks at will.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use pair::Broken;

/// One thing that happens. The first field is the end that it happens to.
#[derive(Clone, Debug)]
enum Step {
    Enqueue(usize, Lane, usize),
    Transmit(usize, usize),
    Deliver(usize, usize),
    Lose(usize),
    Double(usize),
    Swap(usize),
    /// Only this end notices that the connection is gone.
    NoticeCut(usize),
    Reconnect,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = || 0..2_usize;
    let lane = prop::sample::select(&Lane::ALL[..]);
    let step = prop_oneof![
        12 => (end(), lane, 0..40_usize).prop_map(|(e, l, bytes)| Step::Enqueue(e, l, bytes)),
        12 => (end(), 1..6_usize).prop_map(|(e, n)| Step::Transmit(e, n)),
        12 => (end(), 1..6_usize).prop_map(|(e, n)| Step::Deliver(e, n)),
        1 => end().prop_map(Step::Lose),
        2 => end().prop_map(Step::Double),
        1 => end().prop_map(Step::Swap),
        1 => end().prop_map(Step::NoticeCut),
        1 => Just(Step::Reconnect),
        3 => (0..3000_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..300)
}

fn config() -> SessionConfig {
    SessionConfig {
        ack_every: 3,
        ..SessionConfig::default()
    }
}

fn apply(pair: &mut Pair, step: &Step, next_payload: &mut u64) {
    match *step {
        Step::Enqueue(end, lane, bytes) => {
            pair.enqueue(end, lane, *next_payload, bytes);
            *next_payload += 1;
        }
        Step::Transmit(end, count) => {
            for _ in 0..count {
                pair.transmit(end);
            }
        }
        Step::Deliver(end, count) => {
            for _ in 0..count {
                if let Err(Broken) = pair.deliver(end) {
                    pair.cut();
                    pair.connect();
                    break;
                }
            }
        }
        Step::Lose(end) => {
            pair.links[end].pop_front();
        }
        Step::Double(end) => {
            if let Some(item) = pair.links[end].front().cloned() {
                pair.links[end].push_front(item);
            }
        }
        Step::Swap(end) => {
            if pair.links[end].len() >= 2 {
                pair.links[end].swap(0, 1);
            }
        }
        Step::NoticeCut(end) => {
            pair.ends[end].connection_lost(pair.now);
            // What is on its way to the end that noticed is gone; the other may still read.
            pair.links[end].clear();
        }
        Step::Reconnect => pair.connect(),
        Step::Wait(millis) => {
            pair.now += Duration::from_millis(millis);
            pair.fire();
        }
    }
}

/// The link behaves from now on. Does what an owner does about errors and events, and lets time
/// pass until nothing is owed any more.
fn heal(pair: &mut Pair) {
    for _ in 0..1000 {
        let broken = [LEFT, RIGHT].into_iter().any(|end| {
            while pair.transmit(end) {}
            loop {
                match pair.deliver(1 - end) {
                    Ok(true) => {}
                    Ok(false) => break false,
                    Err(Broken) => break true,
                }
            }
        });
        let stuck = pair.events.iter_mut().any(|events| {
            events
                .drain(..)
                .any(|event| matches!(event, SessionEvent::Reset(_)))
        });
        if broken || stuck || !pair.ends.iter().all(Session::is_connected) {
            pair.connect();
        }
        if pair.ends.iter().all(|end| end.unacked() == 0) {
            return;
        }
        if let Some(next) = pair.timeout() {
            pair.now = pair.now.max(next);
        }
        pair.fire();
    }
    panic!("frames are still owed after a thousand rounds");
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(64, 512))]

    #[test]
    fn every_frame_arrives_exactly_once_and_in_order_whatever_the_link_does(steps in steps()) {
        let mut pair = Pair::new(config());
        let mut next_payload = 0;
        pair.connect();
        for step in &steps {
            apply(&mut pair, step, &mut next_payload);
        }
        heal(&mut pair);
        pair.assert_all_arrived();
        // Laws of a living pair are held once more by its teardown, on a fresh connection.
        pair.connect();
    }

    #[test]
    fn no_input_of_a_peer_makes_a_session_panic(
        acks in prop::array::uniform3(prop_oneof![0..4_u64, any::<u64>()]),
        seq in prop_oneof![0..4_u64, any::<u64>()],
        generation in any::<u64>(),
        lane in prop::sample::select(&Lane::ALL[..]),
    ) {
        let mut pair = Pair::connected();
        for payload in 0..2 {
            pair.send(LEFT, lane, payload);
        }
        pair.drain(LEFT);
        let acks = Acks(acks);
        for frame in [
            Frame::Data { lane, seq, acks, payload: 0 },
            Frame::Ack { acks },
            Frame::Ping { generation, acks },
            Frame::Pong { generation, acks },
        ] {
            let before = pair.ends[LEFT].clone();
            if pair.ends[LEFT].handle_frame(pair.now, frame).is_err() {
                prop_assert_eq!(&pair.ends[LEFT], &before);
            }
            pair.drain(LEFT);
        }
        let mut hello = pair.ends[RIGHT].connection_opened(pair.now);
        hello.expected = acks.0;
        pair.ends[LEFT].connection_opened(pair.now);
        let _ = pair.ends[LEFT].handle_hello(pair.now, &hello);
        pair.drain(LEFT);
        pair.abandon();
    }
}

//! SE-1 to SE-4: what is sent arrives, once, in order, the urgent first, over any connection.

use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use pair::{GROUP, Item, NODES};

/// The payloads and lanes of the data among some frames.
fn data(frames: &[Frame<u64>]) -> Vec<(Lane, u64)> {
    frames
        .iter()
        .filter_map(|frame| match frame {
            Frame::Data { lane, payload, .. } => Some((*lane, *payload)),
            _ => None,
        })
        .collect()
}

#[test]
fn frames_arrive_in_order_on_each_lane() {
    let mut pair = Pair::connected();
    for payload in 0..200 {
        for lane in Lane::ALL {
            pair.send(LEFT, lane, payload);
            pair.send(RIGHT, lane, payload);
        }
    }
    pair.exchange();
    for lane in Lane::ALL {
        assert_eq!(pair.delivered_on(LEFT, lane), Vec::from_iter(0..200));
    }
}

#[test]
fn frames_enqueued_before_any_connection_arrive() {
    let mut pair = Pair::new(SessionConfig::default());
    pair.send(LEFT, Lane::Call, 1);
    pair.connect();
}

#[test]
fn nothing_but_the_greeting_leaves_before_the_peers_greeting() {
    // SE-3
    let mut pair = Pair::new(SessionConfig::default());
    pair.send(LEFT, Lane::Control, 1);
    assert_eq!(pair.drain(LEFT), []);
    pair.connect();
    assert_eq!(pair.drain(LEFT), []);
    pair.now += Duration::from_millis(1);
    pair.fire();
    assert_eq!(pair.drain(LEFT), []);
    assert!(!pair.ends[LEFT].is_connected());
}

#[test]
fn control_overtakes_calls_and_calls_overtake_bulk() {
    // SE-4
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Bulk, 1);
    pair.send(LEFT, Lane::Bulk, 2);
    pair.transmit(LEFT);
    pair.send(LEFT, Lane::Call, 3);
    pair.send(LEFT, Lane::Control, 4);
    pair.exchange();
    assert_eq!(
        pair.delivered[RIGHT],
        [
            (Lane::Bulk, 1),
            (Lane::Control, 4),
            (Lane::Call, 3),
            (Lane::Bulk, 2)
        ]
    );
}

#[test]
fn heartbeats_and_due_acknowledgements_overtake_everything() {
    // SE-4
    let mut pair = Pair::connected_with(SessionConfig {
        ack_every: 1,
        ..SessionConfig::default()
    });
    for end in [LEFT, RIGHT] {
        pair.send(end, Lane::Control, 1);
    }
    pair.now += Duration::from_millis(2500);
    pair.fire();

    assert!(pair.transmit(RIGHT), "its ping");
    assert!(pair.transmit(RIGHT), "its data");
    pair.deliver(LEFT).unwrap();
    let first = pair.ends[LEFT].poll_transmit(pair.now);
    assert!(matches!(first, Some(Frame::Pong { .. })), "{first:?}");
    let second = pair.ends[LEFT].poll_transmit(pair.now);
    assert!(matches!(second, Some(Frame::Ping { .. })), "{second:?}");
    pair.deliver(LEFT).unwrap();
    let third = pair.ends[LEFT].poll_transmit(pair.now);
    assert!(matches!(third, Some(Frame::Ack { .. })), "{third:?}");
}

#[test]
fn replay_sends_the_very_payload_that_was_stored() {
    // SE-2
    let now = Time::ZERO;
    let mut session = Session::new(NODES[0], NODES[1], GROUP, SessionConfig::default(), now);
    let payload: Rc<[u8]> = Rc::from(*b"as encoded once");
    session.enqueue(Lane::Bulk, Rc::clone(&payload), 15);
    for _ in 0..3 {
        session.connection_opened(now);
        let hello = Hello {
            version: SESSION_VERSION,
            group: GROUP,
            from: NODES[1],
            to: NODES[0],
            expected: [0; 3],
        };
        session.handle_hello(now, &hello).unwrap();
        match session.poll_transmit(now) {
            Some(Frame::Data { payload: sent, .. }) => assert!(Rc::ptr_eq(&sent, &payload)),
            other => panic!("not data: {other:?}"),
        }
        session.connection_lost(now);
    }
    assert_eq!(session.counters().sent, 1);
    assert_eq!(session.counters().replayed, 2);
}

#[test]
fn only_what_the_peer_lacks_is_replayed() {
    // SE-1
    let mut pair = Pair::connected();
    for payload in 0..10 {
        pair.send(LEFT, Lane::Call, payload);
        pair.transmit(LEFT);
    }
    for _ in 0..4 {
        pair.deliver(RIGHT).unwrap();
    }
    pair.cut();
    assert_eq!(pair.ends[LEFT].unacked(), 10);
    pair.connect();
    pair.deliver(LEFT).unwrap();
    assert_eq!(pair.ends[LEFT].unacked(), 6, "the greeting acknowledges");
    pair.exchange();
    assert_eq!(pair.ends[LEFT].counters().replayed, 6);
    assert_eq!(pair.ends[RIGHT].counters().duplicates, 0);
}

#[test]
fn duplicates_are_dropped_counted_and_acknowledged() {
    // SE-1
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    let item = pair.links[RIGHT][0].clone();
    pair.links[RIGHT].push_back(item.clone());
    pair.exchange();
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.delivered[RIGHT], [(Lane::Call, 1)]);
    assert_eq!(pair.ends[RIGHT].counters().duplicates, 1);

    pair.links[RIGHT].push_back(item);
    pair.deliver(RIGHT).unwrap();
    pair.now += Duration::from_millis(5);
    pair.fire();
    assert!(matches!(pair.drain(RIGHT)[..], [Frame::Ack { .. }]));
}

#[test]
fn a_gap_is_refused_and_replay_heals_it() {
    // SE-1, SE-8
    let mut pair = Pair::connected();
    for payload in 0..3 {
        pair.send(LEFT, Lane::Bulk, payload);
    }
    let frames = pair.drain(LEFT);
    let before = pair.ends[RIGHT].clone();
    let refused = pair.ends[RIGHT].handle_frame(pair.now, frames[1].clone());
    assert_eq!(
        refused,
        Err(SessionError::Gap {
            lane: Lane::Bulk,
            expected: 0,
            received: 1
        })
    );
    assert_eq!(pair.ends[RIGHT], before);
    pair.cut();
    pair.connect();
    pair.exchange();
    assert_eq!(data(&frames), pair.delivered[RIGHT]);
}

#[test]
fn acknowledging_what_was_never_sent_is_refused() {
    // SE-8
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    let before = pair.ends[LEFT].clone();
    let lie = Frame::Ack {
        acks: Acks([0, 1, 0]),
    };
    assert_eq!(
        pair.ends[LEFT].handle_frame(pair.now, lie),
        Err(SessionError::AckOfUnsent {
            lane: Lane::Call,
            acked: 1,
            sent: 0
        })
    );
    assert_eq!(pair.ends[LEFT], before, "enqueued is not sent");
}

#[test]
fn frames_without_a_connection_are_refused() {
    // SE-3, SE-8
    let mut pair = Pair::new(SessionConfig::default());
    let ack = Frame::Ack {
        acks: Acks::default(),
    };
    let now = pair.now;
    let end = &mut pair.ends[LEFT];
    assert_eq!(
        end.handle_frame(now, ack.clone()),
        Err(SessionError::NotConnected)
    );
    end.connection_opened(now);
    assert_eq!(end.handle_frame(now, ack), Err(SessionError::NotConnected));
}

#[test]
fn nothing_a_connection_owed_leaves_on_the_next() {
    // SE-3: pongs, pings and acknowledgements belong to the connection that brought them up.
    let mut pair = Pair::connected();
    pair.send(RIGHT, Lane::Call, 1);
    pair.now += Duration::from_millis(2500);
    pair.fire();
    while pair.transmit(RIGHT) {}
    while pair.deliver(LEFT).unwrap() {}
    pair.cut();
    pair.now += Duration::from_millis(5);
    pair.fire();
    pair.connect();
    pair.deliver(LEFT).unwrap();
    assert_eq!(pair.drain(LEFT), [], "the greeting has acknowledged");
}

#[test]
fn what_an_acknowledgement_covers_is_not_replayed_any_more() {
    let mut pair = Pair::connected();
    for payload in 0..3 {
        pair.send(LEFT, Lane::Call, payload);
    }
    pair.drain(LEFT);
    pair.connect();
    pair.deliver(LEFT).unwrap();
    let acks = Acks([0, 3, 0]);
    let now = pair.now;
    pair.ends[LEFT]
        .handle_frame(now, Frame::Ack { acks })
        .unwrap();
    assert_eq!(pair.drain(LEFT), []);
    pair.abandon();
}

#[test]
fn acknowledgements_travel_with_data_going_the_other_way() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    pair.deliver(RIGHT).unwrap();
    pair.send(RIGHT, Lane::Call, 2);
    let frames = pair.drain(RIGHT);
    assert!(
        matches!(frames[..], [Frame::Data { acks, .. }] if acks.expected(Lane::Call) == 1),
        "{frames:?}"
    );
    pair.links[LEFT].extend(frames.into_iter().map(Item::Frame));
    pair.exchange();
    assert_eq!(pair.ends[LEFT].unacked(), 0);
}

#[test]
fn acknowledgements_wait_for_the_delay_or_for_enough_frames() {
    let mut pair = Pair::connected();
    for payload in 0..63 {
        pair.send(LEFT, Lane::Call, payload);
    }
    pair.exchange();
    assert_eq!(pair.ends[LEFT].unacked(), 63, "company may still come");
    pair.send(LEFT, Lane::Call, 63);
    pair.exchange();
    assert_eq!(pair.ends[LEFT].unacked(), 0, "64 are enough");

    pair.send(LEFT, Lane::Call, 64);
    pair.pass(Duration::from_micros(4999));
    assert_eq!(pair.ends[LEFT].unacked(), 1);
    pair.pass(Duration::from_micros(1));
    assert_eq!(pair.ends[LEFT].unacked(), 0, "5 ms are enough");
}

#[test]
fn everything_on_the_wire_survives_encoding() {
    fn check<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        value: &T,
    ) {
        let bytes = postcard::to_allocvec(value).unwrap();
        assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
    }

    let mut pair = Pair::connected();
    check(&pair.ends[LEFT].connection_opened(pair.now));
    let acks = Acks([1, u64::MAX, 300]);
    for lane in Lane::ALL {
        check(&Frame::Data {
            lane,
            seq: 5,
            acks,
            payload: 6_u64,
        });
    }
    check(&Frame::<u64>::Ack { acks });
    let generation = 9;
    check(&Frame::<u64>::Ping { generation, acks });
    check(&Frame::<u64>::Pong { generation, acks });
    pair.abandon();
}

#[test]
fn a_session_is_a_state_of_a_model() {
    fn check<T: Clone + Eq + Hash>(_state: &T) {}
    let pair = Pair::connected();
    check(&pair.ends[LEFT]);
}

/// SE-5
#[test]
fn what_is_stored_counts_until_the_peer_has_it() {
    let mut pair = Pair::connected_with(SessionConfig {
        ack_every: 1,
        ..SessionConfig::default()
    });
    for payload in 0..1000 {
        pair.enqueue(LEFT, Lane::Bulk, payload, 100);
    }
    pair.enqueue(LEFT, Lane::Control, 1000, 7);
    assert!(pair.transmit(LEFT));
    let stored = |pair: &Pair| {
        let end = &pair.ends[LEFT];
        let bytes = |lane| end.stored_bytes(lane);
        (bytes(Lane::Control), bytes(Lane::Bulk), end.unacked())
    };
    assert_eq!(stored(&pair), (7, 100_000, 1001), "sent is not received");
    pair.exchange();
    assert_eq!(stored(&pair), (0, 0, 0));
}

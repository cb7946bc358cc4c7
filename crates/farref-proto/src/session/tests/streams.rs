//! SE-1 to SE-4 when a connection is made of several streams, and what an owner with locks needs.

use std::time::Duration;

use super::*;

const MAIN: [Lane; 2] = [Lane::Control, Lane::Call];
const BULK: [Lane; 1] = [Lane::Bulk];

fn payload(frame: Option<Frame<u64>>) -> Option<(Lane, u64)> {
    match frame {
        Some(Frame::Data { lane, payload, .. }) => Some((lane, payload)),
        _ => None,
    }
}

#[test]
fn a_stream_carries_its_own_lanes_only_the_urgent_first() {
    // SE-4
    let mut pair = Pair::connected();
    for (lane, payload) in [(Lane::Bulk, 1), (Lane::Call, 2), (Lane::Control, 3)] {
        pair.send(LEFT, lane, payload);
    }
    let now = pair.now;
    let left = &mut pair.ends[LEFT];
    // The order in which the caller lists lanes is not the order of sending.
    let first = left.poll_transmit_on(now, &[Lane::Call, Lane::Control]);
    assert_eq!(payload(first), Some((Lane::Control, 3)));
    assert_eq!(
        payload(left.poll_transmit_on(now, &MAIN)),
        Some((Lane::Call, 2))
    );
    assert_eq!(left.poll_transmit_on(now, &MAIN), None);
    assert_eq!(
        payload(left.poll_transmit_on(now, &BULK)),
        Some((Lane::Bulk, 1))
    );
    assert_eq!(left.poll_transmit_on(now, &BULK), None);
    pair.cut();
    pair.connect();
}

#[test]
fn heartbeats_travel_with_the_control_lane() {
    // SE-4
    let mut pair = Pair::connected();
    pair.now += Duration::from_millis(2500);
    pair.fire();
    let now = pair.now;
    let left = &mut pair.ends[LEFT];
    assert_eq!(left.poll_transmit_on(now, &BULK), None);
    let ping = left.poll_transmit_on(now, &MAIN);
    assert!(matches!(ping, Some(Frame::Ping { .. })), "{ping:?}");
}

#[test]
fn an_acknowledgement_on_a_slow_stream_is_said_on_the_other_too() {
    // SE-2: the sender would keep what it sent for as long as a large frame takes.
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    pair.deliver(RIGHT).expect("a whole connection");
    pair.send(RIGHT, Lane::Bulk, 2);
    let now = pair.now;
    let right = &mut pair.ends[RIGHT];
    let bulk = right.poll_transmit_on(now, &BULK).expect("the bulk frame");
    assert_eq!(bulk.acks().expected(Lane::Call), 1);

    pair.now += Duration::from_millis(5);
    pair.fire();
    let now = pair.now;
    let right = &mut pair.ends[RIGHT];
    let ack = right.poll_transmit_on(now, &MAIN);
    assert!(matches!(ack, Some(Frame::Ack { .. })), "{ack:?}");
    pair.cut();
    pair.connect();
}

#[test]
fn an_owner_that_closes_acknowledges_at_once() {
    let mut pair = Pair::connected();
    pair.ends[RIGHT].acknowledge_now();
    assert!(!pair.transmit(RIGHT), "nothing is owed");
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    pair.deliver(RIGHT).expect("a whole connection");
    assert!(!pair.transmit(RIGHT), "it waits for company");
    pair.ends[RIGHT].acknowledge_now();
    assert!(pair.transmit(RIGHT));
    pair.deliver(LEFT).expect("a whole connection");
    assert_eq!(pair.ends[LEFT].unacked(), 0);
}

#[test]
fn a_session_owes_a_frame_exactly_when_it_gives_out_one_that_is_no_data() {
    // SE-4
    let mut pair = Pair::connected_with(SessionConfig {
        ack_every: 3,
        ..SessionConfig::default()
    });
    for step in 0..200 {
        pair.now += Duration::from_millis(step % 7 * 100);
        pair.fire();
        if step % 3 != 0 {
            pair.send(LEFT, Lane::Call, step);
        }
        for end in [LEFT, RIGHT] {
            let now = pair.now;
            let owes = pair.ends[end].owes_frame(now);
            let next = pair.ends[end].clone().poll_transmit(now);
            let own = next.is_some_and(|frame| !matches!(frame, Frame::Data { .. }));
            assert_eq!(owes, own, "end {end} in step {step}");
            if step % 2 == 0 || owes {
                pair.transmit(end);
            }
            while pair.deliver(1 - end).expect("a whole connection") {}
        }
    }
    pair.cut();
    assert!(!pair.ends[LEFT].owes_frame(pair.now));
    pair.connect();
}

#[test]
fn what_is_acknowledged_is_given_back() {
    // SE-2
    let mut pair = Pair::connected();
    for payload in 0..3 {
        pair.send(LEFT, Lane::Call, payload);
    }
    pair.transmit(LEFT);
    pair.transmit(LEFT);
    let (now, mut done) = (pair.now, Vec::new());
    let ack = Frame::<u64>::Ack {
        acks: Acks([0, 1, 0]),
    };
    let news = pair.ends[LEFT].handle_frame_with(now, ack, |frame| done.push(frame));
    assert_eq!(news, Ok(None));
    assert_eq!(done, [0]);

    let hello = pair.ends[RIGHT].connection_opened(now);
    pair.ends[LEFT].connection_opened(now);
    let hello = Hello {
        expected: [0, 2, 0],
        ..hello
    };
    pair.ends[LEFT]
        .handle_hello_with(now, &hello, |frame| done.push(frame))
        .expect("a good greeting");
    assert_eq!(done, [0, 1]);
    // The right end never had them.
    pair.abandon();
}

#[test]
fn what_a_peer_sends_may_have_a_type_of_its_own() {
    let mut pair = Pair::connected();
    let frame = Frame::Data {
        lane: Lane::Call,
        seq: 0,
        acks: Acks::default(),
        payload: "decoded",
    };
    let news = pair.ends[LEFT].handle_frame_with(pair.now, frame, drop);
    assert_eq!(news, Ok(Some((Lane::Call, "decoded"))));
    pair.abandon();
}

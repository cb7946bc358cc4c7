//! SE-5: what a session stores is bounded, and whoever is turned away is told when to return.

use super::*;

fn small() -> SessionConfig {
    SessionConfig {
        max_queued_bytes: 100,
        max_queued_frames: 4,
        ack_every: 1,
        ..SessionConfig::default()
    }
}

#[test]
fn a_lane_full_of_bytes_refuses_and_later_reports_room_once() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Call, 1, 60).unwrap();
    pair.enqueue(LEFT, Lane::Call, 2, 40).unwrap();
    let refused = pair.enqueue(LEFT, Lane::Call, 3, 1);
    assert_eq!(
        refused,
        Err(Full {
            lane: Lane::Call,
            frame: 3
        })
    );
    assert!(pair.enqueue(LEFT, Lane::Call, 3, 1).is_err());
    pair.collect_events();
    assert_eq!(pair.events[LEFT], [], "still full");

    pair.exchange();
    assert_eq!(pair.events[LEFT], [SessionEvent::Writable(Lane::Call)]);
    pair.enqueue(LEFT, Lane::Call, 3, 1).unwrap();
    pair.exchange();
    assert_eq!(pair.events[LEFT].len(), 1);
}

#[test]
fn a_lane_full_of_frames_refuses() {
    let mut pair = Pair::connected_with(small());
    for payload in 0..4 {
        pair.enqueue(LEFT, Lane::Bulk, payload, 0).unwrap();
    }
    assert!(pair.enqueue(LEFT, Lane::Bulk, 4, 0).is_err());
}

#[test]
fn frames_sent_but_not_acknowledged_count_against_the_limit() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Bulk, 1, 100).unwrap();
    assert!(pair.transmit(LEFT));
    assert_eq!(pair.ends[LEFT].stored_bytes(Lane::Bulk), 100);
    assert!(pair.enqueue(LEFT, Lane::Bulk, 2, 1).is_err());
}

#[test]
fn lanes_fill_up_independently() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Bulk, 1, 100).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Bulk, 2, 100).is_err());
    pair.enqueue(LEFT, Lane::Call, 3, 100).unwrap();
}

#[test]
fn the_control_lane_never_refuses() {
    let mut pair = Pair::new(small());
    for payload in 0..1000 {
        pair.enqueue(LEFT, Lane::Control, payload, 100).unwrap();
    }
    pair.connect();
}

#[test]
fn a_frame_above_the_limit_passes_alone() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Bulk, 1, 10_000).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Bulk, 2, 10_000).is_err());
    pair.exchange();
    assert_eq!(pair.events[LEFT], [SessionEvent::Writable(Lane::Bulk)]);
    pair.enqueue(LEFT, Lane::Bulk, 2, 10_000).unwrap();
}

#[test]
fn limits_of_zero_still_let_one_frame_pass() {
    let mut pair = Pair::connected_with(SessionConfig {
        max_queued_bytes: 0,
        max_queued_frames: 0,
        ..SessionConfig::default()
    });
    pair.enqueue(LEFT, Lane::Call, 1, 10).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Call, 2, 10).is_err());
}

#[test]
fn room_too_small_for_what_was_refused_is_not_reported() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Call, 1, 10).unwrap();
    pair.enqueue(LEFT, Lane::Call, 2, 80).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Call, 3, 50).is_err());
    // The first alone is acknowledged.
    pair.transmit(LEFT);
    pair.deliver(RIGHT).unwrap();
    pair.transmit(RIGHT);
    pair.deliver(LEFT).unwrap();
    pair.collect_events();
    assert_eq!(pair.ends[LEFT].stored_bytes(Lane::Call), 80);
    assert_eq!(pair.events[LEFT], []);
    pair.exchange();
    assert_eq!(pair.events[LEFT], [SessionEvent::Writable(Lane::Call)]);
}

#[test]
fn the_lightest_of_several_refused_decides_and_the_heavier_is_told_again() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Call, 1, 10).unwrap();
    pair.enqueue(LEFT, Lane::Call, 2, 90).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Call, 3, 50).is_err());
    assert!(pair.enqueue(LEFT, Lane::Call, 4, 5).is_err());
    pair.transmit(LEFT);
    pair.deliver(RIGHT).unwrap();
    pair.transmit(RIGHT);
    pair.deliver(LEFT).unwrap();
    pair.collect_events();
    assert_eq!(pair.events[LEFT].len(), 1, "room for the light one");
    assert!(pair.enqueue(LEFT, Lane::Call, 3, 50).is_err());
    pair.exchange();
    assert_eq!(pair.events[LEFT].len(), 2, "room for the heavy one");
}

#[test]
fn a_greeting_that_acknowledges_makes_room() {
    let mut pair = Pair::connected_with(small());
    pair.enqueue(LEFT, Lane::Bulk, 1, 100).unwrap();
    assert!(pair.enqueue(LEFT, Lane::Bulk, 2, 100).is_err());
    pair.transmit(LEFT);
    pair.deliver(RIGHT).unwrap();
    pair.cut();
    pair.connect();
    pair.deliver(LEFT).unwrap();
    pair.collect_events();
    assert_eq!(pair.events[LEFT], [SessionEvent::Writable(Lane::Bulk)]);
}

//! SE-6: silence is noticed in time, once, and never mistaken.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const NONE: [Duration; 0] = [];

fn suspicions(pair: &Pair, end: usize) -> Vec<Duration> {
    pair.events[end]
        .iter()
        .filter_map(|event| match event {
            SessionEvent::Suspect { silent_for } => Some(*silent_for),
            _ => None,
        })
        .collect()
}

#[test]
fn idle_ends_keep_each_other_alive_by_heartbeats() {
    let mut pair = Pair::connected();
    pair.pass(600 * SECOND);
    assert_eq!(pair.events, [vec![], vec![]]);
}

#[test]
fn a_silent_peer_is_suspected_once_after_the_timeout_and_not_before() {
    let mut pair = Pair::connected();
    pair.muted[LEFT] = true;
    pair.pass(10 * SECOND - Duration::from_nanos(1));
    assert_eq!(suspicions(&pair, LEFT), NONE);
    pair.pass(Duration::from_nanos(1));
    assert_eq!(suspicions(&pair, LEFT), [10 * SECOND]);
    pair.pass(100 * SECOND);
    assert_eq!(suspicions(&pair, LEFT).len(), 1);
    assert_eq!(suspicions(&pair, RIGHT), NONE, "it hears everything");
}

#[test]
fn a_peer_that_cannot_be_reached_is_suspected_too() {
    let mut pair = Pair::new(SessionConfig::default());
    pair.pass(9 * SECOND);
    assert_eq!(suspicions(&pair, LEFT), NONE);
    pair.pass(SECOND);
    assert_eq!(suspicions(&pair, LEFT), [10 * SECOND]);
    assert_eq!(pair.timeout(), None, "only an input can bring news");
}

#[test]
fn making_connections_on_which_nobody_greets_is_no_sign_of_life() {
    let mut pair = Pair::connected();
    pair.muted = [true; 2];
    for _ in 0..10 {
        pair.cut();
        pair.connect();
        pair.pass(SECOND);
    }
    assert_eq!(suspicions(&pair, LEFT), [10 * SECOND]);
}

#[test]
fn bytes_of_a_peer_that_has_not_greeted_are_no_sign_of_life() {
    // SE-9: they may be anybody's.
    let mut pair = Pair::connected();
    pair.muted = [true; 2];
    pair.connect();
    pair.pass(9 * SECOND);
    pair.ends[LEFT].handle_bytes_read(pair.now);
    pair.pass(SECOND);
    assert_eq!(suspicions(&pair, LEFT), [10 * SECOND]);
}

#[test]
fn losing_the_connection_after_a_long_silence_makes_the_peer_suspected_without_a_timer() {
    let mut pair = Pair::connected();
    pair.now += 11 * SECOND;
    pair.cut();
    pair.collect_events();
    assert_eq!(suspicions(&pair, LEFT), [11 * SECOND]);
}

#[test]
fn a_sign_of_life_begins_the_silence_anew() {
    let mut pair = Pair::connected();
    for _ in 0..2 {
        pair.muted[LEFT] = true;
        pair.pass(12 * SECOND);
        pair.muted[LEFT] = false;
        pair.cut();
        pair.connect();
        pair.pass(12 * SECOND);
    }
    assert_eq!(suspicions(&pair, LEFT).len(), 2);
}

#[test]
fn a_suspicion_nobody_fetched_is_withdrawn_by_a_sign_of_life() {
    let mut pair = Pair::connected();
    pair.now += 10 * SECOND;
    let now = pair.now;
    let left = &mut pair.ends[LEFT];
    left.handle_timeout(now);
    left.handle_bytes_read(now);
    while let Some(event) = left.poll_event() {
        assert!(!matches!(event, SessionEvent::Suspect { .. }));
    }
}

#[test]
fn a_refused_connection_makes_the_peer_suspected_at_once_and_once() {
    let mut pair = Pair::connected();
    pair.pass(SECOND);
    pair.ends[LEFT].connection_refused(pair.now);
    pair.collect_events();
    assert_eq!(suspicions(&pair, LEFT), NONE, "connected all the same");

    pair.cut();
    pair.ends[LEFT].connection_refused(pair.now);
    pair.ends[LEFT].connection_refused(pair.now);
    pair.pass(30 * SECOND);
    assert_eq!(suspicions(&pair, LEFT), [SECOND]);
}

#[test]
fn a_slow_large_transfer_with_progress_is_neither_suspected_nor_reset() {
    // SE-6, SE-7: the frame takes a minute to cross, and blocks all behind it meanwhile.
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Bulk, 1);
    let huge = pair.drain(LEFT);
    for _ in 0..60 {
        pair.now += SECOND;
        pair.ends[LEFT].handle_bytes_written(pair.now, Lane::Bulk);
        pair.ends[RIGHT].handle_bytes_read(pair.now);
        pair.fire();
        // The other direction is free: its heartbeats and acknowledgements arrive.
        while pair.transmit(RIGHT) {}
        while pair.deliver(LEFT).unwrap() {}
    }
    assert_eq!(pair.events, [vec![], vec![]]);
    pair.links[RIGHT].extend(huge.into_iter().map(pair::Item::Frame));
}

#[test]
fn many_frames_over_many_seconds_with_acknowledgements_are_progress() {
    let mut pair = Pair::connected_with(SessionConfig {
        ack_every: 1,
        ..SessionConfig::default()
    });
    for payload in 0..60 {
        pair.send(LEFT, Lane::Bulk, payload);
    }
    for _ in 0..60 {
        pair.transmit(LEFT);
        pair.now += SECOND;
        while pair.deliver(RIGHT).unwrap() {}
        pair.fire();
        while pair.transmit(RIGHT) {}
        while pair.deliver(LEFT).unwrap() {}
        pair.fire();
    }
    assert_eq!(pair.events, [vec![], vec![]]);
}

#[test]
fn a_late_pong_of_an_old_generation_changes_nothing() {
    let mut pair = Pair::connected();
    pair.now += 3 * SECOND;
    pair.fire();
    let old = pair.drain(LEFT);
    let [Frame::Ping { generation, .. }] = old[..] else {
        panic!("not a ping: {old:?}");
    };
    pair.now += 3 * SECOND;
    pair.fire();
    assert!(matches!(pair.drain(LEFT)[..], [Frame::Ping { .. }]));
    let pong = |generation| Frame::Pong {
        generation,
        acks: Acks::default(),
    };
    let before = pair.ends[LEFT].clone();
    let now = pair.now;
    let left = &mut pair.ends[LEFT];
    left.handle_frame(now, pong(generation)).unwrap();
    assert_eq!(*left, before);
    left.handle_frame(now, pong(generation + 1)).unwrap();
    assert_ne!(*left, before, "the latest counts");
}

#[test]
fn a_pong_of_an_earlier_connection_changes_nothing() {
    let mut pair = Pair::connected();
    pair.now += 3 * SECOND;
    pair.fire();
    let pings = pair.drain(LEFT);
    let [Frame::Ping { generation, acks }] = pings[..] else {
        panic!("not a ping: {pings:?}");
    };
    pair.cut();
    pair.connect();
    pair.exchange();
    let before = pair.ends[LEFT].clone();
    pair.now += SECOND;
    let pong = Frame::Pong { generation, acks };
    pair.ends[LEFT].handle_frame(pair.now, pong).unwrap();
    assert_eq!(pair.ends[LEFT], before);
}

#[test]
fn a_timer_that_fires_early_or_twice_changes_nothing() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    let before = pair.ends[LEFT].clone();
    pair.ends[LEFT].handle_timeout(pair.now);
    assert_eq!(pair.ends[LEFT], before, "early");
    let at = pair.ends[LEFT].poll_timeout().unwrap();
    pair.ends[LEFT].handle_timeout(at);
    let once = pair.ends[LEFT].clone();
    pair.ends[LEFT].handle_timeout(at);
    assert_eq!(pair.ends[LEFT], once, "twice");
}

#[test]
fn only_the_latest_of_several_pings_is_answered() {
    let mut pair = Pair::connected();
    let acks = Acks::default();
    for generation in [7, 9, 8] {
        let ping = Frame::Ping { generation, acks };
        pair.ends[LEFT].handle_frame(pair.now, ping).unwrap();
    }
    let answers = pair.drain(LEFT);
    assert_eq!(
        answers,
        [Frame::Pong {
            generation: 9,
            acks
        }]
    );
}

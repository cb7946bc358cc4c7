//! SE-7: a connection that stands still is reset, and one that moves is not.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn resets(pair: &Pair, end: usize) -> Vec<ResetReason> {
    pair.events[end]
        .iter()
        .filter_map(|event| match event {
            SessionEvent::Reset(reason) => Some(*reason),
            _ => None,
        })
        .collect()
}

/// Lets time pass on a connection that carries nothing until the left end asks for a reset.
/// Returns how long that took, and makes another connection that does carry the greetings.
fn time_to_reset(pair: &mut Pair) -> Duration {
    let start = pair.now;
    let asked = resets(pair, LEFT).len();
    pair.muted = [true; 2];
    while resets(pair, LEFT).len() == asked {
        pair.now = pair.timeout().unwrap();
        assert!(pair.now - start < 60 * SECOND, "never reset");
        pair.fire();
        pair.drain(LEFT);
    }
    let took = pair.now - start;
    pair.muted = [false; 2];
    pair.cut();
    pair.connect();
    pair.deliver(LEFT).unwrap();
    pair.deliver(RIGHT).unwrap();
    took
}

#[test]
fn a_connection_that_acknowledges_nothing_is_reset_once_and_the_next_heals_it() {
    let mut pair = Pair::connected();
    pair.muted[RIGHT] = true;
    pair.send(LEFT, Lane::Call, 1);
    pair.pass(2 * SECOND - Duration::from_nanos(1));
    assert_eq!(pair.events[LEFT], []);
    pair.pass(5 * SECOND);
    assert_eq!(resets(&pair, LEFT), [ResetReason::NoAckProgress]);
    assert_eq!(pair.ends[LEFT].counters().resets, 1);

    pair.muted[RIGHT] = false;
    pair.cut();
    pair.connect();
}

#[test]
fn frames_waiting_for_a_connection_ask_for_no_reset() {
    let mut pair = Pair::new(SessionConfig::default());
    pair.send(LEFT, Lane::Call, 1);
    pair.pass(9 * SECOND);
    assert_eq!(pair.events[LEFT], []);
    pair.connect();
}

#[test]
fn time_without_a_connection_does_not_count() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.drain(LEFT);
    pair.now += Duration::from_millis(1900);
    pair.fire();
    pair.cut();
    pair.pass(5 * SECOND);
    pair.connect();
    pair.deliver(LEFT).unwrap();
    pair.drain(LEFT);
    pair.now += Duration::from_millis(1900);
    pair.fire();
    assert_eq!(pair.events[LEFT], []);
    pair.cut();
    pair.connect();
}

#[test]
fn each_acknowledgement_grants_the_full_patience_again() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.send(LEFT, Lane::Call, 2);
    while pair.transmit(LEFT) {}
    pair.deliver(RIGHT).unwrap();
    pair.now += Duration::from_millis(1900);
    pair.fire();
    pair.transmit(RIGHT);
    pair.deliver(LEFT).unwrap();
    assert_eq!(pair.ends[LEFT].unacked(), 1);
    pair.now += Duration::from_millis(1900);
    pair.fire();
    assert_eq!(pair.events[LEFT], []);
}

#[test]
fn a_connection_that_stops_acknowledging_midway_is_reset() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.send(LEFT, Lane::Call, 2);
    while pair.transmit(LEFT) {}
    pair.deliver(RIGHT).unwrap();
    pair.now += SECOND;
    pair.fire();
    pair.transmit(RIGHT);
    pair.deliver(LEFT).unwrap();
    pair.now += 2 * SECOND;
    pair.fire();
    assert_eq!(resets(&pair, LEFT), [ResetReason::NoAckProgress]);
}

#[test]
fn a_lane_that_is_stuck_is_noticed_while_another_flows() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Bulk, 1);
    pair.transmit(LEFT);
    pair.links[RIGHT].clear();
    for payload in 0..4 {
        pair.send(LEFT, Lane::Control, payload);
        pair.exchange();
        pair.now += SECOND;
        pair.fire();
    }
    assert_eq!(resets(&pair, LEFT), [ResetReason::NoAckProgress]);
    pair.cut();
    pair.connect();
}

#[test]
fn nothing_in_flight_means_no_wait_for_an_acknowledgement() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.pass(SECOND);
    pair.send(LEFT, Lane::Call, 2);
    pair.now += Duration::from_millis(1500);
    pair.fire();
    assert_eq!(pair.events[LEFT], [], "the second was not sent yet");
}

#[test]
fn a_connection_without_the_peers_greeting_is_reset() {
    let mut pair = Pair::new(SessionConfig::default());
    pair.muted[LEFT] = true;
    pair.connect();
    pair.pass(2 * SECOND);
    assert_eq!(resets(&pair, LEFT), [ResetReason::NoHello]);
    assert_eq!(resets(&pair, RIGHT), []);
}

#[test]
fn an_idle_connection_that_answers_no_ping_is_reset_before_the_peer_is_suspected() {
    let mut pair = Pair::connected();
    pair.muted = [true; 2];
    pair.pass(Duration::from_millis(4500));
    assert_eq!(
        pair.events[LEFT],
        [SessionEvent::Reset(ResetReason::NoAnswer)]
    );
    pair.muted = [false; 2];
    pair.cut();
    pair.connect();
    pair.pass(60 * SECOND);
    assert_eq!(pair.events[LEFT].len(), 1, "never suspected");
}

#[test]
fn patience_doubles_with_each_fruitless_reset_until_an_acknowledgement_comes() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Bulk, 1);
    pair.drain(LEFT);
    for expected in [2, 4, 8] {
        assert_eq!(time_to_reset(&mut pair), expected * SECOND);
        assert_eq!(pair.drain(LEFT).len(), 1, "the replayed frame vanishes too");
    }
    pair.cut();
    pair.connect();
    pair.pass(SECOND);
    assert_eq!(pair.ends[LEFT].unacked(), 0);

    pair.send(LEFT, Lane::Bulk, 2);
    pair.drain(LEFT);
    assert_eq!(time_to_reset(&mut pair), 2 * SECOND);
}

#[test]
fn a_greeting_that_acknowledges_restores_the_patience() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Bulk, 1);
    pair.transmit(LEFT);
    pair.deliver(RIGHT).unwrap();
    assert_eq!(time_to_reset(&mut pair), 2 * SECOND);
    assert_eq!(pair.ends[LEFT].unacked(), 0);
    pair.send(LEFT, Lane::Bulk, 2);
    pair.drain(LEFT);
    assert_eq!(time_to_reset(&mut pair), 2 * SECOND);
}

#[test]
fn a_round_trip_restores_the_patience_only_if_no_data_is_in_flight() {
    for in_flight in [false, true] {
        let mut pair = Pair::connected();
        assert_eq!(time_to_reset(&mut pair), Duration::from_millis(4500));
        if in_flight {
            pair.send(LEFT, Lane::Bulk, 1);
            pair.drain(LEFT);
        }
        pair.now += Duration::from_millis(2500);
        pair.fire();
        pair.exchange();
        if !in_flight {
            pair.send(LEFT, Lane::Bulk, 1);
            pair.drain(LEFT);
        }
        let took = time_to_reset(&mut pair);
        let expected = if in_flight { 4000 - 2500 } else { 2000 };
        assert_eq!(took, Duration::from_millis(expected));
    }
}

#[test]
fn further_pings_do_not_prolong_the_wait_for_an_answer_to_the_first() {
    let mut pair = Pair::connected_with(SessionConfig {
        ack_timeout: 3 * SECOND,
        ..SessionConfig::default()
    });
    assert_eq!(time_to_reset(&mut pair), Duration::from_millis(5500));
}

#[test]
fn a_reset_nobody_fetched_is_withdrawn_with_its_connection() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.drain(LEFT);
    pair.now += 2 * SECOND;
    pair.ends[LEFT].handle_timeout(pair.now);
    pair.cut();
    pair.collect_events();
    assert_eq!(pair.events[LEFT], []);
    pair.connect();
}

#[test]
fn timers_always_move_on() {
    // Otherwise an owner that sleeps until the next one would spin.
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.send(RIGHT, Lane::Call, 2);
    pair.exchange();
    for end in [LEFT, RIGHT] {
        let session = &mut pair.ends[end];
        while let Some(at) = session.poll_timeout() {
            session.handle_timeout(at);
            assert!(session.poll_timeout().is_none_or(|next| next > at));
        }
    }
}

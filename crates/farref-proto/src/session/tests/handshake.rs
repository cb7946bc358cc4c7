//! SE-8 and SE-9: who may speak in a session, and where it goes on.

use std::time::Duration;

use super::*;
use pair::NODES;

/// Gives the left end, which awaits a greeting, the right end's with something changed.
fn greet(pair: &mut Pair, change: impl FnOnce(&mut Hello)) -> Result<(), HandshakeError> {
    pair.ends[LEFT].connection_opened(pair.now);
    let mut hello = pair.ends[RIGHT].connection_opened(pair.now);
    change(&mut hello);
    let before = pair.ends[LEFT].clone();
    let result = pair.ends[LEFT].handle_hello(pair.now, &hello);
    if result.is_err() {
        assert_eq!(pair.ends[LEFT], before, "SE-8");
        assert!(!pair.ends[LEFT].is_connected());
    }
    result
}

/// The same, on a fresh pair; afterwards an honest greeting is accepted unless the session is over.
fn refusal(change: impl FnOnce(&mut Hello)) -> HandshakeError {
    let mut pair = Pair::new(SessionConfig::default());
    pair.send(LEFT, Lane::Call, 1);
    let error = greet(&mut pair, change).unwrap_err();
    pair.cut();
    pair.connect();
    pair.exchange();
    error
}

#[test]
fn another_version_is_refused() {
    let error = refusal(|hello| hello.version = 99);
    assert_eq!(error, HandshakeError::Version { theirs: 99 });
    assert!(!error.ends_session());
}

#[test]
fn another_group_is_refused() {
    let error = refusal(|hello| hello.group = GroupId(8));
    assert_eq!(
        error,
        HandshakeError::Group {
            ours: GroupId(7),
            theirs: GroupId(8)
        }
    );
    assert!(error.to_string().contains("group"));
}

#[test]
fn another_worker_is_refused() {
    let error = refusal(|hello| hello.from = NodeId::new(9, 5));
    assert!(matches!(error, HandshakeError::WrongPeer { .. }));
}

#[test]
fn a_greeting_meant_for_another_life_of_this_worker_is_refused() {
    for incarnation in [2, 4] {
        let error = refusal(|hello| hello.to = NodeId::new(0, incarnation));
        assert_eq!(
            error,
            HandshakeError::WrongPeer {
                from: NODES[RIGHT],
                to: NodeId::new(0, incarnation),
                local: NODES[LEFT],
                remote: NODES[RIGHT]
            }
        );
    }
}

#[test]
fn an_old_incarnation_is_refused() {
    let error = refusal(|hello| hello.from = NodeId::new(1, 4));
    assert_eq!(
        error,
        HandshakeError::StaleIncarnation {
            from: NodeId::new(1, 4),
            remote: NODES[RIGHT]
        }
    );
    assert!(!error.ends_session());
}

#[test]
fn a_newer_incarnation_ends_the_session() {
    let error = refusal(|hello| hello.from = NodeId::new(1, 6));
    assert_eq!(
        error,
        HandshakeError::NewerIncarnation {
            from: NodeId::new(1, 6),
            remote: NODES[RIGHT]
        }
    );
    assert!(error.ends_session());
}

#[test]
fn a_newer_incarnation_is_noticed_even_while_connected() {
    let mut pair = Pair::connected();
    let mut hello = pair.ends[RIGHT].clone().connection_opened(pair.now);
    hello.from = NodeId::new(1, 6);
    let error = pair.ends[LEFT].handle_hello(pair.now, &hello).unwrap_err();
    assert!(error.ends_session());
    assert!(pair.ends[LEFT].is_connected(), "SE-8");
}

#[test]
fn resuming_at_a_frame_never_sent_is_refused() {
    let error = refusal(|hello| hello.expected[Lane::Call.index()] = 1);
    assert_eq!(
        error,
        HandshakeError::ResumeImpossible {
            lane: Lane::Call,
            expected: 1,
            stored_from: 0,
            sent: 0
        }
    );
    assert!(error.ends_session());
}

#[test]
fn resuming_at_a_frame_already_dropped_is_refused() {
    let mut pair = Pair::connected();
    for payload in 0..64 {
        pair.send(LEFT, Lane::Bulk, payload);
    }
    pair.exchange();
    assert_eq!(pair.ends[LEFT].unacked(), 0);
    let error = greet(&mut pair, |hello| hello.expected = [0, 0, 63]).unwrap_err();
    assert_eq!(
        error,
        HandshakeError::ResumeImpossible {
            lane: Lane::Bulk,
            expected: 63,
            stored_from: 64,
            sent: 64
        }
    );
}

#[test]
fn the_same_life_may_greet_again_on_a_newer_connection() {
    let mut pair = Pair::connected();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    // Neither end was told that the old connection broke.
    pair.connect();
    pair.exchange();
    assert_eq!(pair.delivered[RIGHT], [(Lane::Call, 1)]);
    assert_eq!(pair.ends[LEFT].counters().connections, 2);
}

#[test]
fn a_greeting_where_none_is_due_is_refused() {
    let mut pair = Pair::new(SessionConfig::default());
    let hello = pair.ends[RIGHT].connection_opened(pair.now);
    let now = pair.now;
    let left = &mut pair.ends[LEFT];
    assert_eq!(
        left.handle_hello(now, &hello),
        Err(HandshakeError::Unexpected)
    );
    left.connection_opened(now);
    assert_eq!(left.handle_hello(now, &hello), Ok(()));
    assert_eq!(
        left.handle_hello(now, &hello),
        Err(HandshakeError::Unexpected)
    );
}

/// Whoever has lost an unused session loses nothing, and of others it can be told.
#[test]
fn a_session_is_unused_until_something_is_enqueued_or_received() {
    let mut pair = Pair::connected();
    pair.exchange();
    pair.cut();
    pair.connect();
    assert!(
        pair.ends.iter().all(Session::is_unused),
        "greetings do not count"
    );
    for lane in Lane::ALL {
        let mut pair = Pair::connected();
        pair.send(LEFT, lane, 1);
        assert!(!pair.ends[LEFT].is_unused(), "it is to be sent");
        assert!(pair.ends[RIGHT].is_unused());
        pair.exchange();
        assert!(!pair.ends[RIGHT].is_unused(), "it was received");
        pair.pass(Duration::from_secs(1));
        pair.exchange();
        assert_eq!(pair.ends[LEFT].unacked(), 0);
        assert!(!pair.ends[LEFT].is_unused(), "it was sent");
    }
}

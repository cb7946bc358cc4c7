//! capnp-rpc's laws of release and cancel, and what a call keeps alive until it is answered (CA-1).

use super::cluster::*;
use crate::error::{CallError, RefError};
use crate::event::{Event, Waiter};
use crate::ids::Fingerprint;
use crate::message::Control;
use crate::node::{Arrival, NodeConfig, Want};
use crate::standing::Phase;

/// R2
#[test]
fn release_simple() {
    let mut net = Cluster::new(2);
    let first = net.created(A, B, 7);
    let second = net.created(A, B, 8);
    assert_eq!(net.node(B).ref_counters().owners, 2);
    net.drop_handle(A, first);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.drop_handle(A, second);
    net.deliver_all();
    assert_eq!(net.freed(), [8]);
    net.finish();
}

/// R1: the callee keeps the argument after the call has returned.
#[test]
fn retain_and_release() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, &[rref]);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [], "B has retained it");
    net.shared(B, A, &[rref]);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [], "A has got it back");
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// D4: the callee of a cancelled call lets its arguments go.
#[test]
fn cancel_releases_params() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    let request = net.ask(A, B, &[rref]);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Run);
    assert!(net.cancel(A, B, request));
    assert!(!net.cancel(A, B, request), "it is said once");
    net.deliver_all();
    let node = id(A);
    assert_eq!(net.events(B), [Event::Abandoned { node, request }]);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    assert_eq!(
        net.node(A).residue().calls,
        1,
        "CA-1: open until it is answered"
    );
    net.answer(B, A, request, &[]);
    net.finish();
}

/// D4, R5: an answer that nobody waits for any more lets go what it carries (H4).
#[test]
fn hole_h4_release_on_cancel() {
    let mut net = Cluster::new(2);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let rref = net.local(B, 7);
    net.answer(B, A, request, &[rref]);
    net.drop_handle(B, rref);
    assert!(net.cancel(A, B, request));
    net.deliver_all();
    assert!(matches!(net.answers[..], [(A, _, false)]));
    assert_eq!(net.freed(), [7]);
    assert_eq!(
        net.events(B),
        [],
        "the cancel came too late to abandon anything"
    );
    net.finish();
}

/// CA-1: a cancelled fetch keeps its reference until the answer, so no release overtakes it.
#[test]
fn a_release_never_overtakes_a_fetch() {
    let mut net = Cluster::new(2);
    let rref = net.created(A, B, 7);
    let request = net.fetch(A, B, rref);
    net.drop_handle(A, rref);
    assert!(net.cancel(A, B, request));
    assert_eq!(net.controls(A, B), []);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Value(7));
    net.answer(B, A, request, &[]);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    assert_eq!(
        net.events(B),
        [Event::Abandoned {
            node: id(A),
            request
        }]
    );
    net.finish();
}

/// RT-10: a fetch waits; its cancel forgets it on the owner.
#[test]
fn a_cancelled_fetch_waits_no_longer() {
    let mut net = Cluster::new(2);
    let rref = net.remote(A, B);
    let request = net.fetch(A, B, rref);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Waiting);
    net.cancel(A, B, request);
    net.deliver_all();
    assert_eq!(net.node(B).ref_counters().waiting, 0);
    assert_eq!(
        net.events(B),
        [Event::Abandoned {
            node: id(A),
            request
        }]
    );
    net.answer(B, A, request, &[]);
    net.drop_handle(A, rref);
    net.deliver_all();
    net.fulfil(A, B, rref, 7);
    assert_eq!(
        net.events(B),
        [],
        "no outcome for a fetch that was cancelled"
    );
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R6: a fetch of a value that is being computed is answered when it is there.
#[test]
fn a_fetch_is_answered_when_the_value_is_there() {
    let mut net = Cluster::new(2);
    let rref = net.remote(A, B);
    let request = net.fetch(A, B, rref);
    net.drop_handle(A, rref);
    net.deliver_all();
    net.fulfil(A, B, rref, 7);
    let (node, outcome) = (id(A), Ok(7));
    let waiter = Waiter { node, request };
    assert_eq!(
        net.events(B),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    net.answer(B, A, request, &[]);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R7, RT-10: a received reference is fetched before it is confirmed and before it is created.
#[test]
fn a_fetch_may_overtake_registration_and_creation() {
    let mut net = Cluster::new(3);
    let rref = net.remote(A, B);
    let ask = net.ask(A, C, &[rref]);
    net.deliver_call(A, C);
    let fetch = net.fetch(C, B, rref);
    net.deliver_call(C, B);
    assert_eq!(*net.last_arrival(), Arrival::Waiting);
    assert_eq!(net.node(B).ref_counters().pending_owners, 1);
    net.deliver_all();
    net.fulfil(A, B, rref, 7);
    assert_eq!(net.events(B).len(), 1);
    net.answer(B, C, fetch, &[]);
    net.answer(C, A, ask, &[]);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R8
#[test]
fn a_fetch_of_another_type_fails_and_names_both() {
    let mut net = Cluster::new(2);
    let rref = net.created(A, B, 7);
    let expected = Fingerprint(1).native();
    let head = net
        .call(A, B, Want::Value(rref, expected), &[], None)
        .unwrap();
    net.deliver_all();
    let found = TYPE;
    let error = RefError::TypeMismatch {
        rref,
        expected,
        found,
    };
    assert_eq!(*net.last_arrival(), Arrival::Failed(error.into()));
    net.answer(B, A, request(&head), &[]);
    net.drop_handle(A, rref);
    net.finish();
}

/// A node may call itself, with references and for values.
#[test]
fn a_node_may_call_itself() {
    let mut net = Cluster::new(2);
    let own = net.local(A, 7);
    let held = net.created(A, B, 8);
    let ask = net.ask(A, A, &[own, held]);
    net.drop_handle(A, own);
    net.drop_handle(A, held);
    net.deliver_all();
    let fetch = net.fetch(A, A, own);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Value(7));
    net.answer(A, A, fetch, &[]);
    net.answer(A, A, ask, &[own]);
    net.drop_handle(A, own);
    net.drop_handle(A, held);
    net.deliver_all();
    assert_eq!(net.freed(), [8]);
    net.drop_handle(A, own);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// CallError: nothing is changed by an attempt that cannot work.
#[test]
fn a_call_that_cannot_be_made_changes_nothing_and_says_why() {
    let mut net = Cluster::new(3);
    net.bury(C);
    let rref = net.local(A, 7);
    net.drop_handle(A, rref);
    let refused = net.call(A, C, Want::Answer, &[], None);
    assert_eq!(refused, Err(CallError::PeerGone { node: id(C) }));
    let refused = net.call(A, B, Want::Value(rref, TYPE), &[], None);
    assert_eq!(refused, Err(RefError::Unknown { rref }.into()));
    net.on(A, |node, out| node.leave(out));
    let (refused, phase) = (net.call(A, B, Want::Answer, &[], None), Phase::Leaving);
    assert_eq!(refused, Err(CallError::NotMember { phase }));
    net.finish();
}

/// An answer to somebody who is gone is no answer.
#[test]
fn there_is_nothing_to_answer_to_a_caller_that_is_gone() {
    let mut net = Cluster::new(2);
    let rref = net.local(B, 7);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    net.bury(A);
    assert!(net.events(B).contains(&Event::Abandoned {
        node: id(A),
        request
    }));
    assert_eq!(net.answer(B, A, request, &[rref]), None);
    net.drop_handle(B, rref);
    net.finish();
}

/// The shards of a node share nothing: references in all of them come and go alike.
#[test]
fn references_of_all_shards_come_and_go() {
    let config = NodeConfig {
        ref_shards: 4,
        ..Default::default()
    };
    let mut net = Cluster::with(2, config);
    let rrefs: Vec<_> = (0..32).map(|value| net.local(A, value)).collect();
    let shards: std::collections::BTreeSet<_> = rrefs.iter().map(|rref| rref.counter % 4).collect();
    assert_eq!(shards.len(), 4);
    net.shared(A, B, &rrefs);
    for &rref in &rrefs {
        net.drop_handle(A, rref);
        assert_eq!(net.node(B).refs(rref).owner_of(rref), Some(id(A)));
    }
    assert_eq!(net.node(A).leaks().len(), 32);
    net.on(B, |node, out| {
        rrefs.iter().for_each(|&rref| node.drop_handle(rref, out))
    });
    assert!(
        matches!(net.controls(B, A)[..], [Control::Release(_)]),
        "in one message"
    );
    net.deliver_all();
    assert_eq!(net.freed().len(), 32);
    net.finish();
}

/// CA-1, R1: a holder asks for the value and is turned away by the owner, which has heard of too many values before their
/// creation. Its fetch is slower than all else. The worker that the holder has the reference from waits for the answer,
/// so the fetch finds the value; it would otherwise wait for a creation that has been and gone.
#[test]
fn a_fetch_by_a_holder_that_is_turned_away_finds_the_value() {
    let mut net = Cluster::with(
        3,
        NodeConfig {
            max_pending_owners: 0,
            ..NodeConfig::default()
        },
    );
    let rref = net.remote(A, B);
    let creation = net.hold_calls(A, B);
    let call = net.ask(A, C, &[rref]);
    net.deliver_call(A, C);
    let fetch = net.fetch(C, B, rref);
    let fetching = net.hold_calls(C, B);
    net.deliver_all();
    let error = RefError::TooManyPending { rref };
    assert_eq!(net.events(C), [Event::Lost { rref, error }]);
    for packet in creation {
        net.push(A, B, packet);
    }
    net.deliver_all();
    net.fulfil(A, B, rref, 7);
    net.answer(C, A, call, &[]);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert!(net.freed().is_empty(), "the fetch is under way");
    for packet in fetching {
        net.push(C, B, packet);
    }
    net.deliver_all();
    let (_, _, _, arrival) = net.arrivals.last().unwrap();
    assert_eq!(*arrival, Arrival::Value(7));
    net.answer(B, C, fetch, &[]);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

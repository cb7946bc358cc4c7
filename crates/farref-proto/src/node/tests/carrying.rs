//! References in calls and answers are carried wholly or not at all (R5, RT-9).

use super::cluster::*;
use crate::error::{CallError, RefError};
use crate::message::AnswerHead;
use crate::node::{Arrival, Want};

/// R5: one of the arguments is unknown, so none is forked.
#[test]
fn carrying_that_fails_half_way_forks_nothing() {
    let mut net = Cluster::new(3);
    let owned = net.local(A, 7);
    let held = net.created(A, B, 8);
    let gone = net.local(A, 9);
    net.drop_handle(A, gone);
    let before = net.node(A).ref_counters();
    let unknown = RefError::Unknown { rref: gone };
    for want in [Want::Answer, Want::Reference(TYPE), Want::Value(held, TYPE)] {
        let to = if matches!(want, Want::Value(..)) {
            B
        } else {
            C
        };
        let refused = net.call(A, to, want, &[owned, held, gone], None);
        assert_eq!(refused, Err(unknown.clone().into()));
        assert_eq!(net.node(A).ref_counters(), before);
        assert_eq!(net.node(A).residue().calls, 0);
    }
    net.drop_handle(A, owned);
    net.drop_handle(A, held);
    net.deliver_all();
    assert_eq!(net.freed(), [9, 7, 8]);
    net.finish();
}

/// R5: the same in an answer, which can then be given without the reference at fault.
#[test]
fn an_answer_that_fails_half_way_forks_nothing_and_may_be_given_again() {
    let mut net = Cluster::new(2);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let (rref, gone) = (net.local(B, 7), net.local(B, 8));
    net.drop_handle(B, gone);
    let refused = net.on(B, |node, out| {
        node.answer(id(A), request, &[rref, gone], out)
    });
    assert_eq!(refused, Err(RefError::Unknown { rref: gone }));
    assert_eq!(net.node(B).ref_counters().forks, 0);
    net.answer(B, A, request, &[rref]);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert!(matches!(net.answers[..], [(A, _, true)]));
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [8, 7]);
    net.finish();
}

/// R5 (H3): a call of each kind that never left is undone, whatever the program dropped meanwhile.
#[test]
fn hole_h3_an_undone_call_leaves_no_trace() {
    for dropped_before in [true, false] {
        for kind in 0..3 {
            let mut net = Cluster::new(3);
            let owned = net.local(A, 7);
            let held = net.created(A, B, 8);
            let context = net.on(A, |node, _| node.open_context());
            let (to, want) = match kind {
                0 => (C, Want::Answer),
                1 => (C, Want::Reference(TYPE)),
                _ => (B, Want::Value(held, TYPE)),
            };
            let made = net.on(A, |node, out| {
                node.call(id(to), want, &[owned, held], Some(context), out)
            });
            let head = made.unwrap();
            let drop_both = |net: &mut Cluster| {
                net.drop_handle(A, owned);
                net.drop_handle(A, held);
            };
            if dropped_before {
                drop_both(&mut net);
                assert_eq!((net.controls(A, B).len(), net.freed()), (0, vec![]));
            }
            net.on(A, |node, out| node.undo_call(id(to), &head, out));
            if !dropped_before {
                drop_both(&mut net);
            }
            net.on(A, |node, out| node.release_context(context, out))
                .unwrap();
            net.deliver_all();
            assert_eq!(net.freed(), [7, 8]);
            net.finish();
        }
    }
}

/// R5 (H4): an answer that never left is undone; another follows in its place.
#[test]
fn hole_h4_an_undone_answer_leaves_no_trace_and_another_follows() {
    let mut net = Cluster::new(3);
    let held = net.created(B, C, 8);
    let owned = net.local(B, 7);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let head = net.on(B, |node, out| {
        node.answer(id(A), request, &[owned, held], out)
    });
    let head: AnswerHead = head.unwrap().unwrap();
    net.drop_handle(B, owned);
    net.drop_handle(B, held);
    net.on(B, |node, out| node.undo_answer(id(A), &head, out));
    net.deliver_all();
    assert_eq!(net.freed(), [7, 8]);
    assert_eq!(net.node(B).residue().calls, 1, "still to be answered");
    net.answer(B, A, request, &[]);
    net.deliver_all();
    assert_eq!(net.answers.len(), 1);
    net.finish();
}

/// R5: an answer undone after its asker has gone needs no other.
#[test]
fn an_answer_undone_after_the_asker_died_is_done_with() {
    let mut net = Cluster::new(2);
    let rref = net.local(B, 7);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let head = net.on(B, |node, out| node.answer(id(A), request, &[rref], out));
    let head = head.unwrap().unwrap();
    net.drop_handle(B, rref);
    net.bury(A);
    assert_eq!(net.freed(), [7], "its fork was the dead asker's");
    net.on(B, |node, out| node.undo_answer(id(A), &head, out));
    assert_eq!(net.node(B).residue().calls, 0);
    net.finish();
}

/// The four positions of a reference in a call, all at once: owner → user, user → owner,
/// user → user and to oneself.
#[test]
fn a_call_carries_references_of_every_owner() {
    for to in [A, B, C] {
        let mut net = Cluster::new(3);
        let of_a = net.local(A, 7);
        let of_b = net.created(A, B, 8);
        let of_c = net.local(C, 9);
        net.shared(C, A, &[of_c]);
        net.drop_handle(C, of_c);
        let all = [of_a, of_b, of_c];
        let request = net.ask(A, to, &all);
        all.iter().for_each(|&rref| net.drop_handle(A, rref));
        net.deliver_all();
        assert_eq!(net.freed(), [], "the callee has a handle on each");
        net.answer(to, A, request, &[]);
        all.iter().for_each(|&rref| net.drop_handle(to, rref));
        net.deliver_all();
        let mut freed = net.freed();
        freed.sort_unstable();
        assert_eq!(freed, [7, 8, 9]);
        net.finish();
    }
}

/// The same in an answer.
#[test]
fn an_answer_carries_references_of_every_owner() {
    let mut net = Cluster::new(3);
    let of_b = net.local(B, 7);
    let of_a = net.created(B, A, 8);
    let of_c = net.created(B, C, 9);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let all = [of_a, of_b, of_c];
    net.answer(B, A, request, &all);
    all.iter().for_each(|&rref| net.drop_handle(B, rref));
    net.deliver_all();
    assert_eq!(net.freed(), []);
    all.iter().for_each(|&rref| net.drop_handle(A, rref));
    net.deliver_all();
    let mut freed = net.freed();
    freed.sort_unstable();
    assert_eq!(freed, [7, 8, 9]);
    net.finish();
}

/// R5: a call of somebody who is no member is not taken in, nor is what it carries.
#[test]
fn a_call_of_a_node_that_is_gone_is_ignored() {
    let mut net = Cluster::new(3);
    let rref = net.created(A, B, 7);
    net.ask(A, C, &[rref]);
    let call = net.hold_calls(A, C).remove(0);
    net.bury(A);
    net.hand(id(A), C, call).unwrap();
    assert_eq!(*net.last_arrival(), Arrival::Ignored);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R5: the receiver of a reference is gone before the call is made.
#[test]
fn nothing_is_carried_to_a_node_that_is_gone() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    net.bury(B);
    let refused = net.call(A, B, Want::Answer, &[rref], None);
    assert_eq!(refused, Err(CallError::PeerGone { node: id(B) }));
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R5: the owner of what a call asked for dies, and then the call turns out not to have left.
#[test]
fn a_creation_undone_after_its_owner_died_leaves_no_trace() {
    let mut net = Cluster::new(2);
    let made = net.on(A, |node, out| {
        node.call(id(B), Want::Reference(TYPE), &[], None, out)
    });
    let head = made.unwrap();
    net.bury(B);
    net.on(A, |node, out| node.undo_call(id(B), &head, out));
    net.finish();
}

//! Peers that break the protocol towards a node: each gets its name.

use super::cluster::*;
use crate::error::PeerMisbehaved;
use crate::ids::{ContextId, MessageId};
use crate::limits::MAX_BATCH;
use crate::message::{AnswerHead, Control, Share};
use crate::node::Want;

/// Gives a control message that no correct peer sends and expects nothing but the verdict.
fn refuse(net: &mut Cluster, from: usize, to: usize, control: Control, verdict: PeerMisbehaved) {
    let (counters, residue) = (net.node(to).ref_counters(), net.node(to).residue());
    let refused = net.on(to, |node, out| node.handle(id(from), control, out));
    assert_eq!(refused, Err(verdict));
    assert_eq!(
        (net.node(to).ref_counters(), net.node(to).residue()),
        (counters, residue)
    );
    assert_eq!(net.busy(), []);
}

#[test]
fn a_request_used_twice_is_refused() {
    let mut net = Cluster::new(2);
    let head = net.call(A, B, Want::Answer, &[], None).unwrap();
    let (request, call) = (request(&head), Packet::Call(head));
    net.deliver_all();
    let before = net.node(B).residue();
    assert_eq!(
        net.hand(id(A), B, call),
        Err(PeerMisbehaved::RequestTwice { request })
    );
    assert_eq!(net.node(B).residue(), before);
    net.answer(B, A, request, &[]);
    net.finish();
}

#[test]
fn an_answer_that_was_not_asked_for_is_refused() {
    let mut net = Cluster::new(2);
    let rref = net.local(B, 7);
    let request = net.ask(A, B, &[]);
    net.deliver_all();
    let answer = Packet::Answer(net.answer(B, A, request, &[rref]).unwrap());
    net.deliver_all();
    let verdict = PeerMisbehaved::UnexpectedAnswer { request };
    assert_eq!(net.hand(id(B), A, answer), Err(verdict), "a second time");
    let never = MessageId(77);
    let head = AnswerHead {
        id: never,
        carried: vec![],
    };
    let verdict = PeerMisbehaved::UnexpectedAnswer { request: never };
    assert_eq!(net.hand(id(B), A, Packet::Answer(head)), Err(verdict));
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

/// D5
#[test]
fn a_batch_beyond_the_limit_is_refused() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    let head = net.call(A, B, Want::Answer, &[rref], None).unwrap();
    net.deliver_all();
    let share: Share = head.carried[0].share;
    let len = MAX_BATCH + 1;
    let batch = Control::Release(vec![share; len]);
    refuse(&mut net, B, A, batch, PeerMisbehaved::BatchTooLong { len });
    net.answer(B, A, request(&head), &[]);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

#[test]
fn more_calls_done_than_were_made_are_refused() {
    let mut net = Cluster::new(2);
    let context = net.on(A, |node, _| node.open_context());
    let head = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    let verdict = PeerMisbehaved::UnexpectedDone { context };
    refuse(
        &mut net,
        B,
        A,
        Control::ContextDone(vec![(context, 2)]),
        verdict,
    );
    net.answer(B, A, request(&head), &[]);
    net.deliver_all();
    let verdict = PeerMisbehaved::UnexpectedDone { context };
    refuse(
        &mut net,
        B,
        A,
        Control::ContextDone(vec![(context, 1)]),
        verdict,
    );
    net.on(A, |node, out| node.release_context(context, out))
        .unwrap();
    net.finish();
}

#[test]
fn a_node_that_speaks_for_anothers_context_is_refused() {
    let mut net = Cluster::new(3);
    let context = ContextId::new(id(C), 0);
    let verdict = PeerMisbehaved::Impersonation { node: id(C) };
    refuse(
        &mut net,
        B,
        A,
        Control::ContextAttach(vec![context]),
        verdict,
    );
    net.finish();
}

/// A misbehaving peer's call carries one good reference and one that it has no right to: the good one
/// is let go again.
#[test]
fn a_call_with_one_bad_reference_hands_over_none() {
    let mut net = Cluster::new(3);
    let rref = net.local(A, 7);
    let head = net.call(A, B, Want::Answer, &[rref], None).unwrap();
    let mut bad = net.hold_calls(A, B).remove(0);
    let Packet::Call(call) = &mut bad else {
        panic!("a call")
    };
    let mut foreign = call.carried[0];
    foreign.share.fork.origin = id(C);
    call.carried.push(foreign);
    let verdict = PeerMisbehaved::ForeignFork { parent: id(C) };
    assert_eq!(net.hand(id(A), B, bad), Err(verdict));
    assert_eq!(net.node(B).ref_counters().users, 0);
    net.deliver_all();
    assert_eq!(net.node(A).ref_counters().forks, 0);
    // B cuts A off, as a driver does.
    assert!(net.on(A, |node, _| node.cancel(id(B), request(&head))));
    net.suspect(B, A);
    net.crash(A);
    net.deliver_all();
    net.finish();
}

/// ME-2, F3: what a node says that is gone changes nothing.
#[test]
fn frames_of_a_node_that_is_gone_change_nothing() {
    let mut net = Cluster::new(3);
    let rref = net.local(A, 7);
    let head = net.call(A, B, Want::Answer, &[rref], None).unwrap();
    net.deliver_all();
    net.bury(C);
    let share = head.carried[0].share;
    let before = net.node(A).clone();
    for control in [
        Control::Release(vec![share]),
        Control::Suspect(id(B)),
        Control::Finish,
        Control::Welcome(vec![]),
    ] {
        net.on(A, |node, out| node.handle(id(C), control, out))
            .unwrap();
    }
    let answer = AnswerHead {
        id: request(&head),
        carried: vec![],
    };
    assert_eq!(net.hand(id(C), A, Packet::Answer(answer)), Ok(()));
    assert_eq!(*net.node(A), before);
    net.answer(B, A, request(&head), &[]);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

//! Autograd contexts across nodes: calls and their undo, refusals, deaths.

use super::cluster::*;
use crate::error::{CallError, ContextError};
use crate::event::Event;
use crate::ids::ContextId;
use crate::message::Target;
use crate::node::{Arrival, Want};

fn open(net: &mut Cluster, n: usize) -> ContextId {
    net.on(n, |node, _| node.open_context())
}

fn release(net: &mut Cluster, n: usize, context: ContextId) {
    net.on(n, |node, out| node.release_context(context, out))
        .unwrap();
}

/// CT-1, CT-2, A3: the origin asks for the release at once; it happens when the last call is done.
#[test]
fn a_context_outlives_the_calls_made_in_it() {
    let mut net = Cluster::new(3);
    let context = open(&mut net, A);
    let outer = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    // B calls on, does not wait for it, and answers.
    let inner = net.call(B, C, Want::Answer, &[], Some(context)).unwrap();
    net.answer(B, A, request(&outer), &[]);
    release(&mut net, A, context);
    net.deliver_all();
    assert_eq!(net.events(A), [], "C is at work");
    assert_eq!(net.node(C).open_contexts(), [context]);
    net.answer(C, B, request(&inner), &[]);
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    net.finish();
}

/// CT-1: a call whose result stays is done when its result is there.
#[test]
fn a_creation_in_a_context_is_done_when_its_value_is_there() {
    let mut net = Cluster::new(2);
    let context = open(&mut net, A);
    let head = net
        .call(A, B, Want::Reference(TYPE), &[], Some(context))
        .unwrap();
    release(&mut net, A, context);
    net.deliver_all();
    assert_eq!(net.events(A), []);
    let rref = reference(&head);
    net.on(B, |node, out| {
        node.finish_creation(id(A), rref, Some(context), 7, out)
    });
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    net.drop_handle(A, rref);
    net.finish();
}

/// CT-1: nodes that call themselves in a context.
#[test]
fn a_node_may_call_itself_in_a_context() {
    let mut net = Cluster::new(2);
    let context = open(&mut net, A);
    let own = net.call(A, A, Want::Answer, &[], Some(context)).unwrap();
    let outer = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    let inner = net.call(B, B, Want::Answer, &[], Some(context)).unwrap();
    net.answer(A, A, request(&own), &[]);
    net.answer(B, A, request(&outer), &[]);
    release(&mut net, A, context);
    net.deliver_all();
    assert_eq!(net.events(A), []);
    net.answer(B, B, request(&inner), &[]);
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    net.finish();
}

/// CT-3, A3, R5: a late call in a released context fails, and what it carried is let go.
#[test]
fn a_late_call_is_refused_and_lets_go_what_it_carried() {
    for stays in [true, false] {
        let mut net = Cluster::new(3);
        let context = open(&mut net, A);
        let head = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
        net.deliver_all();
        net.answer(B, A, request(&head), &[]);
        net.deliver_all();
        // C learns of the context from a call that B makes behind the origin's back: the call is
        // made, as B may, but everything else is over before it arrives.
        let rref = net.local(B, 7);
        let head = net.call(A, C, Want::Answer, &[], Some(context)).unwrap();
        net.deliver_all();
        net.answer(C, A, request(&head), &[]);
        net.deliver_all();
        let want = if stays {
            Want::Reference(TYPE)
        } else {
            Want::Answer
        };
        let mut late = net.call(B, C, want, &[rref], None).unwrap();
        let Some(Packet::Call(packet)) = net.hold_calls(B, C).pop() else {
            panic!("a call")
        };
        assert_eq!(packet, late);
        release(&mut net, A, context);
        net.deliver_all();
        assert_eq!(net.events(A), released(context));
        late.context = Some(context);
        net.hand(id(B), C, Packet::Call(late.clone())).unwrap();
        let closed = ContextError::Closed { context };
        assert_eq!(*net.last_arrival(), Arrival::Failed(closed.into()));
        assert_eq!(net.node(C).open_contexts(), []);
        match late.target {
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                net.on(C, |node, out| {
                    node.finish_creation(id(B), rref, None, 8, out)
                });
                net.deliver_all();
                net.drop_handle(B, rref);
            }
            _ => assert!(net.answer(C, B, request(&late), &[]).is_some()),
        }
        net.drop_handle(B, rref);
        net.deliver_all();
        assert!(net.freed().contains(&7));
        net.finish();
    }
}

/// CT-3: the origin itself makes no calls in a context that it has released.
#[test]
fn no_call_is_made_in_a_context_that_is_released_or_unknown() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    let remote = net.created(A, B, 8);
    let released = open(&mut net, A);
    release(&mut net, A, released);
    assert_eq!(net.events(A), super::cluster::released(released));
    let foreign = open(&mut net, B);
    let closed = ContextError::Closed { context: released };
    let unknown = ContextError::Unknown { context: foreign };
    for (context, error) in [(released, closed), (foreign, unknown)] {
        for want in [
            Want::Answer,
            Want::Reference(TYPE),
            Want::Value(remote, TYPE),
        ] {
            let refused = net.call(A, B, want, &[rref], Some(context));
            assert_eq!(refused, Err(CallError::Context(error.clone())));
        }
        assert_eq!(
            net.node(A).ref_counters().forks,
            0,
            "nothing was changed by the attempt"
        );
        assert_eq!(net.node(A).residue().calls, 0);
    }
    release(&mut net, B, foreign);
    net.drop_handle(A, rref);
    net.drop_handle(A, remote);
    net.deliver_all();
    net.finish();
}

/// F2: a context that lost a worker fails where it is known, refuses calls, and is still released.
#[test]
fn a_context_fails_with_a_worker_that_took_part() {
    let mut net = Cluster::new(3);
    let context = open(&mut net, A);
    let lost = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    net.bury(B);
    let node = id(B);
    let request = request(&lost);
    let events = net.events(A);
    assert!(events.contains(&Event::ContextFailed { context, node }));
    assert!(events.contains(&Event::PeerLost { node, request }));
    let refused = net.call(A, C, Want::Answer, &[], Some(context));
    let error = ContextError::ParticipantLost { context, node };
    assert_eq!(refused, Err(CallError::Context(error)));
    release(&mut net, A, context);
    assert_eq!(net.events(A), released(context));
    net.finish();
}

/// CT-4: the worker that connected C to the origin dies; C is told of the release all the same.
#[test]
fn a_cleanup_reaches_a_worker_whose_caller_died() {
    for released_before in [true, false] {
        let mut net = Cluster::new(3);
        let context = open(&mut net, A);
        let outer = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
        net.deliver_all();
        let inner = net.call(B, C, Want::Answer, &[], Some(context)).unwrap();
        net.deliver_all();
        net.answer(C, B, request(&inner), &[]);
        net.answer(B, A, request(&outer), &[]);
        net.deliver_all();
        assert_eq!(net.node(C).open_contexts(), [context]);
        if released_before {
            release(&mut net, A, context);
        }
        net.bury(B);
        if !released_before {
            release(&mut net, A, context);
        }
        net.deliver_all();
        assert!(net.events(A).contains(&Event::ContextReleased(context)));
        assert_eq!(net.node(C).open_contexts(), []);
        net.finish();
    }
}

/// CT-1, A3: C calls B in the context and dies while B works on it. Nobody waits for that call's answer, and B,
/// which the origin waits for, is at rest when it has answered the origin.
#[test]
fn a_call_ends_in_its_context_with_its_caller() {
    let mut net = Cluster::new(3);
    let context = open(&mut net, A);
    let outer = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.call(A, C, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    let inner = net.call(C, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    net.bury(C);
    assert_eq!(net.answer(B, C, request(&inner), &[]), None);
    release(&mut net, A, context);
    net.deliver_all();
    assert!(!net.events(A).contains(&Event::ContextReleased(context)));
    net.answer(B, A, request(&outer), &[]);
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    net.finish();
}

/// CT-4: when the origin dies, all forget.
#[test]
fn a_context_dies_with_its_origin() {
    let mut net = Cluster::new(3);
    let context = open(&mut net, A);
    let outer = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    let inner = net.call(B, C, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    net.answer(C, B, request(&inner), &[]);
    net.deliver_all();
    net.bury(A);
    let node = id(A);
    for n in [B, C] {
        assert!(
            net.events(n)
                .contains(&Event::ContextFailed { context, node })
        );
        assert_eq!(net.node(n).open_contexts(), []);
    }
    assert_eq!(net.answer(B, A, request(&outer), &[]), None);
    let refused = net.call(B, C, Want::Answer, &[], Some(context));
    assert_eq!(
        refused,
        Err(CallError::Context(ContextError::Closed { context }))
    );
    net.finish();
}

/// A4: many contexts at once, over the same workers, keep apart.
#[test]
fn concurrent_contexts_keep_apart() {
    let mut net = Cluster::new(3);
    let contexts: Vec<_> = (0..8).map(|n| open(&mut net, n % 2)).collect();
    let origin = |n: usize| n % 2;
    let heads: Vec<_> = contexts
        .iter()
        .enumerate()
        .map(|(n, &context)| {
            net.call(origin(n), C, Want::Answer, &[], Some(context))
                .unwrap()
        })
        .collect();
    net.deliver_all();
    for (n, &context) in contexts.iter().enumerate().rev() {
        release(&mut net, origin(n), context);
    }
    net.deliver_all();
    assert_eq!(net.node(C).open_contexts().len(), 8);
    for (n, head) in heads.iter().enumerate() {
        net.answer(C, origin(n), request(head), &[]);
        net.deliver_all();
        assert_eq!(net.events(origin(n)), released(contexts[n]));
        assert_eq!(net.node(C).open_contexts().len(), 7 - n);
    }
    net.finish();
}

/// A3: a value that a node makes for itself inside a context holds the context until it is there.
#[test]
fn a_value_made_for_oneself_in_a_context_holds_its_release() {
    let mut net = Cluster::new(2);
    let context = open(&mut net, A);
    let rref = net
        .on(A, |node, out| node.create_self_in(context, TYPE, out))
        .unwrap();
    release(&mut net, A, context);
    net.deliver_all();
    assert_eq!(net.events(A), []);
    net.on(A, |node, out| {
        node.finish_creation(id(A), rref, Some(context), 7, out)
    });
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    let late = net.on(A, |node, out| node.create_self_in(context, TYPE, out));
    assert_eq!(
        late,
        Err(CallError::Context(ContextError::Closed { context }))
    );
    net.drop_handle(A, rref);
    net.finish();
}

//! Membership that somebody else decides: who is admitted and who dismissed ([`Node::admit`],
//! [`Node::dismiss`]).
//!
//! The nodes here hear of each change from the test, each at its own time, as the members of a group
//! do whose wire keeps the list.

use super::cluster::*;
use crate::error::{CallError, ContextError, RefError};
use crate::event::Event;
use crate::ids::NodeId;
use crate::node::{Arrival, Want};
use crate::standing::Departure;

fn gone(n: usize, departure: Departure) -> Event<u32> {
    let node = id(n);
    Event::Gone { node, departure }
}

/// Worker `n` is off the list; `by` reads it.
fn dismiss(net: &mut Cluster, by: usize, n: usize, departure: Departure) {
    net.on(by, |node, out| node.dismiss(id(n), departure, out));
}

/// F2, by decree: everything that was shared with the dismissed ends, at once and without a word.
#[test]
fn a_dismissal_ends_everything_that_was_shared_with_the_dismissed() {
    for departure in [Departure::Left, Departure::Died] {
        let mut net = Cluster::new(3);
        let of_a = net.local(A, 7);
        net.shared(A, B, &[of_a]);
        net.drop_handle(A, of_a);
        let of_b = net.created(A, B, 8);
        let asked = net.ask(A, B, &[]);
        let incoming = net.ask(B, A, &[]);
        net.deliver_all();
        net.crash(B);
        dismiss(&mut net, A, B, departure);
        let (node, rref) = (id(B), of_b);
        let error = RefError::OwnerLost { rref, owner: node };
        assert_eq!(
            net.events(A),
            [
                Event::Lost {
                    rref,
                    error: error.clone()
                },
                Event::PeerLost {
                    node,
                    request: asked
                },
                Event::Abandoned {
                    node,
                    request: incoming
                },
                gone(B, departure),
                Event::Settled(node),
            ]
        );
        assert_eq!(net.freed(), [7], "nobody is waited for");
        assert_eq!(net.busy(), [], "nobody is told");
        assert!(!net.node(A).membership().view().is_member(node));
        let refused = net.call(A, A, Want::Answer, &[of_b], None);
        assert_eq!(refused, Err(CallError::Reference(error)));
        // C has the same list before its eyes, a little later.
        dismiss(&mut net, C, B, departure);
        assert_eq!(
            net.events(C),
            [gone(B, departure), Event::Settled(node)],
            "what A knows says nothing about C"
        );
        assert_eq!(net.answer(A, B, incoming, &[]), None);
        net.drop_handle(A, of_b);
        net.finish();
    }
}

/// What the dismissed still had under way is not heard (ME-2).
#[test]
fn nothing_of_the_dismissed_is_heard_afterwards() {
    let mut net = Cluster::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, &[rref]);
    net.drop_handle(B, rref);
    let late = net.hold_controls(B, A);
    assert_eq!(late.len(), 1, "a release");
    net.crash(B);
    dismiss(&mut net, A, B, Departure::Died);
    let before = net.node(A).clone();
    for control in late {
        net.on(A, |node, out| node.handle(id(B), control, out))
            .unwrap();
    }
    assert_eq!(*net.node(A), before);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2: a context that the dismissed took part in fails, and one that it opened is over.
#[test]
fn the_contexts_of_the_dismissed_fail() {
    let mut net = Cluster::new(3);
    let own = net.on(A, |node, _| node.open_context());
    let untouched = net.on(A, |node, _| node.open_context());
    let foreign = net.on(B, |node, _| node.open_context());
    net.call(A, B, Want::Answer, &[], Some(own)).unwrap();
    let incoming = net.call(B, A, Want::Answer, &[], Some(foreign)).unwrap();
    net.deliver_all();
    net.crash(B);
    dismiss(&mut net, A, B, Departure::Left);
    let node = id(B);
    let events = net.events(A);
    for context in [own, foreign] {
        assert!(
            events.contains(&Event::ContextFailed { context, node }),
            "{events:?}"
        );
    }
    assert!(events.contains(&Event::ContextClosed(foreign)));
    assert_eq!(net.node(A).open_contexts(), [own, untouched]);
    let refused = net.call(A, C, Want::Answer, &[], Some(own));
    let lost = ContextError::ParticipantLost { context: own, node };
    assert_eq!(refused, Err(CallError::Context(lost)));
    let head = net
        .call(A, C, Want::Answer, &[], Some(untouched))
        .expect("B had no part in it");
    net.deliver_all();
    net.answer(C, A, request(&head), &[]);
    net.deliver_all();
    assert_eq!(net.answer(A, B, request(&incoming), &[]), None);
    for context in [own, untouched] {
        net.on(A, |node, out| node.release_context(context, out))
            .unwrap();
    }
    net.deliver_all();
    dismiss(&mut net, C, B, Departure::Left);
    net.finish();
}

/// Nobody is told of a newcomer either: whoever reads the list can call it from then on.
#[test]
fn a_node_that_is_admitted_can_be_called_at_once() {
    let mut net = Cluster::new(2);
    let newcomer = NodeId::new(9, 0);
    net.on(A, |node, out| node.admit(newcomer, out));
    assert_eq!(net.events(A), [Event::Joined(newcomer)]);
    assert_eq!(net.busy(), []);
    assert!(net.node(A).membership().is_settled());
    assert!(net.node(A).membership().view().is_member(newcomer));
    assert!(!net.node(B).membership().view().is_member(newcomer));
    let rref = net.local(A, 7);
    let called = net.on(A, |node, out| {
        node.call(newcomer, Want::Answer, &[rref], None, out)
    });
    let request = request(&called.unwrap());
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [], "the newcomer may hold it");
    net.on(A, |node, out| {
        node.dismiss(newcomer, Departure::Left, out);
    });
    assert_eq!(net.freed(), [7]);
    let node = newcomer;
    assert!(net.events(A).contains(&Event::PeerLost { node, request }));
    net.finish();
}

/// F3: the second life is another node; nothing of the first is its own.
#[test]
fn a_later_life_under_the_same_worker_id_is_another_one() {
    let mut net = Cluster::new(2);
    let of_a = net.local(A, 7);
    net.shared(A, B, &[of_a]);
    let of_b = net.created(A, B, 8);
    net.crash(B);
    dismiss(&mut net, A, B, Departure::Died);
    net.events(A);
    let reborn = NodeId::new(B as u32, 2);
    net.on(A, |node, out| node.admit(reborn, out));
    assert!(net.events(A).contains(&Event::Joined(reborn)));
    assert!(net.node(A).membership().view().is_member(reborn));
    assert!(net.node(A).membership().view().is_gone(id(B)));
    let (rref, owner) = (of_b, id(B));
    let lost = RefError::OwnerLost { rref, owner };
    assert_eq!(net.node(A).refs(of_b).check(of_b), Err(lost));
    // A call of the first life, late: as if it had never been sent.
    let call = net.on(A, |node, out| {
        node.call(reborn, Want::Answer, &[of_a], None, out)
    });
    let head = call.unwrap();
    assert_eq!(head.carried.len(), 1, "the new life is given a share anew");
    net.on(A, |node, out| node.dismiss(reborn, Departure::Left, out));
    net.drop_handle(A, of_a);
    net.drop_handle(A, of_b);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// A list is read again and again: what it said before changes nothing.
#[test]
fn what_is_known_already_changes_nothing() {
    let mut net = Cluster::new(3);
    let rref = net.created(A, B, 7);
    let unchanged = |net: &mut Cluster, what: &str, input: &dyn Fn(&mut Cluster)| {
        let before = net.node(A).clone();
        input(net);
        assert_eq!(*net.node(A), before, "{what}");
        assert_eq!(net.events(A), [], "{what}");
        assert_eq!(net.busy(), [], "{what}");
    };
    unchanged(&mut net, "a member is admitted", &|net| {
        net.on(A, |node, out| node.admit(id(B), out));
    });
    unchanged(&mut net, "an unknown one is dismissed", &|net| {
        dismiss(net, A, 9, Departure::Died);
    });
    unchanged(&mut net, "a life that never came is dismissed", &|net| {
        let never = NodeId::new(B as u32, 2);
        net.on(A, |node, out| node.dismiss(never, Departure::Left, out));
    });
    assert_eq!(net.node(A).refs(rref).check(rref), Ok(()));
    net.drop_handle(A, rref);
    net.deliver_all();
    dismiss(&mut net, A, C, Departure::Left);
    assert_eq!(net.events(A).len(), 2);
    unchanged(&mut net, "one is dismissed twice", &|net| {
        dismiss(net, A, C, Departure::Left);
    });
    unchanged(
        &mut net,
        "the dismissed is admitted in its old life",
        &|net| {
            net.on(A, |node, out| node.admit(id(C), out));
        },
    );
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// An unknown one that was dismissed is no dead one: it may come, in this life.
#[test]
fn a_dismissal_that_comes_before_the_admission_does_not_forbid_it() {
    let mut net = Cluster::new(1);
    let early = NodeId::new(5, 1);
    net.on(A, |node, out| node.dismiss(early, Departure::Died, out));
    net.on(A, |node, out| node.admit(early, out));
    assert!(net.node(A).membership().view().is_member(early));
    net.finish();
}

/// What a node waits for itself: not for what others wait for, nor for what it has given up.
#[test]
fn only_calls_of_its_own_that_it_still_wants_keep_a_node() {
    let mut net = Cluster::new(2);
    let wanted = |net: &Cluster| net.node(A).wanted_calls();
    assert_eq!(wanted(&net), 0);
    let answered = net.ask(A, B, &[]);
    let given_up = net.ask(A, B, &[]);
    assert_eq!(wanted(&net), 2);
    net.deliver_all();
    net.answer(B, A, answered, &[]);
    net.deliver_all();
    assert_eq!(wanted(&net), 1);
    assert!(net.cancel(A, B, given_up));
    assert_eq!(wanted(&net), 0);
    assert_eq!(net.node(A).residue().calls, 1, "it is open (CA-1)");
    net.deliver_all();
    net.answer(B, A, given_up, &[]);
    net.deliver_all();
    let incoming = net.ask(B, A, &[]);
    net.deliver_all();
    assert!(matches!(net.last_arrival(), Arrival::Run));
    assert_eq!(
        wanted(&net),
        0,
        "a call is being worked on, which is the caller's"
    );
    net.answer(A, B, incoming, &[]);
    net.deliver_all();
    assert_eq!((wanted(&net), net.node(A).residue().calls), (0, 0));
    net.finish();
}

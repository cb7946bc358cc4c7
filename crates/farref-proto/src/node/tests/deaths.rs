//! Members that die, leave, and return, with everything they owned, held and were asked (F2, F3).

use super::cluster::*;
use crate::error::{CallError, RefError};
use crate::event::Event;
use crate::ids::{ContextId, MessageId, NodeId};
use crate::limits::MAX_BATCH;
use crate::membership::{Change, Membership, Outcome};
use crate::message::{CallHead, Control, Target};
use crate::node::{Arrival, Node, NodeConfig, Want};
use crate::outbox::Outbox;
use crate::standing::{Departure, Phase};

fn died(n: usize) -> Event<u32> {
    let (node, departure) = (id(n), Departure::Died);
    Event::Gone { node, departure }
}

/// F2: calls fail with whom they were made of, holdings are released, references say so.
#[test]
fn a_death_ends_everything_that_was_shared_with_the_dead() {
    let mut net = Cluster::new(2);
    let of_a = net.local(A, 7);
    net.shared(A, B, &[of_a]);
    net.drop_handle(A, of_a);
    let of_b = net.created(A, B, 8);
    let asked = net.ask(A, B, &[]);
    let fetched = net.fetch(A, B, of_b);
    let cancelled = net.ask(A, B, &[]);
    assert!(net.cancel(A, B, cancelled));
    let incoming = net.ask(B, A, &[]);
    net.deliver_all();
    net.bury(B);
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
            Event::PeerLost {
                node,
                request: fetched
            },
            Event::Abandoned {
                node,
                request: incoming
            },
            died(B),
            Event::Settled(node),
        ]
    );
    assert_eq!(net.freed(), [7]);
    let refused = net.call(A, A, Want::Answer, &[of_b], None);
    assert_eq!(refused, Err(CallError::Reference(error)));
    net.drop_handle(A, of_b);
    net.finish();
}

/// R4, ME-3: owner A, middle B, receiver C. The death of B is learnt in every order of A and C, with
/// C's registration as late as its lane allows.
#[test]
fn the_receivers_reference_survives_the_middle_worker() {
    for (learns_first, hurry) in [(A, false), (C, false), (A, true), (C, true)] {
        let mut net = Cluster::new(3);
        let rref = net.local(A, 7);
        net.shared(A, B, &[rref]);
        net.drop_handle(A, rref);
        net.ask(B, C, &[rref]);
        net.deliver_call(B, C);
        if hurry {
            net.deliver_control(C, A);
        }
        net.crash(B);
        net.suspect(learns_first, B);
        if learns_first == A {
            // A has told C; nothing of C has arrived yet.
            assert_eq!(
                net.events(A).last(),
                Some(&died(B)),
                "not settled before C's word"
            );
        }
        net.deliver_all();
        assert_eq!(net.freed(), []);
        assert_eq!(net.node(C).refs(rref).check(rref), Ok(()));
        let fetch = net.fetch(C, A, rref);
        net.deliver_all();
        assert_eq!(*net.last_arrival(), Arrival::Value(7));
        net.answer(A, C, fetch, &[]);
        net.drop_handle(C, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// ME-3: the death is settled only when the receiver has given its word, and it does when the owner has answered its
/// registration.
#[test]
fn a_registration_is_answered_before_the_word_on_the_death() {
    let mut net = Cluster::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, &[rref]);
    net.drop_handle(A, rref);
    net.ask(B, C, &[rref]);
    net.deliver_call(B, C);
    net.crash(B);
    net.suspect(A, B);
    net.deliver_control(A, C);
    let said: Vec<_> = net.controls(C, A).iter().map(Control::name).collect();
    assert_eq!(said, ["register"]);
    net.deliver_control(C, A);
    assert!(net.controls(C, A).is_empty());
    net.deliver_control(A, C);
    let said: Vec<_> = net.controls(C, A).iter().map(Control::name).collect();
    assert_eq!(said, ["known"]);
    net.deliver_all();
    net.drop_handle(C, rref);
    net.finish();
}

/// RT-7, ME-3: the dead child had handed it on; its parent adopts before it releases. Whoever hears of
/// the adoption has heard of the death before: were it the other way round, and the parent died in
/// between, a holder that others know to live would have a fork that it knows nothing of.
#[test]
fn an_adoption_comes_after_the_word_on_the_death_and_before_the_release() {
    let mut net = Cluster::new(4);
    let rref = net.created(B, A, 7);
    net.ask(B, C, &[rref]);
    net.drop_handle(B, rref);
    net.deliver_call(B, C);
    net.ask(C, D, &[rref]);
    net.hold_controls(C, A);
    net.deliver_call(C, D);
    net.crash(C);
    net.suspect(A, C);
    net.deliver_control(A, B);
    let said: Vec<_> = net.controls(B, A).iter().map(Control::name).collect();
    assert_eq!(said, ["view", "adopt", "release", "known"]);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    assert_eq!(net.node(D).refs(rref).check(rref), Ok(()));
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-7: the dead child returns as a life that nobody expected, a third one; the second was never let
/// in. Its first life is not settled by that, and the adoption still counts.
#[test]
fn a_skipped_incarnation_settles_nothing() {
    let mut net = Cluster::new(4);
    let rref = net.created(B, A, 7);
    net.ask(B, C, &[rref]);
    net.drop_handle(B, rref);
    net.deliver_call(B, C);
    net.ask(C, D, &[rref]);
    net.hold_controls(C, A);
    net.deliver_call(C, D);
    let registration = net.hold_controls(D, A);
    net.restart(C, 3, B);
    while net.bring_control((NodeId::new(C as u32, 3), id(B))) {}
    while net.bring_control((id(B), id(A))) {}
    assert_eq!(net.freed(), [], "D's registration is under way");
    for control in registration {
        net.on(A, |node, out| node.handle(id(D), control, out))
            .unwrap();
    }
    net.deliver_all();
    assert_eq!(net.node(D).refs(rref).check(rref), Ok(()));
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// ME-5: A → B → C → D, the middle two die together; D's registration is held back to the last.
#[test]
fn two_simultaneous_deaths_in_a_chain_lose_nothing() {
    for order in [[B, C], [C, B]] {
        let mut net = Cluster::new(4);
        let rref = net.local(A, 7);
        net.shared(A, B, &[rref]);
        net.drop_handle(A, rref);
        net.ask(B, C, &[rref]);
        net.deliver_call(B, C);
        net.ask(C, D, &[rref]);
        net.deliver_call(C, D);
        for dead in order {
            net.crash(dead);
            net.hold_controls(dead, A);
        }
        for dead in order {
            net.suspect(A, dead);
        }
        assert!(
            !net.events(A)
                .iter()
                .any(|event| matches!(event, Event::Settled(_)))
        );
        net.deliver_all();
        assert_eq!(net.freed(), []);
        assert_eq!(net.node(D).refs(rref).check(rref), Ok(()));
        net.drop_handle(D, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// RT-10, F2: a fetch waits for a creation whose creator dies: it is answered.
#[test]
fn a_fetch_that_waits_for_a_dead_creator_is_answered() {
    let mut net = Cluster::new(3);
    let rref = net.remote(A, B);
    net.hold_calls(A, B);
    net.ask(A, C, &[rref]);
    net.deliver_all();
    let fetch = net.fetch(C, B, rref);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Waiting);
    net.bury(A);
    let events = net.events(B);
    let creator_lost = |event: &Event<u32>| {
        matches!(
            event,
            Event::Fetched {
                outcome: Err(RefError::CreatorLost { .. }),
                ..
            }
        )
    };
    assert!(events.iter().any(creator_lost), "{events:?}");
    net.answer(B, C, fetch, &[]);
    net.drop_handle(C, rref);
    net.finish();
}

/// F3, H11: the worker comes back under the same name; what its old life said or held is void.
#[test]
fn hole_h11_a_returning_worker_has_nothing_of_its_old_life() {
    let mut net = Cluster::new(3);
    let held = net.local(A, 7);
    net.shared(A, B, &[held]);
    net.drop_handle(A, held);
    let owned = net.local(B, 8);
    net.shared(B, C, &[owned]);
    let late = net.call(B, C, Want::Answer, &[owned], None).unwrap();
    net.hold_calls(B, C);
    net.restart(B, 2, A);
    net.deliver_all();
    let reborn = NodeId::new(B as u32, 2);
    assert_eq!(net.node(B).membership().phase(), Phase::Member);
    assert_eq!(net.freed(), [7], "what the old life held is released");
    for n in [A, C] {
        let events = net.events(n);
        assert!(events.contains(&died(B)) && events.contains(&Event::Joined(reborn)));
        assert!(events.contains(&Event::Settled(id(B))));
    }
    let (rref, owner) = (owned, id(B));
    let lost = RefError::OwnerLost { rref, owner };
    assert_eq!(net.node(C).refs(owned).check(owned), Err(lost));
    // A frame of the old life, come through at last, does nothing.
    let before = net.node(C).clone();
    net.hand(id(B), C, Packet::Call(late)).unwrap();
    assert_eq!(*net.last_arrival(), Arrival::Ignored);
    let join = net.on(C, |node, out| {
        node.handle(id(B), Control::Suspect(id(A)), out)
    });
    assert_eq!((join, net.node(C)), (Ok(()), &before));
    // The new life is a member like any other.
    let fresh = net.created(B, C, 9);
    assert_eq!(fresh.origin, reborn);
    net.shared(B, A, &[fresh]);
    net.drop_handle(B, fresh);
    net.drop_handle(A, fresh);
    net.drop_handle(C, owned);
    net.deliver_all();
    assert_eq!(net.freed(), [9]);
    net.finish();
}

/// F3: a life that is over is told so when it asks to be let in.
#[test]
fn a_life_that_is_over_is_not_let_in_again() {
    let mut net = Cluster::new(2);
    net.bury(B);
    net.restart(B, 1, A);
    net.deliver_all();
    assert_eq!(net.node(B).membership().phase(), Phase::Evicted);
    assert_eq!(net.events(B), [Event::Evicted]);
    net.finish();
}

/// S3: a newcomer calls and is called once it is welcome.
#[test]
fn a_newcomer_takes_part_once_it_is_welcome() {
    let mut net = Cluster::new(3);
    net.bury(C);
    net.restart(C, 2, A);
    let refused = net.call(C, A, Want::Answer, &[], None);
    let phase = Phase::Joining;
    assert_eq!(refused, Err(CallError::NotMember { phase }));
    net.deliver_control(C, A);
    let refused = net.call(A, C, Want::Answer, &[], None);
    let node = NodeId::new(C as u32, 2);
    assert_eq!(
        refused,
        Err(CallError::PeerGone { node }),
        "ME-4: not every member knows it"
    );
    net.deliver_all();
    assert!(net.events(C).contains(&Event::Welcomed));
    let rref = net.local(A, 7);
    net.shared(A, C, &[rref]);
    net.shared(C, B, &[rref]);
    for n in [A, B, C] {
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// S3: a leaver's holdings are released by the same path as those of the dead.
#[test]
fn a_member_that_leaves_lets_everything_go() {
    let mut net = Cluster::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, &[rref]);
    net.shared(B, C, &[rref]);
    net.drop_handle(A, rref);
    net.on(B, |node, out| {
        node.release_everything(out);
        node.leave(out);
    });
    net.deliver_all();
    assert!(net.events(B).contains(&Event::Departed));
    let (node, departure) = (id(B), Departure::Left);
    assert!(net.events(A).contains(&Event::Gone { node, departure }));
    net.crash(B);
    assert_eq!(net.freed(), [], "C has it");
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2: a node that the others have declared dead learns it when they refuse it.
#[test]
fn a_node_that_is_refused_is_evicted_and_its_references_are_lost() {
    let mut net = Cluster::new(2);
    let owned = net.local(A, 7);
    let held = net.created(A, B, 8);
    let request = net.ask(A, B, &[held]);
    net.on(A, |node, out| node.refused(id(B), out));
    let events = net.events(A);
    let node = id(B);
    assert!(events.contains(&Event::PeerLost { node, request }));
    assert!(events.contains(&Event::Evicted));
    assert_eq!(net.freed(), [7]);
    assert_eq!(
        net.node(A).refs(owned).check(owned),
        Err(RefError::Destroyed)
    );
    let (refused, phase) = (net.call(A, B, Want::Answer, &[], None), Phase::Evicted);
    assert_eq!(refused, Err(CallError::NotMember { phase }));
    net.bury(A);
    assert_eq!(net.freed(), [8]);
    net.finish();
}

/// R7: a reference to a newcomer's value may arrive before the word that the newcomer was let in; it can
/// be used at once.
#[test]
fn a_value_of_a_newcomer_can_be_fetched_by_one_that_has_only_heard_that_it_joins() {
    let mut net = Cluster::new(3);
    net.restart(C, 2, A);
    net.deliver_control(C, A);
    for n in [B, C] {
        net.deliver_control(A, n);
        net.deliver_control(n, A);
    }
    while !net.controls(A, C).is_empty() {
        net.deliver_control(A, C);
    }
    while !net.controls(C, A).is_empty() {
        net.deliver_control(C, A);
    }
    let rref = net.remote(A, C);
    net.deliver_call(A, C);
    net.fulfil(A, C, rref, 7);
    let handed = net.ask(A, B, &[rref]);
    net.deliver_call(A, B);
    let newcomer = net.node(C).me();
    assert!(!net.node(B).membership().view().is_member(newcomer));
    let fetch = net.fetch(B, C, rref);
    net.deliver_all();
    assert_eq!(*net.last_arrival(), Arrival::Value(7));
    net.answer(C, B, fetch, &[]);
    net.answer(B, A, handed, &[]);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2: nobody on an evicted node goes on waiting, neither for a confirmation nor for a release, be it
/// held up by a call or by those who have to forget.
#[test]
fn an_evicted_node_tells_all_who_wait_for_a_confirmation_or_a_release() {
    let mut net = Cluster::new(2);
    let unconfirmed = net.remote(A, B);
    let [busy, closing, open] = [(); 3].map(|()| net.on(A, |node, _| node.open_context()));
    net.call(A, B, Want::Answer, &[], Some(busy)).unwrap();
    let over = net.call(A, B, Want::Answer, &[], Some(closing)).unwrap();
    net.hand(id(A), B, Packet::Call(over.clone())).unwrap();
    net.answer(B, A, request(&over), &[]);
    net.deliver_control(B, A);
    for context in [busy, closing] {
        net.on(A, |node, out| node.release_context(context, out))
            .unwrap();
    }
    net.events(A);
    net.on(A, |node, out| node.refused(id(B), out));
    let events = net.events(A);
    let (rref, error) = (unconfirmed, RefError::Destroyed);
    assert_eq!(events[0], Event::Evicted);
    assert!(events.contains(&Event::Lost { rref, error }));
    for context in [busy, closing] {
        assert!(events.contains(&Event::ContextNotReleased(context)));
    }
    assert!(!events.contains(&Event::ContextNotReleased(open)));
    net.bury(A);
    net.finish();
}

/// CT-1, F2: a call abandoned with its dead caller is over for its context, too.
#[test]
fn a_call_abandoned_with_its_caller_holds_no_context_up() {
    let mut net = Cluster::new(3);
    let context = net.on(A, |node, _| node.open_context());
    let to_c = net.call(A, C, Want::Answer, &[], Some(context)).unwrap();
    let to_b = net.call(A, B, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    net.call(B, A, Want::Answer, &[], Some(context)).unwrap();
    net.call(B, C, Want::Answer, &[], Some(context)).unwrap();
    net.deliver_all();
    net.bury(B);
    let (node, request_to_b) = (id(B), request(&to_b));
    assert!(net.events(A).contains(&Event::PeerLost {
        node,
        request: request_to_b
    }));
    net.answer(C, A, request(&to_c), &[]);
    net.on(A, |node, out| node.release_context(context, out))
        .unwrap();
    net.deliver_all();
    assert_eq!(net.events(A), released(context));
    net.finish();
}

/// D5: those who have departed are remembered for good, and once for all tables, however many there are.
#[test]
fn the_departed_are_remembered_once_for_all_tables() {
    let config = NodeConfig {
        ref_shards: 4,
        ..NodeConfig::default()
    };
    let membership = Membership::founding(id(A), (0..10).map(id));
    let mut node: Node<u32> = Node::new(id(A), membership, config);
    for dead in (1..10).rev() {
        let mut out = Outbox::new();
        node.suspect(id(dead), &mut out);
        let known = Control::Known(node.membership().view().digest());
        for other in 1..dead {
            assert_eq!(node.handle(id(other), known.clone(), &mut out), Ok(()));
        }
        assert!(node.membership().is_settled());
        let gone = node.refs[0].gone_mut().clone();
        let settled = node.refs[0].settled_mut().clone();
        assert!(gone.covers(id(dead)) && settled.covers(id(dead)));
        for table in &mut node.refs {
            assert!(table.gone_mut().shares_with(&gone));
            assert!(table.settled_mut().shares_with(&settled));
        }
        let mut contexts = node.contexts.iter_mut();
        assert!(contexts.all(|table| table.gone_mut().shares_with(&gone)));
    }
}

/// RT-7, RT-12: A leads, and hands a value of B's to one who is no member, and whom nobody else knows. Should that one be taken for
/// dead, B hears so before it hears of the adoption.
#[test]
fn of_the_death_of_one_who_was_never_met_is_told_before_what_it_had_is_adopted() {
    let mut net = Cluster::new(2);
    let rref = net.local(B, 7);
    net.shared(B, A, &[rref]);
    let (stranger, request) = (NodeId::new(900, 1), MessageId(5));
    let head = CallHead {
        target: Target::Answer(request),
        context: None,
        carried: Vec::new(),
    };
    let arrived = net.on(A, |node, out| node.receive_call(stranger, &head, out));
    assert!(arrived.is_ok(), "{arrived:?}");
    let answered = net.on(A, |node, out| node.answer(stranger, request, &[rref], out));
    assert!(answered.is_ok_and(|head| head.is_some()));
    net.drop_handle(A, rref);
    net.on(A, |node, out| node.suspect(stranger, out));
    let said = net.controls(A, B);
    let adoption = |control: &Control| matches!(control, Control::Adopt(_));
    assert!(said.iter().any(adoption), "{said:?}");
    // B would cut off whoever adopts for one who lives.
    net.deliver_all();
    net.drop_handle(B, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2, D4, RT-7: one calls that is no member, and a later life of its worker is taken for dead. With that all is over that the
/// earlier one has to do with, though nobody ever says so of it.
#[test]
fn with_a_life_its_earlier_ones_are_over_also_if_they_were_never_met() {
    for later in [1, 9] {
        let mut net = Cluster::new(2);
        let of_b = net.local(B, 7);
        net.shared(B, A, &[of_b]);
        let building = net.remote(B, A);
        net.deliver_all();
        let stranger = NodeId::new(900, 1);
        let call = |net: &mut Cluster, request, target, context| {
            let (context, carried) = (context, Vec::new());
            let head = CallHead {
                target,
                context,
                carried,
            };
            let arrived = net.on(A, |node, out| node.receive_call(stranger, &head, out));
            assert!(arrived.is_ok(), "{arrived:?}");
            MessageId(request)
        };
        let answered = call(&mut net, 5, Target::Answer(MessageId(5)), None);
        let sent = net.on(A, |node, out| node.answer(stranger, answered, &[of_b], out));
        assert!(sent.is_ok_and(|head| head.is_some()));
        let fetch = Target::Fetch(MessageId(6), building, TYPE);
        let fetching = call(&mut net, 6, fetch, None);
        let context = ContextId::new(stranger, 1);
        let running = call(&mut net, 7, Target::Answer(MessageId(7)), Some(context));
        net.events(A);

        let last = NodeId::new(900, later);
        net.on(A, |node, out| node.suspect(last, out));
        let events = net.events(A);
        for request in [fetching, running] {
            let node = stranger;
            let abandoned = Event::Abandoned { node, request };
            assert!(events.contains(&abandoned), "{later}: {events:?}");
        }
        assert!(
            events.contains(&Event::ContextClosed(context)),
            "{events:?}"
        );
        net.deliver_all();
        net.drop_handle(A, of_b);
        net.drop_handle(B, of_b);
        net.deliver_all();
        assert_eq!(net.freed(), [7], "nobody holds it for the stranger");
        net.fulfil(B, A, building, 8);
        net.drop_handle(B, building);
        net.deliver_all();
        assert_eq!(net.freed(), [8]);
        net.finish();
    }
}

/// D5, RT-7: many depart at one time. The news of it goes before what follows from it, in messages that whoever hears them
/// takes in.
#[test]
fn the_news_of_many_departures_goes_out_in_several_messages() {
    let many = MAX_BATCH + 1;
    let members = (0..many + 2).map(id);
    let membership = Membership::founding(id(A), members.clone());
    let mut node: Node<u32> = Node::new(id(A), membership, NodeConfig::default());
    let mut out = Outbox::new();
    let made = node.call(id(B), Want::Reference(TYPE), &[], None, &mut out);
    let rref = reference(&made.unwrap());
    let handed = node.call(id(C), Want::Answer, &[rref], None, &mut out);
    assert!(handed.is_ok());
    let outcome = Outcome {
        changes: members
            .skip(C)
            .map(|dead| Change::Gone(dead, Departure::Died))
            .collect(),
        ..Outcome::default()
    };
    node.apply(outcome, &mut out);
    let mut told = Vec::new();
    let mut adopted = false;
    while let Some((to, control)) = out.pop_control() {
        match control {
            Control::View { entries, .. } if to == id(B) => {
                assert!(!adopted);
                told.push(entries.len());
            }
            Control::Adopt(_) => adopted = true,
            _ => {}
        }
    }
    assert!(adopted);
    assert_eq!(told, [MAX_BATCH, 1]);
}

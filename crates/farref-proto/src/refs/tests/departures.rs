//! Holders, owners, creators and middle workers that die (F2, R2, R4, RT-6, RT-7, RT-11).

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::ids::{Fingerprint, ForkId, NodeId, RRefId};
use crate::message::{Adoption, Control, DeclineReason, Share};
use crate::refs::{Fetch, RefTableConfig};

/// H1, RT-6: what a dead holder held is released once the departure is settled, not before.
#[test]
fn hole_h1_a_dead_holder_is_released_when_its_death_is_settled() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.crash(A);
    net.gone(B, A);
    net.gone(C, A);
    assert_eq!(
        net.holders(B, rref),
        [A],
        "others may still speak of what it handed them"
    );
    net.settled(B, A);
    assert_eq!(net.freed(), [7]);
    net.settled(C, A);
    net.finish();
}

/// RT-3, R2: somebody departs who has nothing to do with the reference. Its parent is told all the same when the
/// child stands on its own.
#[test]
fn a_departure_leaves_what_is_due_to_other_parents() {
    let mut net = Tables::new(4);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.share(B, C, rref);
    net.deliver(B, C);
    let register = net.hold(C, A);
    net.bury(D);
    net.push(C, A, register[0].clone());
    for n in [A, B, C] {
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-6, R5 (H3): a fork in a message to a node that died before reading it.
#[test]
fn hole_h3_a_fork_on_its_way_to_a_dead_node_is_released_with_it() {
    let mut net = Tables::new(3);
    let owned = net.local(A, 7);
    let held = net.created(A, B, 8);
    net.share(A, C, owned);
    net.share(A, C, held);
    net.drop_handle(A, owned);
    net.drop_handle(A, held);
    net.bury(C);
    net.deliver_all();
    let mut freed = net.freed();
    freed.sort_unstable();
    assert_eq!(freed, [7, 8]);
    net.finish();
}

/// H2, RT-11, F2: references to a dead owner's values say so, confirmed or not, at once.
#[test]
fn hole_h2_a_reference_whose_owner_died_says_so() {
    let mut net = Tables::new(2);
    let confirmed = net.created(A, B, 7);
    let unconfirmed = net.remote(A, B);
    net.crash(B);
    net.gone(A, B);
    let lost = |rref| RefError::OwnerLost { rref, owner: id(B) };
    let events = [confirmed, unconfirmed].map(|rref| Event::Lost {
        rref,
        error: lost(rref),
    });
    assert_eq!(net.events(A), events);
    assert_eq!(net.table(A).check(unconfirmed), Err(lost(unconfirmed)));
    let refused = net.on(A, |table, _| table.create_remote(id(B), TYPE));
    assert!(matches!(refused, Err(RefError::OwnerLost { .. })));
    net.drop_handle(A, confirmed);
    net.drop_handle(A, unconfirmed);
    net.finish();
}

/// RT-11: a reference that arrives when its owner is known to be gone is lost, and its parent freed.
#[test]
fn a_reference_received_after_its_owner_died_is_lost() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.crash(B);
    net.gone(C, B);
    net.deliver(A, C);
    let owner = id(B);
    assert_eq!(
        net.table(C).check(rref),
        Err(RefError::OwnerLost { rref, owner })
    );
    assert!(matches!(
        net.pending(C, A)[..],
        [Packet::Control(Control::Accept(_))]
    ));
    net.gone(A, B);
    net.deliver_all();
    net.drop_handle(C, rref);
    net.finish();
}

/// A reference cannot be handed to a node that is gone.
#[test]
fn nothing_is_handed_to_a_node_that_is_gone() {
    let mut net = Tables::new(3);
    let owned = net.local(A, 7);
    let held = net.created(A, B, 8);
    net.bury(C);
    for rref in [owned, held] {
        let lost = RefError::ReceiverLost { rref, node: id(C) };
        assert_eq!(net.on(A, |table, _| table.fork(rref, id(C))), Err(lost));
        net.drop_handle(A, rref);
    }
    net.finish();
}

/// R4: the middle worker B of owner A → B → C dies. Whatever the order in which the owner hears of
/// the registration, of the death and of its settling, C's reference survives.
#[test]
fn the_receivers_reference_survives_the_middle_worker() {
    #[derive(Clone, Copy, PartialEq)]
    enum Registered {
        BeforeDeath,
        AfterDeath,
        JustBeforeSettled,
    }
    for when in [
        Registered::BeforeDeath,
        Registered::AfterDeath,
        Registered::JustBeforeSettled,
    ] {
        for child_knows_first in [true, false] {
            let mut net = Tables::new(3);
            let rref = net.local(A, 7);
            net.shared(A, B, rref);
            net.drop_handle(A, rref);
            net.share(B, C, rref);
            net.deliver(B, C);
            if when == Registered::BeforeDeath {
                net.deliver(C, A);
            }
            net.crash(B);
            if child_knows_first {
                net.gone(C, B);
            }
            net.gone(A, B);
            if when == Registered::AfterDeath {
                net.deliver(C, A);
            }
            if !child_knows_first {
                net.gone(C, B);
            }
            // ME-3: what C has to say comes before its word on the death.
            net.deliver_all();
            net.settled(A, B);
            net.settled(C, B);
            assert_eq!((net.holders(A, rref), net.freed()), (vec![C], vec![]));
            assert_eq!(net.table(C).check(rref), Ok(()));
            assert_eq!(net.fetch(A, rref, waiter(C, 1)), Ok(Fetch::Ready(7)));
            net.drop_handle(C, rref);
            net.deliver_all();
            assert_eq!(net.freed(), [7]);
            net.finish();
        }
    }
}

/// R4: the middle worker had dropped its own, and C's acceptance never reached it.
#[test]
fn the_receivers_reference_survives_a_middle_worker_that_only_waited_for_it() {
    let mut net = Tables::new(4);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.deliver(A, C);
    net.drop_handle(C, rref);
    net.crash(A);
    net.gone(C, A);
    net.gone(B, A);
    net.deliver_all();
    // C's own drop was waiting for the confirmation only; the dead parent's share is all that is left.
    assert_eq!((net.holders(B, rref), net.freed()), (vec![A], vec![]));
    net.settled(B, A);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-7: C hands it on to D and dies before it has registered; its parent A speaks for it.
#[test]
fn a_parent_registers_for_a_child_that_died_after_handing_it_on() {
    let mut net = Tables::new(4);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.deliver(A, C);
    net.share(C, D, rref);
    net.hold(C, B);
    net.deliver(C, D);
    net.crash(C);
    net.gone(A, C);
    let adopts = net.pending(A, B);
    let [
        Packet::Control(Control::Adopt(_)),
        Packet::Control(Control::Release(_)),
    ] = adopts[..]
    else {
        panic!("the adoption goes before the own release, not {adopts:?}")
    };
    net.gone(B, C);
    net.deliver_pair(A, B);
    assert_eq!(
        (net.holders(B, rref), net.freed()),
        (vec![C], vec![]),
        "in the dead child's name"
    );
    net.gone(D, C);
    net.deliver_all();
    for n in [A, B, D] {
        net.settled(n, C);
    }
    assert_eq!((net.holders(B, rref), net.freed()), (vec![D], vec![]));
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-7: the child never handed it on, or had registered or even released it already.
#[test]
fn an_adoption_is_released_with_the_dead_child_whatever_that_had_done() {
    for progress in 0..4 {
        let mut net = Tables::new(3);
        let rref = net.created(A, B, 7);
        net.share(A, C, rref);
        if progress > 0 {
            net.deliver(A, C);
        }
        if progress > 1 {
            net.deliver(C, B);
        }
        if progress > 2 {
            net.deliver(B, C);
            net.hold(C, A);
            net.drop_handle(C, rref);
            net.deliver(C, B);
        }
        net.drop_handle(A, rref);
        net.bury(C);
        net.deliver_all();
        assert_eq!(net.freed(), [7], "progress {progress}");
        net.finish();
    }
}

/// RT-7: after settling, nothing of the departed is added any more.
#[test]
fn an_adoption_after_settling_registers_nothing() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.crash(C);
    net.gone(A, C);
    let adoption = net.hold(A, B);
    net.gone(B, C);
    net.settled(B, C);
    net.settled(A, C);
    adoption
        .into_iter()
        .for_each(|packet| net.push(A, B, packet));
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [A]);
    net.drop_handle(A, rref);
    net.finish();
}

/// RT-7, D5: B waits for no more values. C, whom A handed one that B has not heard of, hands it on to D and dies, and A adopts
/// before its creation is there. Whatever A lets go of then, the value stays for D.
#[test]
fn what_a_creator_adopts_is_kept_whatever_the_quota() {
    let config = RefTableConfig {
        max_pending_owners: 0,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(4, config);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.deliver(A, C);
    net.share(C, D, rref);
    net.hold(C, B);
    net.deliver(C, D);
    let late = net.hold(D, B);
    net.crash(C);
    net.gone(B, C);
    net.gone(A, C);
    net.deliver_pair(A, B);
    assert_eq!(net.holders(B, rref), [C], "in the dead child's name");
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    assert_eq!((net.holders(B, rref), net.freed()), (vec![C], vec![]));
    net.gone(D, C);
    late.into_iter().for_each(|packet| net.push(D, B, packet));
    net.deliver_all();
    assert!(net.table(D).is_confirmed(rref));
    for n in [A, B, D] {
        net.settled(n, C);
    }
    assert_eq!((net.holders(B, rref), net.freed()), (vec![D], vec![]));
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// D5, RT-7: the quota is for those who adopt what another has created, and what a creator adopted beyond it goes with the
/// dead child if the creation never comes.
#[test]
fn an_adoption_beyond_the_quota_is_the_creators_and_goes_with_the_dead_child() {
    for (by, kept) in [(A, 1), (D, 0)] {
        let config = RefTableConfig {
            max_pending_owners: 0,
            ..RefTableConfig::default()
        };
        let mut net = Tables::with(4, config);
        let rref = RRefId::new(id(A), 0);
        let fork = ForkId::new(id(by), 9);
        let adoption = Adoption {
            share: Share { rref, fork },
            holder: id(C),
            fingerprint: TYPE,
        };
        net.gone(B, C);
        let adopt = Control::Adopt(vec![adoption]);
        net.hand(by, B, Packet::Control(adopt)).unwrap();
        assert_eq!(net.table(B).counters().pending_owners, kept, "by {by}");
        net.settled(B, C);
        assert!(net.table(B).is_empty());
        net.finish();
    }
}

/// ME-5: A → B → C → D, and B and C die together before either has registered.
#[test]
fn two_simultaneous_deaths_in_a_chain_lose_nothing() {
    for first in [B, C] {
        let mut net = Tables::new(4);
        let rref = net.local(A, 7);
        net.shared(A, B, rref);
        net.drop_handle(A, rref);
        net.share(B, C, rref);
        net.deliver(B, C);
        net.share(C, D, rref);
        net.deliver(C, D);
        let second = if first == B { C } else { B };
        for dead in [first, second] {
            net.crash(dead);
            net.hold(dead, A);
            net.gone(A, dead);
        }
        assert_eq!((net.holders(A, rref), net.freed()), (vec![B], vec![]));
        for dead in [second, first] {
            net.gone(D, dead);
        }
        net.deliver_all();
        for dead in [first, second] {
            net.settled(A, dead);
            net.settled(D, dead);
        }
        assert_eq!((net.holders(A, rref), net.freed()), (vec![D], vec![]));
        net.drop_handle(D, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// H10, RT-10: the creator dies before its creation arrives; whoever waits is answered.
#[test]
fn hole_h10_a_creator_that_died_before_its_creation_arrived_is_named() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    net.hold(A, B);
    net.shared(A, C, rref);
    net.share(C, B, rref);
    net.deliver_all();
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Waiting));
    net.crash(A);
    net.gone(B, A);
    net.gone(C, A);
    assert_eq!(
        net.events(B),
        [],
        "the creation may have been received by nobody, or not: wait"
    );
    net.settled(B, A);
    net.settled(C, A);
    let error = RefError::CreatorLost { rref };
    let (waiter, outcome) = (waiter(C, 1), Err(error.clone()));
    assert_eq!(
        net.events(B),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    assert_eq!(
        net.fetch(B, rref, waiter),
        Err(error.clone()),
        "at every later use, too"
    );
    assert_eq!(net.table(B).check(rref), Err(error.clone()));
    assert_eq!(net.on(B, |table, _| table.fork(rref, id(C))), Err(error));
    assert_eq!(net.table(B).counters().pending_owners, 0);
    assert_eq!(
        net.holders(B, rref),
        [C],
        "registered, of a value that will never be"
    );
    net.drop_handle(B, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [], "there never was a value");
    net.finish();
}

/// RT-10: and whoever comes after that is declined, or gets a handle that says so.
#[test]
fn references_to_a_value_whose_creator_is_gone_for_good_lead_nowhere() {
    for hand_over_first in [true, false] {
        let mut net = Tables::new(3);
        let rref = net.remote(A, B);
        net.hold(A, B);
        net.share(A, C, rref);
        net.deliver(A, C);
        net.share(C, B, rref);
        let mut packets = net.hold(C, B);
        net.crash(A);
        net.gone(B, A);
        net.settled(B, A);
        net.gone(C, A);
        if hand_over_first {
            packets.reverse();
        }
        packets
            .into_iter()
            .for_each(|packet| net.push(C, B, packet));
        net.deliver_all();
        let error = RefError::CreatorLost { rref };
        assert_eq!(net.table(B).check(rref), Err(error.clone()));
        assert_eq!(net.fetch(B, rref, waiter(C, 1)), Err(error.clone()));
        let lost = Event::Lost { rref, error };
        let declined = if hand_over_first { vec![] } else { vec![lost] };
        assert_eq!(net.events(C), declined);
        net.drop_handle(B, rref);
        net.drop_handle(C, rref);
        net.finish();
    }
}

/// RT-1: a value being computed for a creator that died is freed when it is there.
#[test]
fn a_value_whose_creator_died_meanwhile_is_freed_when_it_is_there() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    net.deliver(A, B);
    net.bury(A);
    assert_eq!(net.holders(B, rref), []);
    net.fulfil(B, rref, 7);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2: a fetch whose asker died is forgotten, and with it what only it kept.
#[test]
fn a_fetch_of_a_dead_asker_is_forgotten() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    net.hold(A, B);
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Waiting));
    assert_eq!(net.fetch(B, rref, waiter(B, 1)), Ok(Fetch::Waiting));
    net.crash(C);
    net.gone(B, C);
    assert_eq!(net.table(B).counters().waiting, 1);
    net.on(B, |table, out| table.cancel_fetch(rref, waiter(B, 1), out));
    assert!(net.table(B).is_empty());
    net.on(A, |table, _| table.abort_creation(rref));
    net.finish();
}

/// F3, H11: ids of the old life do nothing; the new life's are new.
#[test]
fn hole_h11_ids_of_an_old_life_are_never_those_of_the_new_one() {
    let mut net = Tables::new(2);
    let old = net.created(A, B, 7);
    net.bury(A);
    assert_eq!(net.freed(), [7]);
    let late = net.on(B, |table, _| table.fetch(old, TYPE, waiter(B, 1)));
    assert_eq!(late, Err(RefError::CreatorLost { rref: old }));
    let reborn = NodeId::new(A as u32, 2);
    let new = RRefId::new(reborn, old.counter);
    assert_ne!(old, new);
    assert_eq!(
        net.fetch(B, new, waiter(B, 1)),
        Ok(Fetch::Waiting),
        "nothing is held against it"
    );
    net.on(B, |table, out| table.cancel_fetch(new, waiter(B, 1), out));
    let of_b = net.local(B, 8);
    assert!(net.on(B, |table, _| table.fork(of_b, id(A))).is_err());
    let fork = net.on(B, |table, _| table.fork(of_b, reborn)).unwrap();
    net.settled(B, A);
    assert_eq!(net.holders(B, of_b), [A], "held by the new life");
    net.on(B, |table, out| table.undo_fork(&fork, out));
    net.drop_handle(B, of_b);
    net.finish();
}

/// Every reason for a decline is an error of its own at use.
#[test]
fn a_declined_reference_says_why() {
    let other = Fingerprint(1).native();
    for reason in [
        DeclineReason::Freed,
        DeclineReason::CreatorLost,
        DeclineReason::TypeMismatch { owner: other },
        DeclineReason::TooManyPending,
    ] {
        let mut net = Tables::new(3);
        let rref = net.created(A, B, 7);
        let share = net.share(A, C, rref).share;
        net.deliver(A, C);
        net.hold(C, B);
        net.on(C, |table, out| table.on_decline(id(B), share, reason, out));
        let error = match reason {
            DeclineReason::Freed => RefError::Freed { rref },
            DeclineReason::CreatorLost => RefError::CreatorLost { rref },
            DeclineReason::TypeMismatch { owner: found } => RefError::TypeMismatch {
                rref,
                expected: TYPE,
                found,
            },
            DeclineReason::TooManyPending => RefError::TooManyPending { rref },
        };
        assert_eq!(net.table(C).check(rref), Err(error));
        net.drop_handle(A, rref);
        net.drop_handle(C, rref);
        net.finish();
    }
}

/// RT-11, F2: with a life of its worker an owner is over that was never in the view here: no word on it will ever come.
#[test]
fn with_a_later_life_of_its_owner_a_reference_is_lost() {
    let mut net = Tables::new(2);
    let confirmed = net.created(A, B, 7);
    let unconfirmed = net.remote(A, B);
    net.crash(B);
    let later = NodeId::new(B as u32, 3);
    net.on(A, |table, out| table.on_gone(later, out));
    let owner = id(B);
    for rref in [confirmed, unconfirmed] {
        let error = RefError::OwnerLost { rref, owner };
        assert_eq!(net.table(A).check(rref), Err(error));
        net.drop_handle(A, rref);
    }
    net.finish();
}

/// RT-7, F2: what was on its way to a life is adopted in its name also if a later one of its worker is what is known to be over.
#[test]
fn with_a_later_life_of_its_receiver_a_fork_is_adopted() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    let share = net.share(A, C, rref).share;
    net.drop_handle(A, rref);
    net.crash(C);
    let later = NodeId::new(C as u32, 3);
    net.on(B, |table, out| table.on_gone(later, out));
    net.on(A, |table, out| table.on_gone(later, out));
    let (holder, fingerprint) = (id(C), TYPE);
    let adoption = Adoption {
        share,
        holder,
        fingerprint,
    };
    let adopt = Packet::Control(Control::Adopt(vec![adoption]));
    assert_eq!(net.pending(A, B).first(), Some(&adopt));
    net.deliver_all();
    assert_eq!((net.holders(B, rref), net.freed()), (vec![C], vec![]));
    net.on(B, |table, out| table.on_settled(later, out));
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-4, ME-3, F2: a parent is over with a later life of its worker. It waits for nothing; the word on the departure waits for
/// the registration of what it handed over.
#[test]
fn with_a_later_life_of_its_parent_a_registration_is_due_to_the_departure() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.deliver(A, C);
    net.crash(A);
    let later = NodeId::new(A as u32, 3);
    net.on(C, |table, out| table.on_gone(later, out));
    assert!(!net.table(C).is_registered(), "B has not answered");
    net.deliver_all();
    assert!(net.table(C).is_registered());
    net.on(B, |table, out| table.on_gone(later, out));
    net.on(B, |table, out| table.on_settled(later, out));
    assert_eq!(net.holders(B, rref), [C]);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// H10, RT-10, F2: a creator that was never in the view here is over with a later life of its worker: what it was to create
/// never comes.
#[test]
fn with_a_later_life_of_its_creator_a_value_never_comes() {
    let mut net = Tables::new(3);
    let rref = RRefId::new(id(A), 0);
    let waiter = waiter(C, 1);
    assert_eq!(net.fetch(B, rref, waiter), Ok(Fetch::Waiting));
    let later = NodeId::new(A as u32, 3);
    net.on(B, |table, out| table.on_gone(later, out));
    assert_eq!(net.events(B), []);
    net.on(B, |table, out| table.on_settled(later, out));
    let outcome = Err(RefError::CreatorLost { rref });
    let fetched = Event::Fetched {
        waiter,
        rref,
        outcome,
    };
    assert_eq!(net.events(B), [fetched]);
    assert_eq!(net.table(B).counters().pending_owners, 0);
    net.finish();
}

/// F2: a fetch is forgotten with a later life of its asker's worker.
#[test]
fn with_a_later_life_of_its_asker_a_fetch_is_forgotten() {
    let mut net = Tables::new(3);
    let rref = RRefId::new(id(A), 0);
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Waiting));
    assert_eq!(net.fetch(B, rref, waiter(B, 1)), Ok(Fetch::Waiting));
    let later = NodeId::new(C as u32, 3);
    net.on(B, |table, out| table.on_gone(later, out));
    assert_eq!(net.table(B).counters().waiting, 1);
    net.on(B, |table, out| table.cancel_fetch(rref, waiter(B, 1), out));
    assert!(net.table(B).is_empty());
    net.finish();
}

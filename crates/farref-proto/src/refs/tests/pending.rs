//! What reaches the owner before the creation does (RT-10), types (R8), and the bound on waiting.

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::ids::Fingerprint;
use crate::message::{DeclineReason, Declined};
use crate::refs::{Fetch, RefTableConfig};

const OTHER: Fingerprint = Fingerprint(0xbad).native();

/// RT-10
#[test]
fn a_fetch_that_overtakes_the_creation_waits_for_it() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    net.share(A, C, rref);
    net.deliver(A, C);
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Waiting));
    assert_eq!(net.table(B).counters().pending_owners, 1);
    net.deliver_all();
    assert_eq!(net.table(B).counters().pending_owners, 0);
    net.fulfil(B, rref, 7);
    let (waiter, outcome) = (waiter(C, 1), Ok(7));
    assert_eq!(
        net.events(B),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-10: early registration by a third worker.
#[test]
fn a_fork_that_overtakes_the_creation_is_registered() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.shared(A, C, rref);
    assert!(net.table(C).is_confirmed(rref));
    assert_eq!(net.holders(B, rref), [C]);
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [A, C]);
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-10: the early holder has come and gone before the creation arrives.
#[test]
fn an_early_holder_that_is_gone_again_leaves_nothing_behind() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.shared(A, C, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert!(net.table(B).is_empty());
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-10: a third worker hands the reference to the owner, whose program uses it at once.
#[test]
fn a_hand_over_that_overtakes_the_creation_waits_for_it() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.shared(A, C, rref);
    net.share(C, B, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.table(B).value(rref), Ok(None));
    assert_eq!(net.fetch(B, rref, waiter(B, 1)), Ok(Fetch::Waiting));
    net.share(B, C, rref);
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    assert_eq!(net.events(B).len(), 1);
    for n in [A, B, C] {
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-1: an abandoned fetch of a value that never came leaves nothing (H10).
#[test]
fn hole_h10_a_cancelled_fetch_of_a_pending_value_leaves_nothing() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Waiting));
    assert_eq!(net.fetch(B, rref, waiter(C, 2)), Ok(Fetch::Waiting));
    net.on(B, |table, out| table.cancel_fetch(rref, waiter(C, 1), out));
    assert_eq!(net.table(B).counters().waiting, 1);
    net.on(B, |table, out| table.cancel_fetch(rref, waiter(C, 2), out));
    assert!(net.table(B).is_empty());
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.finish();
}

/// R8
#[test]
fn a_fetch_of_another_type_is_refused() {
    let mut net = Tables::new(2);
    let building = net.remote(A, B);
    net.deliver_all();
    let ready = net.created(A, B, 7);
    for rref in [building, ready] {
        let refused = net.on(B, |table, _| table.fetch(rref, OTHER, waiter(A, 1)));
        let (expected, found) = (OTHER, TYPE);
        assert_eq!(
            refused,
            Err(RefError::TypeMismatch {
                rref,
                expected,
                found
            })
        );
        net.drop_handle(A, rref);
    }
    net.fulfil(B, building, 8);
    net.finish();
}

/// R8: whoever believes in another type is declined, and its parent need not wait.
#[test]
fn a_registration_of_another_type_is_declined() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    let mut carried = net.on(A, |table, _| table.fork(rref, id(C))).unwrap();
    carried.fingerprint = OTHER;
    net.push(A, C, Packet::Fork(carried));
    net.drop_handle(A, rref);
    net.deliver_all();
    let (expected, found) = (OTHER, TYPE);
    let error = RefError::TypeMismatch {
        rref,
        expected,
        found,
    };
    assert_eq!(
        net.events(C),
        [Event::Lost {
            rref,
            error: error.clone()
        }]
    );
    assert_eq!(net.table(C).check(rref), Err(error));
    assert_eq!(
        net.freed(),
        [7],
        "neither the parent nor the declined one keeps it"
    );
    net.drop_handle(C, rref);
    net.finish();
}

/// R8: before the creation nobody knows the type; the creator's word counts, others learn at use.
#[test]
fn an_early_registration_of_another_type_learns_at_use() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    let mut carried = net.on(A, |table, _| table.fork(rref, id(C))).unwrap();
    carried.fingerprint = OTHER;
    net.push(A, C, Packet::Fork(carried));
    net.deliver_all();
    assert!(net.table(C).is_confirmed(rref));
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    let refused = net.on(B, |table, _| table.fetch(rref, OTHER, waiter(C, 1)));
    let (expected, found) = (OTHER, TYPE);
    assert_eq!(
        refused,
        Err(RefError::TypeMismatch {
            rref,
            expected,
            found
        })
    );
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Another system knows the type. Whoever uses the value finds out what it is; the protocol says nothing.
#[test]
fn a_foreign_fingerprint_turns_no_fetch_away() {
    let foreign = Fingerprint::foreign(3);
    let mut net = Tables::new(2);
    let building = net.remote(A, B);
    net.deliver_all();
    let ready = net.created(A, B, 7);
    let fetch = |net: &mut Tables, rref, fingerprint, request| {
        net.on(B, |table, _| {
            table.fetch(rref, fingerprint, waiter(A, request))
        })
    };
    assert_eq!(fetch(&mut net, ready, foreign, 1), Ok(Fetch::Ready(7)));
    assert_eq!(fetch(&mut net, building, foreign, 2), Ok(Fetch::Waiting));
    let of_elsewhere = net
        .on(B, |table, _| table.create_local(9, foreign))
        .unwrap();
    for fingerprint in [TYPE, OTHER, foreign, Fingerprint::foreign(4)] {
        let found = fetch(&mut net, of_elsewhere, fingerprint, 3);
        assert_eq!(found, Ok(Fetch::Ready(9)), "{fingerprint}");
    }
    net.fulfil(B, building, 8);
    let (waiter, rref, outcome) = (waiter(A, 2), building, Ok(8));
    let fetched = Event::Fetched {
        waiter,
        rref,
        outcome,
    };
    assert_eq!(net.events(B), [fetched]);
    net.drop_handle(B, of_elsewhere);
    for rref in [building, ready] {
        net.drop_handle(A, rref);
    }
    net.finish();
}

/// The same for those who register a reference, be it they or the owner who do not know the type.
#[test]
fn a_foreign_fingerprint_turns_no_registration_away() {
    let foreign = Fingerprint::foreign(3);
    for (of_owner, of_holder) in [(TYPE, foreign), (foreign, OTHER), (foreign, foreign)] {
        let mut net = Tables::new(3);
        let creation = net
            .on(A, |table, _| table.create_remote(id(B), of_owner))
            .unwrap();
        net.push(A, B, Packet::Create(creation));
        let rref = creation.share.rref;
        net.deliver_all();
        net.fulfil(B, rref, 7);
        let mut carried = net.on(A, |table, _| table.fork(rref, id(C))).unwrap();
        carried.fingerprint = of_holder;
        net.push(A, C, Packet::Fork(carried));
        net.drop_handle(A, rref);
        net.deliver_all();
        assert!(net.table(C).is_confirmed(rref));
        assert_eq!(net.holders(B, rref), [C]);
        net.drop_handle(C, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// RT-10, R8: of those who wait for the creation, it turns away the ones that are sure of another type,
/// and nobody if it does not know the type itself.
#[test]
fn early_fetches_are_turned_away_by_a_native_mismatch_only() {
    let foreign = Fingerprint::foreign(3);
    for (created_as, turned_away) in [(TYPE, vec![1]), (foreign, vec![])] {
        let mut net = Tables::new(2);
        let creation = net
            .on(A, |table, _| table.create_remote(id(B), created_as))
            .unwrap();
        let rref = creation.share.rref;
        for (request, fingerprint) in [TYPE, OTHER, foreign].into_iter().enumerate() {
            let waiter = waiter(A, request as u64);
            let early = net.on(B, |table, _| table.fetch(rref, fingerprint, waiter));
            assert_eq!(early, Ok(Fetch::Waiting));
        }
        net.push(A, B, Packet::Create(creation));
        net.deliver_all();
        let (expected, found) = (OTHER, created_as);
        let error = RefError::TypeMismatch {
            rref,
            expected,
            found,
        };
        let fetched = |request: u64, outcome| Event::Fetched {
            waiter: waiter(A, request),
            rref,
            outcome,
        };
        let refused: Vec<_> = turned_away
            .iter()
            .map(|&request| fetched(request, Err(error.clone())))
            .collect();
        assert_eq!(net.events(B), refused);
        net.fulfil(B, rref, 7);
        let served: Vec<_> = (0..3)
            .filter(|request| !turned_away.contains(request))
            .map(|request| fetched(request, Ok(7)))
            .collect();
        assert_eq!(net.events(B), served);
        net.drop_handle(A, rref);
        net.finish();
    }
}

/// D5: a peer cannot make the owner wait for values without end.
#[test]
fn at_most_max_pending_owners_wait_for_their_creation() {
    let config = RefTableConfig {
        max_pending_owners: 2,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(3, config);
    let rrefs: Vec<_> = (0..3).map(|_| net.remote(A, B)).collect();
    let creations = net.hold(A, B);
    for &rref in &rrefs {
        net.shared(A, C, rref);
    }
    let rref = rrefs[2];
    let error = RefError::TooManyPending { rref };
    assert_eq!(net.table(B).counters().pending_owners, 2);
    assert_eq!(
        net.events(C),
        [Event::Lost {
            rref,
            error: error.clone()
        }]
    );
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Err(error));
    // The creations themselves are never refused, and make room.
    creations
        .into_iter()
        .for_each(|packet| net.push(A, B, packet));
    net.deliver_all();
    assert_eq!(net.table(B).counters().pending_owners, 0);
    for (value, &rref) in rrefs.iter().enumerate() {
        net.fulfil(B, rref, value as u32);
        net.drop_handle(A, rref);
        net.drop_handle(C, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed().len(), 3);
    net.finish();
}

/// PO-1: C tells of more values than its quota. D, who tells of another one, is heard all the same.
#[test]
fn a_peer_that_tells_of_too_many_values_keeps_nobody_elses_out() {
    let config = RefTableConfig {
        max_pending_owners: 2,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(4, config);
    let rrefs: Vec<_> = (0..4).map(|_| net.remote(A, B)).collect();
    let creations = net.hold(A, B);
    for &rref in &rrefs[..3] {
        net.shared(A, C, rref);
    }
    let (declined, last) = (rrefs[2], rrefs[3]);
    let error = RefError::TooManyPending { rref: declined };
    assert_eq!(net.table(C).check(declined), Err(error));
    net.shared(A, D, last);
    assert_eq!(net.table(D).check(last), Ok(()));
    assert_eq!(net.fetch(B, last, waiter(D, 1)), Ok(Fetch::Waiting));
    assert_eq!(net.table(B).counters().pending_owners, 3);
    creations
        .into_iter()
        .for_each(|packet| net.push(A, B, packet));
    net.deliver_all();
    for (value, &rref) in rrefs.iter().enumerate() {
        net.fulfil(B, rref, value as u32);
        net.drop_handle(A, rref);
        net.drop_handle(if rref == last { D } else { C }, rref);
    }
    net.events(B);
    net.deliver_all();
    assert_eq!(net.freed().len(), 4);
    // Whoever had filled its quota has room again.
    let again = net.remote(A, B);
    let creation = net.hold(A, B);
    net.shared(A, C, again);
    assert_eq!(net.table(C).check(again), Ok(()));
    creation
        .into_iter()
        .for_each(|packet| net.push(A, B, packet));
    net.deliver_all();
    net.fulfil(B, again, 9);
    net.drop_handle(A, again);
    net.drop_handle(C, again);
    net.deliver_all();
    assert_eq!(net.freed(), [9]);
    net.finish();
}

/// A decline for a fork that is not the one waiting changes nothing.
#[test]
fn a_stale_decline_changes_nothing() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    let carried = net.share(A, C, rref);
    net.deliver_all();
    let before = net.table(C).clone();
    let (share, reason) = (carried.share, DeclineReason::Freed);
    let decline = crate::message::Control::Decline(vec![Declined { share, reason }]);
    net.hand(B, C, Packet::Control(decline.clone())).unwrap();
    net.hand(A, C, Packet::Control(decline)).unwrap();
    assert_eq!(*net.table(C), before);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.finish();
}

/// D5, RT-10: the quota is for what others may make the owner keep. What the owner itself is handed its
/// program keeps, and whoever hands it over does nothing wrong.
#[test]
fn a_hand_over_beyond_the_quota_waits_for_the_creation_like_any_other() {
    let config = RefTableConfig {
        max_pending_owners: 0,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(2, config);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.shared(A, B, rref);
    assert_eq!(net.table(B).check(rref), Ok(()));
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    assert_eq!(net.table(B).counters().pending_owners, 0);
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.drop_handle(B, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-3, D5: C is turned away, D, to whom C handed the reference before, is not. The creator lets go
/// and the value stays for D.
#[test]
fn parents_wait_for_those_whom_a_worker_that_was_turned_away_had_handed_the_reference_to() {
    let config = RefTableConfig {
        max_pending_owners: 0,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(4, config);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    net.share(A, C, rref);
    net.deliver(A, C);
    net.share(C, D, rref);
    net.deliver(C, D);
    let late = net.hold(D, B);
    net.deliver_all();
    let error = RefError::TooManyPending { rref };
    assert_eq!(net.table(C).check(rref), Err(error));
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.deliver_all();
    assert_eq!(net.freed(), [], "D is about to register");
    late.into_iter().for_each(|packet| net.push(D, B, packet));
    net.deliver_all();
    assert!(net.table(D).is_confirmed(rref));
    assert_eq!(net.holders(B, rref), [D]);
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-3, D5: C and D, both turned away, had handed the reference to each other: neither waits for the other.
#[test]
fn workers_that_were_turned_away_do_not_wait_for_each_other() {
    let config = RefTableConfig {
        max_pending_owners: 0,
        ..RefTableConfig::default()
    };
    let mut net = Tables::with(4, config);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    for (from, to) in [(A, C), (C, D), (D, C)] {
        net.share(from, to, rref);
        net.deliver(from, to);
    }
    net.deliver_all();
    for n in [A, C, C, D] {
        net.drop_handle(n, rref);
    }
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R8, RT-10: D takes the value for another type and asks first. The creator, which alone knows, dies. Others
/// are told that, and not that they are wrong about the type.
#[test]
fn a_guess_at_the_type_of_a_value_that_never_came_binds_nobody() {
    let mut net = Tables::new(4);
    let rref = net.remote(A, B);
    net.hold(A, B);
    net.share(A, C, rref);
    net.deliver(A, C);
    let guess = net.on(B, |table, _| table.fetch(rref, OTHER, waiter(D, 1)));
    assert_eq!(guess, Ok(Fetch::Waiting));
    net.deliver_all();
    net.bury(A);
    net.shared(C, D, rref);
    assert!(net.table(D).is_confirmed(rref));
    let lost = Err(RefError::CreatorLost { rref });
    assert_eq!(net.fetch(B, rref, waiter(D, 2)), lost);
    net.drop_handle(C, rref);
    net.drop_handle(D, rref);
    net.finish();
}

/// R8, RT-10: D takes the value for another type and asks first. C hands the reference to the owner, which hands
/// it on, all before the creation: it is of the type that came with the reference.
#[test]
fn what_comes_with_a_reference_outweighs_a_guess_at_its_type() {
    let mut net = Tables::new(4);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    let guess = net.on(B, |table, _| table.fetch(rref, OTHER, waiter(D, 1)));
    assert_eq!(guess, Ok(Fetch::Waiting));
    net.shared(A, C, rref);
    net.shared(C, B, rref);
    let carried = net.share(B, D, rref);
    assert_eq!(carried.fingerprint, TYPE);
    net.drop_handle(C, rref);
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.shared(D, C, rref);
    assert_eq!(net.table(C).check(rref), Ok(()));
    net.fulfil(B, rref, 7);
    for n in [A, B, C, D] {
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-1: two fetches before the creation, one is cancelled, the creator dies: the other is answered.
#[test]
fn a_fetch_that_waits_keeps_the_entry_when_another_is_cancelled() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    net.hold(A, B);
    for request in [1, 2] {
        assert_eq!(net.fetch(B, rref, waiter(C, request)), Ok(Fetch::Waiting));
    }
    net.on(B, |table, out| table.cancel_fetch(rref, waiter(C, 1), out));
    assert_eq!(net.table(B).inconsistency(), None);
    net.bury(A);
    let (waiter, outcome) = (waiter(C, 2), Err(RefError::CreatorLost { rref }));
    assert_eq!(
        net.events(B),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    net.finish();
}

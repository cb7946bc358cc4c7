//! Counters, leaks, the forced release at shutdown, the end of the table (transition 10, S1, S2).

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::message::Control;
use crate::refs::{Fetch, Leak, RefCounters};

/// S2
#[test]
fn the_counters_count_every_kind_of_entry() {
    let mut net = Tables::new(3);
    let held = net.created(A, B, 7);
    let unconfirmed = net.remote(A, B);
    let creation = net.hold(A, B);
    net.share(A, C, held);
    assert_eq!(net.fetch(B, unconfirmed, waiter(A, 1)), Ok(Fetch::Waiting));
    let owned = net.local(A, 8);
    let of_a = RefCounters {
        owners: 1,
        users: 2,
        pending_users: 1,
        pending_children: 1,
        ..RefCounters::default()
    };
    let of_b = RefCounters {
        owners: 2,
        pending_owners: 1,
        forks: 1,
        waiting: 1,
        ..RefCounters::default()
    };
    assert_eq!(
        (net.table(A).counters(), net.table(B).counters()),
        (of_a, of_b)
    );
    assert_eq!((net.table(A).len(), net.table(B).len()), (3, 2));
    let mut sum = of_a;
    sum += of_b;
    assert_eq!((sum.owners, sum.users, sum.forks), (3, 2, 1));
    assert!(!sum.is_empty() && RefCounters::default().is_empty());
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, unconfirmed, 9);
    for (n, rref) in [(A, held), (A, unconfirmed), (A, owned), (C, held)] {
        net.drop_handle(n, rref);
    }
    net.finish();
}

/// S2: who holds what, in the order of the ids.
#[test]
fn leaks_name_the_owner_the_holders_and_the_handles() {
    let mut net = Tables::new(2);
    let first = net.local(A, 7);
    let fork = net.share(A, B, first).share.fork;
    net.deliver_all();
    let second = net.created(B, A, 8);
    let leak = |rref, handles, holders| Leak {
        rref,
        owner: id(A),
        fingerprint: TYPE,
        handles,
        holders,
    };
    let theirs = net.table(A).leaks()[1].holders.clone();
    assert_eq!(theirs[0].1, id(B));
    assert_eq!(
        net.table(A).leaks(),
        [leak(first, 1, vec![(fork, id(B))]), leak(second, 0, theirs)]
    );
    assert_eq!(
        net.table(B).leaks(),
        [leak(first, 1, vec![]), leak(second, 1, vec![])]
    );
    net.drop_handle(A, first);
    net.drop_handle(B, first);
    net.drop_handle(B, second);
    net.finish();
}

/// Transition 10: a shutdown that waits no longer takes the handles from the program.
#[test]
fn a_forced_release_lets_everything_elsewhere_go() {
    let mut net = Tables::new(3);
    let confirmed = net.created(A, B, 7);
    net.on(A, |table, _| table.add_handle(confirmed)).unwrap();
    let unconfirmed = net.remote(A, B);
    let handed_on = net.created(A, B, 9);
    net.share(A, C, handed_on);
    net.on(A, |table, out| table.release_all_users(out));
    net.deliver_all();
    net.fulfil(B, unconfirmed, 8);
    assert_eq!(net.freed(), [7, 8]);
    assert_eq!(
        net.holders(B, handed_on),
        [C],
        "once its child was accepted"
    );
    net.drop_handle(A, confirmed);
    net.drop_handle(C, handed_on);
    net.deliver_all();
    assert_eq!(net.freed(), [9]);
    net.finish();
}

/// Transition 10
#[test]
fn unforked_owners_are_freed_and_forked_ones_are_not() {
    let mut net = Tables::new(2);
    let (kept, idle) = (net.local(A, 7), net.local(A, 8));
    net.shared(A, B, kept);
    net.on(A, |table, _| table.add_handle(idle)).unwrap();
    net.on(A, |table, out| table.free_unforked_owners(out));
    assert_eq!(net.freed(), [8]);
    assert_eq!(net.table(A).value(kept), Ok(Some(&7)));
    net.drop_handle(A, kept);
    net.drop_handle(B, kept);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 10: the table is ended with everything in it.
#[test]
fn a_destroyed_table_hands_everything_out_and_answers_errors() {
    let mut net = Tables::new(2);
    let owned = net.local(A, 7);
    let building = net.on(A, |table, _| table.create_self(TYPE)).unwrap();
    let held = net.created(A, B, 8);
    let unconfirmed = net.remote(A, B);
    assert_eq!(net.fetch(A, building, waiter(A, 1)), Ok(Fetch::Waiting));
    let leaks = net.on(A, |table, out| table.destroy(out));
    let leaked: Vec<_> = leaks.iter().map(|leak| leak.rref).collect();
    assert_eq!(leaked, [owned, building, held, unconfirmed]);
    assert_eq!(net.freed(), [7]);
    let (waiter, outcome) = (waiter(A, 1), Err(RefError::Destroyed));
    let destroyed = RefError::Destroyed;
    assert_eq!(
        net.events(A),
        [
            Event::Fetched {
                waiter,
                rref: building,
                outcome
            },
            Event::Lost {
                rref: unconfirmed,
                error: destroyed.clone()
            }
        ]
    );
    assert_eq!(net.table(A).check(held), Err(destroyed.clone()));
    assert_eq!(net.table(A).value(owned), Err(destroyed.clone()));
    assert_eq!(
        net.on(A, |table, _| table.create_local(1, TYPE)),
        Err(destroyed.clone())
    );
    assert_eq!(
        net.on(A, |table, _| table.create_self(TYPE)),
        Err(destroyed.clone())
    );
    assert_eq!(
        net.on(A, |table, _| table.create_remote(id(B), TYPE)),
        Err(destroyed.clone())
    );
    assert_eq!(
        net.on(A, |table, _| table.add_handle(held)),
        Err(destroyed.clone())
    );
    assert_eq!(
        net.on(A, |table, _| table.fork(held, id(B))),
        Err(destroyed.clone())
    );
    assert_eq!(net.fetch(A, owned, waiter), Err(destroyed));
    net.drop_handle(A, held);
    // The owner gets everything back: by a release, or by RT-8 where it had not confirmed yet.
    net.deliver_all();
    net.fulfil(B, unconfirmed, 9);
    assert_eq!(net.freed(), [8, 9]);
    net.finish();
}

/// H13: plain counting cannot collect a cycle, but it is reported, and shutdown breaks it.
#[test]
fn hole_h13_a_cycle_is_reported_and_broken_at_shutdown() {
    let mut net = Tables::new(2);
    let (of_a, of_b) = (net.local(A, 7), net.local(B, 8));
    // Each value holds the handle on the other.
    net.shared(A, B, of_a);
    net.shared(B, A, of_b);
    net.drop_handle(A, of_a);
    net.drop_handle(B, of_b);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    for n in [A, B] {
        let leaked: Vec<_> = net.table(n).leaks().iter().map(|leak| leak.rref).collect();
        let (owned, held) = if n == A { (of_a, of_b) } else { (of_b, of_a) };
        assert_eq!(leaked, [owned, held]);
    }
    net.on(A, |table, out| table.release_all_users(out));
    net.deliver_all();
    assert_eq!(net.freed(), [8]);
    net.drop_handle(B, of_a);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// H9: dropping everything while the own constructor runs leaves nothing to assert on.
#[test]
fn hole_h9_a_self_remote_value_dropped_while_it_is_computed_is_freed_when_it_is_done() {
    let mut net = Tables::new(1);
    let rref = net.on(A, |table, _| table.create_self(TYPE)).unwrap();
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), []);
    net.on(A, |table, out| table.free_unforked_owners(out));
    assert_eq!(net.table(A).counters().owners, 1, "not even by force");
    net.fulfil(A, rref, 7);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// What one shard makes stays with that shard.
#[test]
fn a_shard_makes_the_ids_that_are_its_own() {
    let config = crate::refs::RefTableConfig {
        shard: 1,
        shards: 4,
        ..Default::default()
    };
    let mut net = Tables::with(2, config);
    for _ in 0..3 {
        let rref = net.local(A, 7);
        let fork = net.share(A, B, rref).share.fork;
        assert_eq!((rref.counter % 4, fork.counter % 4), (1, 1));
        net.drop_handle(A, rref);
        net.deliver_all();
        net.drop_handle(B, rref);
        assert!(matches!(
            net.pending(B, A)[..],
            [Packet::Control(Control::Release(_))]
        ));
    }
    net.finish();
}

//! RT-13: one peer says what is not true of a reference, and another one believes it and acts on it. Nobody can tell the two
//! apart, so neither is cut off.

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::ids::{ForkId, RRefId};
use crate::message::{Carried, Share};

/// A reference that `by` has made up: `owner` is said to own it.
fn made_up(by: usize, rref: RRefId, owner: usize) -> Carried {
    Carried {
        share: Share {
            rref,
            fork: ForkId::new(id(by), 1_000),
        },
        owner: id(owner),
        fingerprint: TYPE,
    }
}

#[test]
fn of_two_owners_that_are_named_the_first_counts() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.shared(A, C, rref);
    for (to, claimed) in [(C, C), (C, B), (A, B), (B, B)] {
        let by = if to == B { C } else { B };
        let carried = net.on(by, |table, _| table.fork(rref, id(to))).unwrap();
        let said = Carried {
            owner: id(claimed),
            ..carried
        };
        assert_eq!(net.hand(by, to, Packet::Fork(said)), Ok(()), "{to}");
        assert_eq!(net.table(to).check(rref), Ok(()));
        assert_eq!(net.table(to).owner_of(rref), Some(id(A)));
        net.deliver_all();
        net.drop_handle(to, rref);
        net.on(by, |table, out| table.undo_fork(&carried, out));
        net.deliver_all();
    }
    assert_eq!(net.holders(A, rref), [B, C]);
    for n in [A, B, C] {
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// C tells B that A, which only holds the reference, owns it.
#[test]
fn who_registers_with_one_that_is_not_the_owner_is_declined() {
    let mut net = Tables::new(4);
    let rref = net.local(D, 7);
    net.shared(D, A, rref);
    let said = made_up(C, rref, A);
    assert_eq!(net.hand(C, B, Packet::Fork(said)), Ok(()));
    net.deliver_all();
    assert_eq!(net.table(B).check(rref), Err(RefError::Freed { rref }));
    // The owner's word comes too late for B, and changes nothing for the owner.
    net.shared(D, B, rref);
    assert_eq!(net.holders(D, rref), [A]);
    net.drop_handle(B, rref);
    net.drop_handle(B, rref);
    for n in [A, D] {
        assert_eq!(net.table(n).check(rref), Ok(()));
        net.drop_handle(n, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// C tells B that A owns a value, and A believes that it comes from B; the true owner hands it to A.
#[test]
fn who_hands_over_what_another_is_said_to_own_is_not_cut_off() {
    let mut net = Tables::new(4);
    let rref = net.local(D, 7);
    let said = made_up(C, rref, A);
    assert_eq!(net.hand(C, B, Packet::Fork(said)), Ok(()));
    net.deliver_all();
    assert_eq!(net.holders(A, rref), [B]);
    net.shared(D, A, rref);
    assert_eq!(net.holders(D, rref), [], "A has given it back");
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// C tells B that D owns what A is just asking B to make.
#[test]
fn who_creates_what_another_is_said_to_own_is_declined() {
    let mut net = Tables::new(4);
    let rref = net.remote(A, B);
    let said = made_up(C, rref, D);
    assert_eq!(net.hand(C, B, Packet::Fork(said)), Ok(()));
    net.deliver_all();
    net.fulfil(B, rref, 7);
    let error = RefError::Freed { rref };
    assert_eq!(net.events(A), [Event::Lost { rref, error }]);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

/// C makes up a value of A's, and B passes it to A before it knows better.
#[test]
fn who_hands_over_what_its_owner_does_not_have_is_not_cut_off() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    let said = made_up(C, rref, A);
    assert_eq!(net.hand(C, B, Packet::Fork(said)), Ok(()));
    net.share(B, A, rref);
    net.deliver_all();
    let freed = Err(RefError::Freed { rref });
    assert_eq!(net.table(A).check(rref), freed);
    let waiter = waiter(A, 1);
    assert_eq!(net.fetch(A, rref, waiter), Err(RefError::Freed { rref }));
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.finish();
}

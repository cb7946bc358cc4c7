//! Ray's `reference_counter_test.cc`, test by test: owners, borrowers, borrowers of borrowers.

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::message::Control;

/// R1, R2: the owner hands a reference out, drops its own, and frees when the borrower is done.
#[test]
fn simple_borrower() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), []);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R2, RT-6: the borrower dies instead.
#[test]
fn simple_borrower_failure() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(A, rref);
    net.bury(B);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R2: the borrower has let go before the owner does.
#[test]
fn simple_borrower_references_removed() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.holders(A, rref), []);
    assert_eq!(net.freed(), []);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-3: owner → B → C and B → D; the inner borrower goes first, the leaves keep the value.
#[test]
fn borrower_tree() {
    let mut net = Tables::new(4);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.share(B, C, rref);
    net.share(B, D, rref);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.holders(A, rref), [C, D]);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-3, RT-8: a reference goes to and fro between two borrowers, each dropping at once.
#[test]
fn borrower_ping_pong() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(A, rref);
    let (mut from, mut to) = (B, C);
    for _ in 0..10 {
        net.share(from, to, rref);
        net.drop_handle(from, rref);
        net.deliver_pair(from, to);
        (from, to) = (to, from);
    }
    net.deliver_all();
    assert_eq!(net.freed(), []);
    assert_eq!(net.holders(A, rref), [from]);
    net.drop_handle(from, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// One borrower gets the reference twice, from the owner and from another borrower.
#[test]
fn duplicate_borrower() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.share(A, B, rref);
    net.share(A, C, rref);
    net.deliver_all();
    net.share(B, C, rref);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(
        net.holders(A, rref),
        [C],
        "one fork however often it was received"
    );
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// A's value holds a handle on B's value; freeing the outer one lets the inner one go.
#[test]
fn nested_object_different_owners() {
    let mut net = Tables::new(3);
    let inner = net.local(B, 8);
    net.shared(B, A, inner);
    net.drop_handle(B, inner);
    let outer = net.local(A, 7);
    net.shared(A, C, outer);
    net.drop_handle(A, outer);
    assert_eq!(net.freed(), []);
    net.drop_handle(C, outer);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    // The destructor of the outer value drops what it held.
    net.drop_handle(A, inner);
    net.deliver_all();
    assert_eq!(net.freed(), [8]);
    net.finish();
}

/// The same, and the borrower of the outer value took the inner reference out of it.
#[test]
fn nested_object_different_owners_2() {
    let mut net = Tables::new(3);
    let inner = net.local(B, 8);
    net.shared(B, A, inner);
    net.drop_handle(B, inner);
    let outer = net.local(A, 7);
    net.shared(A, C, outer);
    net.drop_handle(A, outer);
    net.share(A, C, inner);
    net.deliver(A, C);
    net.drop_handle(C, outer);
    net.deliver(C, A);
    assert_eq!(net.freed(), [7]);
    net.drop_handle(A, inner);
    net.deliver_all();
    assert_eq!(net.freed(), [], "C has it");
    assert_eq!(net.holders(B, inner), [C]);
    net.drop_handle(C, inner);
    net.deliver_all();
    assert_eq!(net.freed(), [8]);
    net.finish();
}

/// RT-3: D's value is returned along D → C → B → A, each link dropping once it has passed it on.
#[test]
fn return_borrowed_id_chain() {
    let mut net = Tables::new(4);
    let rref = net.local(D, 7);
    for (from, to) in [(D, C), (C, B), (B, A)] {
        net.share(from, to, rref);
        net.drop_handle(from, rref);
        net.deliver_all();
        assert_eq!(net.holders(D, rref), [to]);
    }
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-3: the same, but the registrations reach the owner from the end of the chain backwards.
#[test]
fn return_borrowed_id_chain_out_of_order() {
    let mut net = Tables::new(4);
    let rref = net.local(D, 7);
    for (from, to) in [(D, C), (C, B), (B, A)] {
        net.share(from, to, rref);
        net.drop_handle(from, rref);
        net.deliver(from, to);
    }
    // A has registered; B has, too, but only A's registration arrives.
    net.deliver_pair(A, D);
    assert_eq!(net.holders(D, rref), [A, C], "C stays for B, B stays for A");
    net.deliver_pair(D, A);
    net.deliver_pair(A, B);
    assert_eq!(net.holders(D, rref), [A, C]);
    net.drop_handle(A, rref);
    net.deliver_pair(A, D);
    assert_eq!(net.holders(D, rref), [C]);
    assert_eq!(net.freed(), []);
    net.deliver_pair(B, D);
    net.deliver_pair(D, B);
    net.deliver_pair(B, C);
    net.deliver_pair(C, D);
    assert_eq!(net.freed(), [], "B's release is on its way");
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R2, RT-6: a borrower's release and its departure clean up the same fork, in both orders.
#[test]
fn cleanup_borrowers_on_ref_removed_is_idempotent() {
    for release_first in [true, false] {
        let mut net = Tables::new(3);
        let rref = net.local(A, 7);
        net.share(A, B, rref);
        net.share(A, C, rref);
        net.deliver_all();
        net.drop_handle(A, rref);
        net.drop_handle(B, rref);
        let release = net.hold(B, A);
        if release_first {
            release
                .into_iter()
                .for_each(|packet| net.push(B, A, packet));
            net.deliver(B, A);
        }
        net.bury(B);
        net.settled(A, B);
        assert_eq!((net.holders(A, rref), net.freed()), (vec![C], vec![]));
        net.drop_handle(C, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// RT-3, RT-5: the owner hears of a borrower late, after everybody else has dropped.
#[test]
fn delayed_wait_for_ref_removed() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(A, rref);
    net.share(B, C, rref);
    net.drop_handle(B, rref);
    net.deliver(B, C);
    net.drop_handle(C, rref);
    let late = net.hold(C, A);
    assert!(matches!(late[..], [Packet::Control(Control::Register(_))]));
    net.deliver_all();
    assert_eq!(net.freed(), [], "B stays until C is known");
    late.into_iter().for_each(|packet| net.push(C, A, packet));
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// One message with the same reference many times over; many messages, too.
#[test]
fn repeated_deserialization() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    for _ in 0..5 {
        net.share(A, C, rref);
    }
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [C]);
    for _ in 0..4 {
        net.drop_handle(C, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// A borrower drops and gets the reference anew, while its release is on its way.
#[test]
fn a_borrower_may_get_back_what_it_is_just_releasing() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(B, rref);
    net.share(A, B, rref);
    net.drop_handle(A, rref);
    net.deliver(A, B);
    net.deliver(B, A);
    assert_eq!((net.holders(A, rref), net.freed()), (vec![B], vec![]));
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// F2, RT-11: the owner dies; every borrower learns it and nobody waits for anybody.
#[test]
fn an_owner_that_dies_takes_its_values_along() {
    let mut net = Tables::new(4);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.share(B, C, rref);
    net.deliver(B, C);
    net.share(C, D, rref);
    net.crash(A);
    net.gone(B, A);
    net.gone(C, A);
    net.gone(D, A);
    net.deliver_all();
    let error = RefError::OwnerLost { rref, owner: id(A) };
    for n in [B, C] {
        let lost = Event::Lost {
            rref,
            error: error.clone(),
        };
        assert_eq!(net.events(n), [lost]);
    }
    for n in [B, C, D] {
        assert_eq!(net.table(n).check(rref), Err(error.clone()));
        assert_eq!(
            net.on(n, |table, _| table.fork(rref, id(C))),
            Err(error.clone())
        );
        assert_eq!(net.table(n).counters().pending_children, 0);
        net.drop_handle(n, rref);
    }
    assert_eq!(net.busy(), [], "there is nobody to release to");
    net.finish();
}

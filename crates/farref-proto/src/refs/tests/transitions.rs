//! Every step of a reference's life, between nodes that stay alive (PyTorch's transitions 1 to 9).

use super::tables::*;
use crate::error::RefError;
use crate::event::Event;
use crate::message::Control;
use crate::refs::Fetch;

/// Transition 1, RT-1
#[test]
fn a_local_value_lives_as_long_as_its_handles() {
    let mut net = Tables::new(1);
    let rref = net.local(A, 7);
    net.on(A, |table, _| table.add_handle(rref)).unwrap();
    net.drop_handle(A, rref);
    assert_eq!(net.table(A).value(rref), Ok(Some(&7)));
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 2, RT-4, R6
#[test]
fn a_creation_is_confirmed_before_its_value_is_ready() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    assert!(!net.table(A).is_confirmed(rref));
    net.deliver_all();
    assert!(net.table(A).is_confirmed(rref));
    assert_eq!(net.table(B).value(rref), Ok(None));
    net.fulfil(B, rref, 7);
    assert_eq!(net.table(B).value(rref), Ok(Some(&7)));
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 2, RT-5, H8
#[test]
fn a_creator_that_drops_at_once_releases_only_after_the_confirmation() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    net.drop_handle(A, rref);
    assert_eq!(net.pending(A, B).len(), 1, "the creation, and no release");
    net.deliver(A, B);
    net.deliver(B, A);
    assert!(matches!(
        net.pending(A, B)[..],
        [Packet::Control(Control::Release(_))]
    ));
    net.deliver(A, B);
    assert_eq!(net.freed(), [], "its constructor still runs");
    net.fulfil(B, rref, 7);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 3, RT-1
#[test]
fn a_self_remote_value_waits_for_its_constructor_only() {
    let mut net = Tables::new(1);
    let rref = net.on(A, |table, _| table.create_self(TYPE)).unwrap();
    assert_eq!(net.table(A).value(rref), Ok(None));
    assert_eq!(net.fetch(A, rref, waiter(A, 1)), Ok(Fetch::Waiting));
    net.fulfil(A, rref, 7);
    let outcome = Ok(7);
    let waiter = waiter(A, 1);
    assert_eq!(
        net.events(A),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 4, RT-2: the fork is at the owner before the message leaves, and costs no message.
#[test]
fn an_owner_registers_a_fork_before_its_message_leaves() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.share(A, B, rref);
    assert_eq!(net.holders(A, rref), [B]);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [], "the fork in flight keeps the value");
    net.deliver(A, B);
    assert!(net.table(B).is_confirmed(rref));
    assert_eq!(net.busy(), []);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 5
#[test]
fn an_owner_may_send_a_reference_to_itself() {
    let mut net = Tables::new(1);
    let rref = net.local(A, 7);
    net.share(A, A, rref);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), []);
    net.deliver(A, A);
    assert_eq!(net.table(A).counters().forks, 0);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 6: the phantom child orders the release after the use.
#[test]
fn a_user_that_hands_a_reference_to_its_owner_stays_until_the_owner_has_it() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    net.share(A, B, rref);
    net.drop_handle(A, rref);
    assert_eq!(
        net.holders(B, rref),
        [A],
        "the phantom is no fork of its own"
    );
    assert_eq!(
        net.pending(A, B).len(),
        1,
        "no release may overtake the hand-over"
    );
    net.deliver(A, B);
    net.deliver(B, A);
    net.deliver(A, B);
    assert_eq!(net.holders(B, rref), []);
    assert_eq!(net.freed(), [], "the owner's program has a handle");
    net.drop_handle(B, rref);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 7, RT-3: register, confirm, accept, in this order.
#[test]
fn a_user_that_hands_a_reference_on_stays_until_the_child_is_confirmed() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.deliver(A, C);
    assert_eq!(
        net.pending(C, A),
        [],
        "no acceptance before the confirmation"
    );
    net.deliver(C, B);
    assert_eq!(net.holders(B, rref), [A, C]);
    assert_eq!(net.pending(A, B), [], "the parent stays");
    net.deliver(B, C);
    net.deliver(C, A);
    net.deliver(A, B);
    assert_eq!(net.holders(B, rref), [C]);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// A user may send a reference to itself: one entry, two handles.
#[test]
fn a_user_may_send_a_reference_to_itself() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    net.share(A, A, rref);
    net.drop_handle(A, rref);
    net.deliver(A, A);
    assert_eq!(net.table(A).counters().pending_children, 0);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// The same while the creation is on its way: the child waits with its parent.
#[test]
fn a_user_may_send_itself_a_reference_that_is_not_confirmed() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    net.share(A, A, rref);
    net.deliver(A, A);
    net.drop_handle(A, rref);
    net.drop_handle(A, rref);
    net.deliver_all();
    net.fulfil(B, rref, 7);
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 8
#[test]
fn the_last_of_several_handles_releases() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    net.on(A, |table, _| table.add_handle(rref)).unwrap();
    net.drop_handle(A, rref);
    assert_eq!(net.busy(), []);
    net.drop_handle(A, rref);
    assert_eq!(net.busy(), [(A, B)]);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// Transition 9, RT-1: a waiting fetch keeps the value.
#[test]
fn a_fetch_waits_for_the_value_and_keeps_it() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    net.deliver_all();
    assert_eq!(net.fetch(B, rref, waiter(A, 1)), Ok(Fetch::Waiting));
    net.drop_handle(A, rref);
    net.deliver_all();
    net.fulfil(B, rref, 7);
    let waiter = waiter(A, 1);
    let outcome = Ok(7);
    assert_eq!(
        net.events(B),
        [Event::Fetched {
            waiter,
            rref,
            outcome
        }]
    );
    assert_eq!(net.freed(), [7], "after the fetch was answered");
    net.finish();
}

/// Transition 9
#[test]
fn a_fetch_of_a_ready_value_is_answered_at_once() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    assert_eq!(net.fetch(B, rref, waiter(A, 1)), Ok(Fetch::Ready(7)));
    net.drop_handle(A, rref);
    net.finish();
}

/// R7: a received reference is usable before it is confirmed.
#[test]
fn a_received_reference_can_be_fetched_and_handed_on_before_it_is_confirmed() {
    let mut net = Tables::new(4);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.deliver(A, C);
    assert!(!net.table(C).is_confirmed(rref));
    assert_eq!(net.table(C).check(rref), Ok(()));
    assert_eq!(net.fetch(B, rref, waiter(C, 1)), Ok(Fetch::Ready(7)));
    net.share(C, D, rref);
    net.drop_handle(C, rref);
    net.drop_handle(A, rref);
    net.deliver(C, D);
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [D]);
    net.drop_handle(D, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// One entry however often a reference was received: from the owner twice.
#[test]
fn a_second_fork_from_the_owner_goes_back() {
    let mut net = Tables::new(2);
    let rref = net.local(A, 7);
    net.share(A, B, rref);
    net.share(A, B, rref);
    net.deliver_all();
    assert_eq!(net.holders(A, rref), [B]);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), []);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// One fork at the owner is enough, even if it is not confirmed yet.
#[test]
fn a_fork_from_the_owner_goes_back_while_another_is_being_registered() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.share(B, C, rref);
    net.deliver(B, C);
    let registration = net.hold(C, A);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.deliver_all();
    assert_eq!(net.holders(A, rref), [B], "B stays until C is registered");
    assert_eq!(net.freed(), []);
    registration
        .into_iter()
        .for_each(|packet| net.push(C, A, packet));
    net.deliver_all();
    assert_eq!(net.holders(A, rref), [C], "by one fork");
    net.drop_handle(C, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-9, R5: undone forks leave no trace, on the owner and on a user.
#[test]
fn an_undone_fork_leaves_no_trace() {
    let mut net = Tables::new(3);
    let owned = net.local(A, 7);
    let held = net.created(A, B, 8);
    for (rref, value) in [(owned, 7), (held, 8)] {
        let carried = net.on(A, |table, _| table.fork(rref, id(C))).unwrap();
        net.drop_handle(A, rref);
        assert_eq!(net.freed(), []);
        net.on(A, |table, out| table.undo_fork(&carried, out));
        net.deliver_all();
        assert_eq!(net.freed(), [value]);
    }
    net.finish();
}

/// R5: a creation whose call could not be sent is gone, unless it was handed on.
#[test]
fn an_aborted_creation_leaves_no_trace() {
    let mut net = Tables::new(2);
    let rref = net
        .on(A, |table, _| table.create_remote(id(B), TYPE))
        .unwrap()
        .share
        .rref;
    assert!(net.on(A, |table, _| table.abort_creation(rref)));
    assert_eq!(net.table(A).check(rref), Err(RefError::Unknown { rref }));
    assert!(
        !net.on(A, |table, _| table.abort_creation(rref)),
        "it is done once"
    );

    let rref = net.remote(A, B);
    net.share(A, B, rref);
    assert!(
        !net.on(A, |table, _| table.abort_creation(rref)),
        "it was handed on"
    );
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

/// capnp-rpc `promise_resolve_twice`
#[test]
fn a_value_fulfilled_twice_stays_the_first() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    net.fulfil(B, rref, 8);
    assert_eq!(net.table(B).value(rref), Ok(Some(&7)));
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.fulfil(B, rref, 9);
    assert_eq!(net.freed(), []);
    net.finish();
}

/// H15: a use after the last handle is an error and not a guess.
#[test]
fn hole_h15_a_use_after_the_last_handle_is_an_error() {
    let mut net = Tables::new(2);
    let held = net.created(A, B, 7);
    let owned = net.local(A, 8);
    for rref in [held, owned] {
        net.drop_handle(A, rref);
        let unknown = RefError::Unknown { rref };
        assert_eq!(
            net.on(A, |table, _| table.add_handle(rref)),
            Err(unknown.clone())
        );
        assert_eq!(
            net.on(A, |table, _| table.fork(rref, id(B))),
            Err(unknown.clone())
        );
        assert_eq!(net.table(A).value(rref), Err(unknown));
        net.drop_handle(A, rref);
    }
    net.deliver_all();
    assert_eq!(net.freed(), [8, 7]);
    net.finish();
}

/// H15: a reference that only its children keep cannot be used any more.
#[test]
fn a_reference_kept_only_for_its_children_gives_no_new_handles() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.drop_handle(A, rref);
    assert!(net.table(A).owner_of(rref).is_some());
    assert_eq!(
        net.on(A, |table, _| table.add_handle(rref)),
        Err(RefError::Unknown { rref })
    );
    assert_eq!(
        net.on(A, |table, _| table.fork(rref, id(C))),
        Err(RefError::Unknown { rref })
    );
    net.deliver_all();
    net.drop_handle(C, rref);
    net.finish();
}

/// A value elsewhere is not to be had without a fetch.
#[test]
fn only_the_owner_has_the_value() {
    let mut net = Tables::new(2);
    let rref = net.created(A, B, 7);
    let (owner, not_owner) = (id(B), RefError::NotOwner { rref, owner: id(B) });
    assert_eq!(net.table(A).owner_of(rref), Some(owner));
    assert_eq!(net.table(A).value(rref), Err(not_owner));
    net.drop_handle(A, rref);
    net.finish();
}

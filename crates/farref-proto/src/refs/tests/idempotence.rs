//! Repeats, delays and late messages change nothing (R3).

use super::tables::*;
use crate::message::{Control, Registration};

/// Gives the same message again and expects the same table and no answer that changes anything.
fn repeat(net: &mut Tables, from: usize, to: usize, packet: &Packet) {
    let before = net.table(to).clone();
    net.hand(from, to, packet.clone()).unwrap();
    assert_eq!(*net.table(to), before);
    net.deliver_all();
    assert_eq!(*net.table(to), before);
}

/// R3
#[test]
fn a_repeated_release_changes_nothing() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.shared(A, C, rref);
    net.drop_handle(B, rref);
    let release = net.pending(B, A)[0].clone();
    net.deliver_all();
    repeat(&mut net, B, A, &release);
    net.drop_handle(C, rref);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    repeat(&mut net, B, A, &release);
    assert_eq!(net.freed(), []);
    net.finish();
}

/// R3
#[test]
fn a_repeated_register_confirm_or_accept_changes_nothing() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.deliver(A, C);
    let register = net.pending(C, B)[0].clone();
    net.deliver(C, B);
    repeat_confirm(&mut net, register, rref);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

fn repeat_confirm(net: &mut Tables, register: Packet, rref: crate::ids::RRefId) {
    let before = net.table(B).clone();
    net.hand(C, B, register).unwrap();
    assert_eq!(*net.table(B), before);
    let confirms = net.pending(B, C);
    assert_eq!(confirms.len(), 2, "each registration is confirmed");
    net.deliver(B, C);
    let accept = net.pending(C, A)[0].clone();
    net.deliver(B, C);
    assert_eq!(net.pending(C, A).len(), 1, "but accepted once");
    net.deliver_all();
    repeat(net, C, A, &accept);
    repeat(net, B, C, &confirms[0]);
    assert_eq!(net.holders(B, rref), [A, C]);
}

/// RT-8, R3, H7: a registration that comes after the release of its fork undoes itself.
#[test]
fn hole_h7_a_registration_after_the_release_undoes_itself() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    net.share(A, C, rref);
    net.deliver(A, C);
    let late = net.pending(C, B)[0].clone();
    net.deliver_all();
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [A]);
    net.hand(C, B, late).unwrap();
    assert_eq!(
        net.holders(B, rref),
        [A, C],
        "the owner cannot know better yet"
    );
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [A]);
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-8, R3, H7: even when the value is gone, whoever made its id.
#[test]
fn hole_h7_a_registration_after_the_value_was_freed_brings_nothing_back() {
    for creator in [A, B] {
        let mut net = Tables::new(3);
        let rref = if creator == A {
            net.created(A, B, 7)
        } else {
            net.local(B, 7)
        };
        if creator == B {
            net.shared(B, A, rref);
            net.drop_handle(B, rref);
        }
        net.share(A, C, rref);
        net.deliver(A, C);
        let late = net.pending(C, B)[0].clone();
        net.deliver_all();
        net.drop_handle(A, rref);
        net.drop_handle(C, rref);
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.hand(C, B, late).unwrap();
        net.deliver_all();
        assert_eq!(net.freed(), []);
        net.finish();
    }
}

/// The owner sends the creator its own reference back before the confirmation of it arrives.
#[test]
fn a_reference_may_come_back_to_its_creator_before_it_is_confirmed() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    net.share(A, B, rref);
    net.deliver_pair(A, B);
    net.fulfil(B, rref, 7);
    let confirm = net.hold(B, A);
    net.share(B, A, rref);
    net.drop_handle(B, rref);
    assert_eq!(net.holders(B, rref), [A, A]);
    net.deliver_all();
    assert_eq!(net.holders(B, rref), [A]);
    net.drop_handle(A, rref);
    net.drop_handle(A, rref);
    assert_eq!(net.busy(), [], "RT-5");
    confirm
        .into_iter()
        .for_each(|packet| net.push(B, A, packet));
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// R3: a confirmation from anyone but the owner confirms nothing.
#[test]
fn a_confirmation_counts_only_from_the_owner() {
    let mut net = Tables::new(3);
    let rref = net.created(A, B, 7);
    let carried = net.share(A, C, rref);
    net.deliver(A, C);
    net.hand(A, C, Packet::Control(Control::Confirm(vec![carried.share])))
        .unwrap();
    assert!(!net.table(C).is_confirmed(rref));
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// H14: a thousand drops towards one owner are one message.
#[test]
fn hole_h14_a_thousand_drops_are_one_message() {
    let mut net = Tables::new(2);
    let rrefs: Vec<_> = (0..1000).map(|value| net.local(A, value)).collect();
    for &rref in &rrefs {
        net.share(A, B, rref);
        net.drop_handle(A, rref);
    }
    net.deliver_all();
    net.on(B, |table, out| {
        rrefs.iter().for_each(|&rref| table.drop_handle(rref, out))
    });
    assert_eq!(net.pending(B, A).len(), 1);
    net.deliver_all();
    assert_eq!(net.freed(), (0..1000).collect::<Vec<_>>());
    net.finish();
}

/// H6: no control message is given up on, so none leaves a parent, a child or an owner waiting. Each
/// is held back in turn until everything else has gone as far as it can; then it arrives.
#[test]
fn hole_h6_every_control_message_may_be_late() {
    for (from, to) in [(C, B), (B, C), (C, A), (A, B)] {
        let mut net = Tables::new(3);
        let rref = net.created(A, B, 7);
        net.share(A, C, rref);
        net.deliver(A, C);
        net.drop_handle(A, rref);
        net.drop_handle(C, rref);
        let mut late = Vec::new();
        while let Some((f, t)) = net.busy().first().copied() {
            if (f, t) == (from, to) {
                late.extend(net.hold(f, t));
            } else {
                net.deliver(f, t);
            }
        }
        assert!(!late.is_empty(), "{from} to {to}");
        late.into_iter()
            .for_each(|packet| net.push(from, to, packet));
        net.deliver_all();
        assert_eq!(net.freed(), [7]);
        net.finish();
    }
}

/// H16: a release that is not the last, of a value that is not the last, is a matter of course; so
/// is one for a reference that the owner has never heard of.
#[test]
fn hole_h16_a_release_of_anything_unknown_is_ignored() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let carried = net.share(A, B, rref);
    net.share(A, C, rref);
    net.deliver_all();
    net.drop_handle(B, rref);
    net.deliver_all();
    let unknown = Packet::Control(Control::Release(vec![carried.share]));
    repeat(&mut net, B, A, &unknown);
    repeat(&mut net, A, C, &unknown);
    assert_eq!(net.holders(A, rref), [C]);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.finish();
}

/// R3: a registration repeated before the creation keeps one place, not two.
#[test]
fn a_repeated_early_registration_takes_one_place() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let creation = net.hold(A, B);
    let carried = net.share(A, C, rref);
    net.deliver(A, C);
    let registration = Registration {
        share: carried.share,
        fingerprint: TYPE,
    };
    let again = Packet::Control(Control::Register(vec![registration, registration]));
    net.hand(C, B, again).unwrap();
    net.deliver_all();
    assert_eq!(net.table(B).counters().pending_owners, 1);
    assert_eq!(net.holders(B, rref), [C]);
    net.push(A, B, creation[0].clone());
    net.deliver_all();
    net.fulfil(B, rref, 7);
    net.drop_handle(A, rref);
    net.drop_handle(C, rref);
    net.finish();
}

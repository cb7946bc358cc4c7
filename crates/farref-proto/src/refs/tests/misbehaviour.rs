//! Peers that break the protocol: each gets its name, and nothing is changed by it.

use super::tables::*;
use crate::error::PeerMisbehaved;
use crate::ids::{ForkId, NodeId, RRefId};
use crate::message::{Adoption, Control, Creation, Registration, Share};

/// Gives a message that no correct peer sends and expects nothing but the verdict.
fn refuse(net: &mut Tables, from: usize, to: usize, packet: Packet, verdict: PeerMisbehaved) {
    let before = net.table(to).clone();
    let busy = net.busy();
    assert_eq!(net.hand(from, to, packet), Err(verdict));
    assert_eq!(*net.table(to), before);
    assert_eq!(net.busy(), busy);
}

#[test]
fn a_fork_made_by_somebody_else_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let carried = net.share(A, B, rref);
    let parent = id(A);
    refuse(
        &mut net,
        C,
        B,
        Packet::Fork(carried),
        PeerMisbehaved::ForeignFork { parent },
    );
    net.drop_handle(A, rref);
    net.deliver_all();
    net.drop_handle(B, rref);
    net.finish();
}

#[test]
fn an_adoption_of_somebody_elses_fork_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    let share = Share {
        rref,
        fork: ForkId::new(id(C), 0),
    };
    let (holder, fingerprint, parent) = (id(C), TYPE, id(C));
    let adopt = Control::Adopt(vec![Adoption {
        share,
        holder,
        fingerprint,
    }]);
    refuse(
        &mut net,
        B,
        A,
        Packet::Control(adopt),
        PeerMisbehaved::ForeignFork { parent },
    );
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

#[test]
fn a_release_of_somebody_elses_fork_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let carried = net.share(A, B, rref);
    net.deliver_all();
    let release = Packet::Control(Control::Release(vec![carried.share]));
    refuse(
        &mut net,
        C,
        A,
        release,
        PeerMisbehaved::NotHolder { holder: id(B) },
    );
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

#[test]
fn a_registration_of_somebody_elses_fork_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let carried = net.share(A, B, rref);
    net.deliver_all();
    let (share, fingerprint) = (carried.share, TYPE);
    let register = Control::Register(vec![Registration { share, fingerprint }]);
    let verdict = PeerMisbehaved::ForeignFork { parent: id(A) };
    refuse(&mut net, C, A, Packet::Control(register), verdict);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

/// RT-12: nor does it register one that the owner has not made yet.
#[test]
fn a_registration_of_a_fork_that_the_owner_would_make_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    let future = ForkId::new(id(A), 1 << 40);
    let verdict = PeerMisbehaved::ForeignFork { parent: id(A) };
    refuse(&mut net, C, A, register(rref, future), verdict);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

#[test]
fn an_acceptance_in_somebody_elses_name_is_refused() {
    let mut net = Tables::new(4);
    let rref = net.created(A, B, 7);
    let carried = net.share(A, C, rref);
    let accept = Packet::Control(Control::Accept(vec![carried.share]));
    refuse(
        &mut net,
        D,
        A,
        accept,
        PeerMisbehaved::NotHolder { holder: id(C) },
    );
    net.drop_handle(A, rref);
    net.deliver_all();
    net.drop_handle(C, rref);
    net.finish();
}

#[test]
fn a_creation_under_somebody_elses_id_is_refused() {
    let mut net = Tables::new(3);
    let mine = Share {
        rref: RRefId::new(id(A), 8),
        fork: ForkId::new(id(A), 9),
    };
    let foreign = RRefId::new(id(C), 8);
    let fingerprint = TYPE;
    for share in [
        Share {
            rref: foreign,
            ..mine
        },
        Share {
            fork: ForkId::new(id(C), 9),
            ..mine
        },
    ] {
        let verdict = PeerMisbehaved::ForeignCreation { rref: share.rref };
        let creation = Packet::Create(Creation { share, fingerprint });
        refuse(&mut net, A, B, creation, verdict);
    }
    net.finish();
}

#[test]
fn a_second_creation_of_one_value_is_refused() {
    let mut net = Tables::new(2);
    let rref = net.remote(A, B);
    let creation = net.pending(A, B)[0].clone();
    net.deliver_all();
    refuse(
        &mut net,
        A,
        B,
        creation.clone(),
        PeerMisbehaved::CreatedTwice { rref },
    );
    net.fulfil(B, rref, 7);
    refuse(
        &mut net,
        A,
        B,
        creation,
        PeerMisbehaved::CreatedTwice { rref },
    );
    net.drop_handle(A, rref);
    net.finish();
}

/// RT-12: who holds a value has one fork of it. Whoever registers ever more would fill the owner's memory.
#[test]
fn a_holder_that_registers_one_value_over_and_over_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    let register = |counter| {
        let fork = ForkId::new(id(C), counter);
        let share = Share { rref, fork };
        let fingerprint = TYPE;
        Packet::Control(Control::Register(vec![Registration { share, fingerprint }]))
    };
    let most = crate::limits::MAX_FORKS as u64;
    for counter in 0..most {
        assert_eq!(net.hand(B, A, register(counter)), Ok(()));
    }
    // One that it has registered may be said again, and others are not kept from theirs.
    assert_eq!(net.hand(B, A, register(0)), Ok(()));
    let verdict = PeerMisbehaved::TooManyForks { rref };
    refuse(&mut net, B, A, register(most), verdict);
    let other = ForkId::new(id(B), most);
    let share = Share { rref, fork: other };
    let fingerprint = TYPE;
    let register = Control::Register(vec![Registration { share, fingerprint }]);
    assert_eq!(net.hand(C, A, Packet::Control(register)), Ok(()));
    // All of them are let go again: nobody holds what was registered (RT-8).
    net.deliver_all();
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

fn adopt(rref: RRefId, by: usize, counter: u64, holder: NodeId) -> Packet {
    let adoption = Adoption {
        share: Share {
            rref,
            fork: ForkId::new(id(by), counter),
        },
        holder,
        fingerprint: TYPE,
    };
    Packet::Control(Control::Adopt(vec![adoption]))
}

fn register(rref: RRefId, fork: ForkId) -> Packet {
    let registration = Registration {
        share: Share { rref, fork },
        fingerprint: TYPE,
    };
    Packet::Control(Control::Register(vec![registration]))
}

/// RT-12: forks in the name of one who lives would never be released, and would count against it.
#[test]
fn an_adoption_in_the_name_of_one_who_lives_is_refused() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    let verdict = PeerMisbehaved::AdoptedForLiving { holder: id(B) };
    refuse(&mut net, C, A, adopt(rref, C, 9, id(B)), verdict);
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    net.finish();
}

/// RT-12: a worker does not learn that its own earlier lives are over, and others speak for them nevertheless.
#[test]
fn an_adoption_in_the_name_of_an_earlier_life_of_the_owner_changes_nothing() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let earlier = NodeId::new(id(A).worker.0, 0);
    assert_eq!(net.hand(C, A, adopt(rref, C, 9, earlier)), Ok(()));
    assert_eq!(net.holders(A, rref), []);
    let verdict = PeerMisbehaved::AdoptedForLiving { holder: id(A) };
    refuse(&mut net, C, A, adopt(rref, C, 9, id(A)), verdict);
    net.drop_handle(A, rref);
    net.finish();
}

/// RT-12: all that the departed holds is released at one time, so one fork is enough to say that it does.
#[test]
fn however_much_is_adopted_a_departed_one_has_one_fork() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.crash(B);
    net.gone(A, B);
    for counter in 0..100 {
        assert_eq!(net.hand(C, A, adopt(rref, C, counter, id(B))), Ok(()));
    }
    assert_eq!(net.holders(A, rref), [B]);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), [], "the departed may have handed it on");
    net.settled(A, B);
    assert_eq!(net.freed(), [7]);
    net.settled(C, B);
    net.finish();
}

/// RT-12, RT-6: with a life its earlier ones are gone, and settled.
#[test]
fn what_is_adopted_for_earlier_lives_is_one_fork_that_goes_with_the_last() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let last = NodeId::new(900, 50);
    net.on(A, |table, out| table.on_gone(last, out));
    for incarnation in 0..=50 {
        let adopt = adopt(rref, C, incarnation.into(), NodeId::new(900, incarnation));
        assert_eq!(net.hand(C, A, adopt), Ok(()));
    }
    assert_eq!(net.table(A).counters().forks, 1);
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), []);
    net.on(A, |table, out| table.on_settled(last, out));
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-6: who was known by an earlier life is settled with a later one.
#[test]
fn what_an_earlier_life_held_goes_when_a_later_one_is_settled() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    net.drop_handle(A, rref);
    net.crash(B);
    let later = NodeId::new(id(B).worker.0, 9);
    net.on(A, |table, out| table.on_gone(later, out));
    net.on(A, |table, out| table.on_settled(later, out));
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// RT-7, RT-12: what the owner itself made for the departed may be undone, and then the adopted one is all that is left.
#[test]
fn an_adoption_stands_beside_a_fork_that_the_owner_takes_back() {
    let mut net = Tables::new(3);
    let rref = net.local(A, 7);
    let carried = net.on(A, |table, _| table.fork(rref, id(B))).unwrap();
    net.crash(B);
    net.gone(A, B);
    assert_eq!(net.hand(C, A, adopt(rref, C, 9, id(B))), Ok(()));
    net.on(A, |table, out| table.undo_fork(&carried, out));
    net.drop_handle(A, rref);
    assert_eq!(net.freed(), []);
    net.settled(A, B);
    assert_eq!(net.freed(), [7]);
    net.settled(C, B);
    net.finish();
}

/// FK-1, RT-12: D guesses the id of a fork that B made for C, and is there first.
#[test]
fn who_guesses_the_id_of_a_fork_takes_it_from_nobody() {
    let mut net = Tables::new(4);
    let rref = net.local(A, 7);
    net.shared(A, B, rref);
    let carried = net.share(B, C, rref);
    let guessed = register(rref, carried.share.fork);
    assert_eq!(net.hand(D, A, guessed), Ok(()));
    net.deliver_all();
    assert!(net.table(C).is_confirmed(rref), "it is not cut off");
    net.drop_handle(A, rref);
    net.drop_handle(B, rref);
    // D has been confirmed what it does not hold, and has given it back.
    net.deliver_all();
    assert_eq!((net.holders(A, rref), net.freed()), (vec![C], vec![]));
    net.drop_handle(C, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

/// FK-1: C guesses the fork of a creation that is still on its way.
#[test]
fn who_guesses_the_fork_of_a_creation_does_not_take_it_from_the_creator() {
    let mut net = Tables::new(3);
    let rref = net.remote(A, B);
    let Packet::Create(creation) = net.pending(A, B)[0].clone() else {
        panic!("a creation comes first");
    };
    let guessed = register(rref, creation.share.fork);
    assert_eq!(net.hand(C, B, guessed), Ok(()));
    net.deliver_all();
    net.fulfil(B, rref, 7);
    assert_eq!((net.holders(B, rref), net.freed()), (vec![A], vec![]));
    net.drop_handle(A, rref);
    net.deliver_all();
    assert_eq!(net.freed(), [7]);
    net.finish();
}

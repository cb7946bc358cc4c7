//! What a driver keeps for the references that its program holds.

use super::tables::{A, B, C, TYPE, id};
use crate::ids::{NodeId, RRefId};
use crate::outbox::Outbox;
use crate::refs::{RefTable, RefTableConfig};

type Table = RefTable<u32, &'static str>;

fn table(of: NodeId) -> Table {
    RefTable::new(of, RefTableConfig::default())
}

/// A hands a reference to a value of its own to B.
fn hand_over(rref: RRefId, owner: &mut Table, user: &mut Table, out: &mut Outbox<u32>) {
    let carried = owner.fork(rref, id(B)).unwrap();
    user.receive(id(A), &carried, out).unwrap();
}

#[test]
fn what_is_kept_for_the_first_handle_stays_as_long_as_there_is_one() {
    let (mut owner, mut out) = (table(id(A)), Outbox::new());
    let rref = owner.create_local(7, TYPE).unwrap();
    assert_eq!(owner.hold(rref), None);
    owner.keep_hold(rref, "first");
    owner.add_handle(rref).unwrap();
    owner.keep_hold(rref, "second");
    assert_eq!(owner.hold(rref), Some(&"first"));
    owner.drop_handle(rref, &mut out);
    assert_eq!(owner.hold(rref), Some(&"first"));

    // Only others hold it, so nothing is held here.
    owner.fork(rref, id(B)).unwrap();
    owner.drop_handle(rref, &mut out);
    assert_eq!(owner.owner_of(rref), Some(id(A)));
    assert_eq!(owner.hold(rref), None);
}

#[test]
fn a_fetch_alone_is_no_hold_and_the_next_handle_is_the_first_again() {
    let [mut owner, mut user] = [table(id(A)), table(id(B))];
    let mut out = Outbox::new();
    let rref = owner.create_local(7, TYPE).unwrap();
    hand_over(rref, &mut owner, &mut user, &mut out);
    user.keep_hold(rref, "first");
    user.begin_fetch(rref).unwrap();
    assert_eq!(user.hold(rref), Some(&"first"));
    user.drop_handle(rref, &mut out);
    assert_eq!(user.hold(rref), None);

    hand_over(rref, &mut owner, &mut user, &mut out);
    user.keep_hold(rref, "second");
    assert_eq!(user.hold(rref), Some(&"second"));
    user.end_fetch(rref, &mut out);
    assert_eq!(user.hold(rref), Some(&"second"));
    user.drop_handle(rref, &mut out);
    assert_eq!((user.hold(rref), user.owner_of(rref)), (None, None));
}

/// S2: a shutdown that times out says where the references came from that it waited for.
#[test]
fn what_is_kept_outlives_a_forced_release_for_as_long_as_the_program_has_a_handle() {
    let (mut creator, mut out) = (table(id(A)), Outbox::new());
    let creation = creator.create_remote(id(B), TYPE).unwrap();
    let rref = creation.share.rref;
    creator.keep_hold(rref, "first");
    creator.begin_fetch(rref).unwrap();
    // Its owner has not confirmed it, so it stays.
    creator.release_all_users(&mut out);
    assert_eq!(creator.hold(rref), Some(&"first"));
    creator.end_fetch(rref, &mut out);
    assert_eq!(creator.hold(rref), Some(&"first"));
    creator.drop_handle(rref, &mut out);
    assert_eq!(creator.owner_of(rref), Some(id(B)));
    assert_eq!(creator.hold(rref), None);
}

#[test]
fn what_is_kept_is_not_that_of_an_earlier_hold_if_one_message_brings_a_reference_twice() {
    let [mut owner, mut user] = [table(id(A)), table(id(B))];
    let mut out = Outbox::new();
    let rref = owner.create_local(7, TYPE).unwrap();
    hand_over(rref, &mut owner, &mut user, &mut out);
    user.keep_hold(rref, "first");
    // It stays for the sake of whom it was handed on to.
    user.fork(rref, id(C)).unwrap();
    user.drop_handle(rref, &mut out);
    assert_eq!(user.owner_of(rref), Some(id(A)));

    hand_over(rref, &mut owner, &mut user, &mut out);
    hand_over(rref, &mut owner, &mut user, &mut out);
    user.keep_hold(rref, "second");
    user.keep_hold(rref, "third");
    assert_eq!(user.hold(rref), Some(&"second"));
}

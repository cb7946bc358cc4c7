//! What a driver keeps for the references that its program holds.

use super::tables::{A, B, TYPE, id};
use crate::ids::NodeId;
use crate::outbox::Outbox;
use crate::refs::{RefTable, RefTableConfig};

type Table = RefTable<u32, &'static str>;

fn table(of: NodeId) -> Table {
    RefTable::new(of, RefTableConfig::default())
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
    let hand_over = |owner: &mut Table, user: &mut Table, out: &mut Outbox<u32>| {
        let carried = owner.fork(rref, id(B)).unwrap();
        user.receive(id(A), &carried, out).unwrap();
    };
    hand_over(&mut owner, &mut user, &mut out);
    user.keep_hold(rref, "first");
    user.begin_fetch(rref).unwrap();
    assert_eq!(user.hold(rref), Some(&"first"));
    user.drop_handle(rref, &mut out);
    assert_eq!(user.hold(rref), None);

    hand_over(&mut owner, &mut user, &mut out);
    user.keep_hold(rref, "second");
    assert_eq!(user.hold(rref), Some(&"second"));
    user.end_fetch(rref, &mut out);
    assert_eq!(user.hold(rref), Some(&"second"));
    user.drop_handle(rref, &mut out);
    assert_eq!((user.hold(rref), user.owner_of(rref)), (None, None));
}

//! What a word, a good-bye or a leader's message stands for, and what it does not: nodes that are told things one by one.

use super::group::*;
use super::*;
use crate::node::{Node, NodeConfig};

const X: usize = 7;

fn member(me: usize, members: usize) -> Node<()> {
    let membership = Membership::founding(id(me), (0..members).map(id));
    Node::new(id(me), membership, NodeConfig::default())
}

fn entry(n: usize, status: Status) -> (WorkerId, Standing) {
    (id(n).worker, Standing::of(id(n), status))
}

fn view(n: usize, status: Status, ask: Option<Digest>) -> Control {
    let entries = vec![entry(n, status)];
    Control::View { entries, ask }
}

/// What a node says when it is told this.
fn told(node: &mut Node<()>, from: usize, control: Control) -> Vec<(NodeId, Control)> {
    let mut out = Outbox::new();
    node.handle(id(from), control, &mut out).unwrap();
    std::iter::from_fn(|| out.pop_control()).collect()
}

fn tells(said: &[(NodeId, Control)], to: usize, what: (WorkerId, Standing)) -> bool {
    said.iter().any(|(receiver, control)| {
        *receiver == id(to)
            && matches!(control, Control::View { entries, .. } if entries.contains(&what))
    })
}

fn ask(node: &Node<()>) -> Control {
    let (entries, ask) = (Vec::new(), Some(node.membership().view().digest()));
    Control::View { entries, ask }
}

/// ME-5: a view settles on the word that was given on it, and on no other.
#[test]
fn nothing_settles_by_the_word_on_another_view() {
    let mut node = member(B, 4);
    told(&mut node, A, view(D, Status::Dead, None));
    let question = ask(&node);
    let said = told(&mut node, A, question);
    let digest = node.membership().view().digest();
    assert!(said.contains(&(id(A), Control::Known(digest))));
    told(&mut node, A, Control::Settled(Digest(7)));
    assert!(!node.membership().is_settled());
    told(&mut node, A, Control::Settled(digest));
    assert!(node.membership().is_settled());
}

/// ME-5: what has changed of the same worker since the word stays open.
#[test]
fn what_has_changed_since_the_word_stays_open() {
    let mut node = member(B, 3);
    told(&mut node, A, view(X, Status::Joining, None));
    let question = ask(&node);
    told(&mut node, A, question);
    let digest = node.membership().view().digest();
    told(&mut node, C, view(X, Status::Alive, None));
    told(&mut node, A, Control::Settled(digest));
    assert!(!node.membership().is_settled());
}

/// ME-4, ME-5: one that is joining says that it knows what is open; by that nothing is settled on itself.
#[test]
fn the_word_of_one_that_is_joining_settles_nothing_there() {
    let me = id(D);
    let mut node: Node<()> = Node::new(me, Membership::joining(me), NodeConfig::default());
    let digest = Digest(7);
    let said = told(&mut node, A, view(X, Status::Dead, Some(digest)));
    assert!(said.contains(&(id(A), Control::Known(digest))));
    told(&mut node, A, Control::Settled(digest));
    assert!(!node.membership().is_settled());
}

/// What is open is told to each new leader, also if it is that one who says that the one before is gone.
#[test]
fn a_new_leader_is_told_what_the_one_before_was_told() {
    for by in [B, D] {
        let mut node = member(C, 4);
        let said = told(&mut node, D, view(X, Status::Dead, None));
        assert!(tells(&said, A, entry(X, Status::Dead)));
        let said = told(&mut node, by, view(A, Status::Dead, None));
        assert!(tells(&said, B, entry(X, Status::Dead)), "w{by} has said it");
    }
}

/// F10: what one that resigns has told only the one that refuses it, it tells the next leader.
#[test]
fn one_that_resigns_leaves_behind_what_only_it_knows() {
    let mut node = member(D, 4);
    let said = told(&mut node, C, view(X, Status::Dead, None));
    assert!(tells(&said, A, entry(X, Status::Dead)));
    let mut out = Outbox::new();
    node.resign(id(A), &mut out);
    let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
    assert!(tells(&said, B, entry(X, Status::Dead)));
    for n in [B, C] {
        assert!(tells(&said, n, entry(D, Status::Left)));
    }
}

/// F10: the first worker's next life suspected a member before it was let in, and leads then. It declares nobody dead before its
/// driver had occasion to resign, and does so at the next thing that it hears.
#[test]
fn what_was_suspected_before_one_is_let_in_waits_until_the_next_occasion() {
    for resigns in [true, false] {
        let me = NodeId::new(0, 2);
        let mut node: Node<()> = Node::new(me, Membership::joining(me), NodeConfig::default());
        let mut out = Outbox::new();
        node.suspect(id(C), &mut out);
        let group = [B, C].map(|n| entry(n, Status::Alive)).to_vec();
        told(&mut node, B, Control::Welcome(group));
        assert!(node.membership().view().is_member(id(C)));
        if resigns {
            node.resign(id(C), &mut out);
        }
        told(&mut node, B, Control::Known(Digest(7)));
        assert_eq!(node.membership().view().is_member(id(C)), resigns);
    }
}

/// D5: a member that says again and again that it knows something else is shown all once.
#[test]
fn a_member_that_knows_something_else_is_shown_all_once() {
    let mut node = member(A, 4);
    told(&mut node, B, view(X, Status::Dead, None));
    let unlike = Control::Unlike {
        asked: node.membership().view().digest(),
        mine: Digest(7),
    };
    let mut shown = || {
        tells(
            &told(&mut node, C, unlike.clone()),
            C,
            entry(B, Status::Alive),
        )
    };
    assert_eq!([shown(), shown(), shown()], [true, false, false]);
}

/// ME-10: where there are as many lives as may be, nobody is taken for a member by its word.
#[test]
fn a_stranger_beyond_the_limit_is_not_taken_for_a_member() {
    for (lives, is_taken) in [(3, false), (4, true)] {
        let config = NodeConfig {
            max_lives: lives,
            ..NodeConfig::default()
        };
        let membership = Membership::founding(id(A), (0..3).map(id));
        let mut node: Node<()> = Node::new(id(A), membership, config);
        let question = ask(&node);
        told(&mut node, X, question);
        assert_eq!(node.membership().view().is_member(id(X)), is_taken);
    }
}

//! Groups that a split has made of one, and what they tell each other when they meet.

use super::super::*;
use super::group::*;
use crate::outbox::Outbox;

/// Two groups of one worker each, the first two of the fixture, which have given each other up.
fn split() -> Group {
    let mut group = Group::new(2);
    group.suspect(A, B);
    group.suspect(B, A);
    group.lose(A, B);
    group.lose(B, A);
    group
}

/// `from` tells `n` of another node.
fn tell(group: &mut Group, n: usize, from: NodeId, of: NodeId, status: Status) {
    let entries = vec![(of.worker, Standing::of(of, status))];
    let view = Control::View { entries, ask: None };
    group
        .on(n, |node, out| node.handle(from, view, out))
        .unwrap();
}

/// A newcomer that `first` has let in, and that the member `second` of the other group has heard of; nobody
/// of that group has told it anything yet.
fn newcomer_of_both(group: &mut Group, first: usize, second: usize) -> usize {
    let newcomer = group.join(id(group.nodes.len()), second);
    group.deliver(newcomer, second);
    group.ask(newcomer, first);
    group.deliver(newcomer, first);
    give_word(group, first, newcomer);
    newcomer
}

/// A member that is alone has the newcomer's word and lets it in; what it says then is on its way.
fn give_word(group: &mut Group, member: usize, newcomer: usize) {
    group.deliver(member, newcomer);
    group.deliver(newcomer, member);
}

/// What lets the newcomer in arrives.
fn let_in(group: &mut Group, by: usize, newcomer: usize) {
    while !group.pending(by, newcomer).is_empty() {
        group.deliver(by, newcomer);
    }
    assert_eq!(group.phase(newcomer), Phase::Member);
}

/// The old groups are gone, and those who are left find out.
fn bury(group: &mut Group, dead: &[usize], left: &[usize]) {
    for &n in dead {
        group.crash(n);
    }
    group.deliver_all();
    for &n in left {
        assert_eq!(group.phase(n), Phase::Member, "w{n}");
        for &dead in dead {
            group.suspect(n, dead);
        }
    }
    group.deliver_all();
    let members: Vec<NodeId> = left.iter().map(|&n| group.id(n)).collect();
    assert_eq!(group.members(left[0]), members);
    group.assert_agreed();
}

/// ME-8, S1: two groups that went on by themselves after a split meet through a newcomer of each. They agree in
/// the end on who has joined and who has died, so that nobody waits for somebody's word for ever.
#[test]
fn two_groups_that_meet_after_a_split_tell_each_other_all_they_know() {
    let mut group = split();
    let first = group.join(id(C), A);
    group.deliver(first, A);
    give_word(&mut group, A, first);
    let second = group.join(id(D), B);
    // The first newcomer has heard of the second, from whoever has died since.
    tell(&mut group, first, id(A), id(D), Status::Joining);
    group.deliver(second, B);
    give_word(&mut group, B, second);
    let_in(&mut group, B, second);
    bury(&mut group, &[A, B], &[first, second]);
}

/// ME-8, S1: a newcomer has asked a member of one group, and was let in by the other. The first group's sponsor dies;
/// whoever tells the newcomer so is a member, and both groups know of each other by that.
#[test]
fn whoever_speaks_as_a_member_is_known_to_be_one() {
    for welcomed_first in [true, false] {
        let mut group = split();
        let member = group.join(id(C), A);
        group.deliver_all();
        let newcomer = newcomer_of_both(&mut group, B, A);
        // The sponsor has told the other member of the newcomer, and nothing else.
        group.deliver(A, member);
        group.crash(A);
        group.lose(A, newcomer);
        if welcomed_first {
            let_in(&mut group, B, newcomer);
        }
        group.suspect(member, A);
        while !group.pending(member, newcomer).is_empty() {
            group.deliver(member, newcomer);
        }
        bury(&mut group, &[A, B], &[member, newcomer]);
    }
}

/// ME-8, S1: a newcomer that was let in by one group hears that another lets it in, too.
#[test]
fn a_second_welcome_is_heard_as_well() {
    let mut group = split();
    let member = group.join(id(C), A);
    group.deliver_all();
    let newcomer = newcomer_of_both(&mut group, B, member);
    group.deliver(member, A);
    for n in [member, newcomer] {
        group.deliver(A, n);
        group.deliver(n, A);
    }
    group.deliver(A, member);
    let welcome = |control: &Control| matches!(control, Control::Welcome(_));
    assert!(group.pending(member, newcomer).iter().any(welcome));
    let_in(&mut group, B, newcomer);
    bury(&mut group, &[A, B], &[member, newcomer]);
}

/// ME-9, S1: whoever lets a newcomer in was given up by the group that the newcomer comes to know afterwards. When it
/// tells them whom it takes for alive, they say who is not.
#[test]
fn whoever_says_what_is_outdated_is_told() {
    let mut group = split();
    let member = group.join(id(C), A);
    group.deliver_all();
    assert!(group.view(member).is_gone(id(B)), "and that is settled");
    let newcomer = newcomer_of_both(&mut group, B, member);
    group.lose(member, A);
    let_in(&mut group, B, newcomer);
    assert!(group.view(newcomer).is_member(id(B)));
    // It tells the member of the other group whom it takes for alive.
    tell(&mut group, member, id(D), id(B), Status::Alive);
    group.deliver_all_but(|from, _| from == id(B));
    assert!(
        group.view(newcomer).is_gone(id(B)),
        "the member has said so"
    );
    bury(&mut group, &[A, B], &[member, newcomer]);
}

/// ME-9, S1: a suspicion says that the suspect is taken for alive. One that was buried before the other was known is
/// not judged again, but the other is told, or it waits for ever.
#[test]
fn a_suspicion_of_one_that_is_long_gone_is_answered() {
    let mut group = split();
    let member = group.join(id(C), A);
    group.deliver_all();
    let newcomer = newcomer_of_both(&mut group, B, member);
    group.lose(member, A);
    let_in(&mut group, B, newcomer);
    // Each has heard that the other joins, and so tells it nothing of others.
    for status in [Status::Joining, Status::Alive] {
        tell(&mut group, newcomer, NodeId::new(9, 1), id(C), status);
    }
    tell(&mut group, member, id(D), id(D), Status::Alive);
    bury(&mut group, &[A, B], &[member, newcomer]);
}

/// ME-9: the judge takes the accuser for alive; the accused has buried it and says so, or does it now. Otherwise the
/// accuser would wait for an answer for ever.
#[test]
fn an_accusation_by_one_that_the_accused_does_not_know_is_answered() {
    let mut group = Group::new(3);
    group.suspect(A, C);
    group.deliver(A, B);
    group.deliver(B, A);
    assert!(group.nodes[A].membership().is_settled());
    // The judge was let in by others.
    let judge = id(D);
    tell(&mut group, A, id(B), judge, Status::Joining);
    tell(&mut group, A, id(B), judge, Status::Alive);
    for accuser in [id(C), NodeId::new(7, 1)] {
        let mut out = Outbox::new();
        let accused = Control::Accused(accuser);
        group.nodes[A].handle(judge, accused, &mut out).unwrap();
        let dead = (accuser.worker, Standing::of(accuser, Status::Dead));
        let told = |(to, control): (NodeId, Control)| {
            to == judge && matches!(control, Control::View { entries, .. } if entries == [dead])
        };
        let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
        assert!(said.iter().cloned().any(told), "{said:?}");
    }
}

/// ME-9: whoever has been told already, and has not answered yet, is not told again.
#[test]
fn whoever_is_being_told_is_not_told_twice() {
    let mut group = Group::new(3);
    group.suspect(A, C);
    let told = group.pending(A, B);
    assert_eq!(told.len(), 1);
    tell(&mut group, A, id(B), id(C), Status::Alive);
    let suspicion = Control::Suspect(id(C));
    group
        .on(A, |node, out| node.handle(id(B), suspicion, out))
        .unwrap();
    assert_eq!(group.pending(A, B), told);
}

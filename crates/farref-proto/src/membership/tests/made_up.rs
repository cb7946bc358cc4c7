//! Lives that do not exist, and groups that have as many as they may have: what they cost, and who is blamed.

use super::group::*;
use super::*;
use crate::event::Event;
use crate::node::{Node, NodeConfig};
use crate::outbox::Outbox;

/// Far fewer than as a rule, so that tests are quick.
const MEMBERS: usize = 300;
const LIVES: usize = 4 * MEMBERS;
const UNSETTLED: usize = 1000;
const UNHEARD: usize = 8;

fn config() -> NodeConfig {
    NodeConfig {
        max_members: MEMBERS,
        max_lives: LIVES,
        max_unsettled: UNSETTLED,
        max_unheard: UNHEARD,
        ..NodeConfig::default()
    }
}

fn member(n: usize, members: usize) -> Node<()> {
    Node::new(
        id(n),
        Membership::founding(id(n), (0..members).map(id)),
        config(),
    )
}

fn standing(status: Status) -> Standing {
    Standing::of(id(0), status)
}

fn view(entries: Vec<(WorkerId, Standing)>) -> Control {
    let ask = None;
    Control::View { entries, ask }
}

/// So many entries of standings wait to be sent, and to so many.
fn entries_and_receivers(out: &mut Outbox<()>) -> (usize, BTreeSet<NodeId>) {
    let mut receivers = BTreeSet::new();
    let mut entries = 0;
    while let Some((to, control)) = out.pop_control() {
        receivers.insert(to);
        // Every message takes some room.
        entries += 1;
        if let Control::View { entries: list, .. } | Control::Welcome(list) = control {
            entries += list.len();
        }
    }
    (entries, receivers)
}

/// What a node keeps of its group.
fn kept(membership: &Membership) -> usize {
    let round = membership.round.as_ref();
    membership.view.len()
        + membership.open.len()
        + membership.departed.len()
        + membership.unheard.len()
        + membership.suspects.len()
        + membership.newcomers.len()
        + membership.tellers.len()
        + round.map_or(0, Round::len)
}

/// ME-10, ME-11, D5: one member makes up a million lives, in any of these ways, and never answers. It is cut off long
/// before, by the leader and by any other; what the one keeps, and what it says to all, stays within bounds.
#[test]
fn a_member_that_makes_others_up_is_cut_off_and_what_it_cost_is_bounded() {
    let group = 10;
    let liar = id(group - 1);
    let all = [Status::Joining, Status::Alive, Status::Left, Status::Dead];
    for me in [A, B] {
        for (status, at_once) in all.into_iter().flat_map(|it| [(it, MAX_BATCH), (it, 7)]) {
            let mut node = member(me, group);
            let mut out = Outbox::new();
            let mut blamed = None;
            let mut told = 0;
            while told < 1_000_000 && blamed.is_none() {
                let workers = group + told..group + told + at_once;
                let entries = workers.map(|it| (WorkerId(it as u32), standing(status)));
                blamed = node.handle(liar, view(entries.collect()), &mut out).err();
                told += at_once;
            }
            let what = format!("w{me} is told {status:?}, {at_once} at once");
            // The leader takes twice as much; of lives there may be no more in any case.
            let most = UNSETTLED * if me == A { 2 } else { 1 };
            assert!(
                blamed == Some(PeerMisbehaved::TooMuchUnsettled { limit: most })
                    || blamed == Some(PeerMisbehaved::TooManyLives { limit: LIVES }),
                "{what}: {blamed:?}"
            );
            assert!(told <= most + at_once, "{what}: {told}");
            let kept = kept(node.membership());
            assert!(kept <= 5 * most + 100, "{what}: {kept} are kept");
            let (entries, receivers) = entries_and_receivers(&mut out);
            // Each change to each member once, a question with each message; to each life a short word.
            let messages = told / at_once + 1;
            let to_members = group * (most + messages);
            let to_lives = LIVES * (1 + UNHEARD);
            assert!(
                entries <= to_members + to_lives,
                "{what}: {entries} entries"
            );
            assert!(receivers.len() <= group + LIVES, "{what}");
            // The node cuts it off, and goes on.
            node.suspect(liar, &mut out);
            if me == A {
                assert!(node.membership().view().is_gone(liar));
            } else {
                let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
                assert!(said.contains(&(id(A), Control::Suspect(liar))), "{what}");
            }
            assert_eq!(node.inconsistency(), None);
        }
    }
}

/// ME-10: nor can anybody be made up by being suspected, accused, or coming back again and again.
#[test]
fn suspicions_and_lives_after_lives_are_counted_as_well() {
    let liar = id(C);
    let ways: [fn(u32) -> Control; 3] = [
        |n| Control::Suspect(NodeId::new(10 + n, 1)),
        |n| Control::Accused(NodeId::new(10 + n, 1)),
        |n| {
            let life = NodeId::new(7, 1 + n);
            view(vec![(life.worker, Standing::of(life, Status::Alive))])
        },
    ];
    for way in ways {
        let mut node = member(A, 3);
        let mut out = Outbox::new();
        let limit = 2 * UNSETTLED;
        let mut told = (0..1_000_000).map(|n| node.handle(liar, way(n), &mut out));
        let blamed = told.position(|told| told == Err(PeerMisbehaved::TooMuchUnsettled { limit }));
        assert_eq!(blamed, Some(limit));
        assert!(kept(node.membership()) <= 5 * limit);
    }
}

/// ME-10: what is settled counts against nobody, however much it is in the end.
#[test]
fn a_group_that_comes_to_rest_now_and_then_may_have_any_number_of_changes() {
    let mut group = Group::with(3, config());
    let rounds = 20;
    for round in 0..rounds {
        let first = 10 + round * UNSETTLED / 4;
        let dead =
            (first..first + UNSETTLED / 4).map(|it| (WorkerId(it as u32), standing(Status::Dead)));
        let dead: Vec<_> = dead.collect();
        // Now the leader hears it, now another.
        let (to, from) = [(A, C), (B, C)][round % 2];
        let told = group.on(to, |node, out| node.handle(id(from), view(dead), out));
        assert_eq!(told, Ok(()));
        group.deliver_all();
        group.assert_agreed();
    }
    for node in &group.nodes {
        assert_eq!(node.membership().view.len(), 3 + rounds * (UNSETTLED / 4));
        assert!(node.membership().open.is_empty());
    }
}

/// ME-10: an honest member passes on to its leader what a liar may tell it, and the leader to all; none of them is
/// blamed for it.
#[test]
fn whoever_passes_on_what_it_was_told_is_not_blamed() {
    let mut group = Group::with(5, config());
    let liar = id(4);
    for first in (10..10 + UNSETTLED).step_by(100) {
        let made_up = first..first + 100;
        let entries = made_up.map(|it| (WorkerId(it as u32), standing(Status::Joining)));
        let entries = view(entries.collect());
        let told = group.on(B, |node, out| node.handle(liar, entries, out));
        assert_eq!(told, Ok(()));
        // The fixture asserts that nobody is blamed.
        group.deliver_all_but(|from, to| from == liar || to == liar);
    }
    let more = view(vec![(WorkerId(5000), standing(Status::Joining))]);
    let told = group.on(B, |node, out| node.handle(liar, more, out));
    let limit = UNSETTLED;
    assert_eq!(told, Err(PeerMisbehaved::TooMuchUnsettled { limit }));
    // Those who do not exist cannot be reached, and the liar was cut off.
    group.crash(4);
    for node in [vec![liar], (10..10 + UNSETTLED).map(id).collect()].concat() {
        group.on(A, |leader, out| leader.suspect(node, out));
        group.deliver_all();
    }
    for n in [A, B, C, D] {
        assert_eq!(group.members(n), [A, B, C, D].map(id));
        assert!(group.nodes[n].membership().is_settled(), "w{n}");
    }
}

/// ME-11: whoever exists is asked in earnest as soon as it has said a word.
#[test]
fn those_who_are_told_little_are_told_the_rest_when_they_are_heard() {
    let mut group = Group::with(3, config());
    // So much is open that newcomers are not told it at once.
    let news: Vec<_> = (50..50 + UNHEARD + 1)
        .map(|it| (WorkerId(it as u32), standing(Status::Dead)))
        .collect();
    let newcomer = group.join(id(D), B);
    group.deliver(newcomer, B);
    group
        .on(A, |node, out| node.handle(id(B), view(news.clone()), out))
        .unwrap();
    group.deliver(B, A);
    let knock = Control::View {
        entries: Vec::new(),
        ask: Some(Digest::NOTHING),
    };
    assert_eq!(group.pending(A, newcomer), [knock]);
    group.deliver(A, newcomer);
    group.deliver(newcomer, A);
    let asked = group.pending(A, newcomer);
    let digest = group.view(A).digest();
    let Some(Control::View { entries, ask }) = asked.last() else {
        panic!("{asked:?}")
    };
    assert_eq!((entries, *ask), (&news, Some(digest)));
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Member);
    group.assert_agreed();
}

/// ME-11: members are told each change once, however many rounds it takes.
#[test]
fn what_is_open_is_told_once() {
    let mut node = member(A, 4);
    let mut out = Outbox::new();
    for worker in 10..60 {
        let dead = view(vec![(WorkerId(worker), standing(Status::Dead))]);
        node.handle(id(B), dead, &mut out).unwrap();
    }
    let (entries, receivers) = entries_and_receivers(&mut out);
    assert_eq!(receivers, [B, C, D].map(id).into());
    assert_eq!(entries, 3 * 50 + 3 * 50);
}

/// D5: a group that has as many members as it may have says so to those who would be one more. Who comes back is not.
#[test]
fn a_full_group_lets_nobody_in_and_says_why() {
    let few = NodeConfig {
        max_members: 3,
        ..config()
    };
    let mut group = Group::with(3, few);
    let newcomer = group.join(id(D), B);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Joining);
    let (node, limit) = (id(B), 3);
    assert_eq!(group.events(newcomer), [Event::NoRoom { node, limit }]);
    for n in [A, B, C] {
        assert_eq!(group.view(n).live_count(), 3);
        assert!(group.nodes[n].membership().is_settled());
    }
    let again = group.join(NodeId::new(C as u32, 2), A);
    group.deliver_all();
    assert_eq!(group.phase(again), Phase::Member);
    // There is room when somebody is gone.
    group.crash(again);
    group.suspect(A, again);
    group.deliver_all();
    group.ask(newcomer, A);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Member);
    group.assert_agreed();
}

/// ME-10: members who let in the last ones at one time, each on its own, are not blamed for it.
#[test]
fn those_who_let_in_the_last_ones_at_one_time_are_not_blamed() {
    let few = NodeConfig {
        max_members: 4,
        ..config()
    };
    let mut group = Group::with(3, few);
    let newcomers: Vec<usize> = (0..3).map(|n| group.join(id(3 + n), n)).collect();
    for (n, &newcomer) in newcomers.iter().enumerate() {
        group.deliver(newcomer, n);
    }
    group.deliver_all();
    group.assert_agreed();
    assert_eq!(group.members(A).len(), 6);
}

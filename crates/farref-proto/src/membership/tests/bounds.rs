//! What a peer may say of workers: how much of it, and how high its numbers.

use super::group::*;
use super::*;
use crate::node::{Node, NodeConfig};
use crate::residue::Residue;
use farref_testkit::thorough;

/// Standings of workers that nobody has heard of.
fn strangers(from: usize, count: usize, standing: Standing) -> Vec<(WorkerId, Standing)> {
    (from..from + count)
        .map(|worker| (WorkerId(worker as u32), standing))
        .collect()
}

fn dead(incarnation: u32) -> Standing {
    Standing {
        incarnation: Incarnation(incarnation),
        status: Status::Dead,
    }
}

fn view(entries: Vec<(WorkerId, Standing)>) -> Control {
    let ask = None;
    Control::View { entries, ask }
}

/// ME-1: the last incarnation is one like any other, whatever its standing and whoever was before it.
#[test]
fn the_highest_incarnation_is_one_like_any_other() {
    let all = [Status::Joining, Status::Alive, Status::Left, Status::Dead];
    for status in all {
        for known in [None, Some(1), Some(u32::MAX)] {
            let mut group = Group::new(2);
            let stranger = WorkerId(7);
            let tell = |group: &mut Group, incarnation, status| {
                let incarnation = Incarnation(incarnation);
                let standing = Standing {
                    incarnation,
                    status,
                };
                let told = group.on(A, |node, out| {
                    node.handle(id(B), view(vec![(stranger, standing)]), out)
                });
                assert_eq!(told, Ok(()));
                standing
            };
            if let Some(known) = known {
                tell(&mut group, known, Status::Joining);
            }
            let told = tell(&mut group, u32::MAX, status);
            assert_eq!(group.view(A).standing(stranger), Some(told));
            let last = NodeId::new(stranger.0, u32::MAX);
            assert_eq!(group.view(A).is_gone(last), status > Status::Alive);
            assert!(group.view(A).is_gone(NodeId::new(stranger.0, u32::MAX - 1)));
        }
    }
}

/// D5: a list of standings is bounded like every other list, and one that is too long changes nothing.
#[test]
fn a_list_of_standings_beyond_the_limit_is_refused() {
    let len = MAX_BATCH + 1;
    let entries = strangers(7, len, dead(1));
    let mut group = Group::new(2);
    let newcomer = group.join(id(C), A);
    let before = group.view(A).clone();
    for (at, control) in [
        (A, view(entries.clone())),
        (newcomer, Control::Welcome(entries)),
        (
            A,
            Control::Probe {
                round: 1,
                all_willing: true,
                waiting_for: vec![(id(B), Residue::default()); len],
            },
        ),
    ] {
        let told = group.on(at, |node, out| node.handle(id(B), control, out));
        assert_eq!(told, Err(PeerMisbehaved::BatchTooLong { len }));
    }
    assert_eq!(*group.view(A), before);
    assert_eq!(group.phase(newcomer), Phase::Joining);
}

/// D5: a view remembers every worker, so their number is bounded, too.
#[test]
fn more_workers_than_a_group_can_have_are_refused() {
    let config = NodeConfig {
        max_lives: MAX_WORKERS,
        ..NodeConfig::default()
    };
    let mut group = Group::with(1, config);
    let newcomer = group.join(id(B), A);
    let joining = Standing::of(NodeId::new(0, 0), Status::Joining);
    if !thorough() {
        // As if it had heard of all but the last: each message takes longer in a larger view.
        let heard_of = View::of((0..MAX_WORKERS - MAX_BATCH - 7).map(id));
        let membership = Membership::new(id(B), Phase::Joining, heard_of);
        group.nodes[newcomer] = Node::new(id(B), membership, config);
    }
    let mut known = group.view(newcomer).len();
    while known < MAX_WORKERS {
        let count = MAX_BATCH.min(MAX_WORKERS - known);
        let entries = strangers(1 + known, count, joining);
        let told = group.on(newcomer, |node, out| node.handle(id(A), view(entries), out));
        assert_eq!(told, Ok(()));
        known += count;
    }
    let entries = strangers(1 + known, 1, joining);
    let told = group.on(newcomer, |node, out| node.handle(id(A), view(entries), out));
    assert_eq!(told, Err(PeerMisbehaved::TooManyWorkers { known }));
    // Nor by a suspicion of one more.
    let suspicion = Control::Suspect(NodeId::new(1 + known as u32, 1));
    let told = group.on(newcomer, |node, out| node.handle(id(A), suspicion, out));
    assert_eq!(told, Err(PeerMisbehaved::TooManyWorkers { known }));
    assert_eq!(group.view(newcomer).len(), MAX_WORKERS);
}

/// D5: and nobody makes one more by asking to be let in.
#[test]
fn a_group_that_has_had_all_the_workers_it_can_have_takes_no_new_one_in() {
    let node = |worker: usize| NodeId::new(worker as u32, 0);
    let mut full = Membership::founding(node(0), (0..MAX_WORKERS).map(node));
    let newcomer = node(MAX_WORKERS);
    let outcome = full.on_join(newcomer);
    let limit = MAX_WORKERS as u32;
    assert_eq!(outcome.messages, [(newcomer, Control::NoRoom { limit })]);
    assert!(outcome.changes.is_empty());
    assert_eq!(full.view().len(), MAX_WORKERS);
    assert!(full.is_settled());
}

/// Section 4.9: news of many workers costs each member one message.
#[test]
fn news_that_came_together_is_passed_on_together() {
    let mut group = Group::new(4);
    let news = strangers(4, 900, dead(1));
    group
        .on(A, |node, out| node.handle(id(B), view(news.clone()), out))
        .unwrap();
    let digest = group.view(A).digest();
    for n in [B, C, D] {
        let (entries, ask) = (news.clone(), Some(digest));
        assert!(group.pending(A, n) == [Control::View { entries, ask }]);
    }
    group.deliver_all();
    group.assert_agreed();
}

/// ME-4, D5: a group that had more workers than fit into one message lets newcomers in all the same,
/// and they know all of it.
#[test]
fn a_newcomer_learns_and_tells_of_any_number_of_workers() {
    let mut group = Group::new(3);
    let all = strangers(100, 2 * MAX_BATCH + 100, dead(1));
    for entries in all.chunks(MAX_BATCH) {
        let entries = entries.to_vec();
        group
            .on(A, |node, out| node.handle(id(B), view(entries), out))
            .unwrap();
    }
    group.deliver_all();
    let newcomer = group.join(id(D), A);
    let mut longest = 0;
    while let Some(&(from, to)) = group.busy().first() {
        let slots = [from, to].map(|node| group.slot(node).unwrap());
        for control in group.pending(slots[0], slots[1]) {
            if let Control::View { entries, .. } | Control::Welcome(entries) = control {
                longest = longest.max(entries.len());
            }
        }
        group.bring((from, to));
    }
    assert_eq!(longest, MAX_BATCH);
    assert_eq!(group.phase(newcomer), Phase::Member);
    group.assert_agreed();
}

/// Section 4.9: a newcomer is asked whether it knows what it told, and not told it.
#[test]
fn a_newcomer_is_not_told_back_what_it_told() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), A);
    group.deliver_all_but(|from, _| from == id(D));
    group.deliver(newcomer, A);
    while !group.pending(newcomer, A).is_empty() {
        group.deliver(newcomer, A);
    }
    for control in group.pending(A, newcomer) {
        let Control::View { entries, .. } = control else {
            panic!("{control:?}")
        };
        assert_eq!(entries, []);
    }
    group.deliver_all();
    group.assert_agreed();
}

/// D5: a group keeps one standing of each worker, however often it has come back, and of what was settled nothing else. Now
/// it is a member that comes back, now the leader.
#[test]
fn a_worker_that_comes_back_many_times_takes_no_more_memory() {
    let mut group = Group::new(4);
    for life in 2..100 {
        for (n, sponsor) in [(A, B), (C, A)] {
            group.join(NodeId::new(n as u32, life), sponsor);
            group.deliver_all();
        }
        if life % 10 == 0 {
            group.crash(D);
            group.suspect(B, D);
            group.deliver_all();
            group.join(NodeId::new(D as u32, life), C);
            group.deliver_all();
        }
        group.assert_agreed();
        for node in &group.nodes {
            let membership = node.membership();
            let kept = (
                membership.view.len(),
                membership.open.len() + membership.departed.len(),
                membership.newcomers.len() + membership.suspects.len(),
                membership.farewells.len(),
            );
            assert_eq!(kept, (4, 0, 0, 0), "{membership:?}");
            assert!(membership.round.is_none() && membership.asked.len() <= 3);
        }
    }
}

//! Graceful shutdown: everyone is found at rest, at one moment (QU-1 to QU-4, S1, S1a).

use std::time::Duration;

use super::cluster::*;
use crate::event::Event;
use crate::ids::NodeId;
use crate::membership::{Membership, Quiescence};
use crate::message::Control;
use crate::residue::Residue;
use crate::standing::Phase;
use crate::time::Time;

fn shut_down(net: &mut Cluster, n: usize) {
    net.on(n, |node, _| node.shut_down());
}

/// Lets a round of probes and reports pass.
fn round(net: &mut Cluster) {
    net.tick();
    net.deliver_all();
}

fn complete(net: &Cluster) -> Vec<usize> {
    net.live()
        .into_iter()
        .filter(|&n| net.node(n).quiescence().is_complete())
        .collect()
}

/// QU-1
#[test]
fn a_shutdown_completes_after_two_idle_rounds() {
    let mut net = Cluster::new(3);
    (0..3).for_each(|n| shut_down(&mut net, n));
    round(&mut net);
    round(&mut net);
    assert_eq!(complete(&net), [], "one look is not enough");
    round(&mut net);
    assert_eq!(complete(&net), [A, B, C]);
    for n in 0..3 {
        assert_eq!(net.events(n), [Event::ShutdownComplete]);
        assert_eq!(net.node(n).poll_timeout(), None);
    }
    round(&mut net);
    assert_eq!(net.events(A), [], "it is said once");
    net.finish();
}

/// QU-1: something happened between the two looks, and was over before the second.
#[test]
fn activity_between_two_looks_starts_the_count_again() {
    let mut net = Cluster::new(2);
    (0..2).for_each(|n| shut_down(&mut net, n));
    round(&mut net);
    let rref = net.local(B, 7);
    net.drop_handle(B, rref);
    round(&mut net);
    round(&mut net);
    assert_eq!(complete(&net), []);
    round(&mut net);
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// QU-1: a newcomer comes, hands B something behind B's second report, and dies, all between the leader's two looks.
#[test]
fn whoever_came_and_went_between_two_looks_starts_the_count_again() {
    let mut net = Cluster::new(3);
    net.bury(C);
    (0..2).for_each(|n| shut_down(&mut net, n));
    (0..2).for_each(|_| round(&mut net));
    net.restart(C, 2, A);
    net.deliver_all();
    let rref = net.local(C, 7);
    let request = net.ask(C, B, &[rref]);
    net.deliver_all();
    net.bury(C);
    assert!(!net.node(B).is_empty() && net.node(A).membership().is_settled());
    net.tick();
    assert_eq!(complete(&net), [], "B has what the newcomer handed it");
    net.deliver_all();
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), []);
    let caller = NodeId::new(2, 2);
    let answered = net.on(B, |node, out| node.answer(caller, request, &[], out));
    assert_eq!(answered, Ok(None));
    net.drop_handle(B, rref);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// QU-1: a report counts for the look that asked for it: what is told a second time says nothing of now.
#[test]
fn a_report_of_an_earlier_look_does_not_count() {
    let mut net = Cluster::new(2);
    (0..2).for_each(|n| shut_down(&mut net, n));
    net.tick();
    net.deliver_control(A, B);
    let report = net.controls(B, A).pop().unwrap();
    assert!(matches!(report, Control::Report { round: 1, .. }));
    net.deliver_all();
    net.tick();
    let rref = net.local(B, 7);
    net.on(A, |node, out| node.handle(id(B), report, out))
        .unwrap();
    net.tick();
    assert_eq!(complete(&net), [], "B has not answered the second time");
    net.drop_handle(B, rref);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// QU-5: a newcomer turns to B between B's last report and the word that all is done.
#[test]
fn a_group_at_rest_lets_nobody_in_who_asked_before() {
    let mut net = Cluster::new(3);
    net.bury(C);
    (0..2).for_each(|n| shut_down(&mut net, n));
    (0..2).for_each(|_| round(&mut net));
    net.restart(C, 2, B);
    net.bring_control((NodeId::new(2, 2), id(B)));
    let asks = net.controls(B, A);
    assert!(matches!(asks[..], [Control::View { .. }]), "{asks:?}");
    net.tick();
    assert_eq!(
        complete(&net),
        [A],
        "the leader has not heard of the newcomer"
    );
    net.deliver_all();
    assert_eq!(complete(&net), [A, B]);
    assert_eq!(net.node(C).membership().phase(), Phase::Joining);
    net.crash(C);
    net.suspect(A, C);
    net.finish();
}

/// S1: a shutdown is for all; whoever has not asked for it is waited for, and named.
#[test]
fn a_worker_that_does_not_want_to_shut_down_is_named() {
    let mut net = Cluster::new(3);
    shut_down(&mut net, B);
    (0..5).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), []);
    let waiting: Vec<_> = net.node(B).quiescence().waiting_for().to_vec();
    let who: Vec<_> = waiting
        .iter()
        .map(|(node, residue)| (*node, residue.wants_shutdown))
        .collect();
    assert_eq!(who, [(id(A), false), (id(C), false)]);
    shut_down(&mut net, A);
    shut_down(&mut net, C);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B, C]);
    net.finish();
}

/// S1: everyone is told who is missing and what it holds.
#[test]
fn a_worker_that_holds_something_is_named_with_what_it_holds() {
    let mut net = Cluster::new(3);
    let rref = net.created(B, C, 7);
    let context = net.on(B, |node, _| node.open_context());
    let request = net.ask(B, C, &[]);
    net.deliver_all();
    (0..3).for_each(|n| shut_down(&mut net, n));
    (0..3).for_each(|_| round(&mut net));
    for n in 0..3 {
        let waiting = net.node(n).quiescence().waiting_for().to_vec();
        let [(b, of_b), (c, of_c)] = waiting[..] else {
            panic!("{waiting:?}")
        };
        assert_eq!(
            (b, of_b.calls, of_b.references, of_b.contexts),
            (id(B), 1, 1, 1)
        );
        assert_eq!(
            (c, of_c.calls, of_c.references, of_c.contexts),
            (id(C), 1, 1, 0)
        );
    }
    net.answer(C, B, request, &[]);
    net.drop_handle(B, rref);
    net.on(B, |node, out| node.release_context(context, out))
        .unwrap();
    net.deliver_all();
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B, C]);
    net.finish();
}

/// QU-2
#[test]
fn the_dead_are_not_waited_for() {
    let mut net = Cluster::new(3);
    let rref = net.created(C, B, 7);
    shut_down(&mut net, A);
    shut_down(&mut net, B);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), []);
    net.bury(C);
    assert_eq!(net.freed(), [7]);
    assert_eq!(rref.origin, id(C));
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// QU-2: the leader dies in the middle of it; the next takes over.
#[test]
fn a_new_leader_takes_over() {
    let mut net = Cluster::new(3);
    (0..3).for_each(|n| shut_down(&mut net, n));
    round(&mut net);
    net.bury(A);
    assert_eq!(net.node(C).membership().leader(), id(B));
    (0..5).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [B, C]);
    net.finish();
}

/// QU-2: the only one to want it tells the new leader, who may not have heard.
#[test]
fn a_new_leader_is_told_of_the_wish() {
    let mut net = Cluster::new(3);
    shut_down(&mut net, C);
    round(&mut net);
    net.bury(A);
    round(&mut net);
    round(&mut net);
    assert!(net.node(B).poll_timeout().is_some(), "B asks around now");
    shut_down(&mut net, B);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [B, C]);
    net.finish();
}

/// QU-1: an answer to an earlier question is no answer to the present one.
#[test]
fn a_report_of_an_earlier_round_does_not_count() {
    let mut net = Cluster::new(2);
    (0..2).for_each(|n| shut_down(&mut net, n));
    round(&mut net);
    let (activity, residue) = (0, net.node(B).residue());
    for round in [0, 7] {
        let report = Control::Report {
            round,
            activity,
            residue,
        };
        net.on(A, |node, out| node.handle(id(B), report, out))
            .unwrap();
    }
    round(&mut net);
    round(&mut net);
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

fn willing(net: &Cluster) -> Vec<usize> {
    let mut live = net.live();
    live.retain(|&n| net.node(n).quiescence().all_willing());
    live
}

/// QU-3, S1a: all learn that nobody works any more, and not before it is so.
#[test]
fn the_wish_is_unanimous_when_the_last_one_has_it() {
    let mut net = Cluster::new(3);
    let rref = net.local(B, 7);
    for n in [B, C] {
        shut_down(&mut net, n);
        (0..40).for_each(|_| round(&mut net));
        assert_eq!(willing(&net), [], "A works");
    }
    shut_down(&mut net, A);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(willing(&net), [A, B, C]);
    assert_eq!(complete(&net), [], "B has something left");
    net.drop_handle(B, rref);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B, C]);
    net.finish();
}

/// QU-3: whoever comes has work to do.
#[test]
fn the_wish_is_unanimous_no_more_when_somebody_joins() {
    let mut net = Cluster::new(3);
    let rref = net.local(B, 7);
    net.bury(C);
    (0..2).for_each(|n| shut_down(&mut net, n));
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(willing(&net), [A, B]);
    net.restart(C, 2, A);
    net.deliver_all();
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(willing(&net), []);
    shut_down(&mut net, C);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(willing(&net), [A, B, C]);
    net.drop_handle(B, rref);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B, C]);
    net.finish();
}

/// QU-3: whoever has died works no more.
#[test]
fn the_wish_is_unanimous_when_those_without_it_are_dead() {
    let mut net = Cluster::new(3);
    let rref = net.local(B, 7);
    shut_down(&mut net, B);
    shut_down(&mut net, C);
    (0..4).for_each(|_| round(&mut net));
    net.bury(A);
    // The new leader may be in a long pause.
    (0..40).for_each(|_| round(&mut net));
    assert_eq!(willing(&net), [B, C]);
    net.drop_handle(B, rref);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [B, C]);
    net.finish();
}

/// QU-4
#[test]
fn those_who_serve_end_when_another_asks_for_it() {
    let mut net = Cluster::new(3);
    (0..2).for_each(|n| net.on(n, |node, _| node.serve()));
    (0..5).for_each(|_| {
        net.tick();
        assert!(net.busy().is_empty(), "nobody asks anything");
    });
    assert_eq!(complete(&net), []);
    shut_down(&mut net, C);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B, C]);
    net.finish();
}

/// QU-4
#[test]
fn those_who_serve_do_not_end_because_others_are_gone() {
    let mut net = Cluster::new(3);
    (0..2).for_each(|n| net.on(n, |node, _| node.serve()));
    net.bury(C);
    (0..40).for_each(|_| round(&mut net));
    assert_eq!((complete(&net), willing(&net)), (vec![], vec![]));
    shut_down(&mut net, B);
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// QU-4: the one who asked dies, and so does the leader that it has told.
#[test]
fn a_wish_outlives_whoever_had_it() {
    let mut net = Cluster::new(4);
    let d = 3;
    net.on(A, |node, _| node.serve());
    net.on(C, |node, _| node.serve());
    shut_down(&mut net, d);
    (0..3).for_each(|_| round(&mut net));
    net.bury(d);
    net.bury(A);
    net.on(B, |node, _| node.serve());
    (0..40).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [B, C]);
    net.finish();
}

/// S1a: others may work for hours; meanwhile there is little to ask.
#[test]
fn while_somebody_works_the_leader_asks_seldom() {
    let mut net = Cluster::new(2);
    shut_down(&mut net, B);
    let mut probes = 0;
    for _ in 0..1_000 {
        net.tick();
        let controls = net.controls(A, B);
        probes += controls
            .iter()
            .filter(|control| matches!(control, Control::Probe { .. }))
            .count();
        net.deliver_all();
    }
    assert!((10..100).contains(&probes), "{probes}");
    // And when the work is done it takes no longer than ever.
    shut_down(&mut net, A);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// How many members the leader of a group asks in so many intervals, if each answers at once that it has this left.
fn asked(workers: u32, intervals: u64, left: Residue) -> (usize, Quiescence) {
    let members: Vec<NodeId> = (0..workers).map(|worker| NodeId::new(worker, 1)).collect();
    let me = members[0];
    let membership = Membership::founding(me, members);
    let interval = Duration::from_millis(50);
    let mut leader = Quiescence::new(interval);
    leader.start();
    let mut probes = 0;
    for look in 0..intervals {
        let now = Time::ZERO + interval * (look as u32 + 1);
        for (to, control) in leader.poll(now, me, &membership, (7, left)) {
            if let Control::Probe { round, .. } = control {
                probes += 1;
                leader.on_report(to, round, (7, left));
            }
        }
    }
    (probes, leader)
}

/// What a shutdown that waits costs the leader does not grow with the group; one that does not wait is done as soon as ever.
#[test]
fn the_leader_of_a_large_group_asks_no_more_of_them_in_a_time() {
    let busy = Residue {
        wants_shutdown: true,
        references: 1,
        ..Residue::default()
    };
    let small = asked(64, 160, busy).0;
    assert_eq!(small, 63 * 160, "all of them, each time");
    for workers in [128, 640, 1_000] {
        let (large, _) = asked(workers, 160, busy);
        assert!(large <= 2 * small, "{workers} workers: {large}");
        assert!(large >= small / 2, "{workers} workers: {large}");
    }
    let idle = Residue {
        references: 0,
        ..busy
    };
    let (probes, leader) = asked(640, 3, idle);
    assert!(leader.is_complete());
    assert_eq!(probes, 2 * 639);
}

/// H13, S1: a cycle across workers keeps the shutdown waiting, is listed, and is broken by force.
#[test]
fn hole_h13_a_cycle_is_listed_and_broken_by_a_forced_release() {
    let mut net = Cluster::new(2);
    let (of_a, of_b) = (net.local(A, 7), net.local(B, 8));
    net.shared(A, B, &[of_a]);
    net.shared(B, A, &[of_b]);
    net.drop_handle(A, of_a);
    net.drop_handle(B, of_b);
    (0..2).for_each(|n| shut_down(&mut net, n));
    (0..4).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), []);
    for n in 0..2 {
        let leaked: Vec<_> = net.node(n).leaks().iter().map(|leak| leak.rref).collect();
        assert_eq!(leaked, [of_a, of_b]);
    }
    (0..2).for_each(|n| net.on(n, |node, out| node.release_everything(out)));
    net.deliver_all();
    assert_eq!(net.freed(), [8, 7]);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(complete(&net), [A, B]);
    net.finish();
}

/// A node alone is a group, too.
#[test]
fn a_single_worker_shuts_down() {
    let mut net = Cluster::new(1);
    shut_down(&mut net, A);
    (0..3).for_each(|_| round(&mut net));
    assert_eq!(net.events(A), [Event::ShutdownComplete]);
    net.finish();
}

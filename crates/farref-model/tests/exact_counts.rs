//! The small configurations, each walked to its last state.
//!
//! The counts are part of the assertion: a change that silently makes a model smaller, or the
//! protocol larger, fails here and has to be looked at.

use std::fmt::Debug;
use std::hash::Hash;

use farref_model::{Cluster, Link, Split, Unfit};
use stateright::{Checker, Model};

/// Walks every state, checks every property, answers how many states there are.
fn walk<M>(model: M) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

fn cluster(change: impl FnOnce(&mut Cluster)) -> usize {
    let mut model = Cluster::default();
    change(&mut model);
    walk(model)
}

fn link(change: impl FnOnce(&mut Link)) -> usize {
    let mut model = Link::default();
    change(&mut model);
    walk(model)
}

fn split(change: impl FnOnce(&mut Split)) -> usize {
    let mut model = Split::default();
    change(&mut model);
    walk(model)
}

#[test]
fn one_reference_shared_once() {
    assert_eq!(cluster(|_| {}), 174);
}

#[test]
fn one_reference_shared_twice() {
    let count = cluster(|model| model.shares = 2);
    assert_eq!(count, 4825);
}

#[test]
fn one_reference_with_reordering_and_duplication() {
    let count = cluster(|model| {
        model.shares = 2;
        model.reordering = true;
        model.duplicates = 1;
    });
    assert_eq!(count, 64_252);
}

#[test]
fn one_reference_and_a_crash() {
    let count = cluster(|model| {
        model.shares = 2;
        model.crashes = 1;
    });
    assert_eq!(count, 56_828);
}

#[test]
fn one_reference_a_crash_and_a_restart() {
    let count = cluster(|model| {
        model.crashes = 1;
        model.restarts = 1;
    });
    assert_eq!(count, 58_015);
}

#[test]
fn two_references() {
    assert_eq!(cluster(|model| model.references = 2), 2743);
}

#[test]
fn two_references_with_reordering_and_duplication() {
    let count = cluster(|model| {
        model.references = 2;
        model.reordering = true;
        model.duplicates = 1;
    });
    assert_eq!(count, 16_598);
}

#[test]
fn two_references_and_a_crash() {
    let count = cluster(|model| {
        model.references = 2;
        model.crashes = 1;
    });
    assert_eq!(count, 34_494);
}

/// F2: every fetch ends, be it early, late or cancelled.
#[test]
fn a_fetch_that_may_be_cancelled() {
    let count = cluster(|model| {
        model.fetches = 1;
        model.cancels = 1;
    });
    assert_eq!(count, 2243);
}

/// F2: every fetch ends, whoever dies.
#[test]
fn a_fetch_and_a_crash() {
    let count = cluster(|model| {
        model.fetches = 1;
        model.crashes = 1;
    });
    assert_eq!(count, 14_599);
}

/// R2: what a worker held that says good-bye is released, what others hold of it is lost.
#[test]
fn one_reference_and_a_leave() {
    let count = cluster(|model| model.leaves = 1);
    assert_eq!(count, 29_109);
}

/// S1: nobody goes while a reference is held or on its way.
#[test]
fn a_shutdown_of_two() {
    let count = cluster(|model| {
        model.workers = 2;
        model.looks = 5;
    });
    assert_eq!(count, 36_281);
}

#[test]
fn a_session_over_a_connection_that_breaks() {
    assert_eq!(link(|_| {}), 4934);
}

#[test]
fn a_session_over_a_connection_that_loses_and_duplicates() {
    let count = link(|model| {
        model.losses = 1;
        model.duplicates = 1;
    });
    assert_eq!(count, 66_292);
}

#[test]
fn a_session_over_a_connection_that_reorders() {
    let count = link(|model| {
        model.overtakings = 1;
        model.duplicates = 1;
    });
    assert_eq!(count, 115_360);
}

/// F7, MJ-2: of two, whoever loses the other gives up.
#[test]
fn a_split_of_two_that_need_a_majority() {
    assert_eq!(split(|model| model.workers = 2), 5);
}

/// F7: of three, two stay.
#[test]
fn a_split_of_three_that_need_a_majority() {
    assert_eq!(split(|_| {}), 219);
}

/// F7: also if one dies meanwhile, one leaves, the network falls into three, or two cannot reach each other.
#[test]
fn a_split_of_three_and_more_that_goes_wrong() {
    let counts = [
        split(|model| model.crashes = 1),
        split(|model| model.leaves = 1),
        split(|model| model.splits = 2),
        split(|model| model.cuts = 1),
    ];
    assert_eq!(counts, [1333, 3748, 947, 1773]);
}

/// F7: of three and of four, one may die.
#[test]
fn a_single_death_ends_nobody() {
    let one_dies =
        |workers| split(|model| (model.workers, model.splits, model.crashes) = (workers, 0, 1));
    assert_eq!([one_dies(3), one_dies(4)], [51, 507]);
}

fn unfit(elder: u32, sponsor: u32, again: bool) -> usize {
    let mut model = Unfit::default();
    (model.elder, model.sponsor, model.again) = (elder, sponsor, again);
    walk(model)
}

/// F10: a newcomer and the leader refuse each other, or a newcomer and another.
#[test]
fn a_newcomer_that_a_member_refuses() {
    let counts = [unfit(0, 1, false), unfit(1, 0, false), unfit(2, 1, false)];
    assert_eq!(counts, [160, 3184, 2906]);
}

/// F10: the same of another life of the first worker, which leads when it is in.
#[test]
fn a_newcomer_that_a_member_refuses_and_that_leads() {
    let counts = [unfit(1, 2, true), unfit(2, 1, true)];
    assert_eq!(counts, [40, 220]);
}

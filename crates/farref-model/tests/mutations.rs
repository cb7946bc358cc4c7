//! Proves that the model checker notices: rules broken on purpose are caught.
//!
//! Run with `--nocapture` for the table in `docs/protocol.md`.

use std::fmt::Debug;
use std::hash::Hash;

use farref_model::{Cluster, Link, Split, Unfit};
use farref_proto::Mutation;
use farref_testkit::thorough;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// The rules that the small models cover. Undone calls, contexts, newcomers' welcome and disputes are
/// the simulator's, and so are adoption and waiting for the settling: to need them takes four workers.
const COVERED: [Mutation; 13] = [
    Mutation::ForgetParentHold,
    Mutation::NoEarlyRegistration,
    Mutation::FreeOnFirstRelease,
    Mutation::IgnoreDeadHolder,
    Mutation::ConfirmWithoutRegistering,
    Mutation::NoEcho,
    Mutation::ReleaseUnconfirmed,
    Mutation::AcceptOnReceipt,
    Mutation::NoPendingOwner,
    Mutation::IgnoreDeadOwner,
    Mutation::KeepListening,
    Mutation::FreeIgnoresWaiting,
    Mutation::ShutdownAfterOneRound,
];

/// The smallest configuration in which breaking the rule does harm, and its name.
fn configuration(mutation: Mutation) -> (&'static str, Cluster) {
    let mut cluster = Cluster::default();
    let name = match mutation {
        Mutation::FreeIgnoresWaiting => {
            cluster.fetches = 2;
            cluster.cancels = 1;
            "fetches"
        }
        Mutation::ShutdownAfterOneRound => {
            cluster.workers = 2;
            cluster.looks = 5;
            "a shutdown"
        }
        Mutation::NoEcho => {
            cluster.shares = 2;
            cluster.reordering = true;
            cluster.duplicates = 1;
            "hostile network"
        }
        Mutation::IgnoreDeadHolder | Mutation::IgnoreDeadOwner | Mutation::KeepListening => {
            cluster.shares = 2;
            cluster.crashes = 1;
            "a crash"
        }
        _ => {
            cluster.shares = 2;
            "calm"
        }
    };
    (name, cluster)
}

/// The first property that a broken model does not have, and after how many states that showed.
fn first_violation<M>(model: M) -> Option<(&'static str, usize)>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let properties = checker.model().properties();
    let mut broken = properties.iter().filter(|property| {
        property.expectation != Expectation::Sometimes && found.contains_key(property.name)
    });
    Some((broken.next()?.name, checker.unique_state_count()))
}

#[test]
fn every_broken_rule_that_the_model_covers_is_noticed() {
    let mut unnoticed = Vec::new();
    for mutation in COVERED {
        let (name, mut model) = configuration(mutation);
        model.mutation = Some(mutation);
        match first_violation(model) {
            Some((property, states)) => {
                println!("{mutation:?}: {property}, {name}, after {states} states");
            }
            None => unnoticed.push(mutation),
        }
    }
    assert_eq!(unnoticed, [], "these broken rules went unnoticed");
}

#[test]
fn a_session_that_forgets_duplicates_is_noticed() {
    let mut model = Link::default();
    model.duplicates = 1;
    model.break_dedup = true;
    let (property, states) = first_violation(model).expect("a violation");
    println!("SessionForgetsDuplicates: {property}, after {states} states");
}

#[test]
fn a_session_that_forgets_what_to_replay_is_noticed() {
    let mut model = Link::default();
    model.break_replay = true;
    let (property, states) = first_violation(model).expect("a violation");
    println!("SessionForgetsReplay: {property}, after {states} states");
}

/// Who needs a majority: the rule, and the smallest configuration in which breaking it does harm.
fn splits() -> Vec<(Mutation, Split)> {
    let of = |workers, splits, crashes| {
        let mut model = Split::default();
        (model.workers, model.splits, model.crashes) = (workers, splits, crashes);
        model
    };
    let mut splits = vec![
        (Mutation::HalfIsEnough, of(2, 1, 0)),
        (Mutation::OneselfUncounted, of(3, 0, 1)),
    ];
    // It takes 124,000 states to notice this one.
    if thorough() {
        splits.push((Mutation::LossesForgotten, of(4, 1, 0)));
    }
    splits
}

#[test]
fn every_broken_rule_of_a_majority_that_the_model_covers_is_noticed() {
    let mut unnoticed = Vec::new();
    for (mutation, mut model) in splits() {
        model.mutation = Some(mutation);
        match first_violation(model) {
            Some((property, states)) => println!("{mutation:?}: {property}, after {states} states"),
            None => unnoticed.push(mutation),
        }
    }
    assert_eq!(unnoticed, [], "these broken rules went unnoticed");
}

/// Who does not fit to a member: the rule, who refuses the newcomer, who lets it in, and whether it is another life of the first worker.
const UNFIT: [(Mutation, u32, u32, bool); 3] = [
    (Mutation::ResignUntold, 2, 1, false),
    (Mutation::ResignAccusing, 2, 0, false),
    (Mutation::NewcomersStay, 2, 1, true),
];

#[test]
fn every_broken_rule_of_those_who_do_not_fit_is_noticed() {
    let mut unnoticed = Vec::new();
    for (mutation, elder, sponsor, again) in UNFIT {
        let mut model = Unfit::default();
        (model.elder, model.sponsor, model.again) = (elder, sponsor, again);
        model.mutation = Some(mutation);
        match first_violation(model) {
            Some((property, states)) => println!("{mutation:?}: {property}, after {states} states"),
            None => unnoticed.push(mutation),
        }
    }
    assert_eq!(unnoticed, [], "these broken rules went unnoticed");
}

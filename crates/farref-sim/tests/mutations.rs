//! Proves that the simulator notices: every rule that is broken on purpose is caught.
//!
//! Run with `--nocapture` for the table in `docs/protocol.md`.

use farref_proto::{
    ContextError, ContextId, Control, Membership, Mutation, Node, NodeConfig, NodeId, Outbox,
    Standing, Status,
};
use farref_sim::{Config, Mutant, run};

/// Seeds that a mutant may survive before it counts as unnoticed.
const MOST_SEEDS: u64 = 6_000;

/// Broken rules that only the model checker can notice: here sessions let no duplicate through, and
/// the connections of a departed worker are closed.
const FOR_THE_MODEL_CHECKER: &[Mutation] = &[Mutation::NoEcho, Mutation::KeepListening];

/// Broken rules that take several departures, joins or lanes in one order to do harm, which hardly any
/// seed has. A node is asked directly (below).
const FOR_A_SCRIPT: &[Mutation] = &[
    Mutation::ForgetClosedContext,
    Mutation::WelcomeUnannounced,
    Mutation::NewcomerTellsOnlyItself,
];

/// Broken rules that it takes a relay's death to notice.
const UNDER_PRESSURE: &[Mutation] = &[Mutation::NoAdoption, Mutation::MergePastOthers];

fn first_violation(mutant: Mutant) -> Option<(u64, &'static str)> {
    let mut config = Config::default();
    config.mutation = Some(mutant);
    config.relay_pressure = UNDER_PRESSURE
        .iter()
        .any(|&mutation| mutant == Mutant::Node(mutation));
    (0..MOST_SEEDS).find_map(|seed| {
        let failure = run(&config, seed).err()?;
        Some((seed + 1, failure.violation.guarantee))
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    let nodes = Mutation::ALL
        .into_iter()
        .filter(|mutation| !FOR_THE_MODEL_CHECKER.contains(mutation))
        .filter(|mutation| !FOR_A_SCRIPT.contains(mutation));
    let sessions = [
        Mutant::SessionForgetsDuplicates,
        Mutant::SessionForgetsReplay,
    ];
    let mutants: Vec<Mutant> = nodes.map(Mutant::Node).chain(sessions).collect();
    let mut unnoticed = Vec::new();
    for mutant in mutants {
        match first_violation(mutant) {
            Some((seeds, guarantee)) => println!("{mutant:?}: {guarantee} after {seeds} seeds"),
            None => unnoticed.push(mutant),
        }
    }
    assert_eq!(unnoticed, [], "these broken rules went unnoticed");
}

const SPONSOR: NodeId = NodeId::new(0, 1);
const MEMBER: NodeId = NodeId::new(1, 1);
const DEAD: NodeId = NodeId::new(2, 1);
const ME: NodeId = NodeId::new(3, 1);
const NEXT: NodeId = NodeId::new(4, 1);

/// A newcomer that has just been welcomed by a sponsor that knew of a death and of another newcomer; and
/// what it says first.
fn newcomer(mutation: Option<Mutation>) -> (Node<()>, Vec<(NodeId, Control)>) {
    let mut node = Node::new(ME, Membership::joining(ME), NodeConfig::default());
    if let Some(mutation) = mutation {
        node.mutate(mutation);
    }
    let known = [
        (SPONSOR, Status::Alive),
        (MEMBER, Status::Alive),
        (DEAD, Status::Dead),
        (NEXT, Status::Joining),
    ];
    let welcome = known.map(|(node, status)| (node.worker, Standing::of(node, status)));
    let mut out = Outbox::new();
    let welcomed = node.handle(SPONSOR, Control::Welcome(welcome.to_vec()), &mut out);
    assert_eq!(welcomed, Ok(()));
    let said = std::iter::from_fn(|| out.pop_control()).collect();
    (node, said)
}

/// ME-5: the member may not have heard of the death, and its word counts as if it had.
#[test]
fn a_newcomer_that_keeps_to_itself_what_it_was_welcomed_with_is_noticed() {
    let tells = |mutation| {
        let (_, said) = newcomer(mutation);
        let death = (DEAD.worker, Standing::of(DEAD, Status::Dead));
        said.iter().any(|(to, control)| {
            let knows =
                matches!(control, Control::View { entries, .. } if entries.contains(&death));
            *to == MEMBER && knows
        })
    };
    assert!(tells(None));
    assert!(!tells(Some(Mutation::NewcomerTellsOnlyItself)));
}

/// ME-4: the member may not have heard of the next newcomer, which turns to this one.
#[test]
fn a_sponsor_that_believes_that_all_know_whom_it_knows_is_noticed() {
    let waits = |mutation| {
        let (mut node, _) = newcomer(mutation);
        let mut out = Outbox::new();
        assert_eq!(node.handle(NEXT, Control::Join, &mut out), Ok(()));
        let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
        said.iter()
            .all(|(_, control)| !matches!(control, Control::Welcome(_)))
    };
    assert!(waits(None));
    assert!(!waits(Some(Mutation::WelcomeUnannounced)));
}

/// CT-3: a late call of the context is refused by whoever was told of the release.
#[test]
fn a_worker_that_forgets_which_contexts_were_released_is_noticed() {
    let remembers = |mutation: Option<Mutation>| {
        let membership = Membership::founding(ME, [ME, SPONSOR]);
        let mut node = Node::<()>::new(ME, membership, NodeConfig::default());
        if let Some(mutation) = mutation {
            node.mutate(mutation);
        }
        let context = ContextId::new(SPONSOR, 0);
        let cleanup = Control::ContextCleanup(vec![(context, 0)]);
        let told = node.handle(SPONSOR, cleanup, &mut Outbox::new());
        assert_eq!(told, Ok(()));
        node.check_context(context) == Err(ContextError::Closed { context })
    };
    assert!(remembers(None));
    assert!(!remembers(Some(Mutation::ForgetClosedContext)));
}

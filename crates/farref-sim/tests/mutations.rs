//! Proves that the simulator notices: every rule that is broken on purpose is caught.
//!
//! Run with `--nocapture` for the table in `docs/protocol.md`.

use farref_proto::Mutation;
use farref_sim::{Config, Mutant, run};

/// Seeds that a mutant may survive before it counts as unnoticed.
const MOST_SEEDS: u64 = 20_000;

/// Broken rules that only the model checker can notice: here sessions let no duplicate through, and
/// the connections of a departed worker are closed.
const FOR_THE_MODEL_CHECKER: &[Mutation] = &[Mutation::NoEcho, Mutation::KeepListening];

fn first_violation(mutant: Mutant) -> Option<(u64, &'static str)> {
    let mut config = Config::default();
    config.mutation = Some(mutant);
    // To need adoption takes a rare coincidence; the other rules are missed soon enough without.
    config.relay_pressure = mutant == Mutant::Node(Mutation::NoAdoption);
    (0..MOST_SEEDS).find_map(|seed| {
        let failure = run(&config, seed).err()?;
        Some((seed + 1, failure.violation.guarantee))
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    let nodes = Mutation::ALL
        .into_iter()
        .filter(|mutation| !FOR_THE_MODEL_CHECKER.contains(mutation));
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

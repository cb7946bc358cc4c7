//! Simulations that run with every `cargo test`. Millions more run with the `farref-sim` command.

use farref_sim::{Config, Stats, run, run_traced};
use farref_testkit::thorough;

/// Seeds that have broken a guarantee before, with the default configuration. A failing seed that
/// anybody finds is added here once its cause is mended. (What a seed stands for changes with what
/// programs do and what fails; the unit tests keep what was found before.)
const ONCE_BROKEN: &[u64] = &[
    4_970, 6_580, 55_919, 63_462, 90_957, 118_161, 118_342, 234_612, 603_616, 730_055, 929_412,
    5_041_691, 10_017_741,
];

/// The same, with relays that die.
const ONCE_BROKEN_UNDER_PRESSURE: &[u64] = &[1_012_750, 2_033_862, 6_038_826];

fn run_all(config: &Config, seeds: impl IntoIterator<Item = u64>) -> Stats {
    let mut total = Stats::default();
    for seed in seeds {
        match run(config, seed) {
            Ok(stats) => total += stats,
            Err(failure) => panic!(
                "{failure}\nreplay it with: cargo run --release -p farref-sim -- --workers {}..{} \
                 --replay {seed}{}",
                config.min_workers,
                config.max_workers,
                if config.require_majority {
                    " --require-majority"
                } else {
                    ""
                },
            ),
        }
    }
    total
}

#[test]
fn every_guarantee_holds_under_all_faults() {
    let stats = run_all(&Config::default(), 0..1500);
    // Not an empty show: every kind of fault was injected and most references lived through it.
    let faults = stats.faults;
    for (kind, count) in [
        ("loss", faults.frames_lost),
        ("duplication", faults.frames_duplicated),
        ("reordering", faults.frames_reordered),
        ("cut", faults.connections_cut),
        ("partition", faults.partitions),
        ("stall", faults.stalls),
        ("crash", faults.crashes),
        ("restart", faults.restarts),
        ("leave", faults.leaves),
        ("join", faults.joins),
        ("eviction", faults.evictions),
        ("unfit newcomer", faults.unfit_joins),
        ("resignation", faults.resignations),
        ("undo", faults.calls_undone),
        ("cancellation", faults.calls_cancelled),
        ("parked call", faults.calls_parked),
    ] {
        assert!(count > 0, "no {kind} in {} seeds", stats.seeds);
    }
    assert!(stats.shares > stats.references);
}

#[test]
fn every_guarantee_holds_in_other_conditions() {
    let seeds = if thorough() { 1_000 } else { 200 };
    run_all(&Config::default(), 1_000_000..1_000_000 + seeds);
}

#[test]
fn every_guarantee_holds_when_relays_die() {
    let mut config = Config::default();
    config.relay_pressure = true;
    let stats = run_all(&config, 0..300);
    assert!(stats.faults.crashes > 300);
}

/// F7: no two sides of a split both go on, and nobody gives up whose side is more than half.
#[test]
fn every_guarantee_holds_where_a_majority_is_needed() {
    let mut config = Config::default();
    config.require_majority = true;
    (config.min_workers, config.max_workers) = (2, 9);
    let faults = run_all(&config, 0..800).faults;
    for count in [
        faults.minorities,
        faults.partitions,
        faults.crashes,
        faults.joins,
        faults.leaves,
        faults.restarts,
    ] {
        assert!(count > 100, "{faults:?}");
    }
    config.faults = false;
    assert_eq!(run_all(&config, 0..100).faults.minorities, 0);
}

#[test]
fn every_guarantee_holds_without_faults() {
    let mut config = Config::default();
    config.faults = false;
    let stats = run_all(&config, 0..300);
    assert_eq!(stats.faults.crashes, 0);
    assert_eq!(
        stats.references, stats.freed,
        "every value was freed by its owner"
    );
}

#[test]
fn every_guarantee_holds_in_pairs_and_in_large_groups() {
    let mut config = Config::default();
    (config.min_workers, config.max_workers) = (2, 2);
    run_all(&config, 0..200);
    (config.min_workers, config.max_workers) = (40, 40);
    run_all(&config, 0..3);
    (config.min_workers, config.max_workers) = (200, 200);
    config.steps = 4;
    let faults = run_all(&config, [10, 83]).faults;
    assert!(faults.crashes > 0 && faults.joins > 0 && faults.partitions > 0);
}

#[test]
fn seeds_that_were_broken_once_hold() {
    let mut config = Config::default();
    run_all(&config, ONCE_BROKEN.iter().copied());
    config.relay_pressure = true;
    run_all(&config, ONCE_BROKEN_UNDER_PRESSURE.iter().copied());
}

#[test]
fn a_seed_always_gives_the_same_run() {
    let config = Config::default();
    for seed in [1, 2, 3] {
        let (first, first_trace) = run_traced(&config, seed);
        let (second, second_trace) = run_traced(&config, seed);
        assert_eq!(first_trace, second_trace);
        assert_eq!(first.ok(), second.ok());
        assert!(!first_trace.is_empty());
    }
}

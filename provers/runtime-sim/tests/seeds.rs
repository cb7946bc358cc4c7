//! Some hundred seeds of whole groups; and that each fault which they could show is noticed.

use farref_runtime_sim::{Config, Faults, NOTICED, run, run_traced};

fn no_seed_fails(faults: Faults, seeds: std::ops::Range<u64>) {
    let config = Config {
        faults: Some(faults),
        ..Config::default()
    };
    for seed in seeds {
        if let Err(violation) = run(seed, &config) {
            panic!("seed {seed} with {faults:?}: {violation}");
        }
    }
}

/// RR-1 to RR-5
#[test]
fn delays_change_nothing() {
    no_seed_fails(Faults::None, 0..30);
}

/// RR-1 to RR-5: every call succeeds.
#[test]
fn broken_connections_change_nothing() {
    no_seed_fails(Faults::Links, 0..80);
}

/// RR-1 to RR-5
#[test]
fn who_dies_is_missed_and_takes_nothing_along() {
    no_seed_fails(Faults::Crashes, 0..80);
}

/// RR-1 to RR-5
#[test]
fn who_is_out_of_reach_is_missed_and_takes_nothing_along() {
    no_seed_fails(Faults::Partitions, 0..40);
}

/// SM-1. What follows the end of all programs is not compared: who has shut down first differs from run to run.
#[test]
fn sm_1_a_seed_does_the_same_again_until_all_programs_have_ended() {
    for faults in [Faults::None, Faults::Links] {
        let config = Config {
            faults: Some(faults),
            ..Config::default()
        };
        for seed in 0..6 {
            let programs = |trace: Vec<String>| -> Vec<String> {
                let ended = |line: &String| line.ends_with("all programs have ended");
                assert!(trace.iter().any(ended), "seed {seed} with {faults:?}");
                trace.into_iter().take_while(|line| !ended(line)).collect()
            };
            let [first, second] = [(); 2].map(|()| programs(run_traced(seed, &config).1));
            let differs = first.iter().zip(&second).find(|(a, b)| a != b);
            assert_eq!(differs, None, "seed {seed} with {faults:?}");
            assert_eq!(first.len(), second.len());
        }
    }
}

#[test]
fn each_fault_is_noticed() {
    const UNTIL_NOTICED: u64 = 60;
    for (mutation, faults) in NOTICED {
        let config = Config {
            faults: Some(faults),
            mutation: Some(mutation),
        };
        let seed = (0..UNTIL_NOTICED).find(|seed| run(*seed, &config).is_err());
        assert!(
            seed.is_some(),
            "{mutation:?} goes unnoticed in {UNTIL_NOTICED} seeds"
        );
    }
}

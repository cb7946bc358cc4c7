//! Exercises the fuzzers' entry points for a moment: on random bytes, on the inputs in `fuzz/seeds`, and on changes of those.

use farref_testkit::{seeds, thorough};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::__fuzz::{
    environment, etcd_answers, store_answer, store_file, store_records, store_request,
};

/// Bytes in the place of others, at a place of the input.
type Change = (prop::sample::Index, Vec<u8>, usize);

fn changed(mut input: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for (at, bytes, instead_of) in changes {
        let at = at.index(input.len() + 1);
        let end = input.len().min(at + instead_of);
        input.splice(at..end, bytes);
    }
    input
}

fn exercise(entry: fn(&[u8]), target: &str) {
    let seeds: Vec<_> = seeds(target)
        .iter()
        .map(|seed| seed.bytes.to_vec())
        .collect();
    seeds.iter().for_each(|seed| entry(seed));
    let change = (
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<u8>(), 0..4),
        0..6_usize,
    );
    let inputs = prop_oneof![
        3 => (prop::sample::select(seeds), prop::collection::vec(change, 1..6))
            .prop_map(|(seed, changes)| changed(seed, changes)),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ];
    let mut runner = TestRunner::new(Config {
        cases: if thorough() { 5_000 } else { 500 },
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&inputs, |input| {
        entry(&input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn no_record_in_a_store_makes_its_reader_panic() {
    exercise(store_records, "store_records");
}

#[test]
fn no_change_of_what_is_said_to_a_store_makes_it_panic() {
    exercise(store_request, "store_request");
}

#[test]
fn no_change_of_what_a_store_says_makes_its_client_panic() {
    exercise(store_answer, "store_answer");
}

#[test]
fn no_file_makes_a_store_panic() {
    exercise(store_file, "store_file");
}

#[test]
fn no_answer_of_etcd_makes_its_client_panic() {
    exercise(etcd_answers, "etcd_answers");
}

#[test]
fn no_environment_makes_its_reader_panic() {
    exercise(environment, "environment");
}

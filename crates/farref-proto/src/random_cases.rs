//! How many random cases the tests try.

use proptest::test_runner::Config;

/// Few cases, or all of them where `FARREF_THOROUGH` is set.
pub(crate) fn random_cases(few: u32, all: u32) -> Config {
    Config {
        cases: if farref_testkit::thorough() { all } else { few },
        failure_persistence: None,
        ..Config::default()
    }
}

//! `farref bench` measures everything it promises. How fast it is, is not tested.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_farref"))
        .arg("bench")
        .args(arguments)
        .output()
}

/// Names with the fields that a measurement has beside its value.
const EXPECTED: [(&str, &[&str]); 8] = [
    ("bare_ping_pong", &["p99"]),
    ("bare_64mib", &[]),
    ("empty_call", &["p99", "ratio", "budget"]),
    ("plain_fn_call", &["p99", "ratio"]),
    ("hand_on_reference", &["p99", "ratio"]),
    ("create_fetch_drop", &["p99", "ratio"]),
    ("pipelined_calls", &[]),
    ("blob_64mib", &["ratio"]),
];

#[test]
fn every_measurement_is_in_the_json_with_a_positive_number() -> anyhow::Result<()> {
    let output = bench(&["--quick", "--json"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let measurements = report["measurements"].as_array().cloned();
    let measurements = measurements.unwrap_or_default();
    assert_eq!(measurements.len(), 2 * EXPECTED.len());
    for transport in ["tcp", "unix"] {
        for (name, fields) in EXPECTED {
            let found = measurements
                .iter()
                .find(|one| one["name"] == name && one["transport"] == transport);
            let found = found.cloned().unwrap_or_default();
            for field in fields.iter().chain(&["value"]) {
                let number = found[field].as_f64().unwrap_or(f64::NAN);
                assert!(
                    number > 0.0 && number.is_finite(),
                    "{field} of {name} over {transport}: {found}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn the_table_has_one_line_for_each_measurement() -> anyhow::Result<()> {
    let output = bench(&["--quick", "--transport", "unix"])?;
    let table = String::from_utf8(output.stdout)?;
    assert_eq!(table.lines().count(), 1 + EXPECTED.len(), "{table}");
    assert!(
        table.contains("x bare socket, ping-pong (budget 2)"),
        "{table}"
    );
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> anyhow::Result<()> {
    for arguments in [
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--transport", "pigeon"],
        ["--peer", "nobody"],
    ] {
        let output = bench(&arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}

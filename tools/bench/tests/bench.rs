//! `farref-bench` measures everything it promises. How fast it is, is not tested.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_farref-bench"))
        .args(arguments)
        .output()
}

/// What one part measures over each transport: names, how many there are of each, beside what they are held, and
/// whether each one is timed.
const EXPECTED: &[(&str, &str, usize, &[&str], bool)] = &[
    ("calls", "bare_ping_pong", 1, &[], true),
    ("calls", "empty_call", 1, &["bare_ping_pong"], true),
    ("calls", "plain_fn_call", 1, &["bare_ping_pong"], true),
    ("pipelined", "bare_frames", 4, &[], false),
    ("pipelined", "pipelined_calls", 4, &["bare_frames"], false),
    ("costs", "bare_frame_cpu", 2, &[], false),
    ("costs", "call_cpu", 2, &["bare_frame_cpu"], false),
    ("costs", "caller_cpu", 2, &[], false),
    ("costs", "callee_cpu", 2, &[], false),
    ("costs", "call_allocations", 2, &["budget"], false),
    ("values", "memcpy", 3, &[], true),
    ("values", "bare_message", 6, &[], true),
    ("values", "value", 33, &["bare_message"], true),
    ("streams", "bare_stream", 1, &[], false),
    ("streams", "stream", 1, &["bare_stream"], false),
    ("streams", "slow_reader_memory", 1, &["budget"], false),
    ("references", "empty_call", 1, &[], true),
    ("references", "create", 1, &["empty_call"], true),
    ("references", "create_fetch_drop", 1, &["empty_call"], true),
    ("references", "share_by_owner", 1, &["empty_call"], true),
    ("references", "share_by_user", 1, &["empty_call"], true),
    ("references", "pipelined_calls", 1, &[], false),
    (
        "references",
        "pipelined_shares",
        1,
        &["pipelined_calls"],
        false,
    ),
    ("references", "drops", 1, &["pipelined_calls"], false),
    ("live", "create_fetch_drop", 2, &[], true),
    ("live", "creations", 1, &[], false),
    ("live", "owner_memory", 1, &["budget"], false),
    ("live", "holder_memory", 1, &["budget"], false),
    ("live", "drops", 1, &[], false),
    ("autograd", "empty_call", 1, &[], true),
    ("autograd", "step", 2, &["empty_call"], true),
    ("groups", "signal", 2, &[], true),
    ("groups", "join", 2, &["signal"], true),
    ("groups", "shutdown", 2, &["signal"], true),
];

/// What is measured over Unix sockets only.
const BLOCKING: &str = "bare_blocking_ping_pong";

fn positive(one: &Value, field: &str) {
    let number = one.pointer(field).and_then(Value::as_f64);
    assert!(
        number.is_some_and(|number| number > 0.0 && number.is_finite()),
        "{field} of {one}"
    );
}

#[test]
fn every_measurement_is_in_the_json_with_its_limits() -> anyhow::Result<()> {
    let output = bench(&["--quick", "--json", "-"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let measurements = report["measurements"].as_array().cloned();
    let mut measurements = measurements.unwrap_or_default();
    for transport in ["tcp", "tls", "unix", "shm"] {
        // Only values can go through shared memory, and what TLS costs shows in calls and values.
        let expected = EXPECTED.iter().filter(|expected| match transport {
            "tls" => ["calls", "pipelined", "values"].contains(&expected.0),
            "shm" => expected.0 == "values",
            _ => true,
        });
        for &(part, name, count, limits, timed) in expected {
            let is_one = |one: &&Value| {
                one["transport"] == transport && one["part"] == part && one["name"] == name
            };
            let found: Vec<_> = measurements.iter().filter(is_one).collect();
            assert_eq!(found.len(), count, "{name} of {part} over {transport}");
            for one in found {
                positive(one, "/value");
                if timed {
                    positive(one, "/times/p50");
                    positive(one, "/times/p99");
                    positive(one, "/times/p999");
                }
                for limit in limits {
                    let held = one["limits"].as_array().into_iter().flatten();
                    let held = held.filter(|held| held["name"] == *limit);
                    assert_eq!(held.count(), 1, "{limit} of {one}");
                }
                // Each of these is held against the same without.
                let limits = || one["limits"].as_array().into_iter().flatten();
                let without = limits().any(|limit| limit["name"] == "without_tls");
                let is_beside =
                    transport == "tls" && (name == "empty_call" || one["form"] == "blob");
                assert_eq!(without, is_beside, "{one}");
                for limit in limits() {
                    assert!(limit["ratio"].as_f64().is_some(), "{one}");
                }
            }
            measurements.retain(|one| !is_one(&one));
        }
    }
    // And nothing else.
    let left: Vec<_> = measurements.iter().map(|one| &one["name"]).collect();
    assert_eq!(left, [BLOCKING]);
    Ok(())
}

#[test]
fn a_part_and_a_transport_can_be_chosen_and_are_shown_as_table_and_page() -> anyhow::Result<()> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (page, json) = (folder.join("bench.html"), folder.join("bench.json"));
    let files = [&page, &json].map(|file| file.to_string_lossy().into_owned());
    let output = bench(&[
        "calls",
        "pipelined",
        "--quick",
        "--transport",
        "unix",
        "--html",
        &files[0],
        "--json",
        &files[1],
    ])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");

    let table = String::from_utf8(output.stdout)?;
    // Two headings and what is between them.
    assert_eq!(table.lines().count(), (1 + 4) + 1 + (1 + 8), "{table}");
    assert!(table.contains("x bare socket, tokio (budget"), "{table}");
    assert!(table.contains("x bare socket, blocking (budget"), "{table}");
    assert!(!table.contains("tcp"), "{table}");

    let report: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    assert_eq!(report["measurements"].as_array().map(Vec::len), Some(12));

    let page = std::fs::read_to_string(page)?;
    assert_eq!(page.matches("<svg").count(), 2);
    // Everything is in the file.
    for outside in ["<script", "<link", "src=", "http", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("NaN"));
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> anyhow::Result<()> {
    for arguments in [
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--transport", "pigeon"],
        ["--live", "0"],
        ["--peer", "nobody"],
        ["--quick", "--full"],
        ["--quick", "flight"],
    ] {
        let output = bench(&arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}

#[test]
fn one_file_is_not_written_twice_and_a_page_is_not_printed() -> anyhow::Result<()> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench.both");
    let file = file.to_string_lossy();
    for arguments in [&["--html", &file, "--json", &file][..], &["--html", "-"]] {
        let output = bench(&[&["calls", "--quick"], arguments].concat())?;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
    assert!(!PathBuf::from(&*file).exists());
    Ok(())
}

#[test]
fn a_file_that_cannot_be_written_is_known_before_anything_is_measured() -> anyhow::Result<()> {
    for option in ["--html", "--json"] {
        let output = bench(&["calls", "--quick", option, "/nowhere/at/all"])?;
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8_lossy(&output.stderr);
        let words = format!("choose another file for {option}");
        assert!(stderr.contains(&words), "{stderr}");
        assert!(!stderr.contains("calls over"), "{stderr}");
    }
    Ok(())
}

/// Nothing is measured, and what is missing is said.
fn is_refused(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(output.stdout, b"", "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_command_without_cuda_says_how_to_build_it_before_it_measures_anything() -> anyhow::Result<()> {
    for arguments in [&["--cuda"][..], &["cuda"], &["calls", "--cuda", "--quick"]] {
        is_refused(&bench(arguments)?, &["--features cuda", "nvcc"]);
    }
    Ok(())
}

#[cfg(feature = "cuda")]
#[test]
fn without_a_gpu_it_is_said_that_there_is_none_before_anything_is_measured() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_farref-bench"))
        .args(["calls", "--cuda", "--quick"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()?;
    is_refused(&output, &["tensors on a GPU cannot be measured here"]);
    Ok(())
}

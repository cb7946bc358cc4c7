//! What is recorded of tensors on a GPU, and what they are held against.

use crate::form::Direction;
use crate::report::Measurement;
use crate::samples::Times;

/// Which tensor is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// The same one each time, which the receiver has mapped already.
    Same,
    /// One that was not sent before.
    New,
}

impl Which {
    pub(super) const ALL: [Self; 2] = [Self::Same, Self::New];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Same => "same_tensor",
            Self::New => "new_tensor",
        }
    }
}

/// How long a tensor of PyTorch's took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theirs {
    pub(super) direction: Direction,
    pub(super) bytes: usize,
    pub(super) times: Times,
}

impl Theirs {
    pub(super) fn measurement(&self) -> Measurement {
        Measurement::times("torch_tensor", self.times)
            .bytes(self.bytes)
            .direction(self.direction)
    }
}

/// What a tensor of so many bytes should take at most, of what PyTorch takes.
fn wanted(bytes: usize) -> Option<f64> {
    match bytes {
        0x400 | 0x400_0000 => Some(0.2),
        0x4000_0000 => Some(0.02),
        _ => None,
    }
}

/// A tensor that is shared if it is large enough: `empty` is what an empty call takes, in microseconds.
pub(super) fn shared(
    which: Which,
    bytes: usize,
    direction: Direction,
    times: Times,
    empty: f64,
    theirs: &[Theirs],
) -> Measurement {
    let measured = Measurement::times(which.name(), times)
        .bytes(bytes)
        .direction(direction)
        .at_most("empty_call", empty, None);
    let mut theirs = theirs.iter();
    match theirs.find(|one| one.direction == direction && one.bytes == bytes) {
        Some(one) => measured.at_most("torch_tensor", one.times.p50, wanted(bytes)),
        None => measured,
    }
}

/// What the steps of copying a tensor do alone, in GB/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// From the device into page-locked memory.
    pub(super) download: f64,
    pub(super) socket: f64,
    /// From page-locked memory to the device.
    pub(super) upload: f64,
}

/// A tensor that is copied from one process's memory of the device to the other's, one way.
pub(super) fn copied(bytes: usize, times: Times, steps: Steps) -> Measurement {
    let slowest = steps.download.min(steps.socket).min(steps.upload);
    Measurement::speed("copied_tensor", times.gigabytes_per_second(bytes), times)
        .bytes(bytes)
        .direction(Direction::OneWay)
        .at_least("locked_download", steps.download, None)
        .at_least("bare_message", steps.socket, None)
        .at_least("locked_upload", steps.upload, None)
        .at_least("slowest_step", slowest, Some(0.7))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    fn times(microseconds: u64) -> Times {
        Times::of(vec![Duration::from_micros(microseconds)])
    }

    fn limit(one: &Value, name: &str) -> Value {
        let limits = one["limits"].as_array().into_iter().flatten();
        let mut found = limits.filter(|limit| limit["name"] == name);
        found.next().cloned().unwrap_or_default()
    }

    #[test]
    fn a_shared_tensor_is_held_against_pytorchs_of_its_size_and_direction() -> anyhow::Result<()> {
        let theirs = [
            (Direction::OneWay, KIB, 800),
            (Direction::Echo, KIB, 1000),
            (Direction::OneWay, MIB, 900),
            (Direction::OneWay, 64 * MIB, 900),
            (Direction::OneWay, 1024 * MIB, 12_000),
        ];
        let theirs = theirs.map(|(direction, bytes, took)| Theirs {
            direction,
            bytes,
            times: times(took),
        });
        for (direction, bytes, ratio, budget) in [
            (Direction::OneWay, KIB, 0.1, json!(0.2)),
            (Direction::Echo, KIB, 0.08, json!(0.2)),
            (Direction::OneWay, MIB, 80.0 / 900.0, Value::Null),
            (Direction::OneWay, 64 * MIB, 80.0 / 900.0, json!(0.2)),
            (Direction::OneWay, 1024 * MIB, 80.0 / 12_000.0, json!(0.02)),
        ] {
            let both =
                Which::ALL.map(|which| shared(which, bytes, direction, times(80), 40.0, &theirs));
            let [one, new] = both.map(serde_json::to_value);
            let (one, new) = (one?, new?);
            assert_eq!(
                (&one["name"], &new["name"]),
                (&json!("same_tensor"), &json!("new_tensor"))
            );
            assert_eq!(one["limits"], new["limits"]);
            assert_eq!(one["bytes"], bytes);
            assert_eq!(one["direction"], serde_json::to_value(direction)?);
            assert_eq!(one["unit"], "us");
            assert_eq!(one["value"], 80.0);
            assert_eq!(limit(&one, "empty_call")["ratio"], 2.0);
            let beside = limit(&one, "torch_tensor");
            assert_eq!(beside["ratio"], ratio, "{one}");
            assert_eq!(beside["budget"], budget, "{one}");
            assert_eq!(beside["better"], "lower");
        }
        let alone = shared(Which::New, MIB, Direction::Echo, times(80), 40.0, &theirs);
        let alone = serde_json::to_value(alone)?;
        assert_eq!(limit(&alone, "torch_tensor"), Value::Null);
        Ok(())
    }

    #[test]
    fn a_copied_tensor_is_held_against_its_slowest_step() -> anyhow::Result<()> {
        let rates = |download, socket, upload| Steps {
            download,
            socket,
            upload,
        };
        for steps in [
            rates(2.0, 50.0, 60.0),
            rates(50.0, 2.0, 60.0),
            rates(50.0, 60.0, 2.0),
        ] {
            // A megabyte in a millisecond.
            let one = serde_json::to_value(copied(1_000_000, times(1000), steps))?;
            assert_eq!(one["unit"], "GB/s");
            assert_eq!(one["value"], 1.0);
            let beside = limit(&one, "slowest_step");
            assert_eq!(beside["value"], 2.0);
            assert_eq!(beside["ratio"], 0.5);
            assert_eq!(beside["budget"], 0.7);
            assert_eq!(beside["better"], "higher");
            for (name, rate) in [
                ("locked_download", steps.download),
                ("bare_message", steps.socket),
                ("locked_upload", steps.upload),
            ] {
                assert_eq!(limit(&one, name)["value"], rate, "{name}");
            }
        }
        Ok(())
    }
}

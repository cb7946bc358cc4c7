//! Entry points for fuzzers. Each takes any bytes at all and must neither panic nor hang.
//!
//! The target in `fuzz/` calls them, through the feature `fuzzing`; the test below calls them for a moment, with tensors that are right
//! and with changes of these.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::{Parcel, Receipt};
use crate::tensor::Tensor;

/// Tensors among arguments and results, outside of a call and with their bytes among the others (those beside a message are
/// `farref`'s to read), and what engines tell each other. What was read can be written and read again, and is the same; a tensor is as
/// many bytes as its shape and type say.
pub fn tensors(data: &[u8]) {
    if let Some(tensors) = read_twice::<Vec<Tensor>>(data) {
        tensors.iter().for_each(is_whole);
    }
    if let Some(parcel) = read_twice::<Parcel<Tensor>>(data) {
        let gradients = parcel.gradients.iter().flat_map(|(_, of)| of).flatten();
        gradients.for_each(is_whole);
    }
    read_twice::<Receipt>(data);
}

/// What these bytes are, if they are anything. Written, read and written again, it is the same both times.
fn read_twice<T: Serialize + DeserializeOwned>(data: &[u8]) -> Option<T> {
    let first: T = postcard::from_bytes(data).ok()?;
    let written = write(&first);
    match postcard::from_bytes::<T>(&written) {
        Ok(again) => assert_eq!(write(&again), written),
        Err(error) => panic!("{} cannot be read again: {error}", type_name::<T>()),
    }
    Some(first)
}

fn write<T: Serialize>(value: &T) -> Vec<u8> {
    match postcard::to_allocvec(value) {
        Ok(written) => written,
        Err(error) => panic!("{} cannot be written: {error}", type_name::<T>()),
    }
}

fn is_whole(tensor: &Tensor) {
    let count = tensor.elem_count();
    match (tensor.to_buffer(), tensor.dtype().size_in_bytes()) {
        // What has less than a byte may be packed.
        (Ok(buffer), 0) => assert!(buffer.len() <= count, "{tensor:?}"),
        (Ok(buffer), size) => assert_eq!(buffer.len(), count * size, "{tensor:?}"),
        (Err(error), _) => panic!("{tensor:?} has no bytes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use candle_core::Device;
    use farref::context::NodeId;

    use super::*;
    use crate::engine::{Cause, Messages, PassFailure, PassId};

    /// One of each kind.
    fn written() -> Vec<Vec<u8>> {
        let tensor = |values: &[f32], shape: &[usize]| {
            let tensor = candle_core::Tensor::from_slice(values, shape, &Device::Cpu);
            Tensor::from(tensor.expect("a tensor"))
        };
        let parcel = Parcel {
            pass: PassId {
                origin: NodeId::new(1, 2),
                counter: 3,
            },
            retain_graph: true,
            ended_below: 2,
            patience: Some(Duration::from_secs(60)),
            messages: Some(Messages {
                sent: vec![7, 300],
                received: vec![8],
            }),
            gradients: vec![(7, vec![Some(tensor(&[1.0, 2.0], &[1, 2])), None])],
        };
        let receipt = Receipt {
            unknown: vec![300],
            failure: Some(PassFailure {
                worker: "w1".to_owned(),
                cause: Cause::NoProgress {
                    patience: Duration::from_millis(1500),
                    waiting_for: vec!["w2".to_owned()],
                },
            }),
        };
        vec![
            write(&vec![tensor(&[1.0, 2.0], &[2])]),
            write(&vec![tensor(&[], &[0, 7]), tensor(&[0.5; 12], &[3, 2, 2])]),
            write(&parcel),
            write(&receipt),
        ]
    }

    #[test]
    fn no_bytes_make_the_reader_of_a_tensor_panic() {
        let mut random = fastrand::Rng::with_seed(21);
        let right = written();
        right.iter().for_each(|input| tensors(input));
        for input in right.iter().cycle().take(10_000) {
            let mut input = input.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..input.len());
                input[at] = random.u8(..);
            }
            tensors(&input);
        }
    }

    /// The fuzzer begins with what is right today, among what it has found.
    #[test]
    fn the_fuzzers_inputs_have_one_of_each_kind() {
        let seeds = farref_testkit::seeds("tensors");
        seeds.iter().for_each(|seed| tensors(seed.bytes));
        for right in written() {
            let has_it = seeds.iter().any(|seed| seed.bytes == right);
            assert!(has_it, "fuzz/seeds/tensors has no {right:?}");
        }
    }
}

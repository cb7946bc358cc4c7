//! Entry points for fuzzers. Each takes any bytes at all and must neither panic nor hang.
//!
//! The target in `fuzz/` calls them, through the feature `fuzzing`; the test below calls them for a moment, with tensors that are right
//! and with changes of these.

use crate::engine::{Parcel, Receipt};
use crate::tensor::Tensor;

/// Tensors among arguments and results, outside of a call and with their bytes among the others (those beside a message are
/// `farref`'s to read), and what engines tell each other. A tensor that was read is as many bytes as its shape and
/// type say: it can be written and read again, and is the same.
pub fn tensors(data: &[u8]) {
    if let Ok(tensors) = postcard::from_bytes::<Vec<Tensor>>(data) {
        tensors.iter().for_each(same_again);
    }
    if let Ok(parcel) = postcard::from_bytes::<Parcel<Tensor>>(data) {
        let gradients = parcel.gradients.iter().flat_map(|(_, of)| of).flatten();
        gradients.for_each(same_again);
    }
    drop(postcard::from_bytes::<Receipt>(data));
}

fn same_again(tensor: &Tensor) {
    let write = |tensor: &Tensor| match postcard::to_allocvec(tensor) {
        Ok(written) => written,
        Err(error) => panic!(
            "{:?} was read, and cannot be written: {error}",
            tensor.dims()
        ),
    };
    let written = write(tensor);
    match postcard::from_bytes::<Tensor>(&written) {
        Ok(again) => assert_eq!(write(&again), written),
        Err(error) => panic!("{:?} cannot be read again: {error}", tensor.dims()),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn written() -> Vec<Vec<u8>> {
        let tensor = |values: &[f32], shape: &[usize]| {
            let tensor = candle_core::Tensor::from_slice(values, shape, &Device::Cpu);
            Tensor::from(tensor.expect("a tensor"))
        };
        let all = [
            vec![tensor(&[1.0, 2.0], &[2])],
            vec![tensor(&[], &[0, 7]), tensor(&[0.5; 12], &[3, 2, 2])],
        ];
        let written = all.iter().map(postcard::to_allocvec);
        written
            .collect::<Result<_, _>>()
            .expect("it can be written")
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
}

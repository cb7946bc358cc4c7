//! What workers are called for.

use std::pin::Pin;
use std::task::{Context, Poll};

use farref::{Blob, Buffer, Call, CodecError, RRef, Stream, Worker};
use farref_autograd::Tensor;
use serde::{Deserialize, Serialize};

use super::spent::Spent;
use crate::allocations;

/// A call whose only result is that it has been made.
pub(super) async fn done(call: Call<()>) -> anyhow::Result<()> {
    Ok(call.await?)
}

#[farref::remote]
pub(super) async fn nothing() {}

/// Not `async`: runs on a thread for blocking calls.
#[farref::remote]
pub(super) fn nothing_plain() {}

#[farref::remote]
pub(super) async fn take_blob(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote]
pub(super) async fn return_blob(blob: Blob) -> Blob {
    blob
}

#[farref::remote]
pub(super) async fn take_vec(numbers: Vec<f32>) -> usize {
    4 * numbers.len()
}

#[farref::remote]
pub(super) async fn take_vec_u8(numbers: Vec<u8>) -> usize {
    numbers.len()
}

#[farref::remote]
pub(super) async fn take_vec_u32(numbers: Vec<u32>) -> usize {
    4 * numbers.len()
}

#[farref::remote]
pub(super) async fn take_vec_f64(numbers: Vec<f64>) -> usize {
    8 * numbers.len()
}

#[farref::remote]
pub(super) async fn return_vec(numbers: Vec<f32>) -> Vec<f32> {
    numbers
}

#[farref::remote]
pub(super) async fn take_buffer(buffer: Buffer) -> Result<usize, CodecError> {
    Ok(4 * buffer.into_vec::<f32>()?.len())
}

#[farref::remote]
pub(super) async fn return_buffer(buffer: Buffer) -> Result<Buffer, CodecError> {
    Ok(buffer.into_vec::<f32>()?.into())
}

#[farref::remote]
pub(super) async fn take_tensor(tensor: Tensor) -> usize {
    4 * tensor.elem_count()
}

#[farref::remote]
pub(super) async fn return_tensor(tensor: Tensor) -> Tensor {
    tensor
}

#[farref::remote]
pub(super) async fn one() -> u64 {
    1
}

#[farref::remote]
pub(super) async fn take_reference(_: RRef<u64>) {}

/// An item of a stream: 64 bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Item(pub(super) [f64; 8]);

impl Item {
    pub(super) fn number(number: f64) -> Self {
        Self([number; 8])
    }

    /// As a bare frame.
    pub(super) fn write_frame(&self, frames: &mut Vec<u8>) {
        for number in self.0 {
            frames.extend_from_slice(&number.to_le_bytes());
        }
    }

    pub(super) fn from_frame(frame: &[u8]) -> Self {
        let mut numbers = [0.0; 8];
        for (number, bytes) in numbers.iter_mut().zip(frame.as_chunks().0) {
            *number = f64::from_le_bytes(*bytes);
        }
        Self(numbers)
    }
}

/// Items without end.
struct Numbers(f64);

impl Stream for Numbers {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
        self.0 += 1.0;
        Poll::Ready(Some(Item::number(self.0)))
    }
}

#[farref::remote]
pub(super) async fn numbers() -> impl Stream<Item = Item> {
    Numbers(0.0)
}

/// How many values the worker owns.
#[farref::remote]
pub(super) async fn values_owned() -> usize {
    Worker::current().map_or(0, |me| me.snapshot().references_in_all)
}

/// How many bytes of values a worker has read out of others' memory.
pub(super) fn bytes_from_memory(worker: &Worker) -> u64 {
    let peers = worker.snapshot().peers;
    peers.iter().map(|peer| peer.bytes_from_memory).sum()
}

#[farref::remote]
pub(super) async fn read_from_memory() -> u64 {
    Worker::current().map_or(0, |me| bytes_from_memory(&me))
}

#[farref::remote]
pub(super) async fn spent() -> Spent {
    Spent::so_far()
}

#[farref::remote]
pub(super) async fn count_allocations(wanted: bool) {
    allocations::count(wanted);
}

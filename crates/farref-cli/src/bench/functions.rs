//! What workers are called for.

use farref::{Blob, Buffer, Call, CodecError, RRef, Worker};
use farref_autograd::Tensor;

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

//! Values from a few bytes to many megabytes, one way and back, beside a bare socket and copies in memory.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use farref::{Blob, Buffer, Peer};
use farref_autograd::Tensor;
use serde::de::DeserializeOwned;

use super::super::bare::{Bulk, memcpy};
use super::super::form::{Direction, Form, quantity};
use super::super::functions::{
    bytes_from_memory, read_from_memory, return_blob, return_buffer, return_tensor, return_vec,
    take_blob, take_buffer, take_tensor, take_vec, take_vec_f64, take_vec_u8, take_vec_u32,
};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::samples::{Stopwatch, Times};
use super::super::transport::Transport;

/// The size that has a budget.
const BUDGETED: usize = 64 << 20;

/// What is smaller is not bounded by how fast memory is copied.
const COPIES_COUNT: usize = 64 << 10;

fn sample(form: Form, bytes: usize) -> anyhow::Result<Sample> {
    let numbers = || vec![0.5_f32; bytes / 4];
    Ok(match form {
        Form::Blob => Sample::Blob(Blob::from(vec![7; bytes])),
        Form::Buffer => Sample::Buffer(Buffer::from_vec(numbers())),
        Form::Tensor => Sample::Tensor(Tensor::from_vec(numbers(), bytes / 4)?),
        Form::Vec => Sample::Vec(numbers()),
        Form::VecU8 => Sample::VecU8(vec![7; bytes]),
        // What a varint would need five bytes for.
        Form::VecU32 => Sample::VecU32(vec![1 << 30; bytes / 4]),
        Form::VecF64 => Sample::VecF64(vec![0.5; bytes / 8]),
    })
}

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let time = plan.time / 5;
    let mut bulk = Bulk::start(transport.socket()).await?;
    let mut limits = Vec::new();
    for &bytes in &plan.sizes {
        recorder.say(&format!("memcpy of {}", quantity(bytes)));
        let copies = memcpy(bytes, time, least(bytes))?;
        let memory = copies.gigabytes_per_second(bytes);
        recorder.add(Measurement::speed("memcpy", memory, copies).bytes(bytes));
        for direction in Direction::ALL {
            let (size, way) = (quantity(bytes), direction.name());
            recorder.say(&format!("{size} {way} through a bare socket"));
            let times = bulk.messages(bytes, direction == Direction::Echo, time, least(bytes))?;
            let bare = times.gigabytes_per_second(direction.ways() * bytes);
            let measured = Measurement::speed("bare_message", bare, times);
            recorder.add(measured.bytes(bytes).direction(direction));
            limits.push((bytes, direction, bare, memory));
        }
    }
    drop(bulk);

    let without_tls = match transport {
        Transport::Tls => Some(Group::start(Transport::Tcp, 2).await?),
        _ => None,
    };
    let group = Group::start(transport, 2).await?;
    let peer = &group.peers[0];
    let from_memory = transport == Transport::Shm && is_from_memory(&group).await?;
    if transport == Transport::Shm && !from_memory {
        recorder.note(
            "this system does not let these processes read each other's memory (kernel.yama.ptrace_scope?): \
             what is called shm is a Unix socket",
        );
    }
    for (bytes, direction, bare, memory) in limits {
        let mut blob = None;
        for form in Form::all(direction) {
            let (size, way) = (quantity(bytes), direction.name());
            recorder.say(&format!("{size} {way} as {}", form.name()));
            let held = bytes == BUDGETED && direction == Direction::OneWay;
            let least = least(bytes);
            let sample = sample(form, bytes)?;
            let times = sent(&sample, bytes, direction, peer, time, least).await?;
            let speed = times.gigabytes_per_second(direction.ways() * bytes);
            // A plain vector is held to what a blob reaches.
            let (socket, copy) = match transport {
                _ if form.is_vector() => (None, None),
                Transport::Tcp | Transport::Unix => (held.then_some(0.9), None),
                Transport::Tls => (None, None),
                Transport::Shm => (None, (held && from_memory).then_some(0.8)),
            };
            let mut measured = Measurement::speed("value", speed, times)
                .bytes(bytes)
                .direction(direction)
                .form(form)
                .at_least("bare_message", bare, socket);
            if bytes >= COPIES_COUNT {
                measured = measured.at_least("memcpy", memory, copy);
            }
            if let Some(group) = &without_tls
                && form == Form::Blob
            {
                let times = sent(&sample, bytes, direction, &group.peers[0], time, least).await?;
                let without = times.gigabytes_per_second(direction.ways() * bytes);
                measured = measured.at_least("without_tls", without, held.then_some(0.5));
            }
            let blob = *blob.get_or_insert(speed);
            if form.is_vector() {
                measured = measured.at_least("blob", blob, held.then_some(0.9));
            }
            recorder.add(measured);
        }
    }
    if let Some(group) = without_tls {
        group.end().await?;
    }
    group.end().await
}

/// How often at least. What is held to a budget, oftener.
fn least(bytes: usize) -> usize {
    match bytes == BUDGETED {
        true => 15,
        false => 3,
    }
}

/// Whether large values are read out of memory, both ways.
async fn is_from_memory(group: &Group) -> anyhow::Result<bool> {
    const ENOUGH: usize = 1 << 20;
    let peer = &group.peers[0];
    // Twice: before the first one nobody knows yet whether the other can be read.
    for _ in 0..2 {
        let back = return_blob::on(peer, Blob::from(vec![7; ENOUGH])).await?;
        ensure!(back.len() == ENOUGH);
    }
    Ok(bytes_from_memory(&group.me) > 0 && read_from_memory::on(peer).await? > 0)
}

/// What a program passes. Clones are made before the clock runs.
#[derive(Clone)]
enum Sample {
    Blob(Blob),
    Buffer(Buffer),
    Tensor(Tensor),
    Vec(Vec<f32>),
    VecU8(Vec<u8>),
    VecU32(Vec<u32>),
    VecF64(Vec<f64>),
}

async fn sent(
    sample: &Sample,
    bytes: usize,
    direction: Direction,
    peer: &Peer,
    time: Duration,
    least: usize,
) -> anyhow::Result<Times> {
    let once = async || -> anyhow::Result<Duration> {
        let (elapsed, came) = match direction {
            Direction::OneWay => take(sample, peer).await?,
            Direction::Echo => exchange(sample, peer).await?,
        };
        ensure!(came == bytes, "{bytes} bytes were sent, and {came} came");
        Ok(elapsed)
    };
    once().await?;
    let mut watch = Stopwatch::start(time, least);
    while watch.goes_on() {
        watch.record(once().await?);
    }
    Ok(watch.finish())
}

/// Sends it; the answer is its size.
async fn take(sample: &Sample, peer: &Peer) -> anyhow::Result<(Duration, usize)> {
    Ok(match sample.clone() {
        Sample::Blob(blob) => timed(|| take_blob::on(peer, blob)).await?,
        Sample::Buffer(buffer) => timed(|| take_buffer::on(peer, buffer).untyped()).await?,
        Sample::Tensor(tensor) => timed(|| take_tensor::on(peer, tensor)).await?,
        Sample::Vec(numbers) => timed(|| take_vec::on(peer, numbers)).await?,
        Sample::VecU8(numbers) => timed(|| take_vec_u8::on(peer, numbers)).await?,
        Sample::VecU32(numbers) => timed(|| take_vec_u32::on(peer, numbers)).await?,
        Sample::VecF64(numbers) => timed(|| take_vec_f64::on(peer, numbers)).await?,
    })
}

/// Sends it, and it comes back.
async fn exchange(sample: &Sample, peer: &Peer) -> anyhow::Result<(Duration, usize)> {
    Ok(match sample.clone() {
        Sample::Blob(blob) => {
            let (elapsed, back) = timed(|| return_blob::on(peer, blob)).await?;
            (elapsed, back.len())
        }
        Sample::Buffer(buffer) => {
            let (elapsed, back) = timed(|| return_buffer::on(peer, buffer).untyped()).await?;
            (elapsed, back.len())
        }
        Sample::Tensor(tensor) => {
            let (elapsed, back) = timed(|| return_tensor::on(peer, tensor)).await?;
            (elapsed, 4 * back.elem_count())
        }
        Sample::Vec(numbers) => {
            let (elapsed, back) = timed(|| return_vec::on(peer, numbers)).await?;
            (elapsed, 4 * back.len())
        }
        Sample::VecU8(_) | Sample::VecU32(_) | Sample::VecF64(_) => bail!("they go one way"),
    })
}

/// Writing the arguments is a part of a call.
async fn timed<T: DeserializeOwned + Send + 'static>(
    call: impl FnOnce() -> farref::Call<T>,
) -> farref::Result<(Duration, T)> {
    let began = Instant::now();
    let value = call().await?;
    Ok((began.elapsed(), value))
}

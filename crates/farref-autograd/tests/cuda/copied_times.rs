//! How quickly tensors are copied between processes that share nothing, as those are that go to another host or GPU.
//!
//! Beside them, in the same run: the same bytes as a blob; and what no copy can be quicker than, the slowest of its steps
//! alone: device to page-locked memory, a bare socket of that kind, page-locked memory to device. Where two processes work on one
//! GPU its copies take longer when they take turns, which is measured as well: between two GPUs nobody takes turns.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use farref::{Blob, Peer};
use farref_autograd::{Tensor, cuda};
use farref_cuda::{Cuda, DeviceMemory, PinnedOptions, PinnedPool, StreamHandle};

use crate::common::processes::Wire;
use crate::group::{Setup, echo, filled, finish, start_with};
use crate::times::median;

/// How often what is measured alone is done, after the first two.
const ALONE: usize = 20;

/// Takes a tensor, and answers when it is on the device.
#[farref::remote]
fn arrive(tensor: Tensor) -> Result<(), farref_autograd::Error> {
    Ok(tensor.device().synchronize()?)
}

#[farref::remote]
async fn take_blob(_: Blob) {}

#[farref::remote]
async fn echo_blob(blob: Blob) -> Blob {
    blob
}

/// Copies so many bytes from page-locked memory to the device, and says how long that took.
#[farref::remote]
fn copy_up(bytes: usize) -> Result<Duration> {
    // Made once: it is the copy alone that is to be seen.
    static KEPT: Mutex<Option<Copies>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*kept {
        Some(copies) if copies.bytes == bytes => copies.up(),
        _ => kept.insert(Copies::new(bytes)?).up(),
    }
}

/// GB/s.
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Prints rates: of tensors, of blobs, and of the steps of a copy alone.
pub(crate) async fn copied() -> Result<()> {
    for wire in [Wire::Usual, Wire::Unix, Wire::Tcp] {
        let setup = Setup {
            exported: 0,
            wire,
            ..Setup::USUAL
        };
        let group = start_with(2, setup, setup).await?;
        let peer = group.peer(1)?;
        for (bytes, rounds) in [(1 << 20, 60), (64 << 20, 14), (256 << 20, 8)] {
            if wire == Wire::Usual && bytes <= 64 << 20 {
                by_turns(&peer, bytes).await?;
            }
            let steps = steps(wire, bytes)?;
            one_size(&peer, wire, bytes, rounds, steps).await?;
        }
        finish(group).await?;
    }
    Ok(())
}

/// Calls with a tensor and with a blob, by turns.
async fn one_size(peer: &Peer, wire: Wire, bytes: usize, rounds: u32, slowest: f64) -> Result<()> {
    let gpu = cuda::device(0)?;
    let blob = Blob::from(vec![7_u8; bytes]);
    for is_echo in [false, true] {
        let [mut tensors, mut blobs] = [Vec::new(), Vec::new()];
        let tensor = filled(1.0, bytes / 4)?;
        for _ in 0..rounds {
            gpu.synchronize()?;
            let began = Instant::now();
            match is_echo {
                true => drop(echo::on(peer, tensor.clone()).await?),
                false => arrive::on(peer, tensor.clone()).await?,
            }
            gpu.synchronize()?;
            tensors.push(began.elapsed());
            let began = Instant::now();
            match is_echo {
                true => drop(echo_blob::on(peer, blob.clone()).await?),
                false => take_blob::on(peer, blob.clone()).await?,
            }
            blobs.push(began.elapsed());
        }
        let moved = if is_echo { 2 * bytes } else { bytes };
        let [tensors, blobs] = [tensors, blobs].map(|mut times| {
            // What is made and locked once.
            rate(moved, median(times.split_off(3)))
        });
        let what = if is_echo { "echo" } else { "take" };
        println!(
            "{what} {bytes} bytes, {wire:?}: tensor {tensors:.2} GB/s, {:.2} of the slowest step; blob {blobs:.2} GB/s, ratio {:.2}",
            tensors / slowest,
            tensors / blobs
        );
    }
    Ok(())
}

/// The rate of the slowest step of a copy.
fn steps(wire: Wire, bytes: usize) -> Result<f64> {
    let copies = Copies::new(bytes)?;
    let [mut down, mut up] = [Vec::new(), Vec::new()];
    for _ in 0..ALONE + 2 {
        down.push(copies.down()?);
        up.push(copies.up()?);
    }
    let [down, up] = [down, up].map(|mut times| rate(bytes, median(times.split_off(2))));
    let socket = rate(bytes, bare_socket(wire, bytes)?);
    println!(
        "{bytes} bytes, steps alone: page-locked, down {down:.2} GB/s, up {up:.2} GB/s; bare socket ({}) {socket:.2} GB/s",
        if wire == Wire::Tcp { "TCP" } else { "Unix" }
    );
    Ok(down.min(up).min(socket))
}

/// The copies of both ends, one after the other, as they are when a tensor is copied.
async fn by_turns(peer: &Peer, bytes: usize) -> Result<()> {
    let copies = Copies::new(bytes)?;
    let [mut down, mut up, mut alone] = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ALONE + 2 {
        down.push(copies.down()?);
        up.push(copy_up::on(peer, bytes).await?);
    }
    for _ in 0..ALONE + 2 {
        alone.push(copies.down()?);
    }
    let [down, up, alone] = [down, up, alone].map(|mut times| median(times.split_off(2)));
    println!(
        "{bytes} bytes, page-locked: down {alone:?}; in turns with the other process, down {down:?}, up there {up:?}"
    );
    Ok(())
}

/// Device memory and page-locked memory, to copy between.
struct Copies {
    cuda: Cuda,
    pool: PinnedPool,
    memory: DeviceMemory,
    bytes: usize,
}

#[allow(unsafe_code)]
impl Copies {
    fn new(bytes: usize) -> Result<Self> {
        let cuda = Cuda::open()?;
        let pool = PinnedPool::new(&cuda, 0, PinnedOptions::default())?;
        let memory = cuda.allocate(0, bytes as u64, StreamHandle::DEFAULT)?;
        // Memory is locked before anything is measured.
        drop(pool.take(bytes)?);
        cuda.synchronize(0, StreamHandle::DEFAULT)?;
        Ok(Self {
            cuda,
            pool,
            memory,
            bytes,
        })
    }

    fn down(&self) -> Result<Duration> {
        let (pointer, stream) = (self.memory.pointer(), StreamHandle::DEFAULT);
        let began = Instant::now();
        // SAFETY: the memory is there until all is done, and nobody else has it.
        let download = unsafe { self.pool.download(pointer, self.bytes, stream)? };
        download.wait_all()?;
        Ok(began.elapsed())
    }

    fn up(&self) -> Result<Duration> {
        let (pointer, stream) = (self.memory.pointer(), StreamHandle::DEFAULT);
        let mut buffer = self.pool.take(self.bytes)?;
        buffer.fill(3);
        let began = Instant::now();
        // SAFETY: the same.
        unsafe { buffer.upload(pointer, stream)? };
        self.cuda.synchronize(0, stream)?;
        Ok(began.elapsed())
    }
}

/// How long so many bytes take through a socket of that kind with nothing else around it, each time from and to the same memory.
fn bare_socket(wire: Wire, bytes: usize) -> Result<Duration> {
    match wire {
        Wire::Usual | Wire::Unix => {
            let (here, there) = UnixStream::pair()?;
            through(here, there, bytes)
        }
        Wire::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let here = TcpStream::connect(listener.local_addr()?)?;
            let (there, _) = listener.accept()?;
            here.set_nodelay(true)?;
            there.set_nodelay(true)?;
            through(here, there, bytes)
        }
    }
}

fn through<S: Read + Write + Send>(mut here: S, mut there: S, bytes: usize) -> Result<Duration> {
    let rounds = ALONE + 2;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<()> {
            let mut memory = vec![1_u8; bytes];
            for _ in 0..rounds {
                there.read_exact(&mut memory)?;
                there.write_all(&[1])?;
            }
            Ok(())
        });
        let memory = vec![7_u8; bytes];
        let mut times = Vec::new();
        for _ in 0..rounds {
            let began = Instant::now();
            here.write_all(&memory)?;
            here.read_exact(&mut [0])?;
            times.push(began.elapsed());
        }
        let received = receiver.join().ok().context("the receiver panicked")?;
        received?;
        Ok(median(times.split_off(2)))
    })
}

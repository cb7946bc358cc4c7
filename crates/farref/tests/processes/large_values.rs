//! Large values between two processes: what arrives, what it costs in memory, and that small calls
//! do not wait for it.
//!
//! Each test runs in a process of its own, because it measures the memory of the process, and not
//! beside another one, because all of them take much memory. `tools/bench` has their times.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Context as _, Result, bail, ensure};
use farref::testing::Cluster;
use farref::{Blob, Buffer, Error, Peer, RRef, Source, Width, Worker};
use libtest_mimic::Trial;

use crate::alone::{alone, is_alone};
use crate::amount;
use crate::group::{self, Options, SILENT_MS};
use crate::patterns::{check_bytes, check_words, fill_bytes};

/// The size of the large value: so large that one more copy shows in the memory of the process, and
/// larger than what a worker keeps to receive into.
fn large() -> usize {
    amount(160 << 20, 256 << 20)
}

/// What a process may use beside it.
const BESIDE: usize = 64 << 20;

/// A test, which has a worker in the other process.
type Test = fn(&Worker, &Peer) -> Result<()>;

/// Below this a blob is a part of its value, from here on it travels beside it.
const THRESHOLD: usize = 4096;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let tests: [(&str, Test); 12] = [
        (
            "a_large_argument_takes_its_own_size_and_holds_up_nobody",
            large_argument,
        ),
        (
            "a_large_result_takes_its_own_size_and_holds_up_nobody",
            large_result,
        ),
        (
            "a_large_buffer_behind_a_lock_takes_its_own_size_on_both_sides",
            large_buffer,
        ),
        (
            "a_large_vector_takes_its_own_size_on_both_sides",
            large_vector,
        ),
        (
            "memory_to_receive_into_is_kept_as_far_as_was_said",
            kept_memory,
        ),
        ("large_values_in_both_directions_at_once", both_directions),
        ("buffers_of_all_sizes_arrive_as_they_were", all_buffers),
        ("vectors_of_all_sizes_arrive_as_they_were", all_vectors),
        ("a_buffer_arrives_as_a_blob_does_and_as_vectors", all_forms),
        ("blobs_of_all_sizes_arrive_as_they_were", all_sizes),
        ("a_value_of_ten_thousand_blobs_arrives", many_blobs),
        ("a_value_of_too_many_blobs_is_a_typed_error", too_many_blobs),
    ];
    tests.into_iter().flat_map(|(name, test)| {
        [(true, "unix"), (false, "tcp")].map(|(unix, transport)| {
            let name = format!("{transport}_{name}");
            crate::trial(name.clone(), move || {
                static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
                let _turn = match is_alone() {
                    true => None,
                    false => Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)),
                };
                alone(&name, || run(unix, test))
            })
        })
    })
}

/// Runs a test with a second process, on a thread that may block.
fn run(unix_sockets: bool, test: Test) -> Result<()> {
    let options = Options {
        unix_sockets,
        // `delivery::bounds` has a value that is on its way for longer than this.
        peer_timeout_ms: SILENT_MS,
        ..Options::default()
    };
    let mut driver = None;
    group::run(options, &["other"], async |group| {
        let (me, other) = (group.me.clone(), group.peer("other")?);
        driver = Some(me.clone());
        tokio::task::spawn_blocking(move || test(&me, &other)).await??;

        // Neither has suspected the other.
        let expected = if unix_sockets { "unix" } else { "tcp" };
        let there = group.peer("other")?.snapshot().await?;
        for (snapshot, peer) in [(group.me.snapshot(), "other"), (there, "driver")] {
            let peer = snapshot.peers.iter().find(|known| known.name == peer);
            let peer = peer.context("the other is no member")?;
            ensure!(peer.status == "alive", "{peer:?}");
            // A process that gets no time for a moment loses its connection to caution, no more.
            println!("{} connections in all", peer.connections);
            ensure!(
                peer.transport.as_deref().is_none_or(|it| it == expected),
                "{peer:?}"
            );
        }
        Ok(())
    })?;
    let left = driver.context("no driver")?.snapshot();
    ensure!(
        left.references.is_empty() && left.open_calls == 0,
        "{left:?}"
    );
    Ok(())
}

fn fill(size: usize, seed: u64) -> Blob {
    let mut bytes = vec![0; size];
    fill_bytes(&mut bytes, seed);
    bytes.into()
}

fn check(blob: &Blob, seed: u64) -> bool {
    check_bytes(blob, seed)
}

/// Makes the present memory of this process its peak.
#[farref::remote]
fn reset_peak() -> Result<(), std::io::Error> {
    std::fs::write("/proc/self/clear_refs", "5")
}

/// The most memory that this process has had, in bytes.
#[farref::remote]
fn peak() -> Result<usize, String> {
    memory("VmHWM:")
}

/// What the system says of the memory of this process, in bytes.
fn memory(what: &str) -> Result<usize, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kibibytes = line.and_then(|line| {
        line.trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    Ok(kibibytes.ok_or_else(|| format!("no {what}"))? * 1024)
}

#[farref::remote]
fn receive(blob: Blob, seed: u64) -> (usize, bool) {
    (blob.len(), check(&blob, seed))
}

#[farref::remote]
fn send(size: usize, seed: u64) -> Blob {
    fill(size, seed)
}

#[farref::remote]
fn exchange(blob: Blob, seed: u64) -> (bool, Blob) {
    let good = check(&blob, seed);
    let size = blob.len();
    drop(blob);
    (good, fill(size, seed + 1))
}

#[farref::remote]
async fn small(n: u64) -> u64 {
    n
}

#[farref::remote]
async fn echo(blobs: Vec<Blob>) -> Vec<Blob> {
    blobs
}

#[farref::remote]
async fn count(blobs: Vec<Blob>) -> (usize, usize) {
    (blobs.len(), blobs.iter().map(|blob| blob.len()).sum())
}

/// Makes small calls to the peer until `big` is there; returns how many were answered by then.
fn count_meanwhile<T: Send + 'static>(
    peer: &Peer,
    big: impl FnOnce() -> farref::Result<T> + Send + 'static,
) -> Result<(T, u64)> {
    let big = std::thread::spawn(big);
    let mut answered = 0;
    while !big.is_finished() {
        ensure!(
            small::on(peer, answered).wait()? == answered,
            "a wrong answer"
        );
        if !big.is_finished() {
            answered += 1;
        }
    }
    let big = big
        .join()
        .map_err(|_| anyhow::anyhow!("the large call panicked"))?;
    Ok((big?, answered))
}

/// The outcome of `big`, which small calls did not wait for.
///
/// On a busy machine the large call may be over before the first small one is even made. So it is
/// made again then: if small calls waited for it, they would each time.
fn meanwhile<T: Send + 'static, F: FnOnce() -> farref::Result<T> + Send + 'static>(
    peer: &Peer,
    mut big: impl FnMut() -> F,
) -> Result<T> {
    for _ in 0..5 {
        let (outcome, answered) = count_meanwhile(peer, big())?;
        if answered > 0 {
            return Ok(outcome);
        }
    }
    bail!("small calls waited for the large one")
}

/// The peaks of both processes since they were last reset.
fn check_peaks(other: &Peer, value: usize) -> Result<()> {
    let peaks = [
        ("this process", peak()),
        ("the other", Ok(peak::on(other).wait()?)),
    ];
    for (who, peak) in peaks {
        let peak = peak.map_err(anyhow::Error::msg)?;
        println!("{who}: {} MiB for {} MiB", peak >> 20, value >> 20);
        ensure!(peak >= value, "{who} cannot have had it in {peak} bytes");
        let most = value + BESIDE;
        ensure!(peak <= most, "{who} took {peak} bytes, more than {most}");
    }
    Ok(())
}

fn large_argument(_: &Worker, other: &Peer) -> Result<()> {
    let blob = fill(large(), 1);
    reset_peak()?;
    reset_peak::on(other).wait()?;
    let received = meanwhile(other, || {
        let call = receive::on(other, blob.clone(), 1);
        move || call.wait()
    })?;
    assert_eq!(received, (large(), true));
    check_peaks(other, large())?;
    drop(blob);
    Ok(())
}

fn large_result(_: &Worker, other: &Peer) -> Result<()> {
    reset_peak()?;
    reset_peak::on(other).wait()?;
    let blob = meanwhile(other, || {
        let call = send::on(other, large(), 2);
        move || call.wait()
    })?;
    ensure!(
        blob.len() == large() && check(&blob, 2),
        "something else arrived"
    );
    check_peaks(other, large())?;
    drop(blob);

    // Left there, and fetched: the same.
    let left_there: RRef<Blob> = send::on(other, large(), 3).remote();
    wait_until_made(&left_there)?;
    reset_peak()?;
    let call = left_there.to_here();
    let (blob, _) = count_meanwhile(other, move || call.wait())?;
    ensure!(
        blob.len() == large() && check(&blob, 3),
        "something else arrived"
    );
    check_peaks(other, large())?;
    drop(left_there);
    Ok(())
}

/// Receives a blob and drops it. Returns the size of the blob, and the memory of the process then.
#[farref::remote]
async fn swallow_and_measure(blob: Blob) -> Result<(usize, usize), String> {
    let size = blob.len();
    drop(blob);
    Ok((size, memory("VmRSS:")?))
}

/// Within this process, so that nothing else takes memory meanwhile.
fn kept_memory(_: &Worker, _: &Peer) -> Result<()> {
    const SIZE: usize = 64 << 20;
    let runtime = tokio::runtime::Runtime::new()?;
    // Memory of the sender, which does not change.
    let (small, blob) = (fill(THRESHOLD, 1), fill(SIZE, 1));
    for kept in [0, SIZE / 2, 2 * SIZE] {
        let cluster = Cluster::start_with(2, |builder| {
            builder.kept_receive_buffers(kept).shared_memory(false)
        });
        let cluster = runtime.block_on(cluster)?;
        let peer = cluster.worker(0).peer("worker1")?;
        let (received, before) = swallow_and_measure::on(&peer, small.clone()).wait()?;
        ensure!(received == THRESHOLD);
        let (received, after) = swallow_and_measure::on(&peer, blob.clone()).wait()?;
        ensure!(received == SIZE);
        // What is kept is kept for seconds, and what is not is freed when it is dropped.
        let is_kept = after > before + SIZE / 2;
        ensure!(is_kept == (kept >= SIZE), "{kept}: {before}, then {after}");
        runtime.block_on(cluster.shutdown())?;
    }
    Ok(())
}

/// Waits until the value is there, without fetching it.
fn wait_until_made(blob: &RRef<Blob>) -> Result<()> {
    let there = length::on(&blob.owner()?, blob.clone()).wait()?;
    ensure!(there == large(), "{there}");
    Ok(())
}

#[farref::remote]
async fn length(blob: RRef<Blob>) -> farref::Result<usize> {
    Ok(blob.local().await?.len())
}

fn both_directions(_: &Worker, other: &Peer) -> Result<()> {
    let size = large() / 4;
    let calls: Vec<_> = (0..3)
        .map(|seed| exchange::on(other, fill(size, seed), seed))
        .collect();
    let threads: Vec<_> = calls
        .into_iter()
        .map(|call| std::thread::spawn(move || call.wait()))
        .collect();
    for (seed, thread) in threads.into_iter().enumerate() {
        let (good, back) = thread.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        ensure!(good, "something else arrived there");
        ensure!(
            back.len() == size && check(&back, seed as u64 + 1),
            "something else came back"
        );
    }
    Ok(())
}

fn all_sizes(_: &Worker, other: &Peer) -> Result<()> {
    let sizes = [
        0,
        1,
        THRESHOLD - 1,
        THRESHOLD,
        THRESHOLD + 1,
        (16 << 10) - 1,
        16 << 10,
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + 1,
        1 << 20,
        (5 << 20) + 3,
    ];
    // Each alone, all in one value, and in other orders.
    for size in sizes {
        let blobs = vec![fill(size, 7)];
        ensure!(
            echo::on(other, blobs.clone()).wait()? == blobs,
            "a blob of {size}"
        );
    }
    for turn in 0..sizes.len() {
        let mut blobs: Vec<_> = sizes.map(|size| fill(size, turn as u64)).to_vec();
        blobs.rotate_left(turn);
        ensure!(
            echo::on(other, blobs.clone()).wait()? == blobs,
            "turn {turn}"
        );
    }
    ensure!(echo::on(other, vec![]).wait()?.is_empty(), "no blob at all");
    Ok(())
}

fn many_blobs(_: &Worker, other: &Peer) -> Result<()> {
    for size in [0, 10, THRESHOLD - 1, THRESHOLD] {
        let blobs: Vec<_> = (0..10_000).map(|seed| fill(size, seed)).collect();
        ensure!(
            echo::on(other, blobs.clone()).wait()? == blobs,
            "10,000 blobs of {size}"
        );
    }
    Ok(())
}

/// A message has at most 65,536 parts. One part too many is for the caller to hear about, at once.
fn too_many_blobs(_: &Worker, other: &Peer) -> Result<()> {
    let blob = fill(THRESHOLD, 1);
    let most = vec![blob.clone(); 65_536];
    ensure!(
        count::on(other, most).wait()? == (65_536, 65_536 * THRESHOLD),
        "as many as allowed"
    );
    let too_many = vec![blob.clone(); 65_537];
    let refused = count::on(other, too_many).wait();
    ensure!(
        matches!(refused, Err(Error::Codec { .. })),
        "the argument: {refused:?}"
    );
    let refused = repeat::on(other, blob, 65_537).wait();
    let refused = refused.map(|blobs| blobs.len());
    ensure!(
        matches!(refused, Err(Error::Codec { .. })),
        "the result: {refused:?}"
    );
    Ok(())
}

#[farref::remote]
async fn repeat(blob: Blob, times: usize) -> Vec<Blob> {
    vec![blob; times]
}

/// The words of a tensor, behind a lock.
struct Storage(RwLock<Vec<u64>>, usize);

impl Storage {
    fn buffer(words: usize, seed: u64) -> Buffer {
        let values = crate::patterns::words(words, seed);
        Buffer::from_source(Arc::new(Self(RwLock::new(values), 8 * words)))
    }
}

impl Source for Storage {
    fn len(&self) -> usize {
        self.1
    }

    fn width(&self) -> Width {
        Width::Eight
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        let values = self.0.read().unwrap();
        look(&bytemuck::cast_slice(&values)[range]);
    }
}

#[farref::remote]
fn receive_words(buffer: Buffer, seed: u64) -> Result<(usize, bool), farref::CodecError> {
    let values = buffer.into_vec::<u64>()?;
    Ok((values.len(), check_words(&values, seed)))
}

#[farref::remote]
fn send_words(words: usize, seed: u64) -> Buffer {
    Storage::buffer(words, seed)
}

fn large_buffer(_: &Worker, other: &Peer) -> Result<()> {
    let words = large() / 8;
    let buffer = Storage::buffer(words, 1);
    reset_peak()?;
    reset_peak::on(other).wait()?;
    let received = meanwhile(other, || {
        let call = receive_words::on(other, buffer.clone(), 1);
        move || call.wait()
    })?;
    assert_eq!(received, (words, true));
    check_peaks(other, large())?;
    drop(buffer);

    reset_peak()?;
    reset_peak::on(other).wait()?;
    let call = send_words::on(other, words, 2);
    let (buffer, _) = count_meanwhile(other, move || call.wait())?;
    let values = buffer.into_vec::<u64>()?;
    ensure!(values.len() == words, "{} words", values.len());
    ensure!(check_words(&values, 2), "something else arrived");
    check_peaks(other, large())
}

#[farref::remote]
fn receive_vector(values: Vec<u64>, seed: u64) -> (usize, bool) {
    (values.len(), check_words(&values, seed))
}

#[farref::remote]
fn send_vector(words: usize, seed: u64) -> Vec<u64> {
    crate::patterns::words(words, seed)
}

#[farref::remote]
fn send_with_length(words: usize, seed: u64) -> (usize, Vec<u64>) {
    (words, crate::patterns::words(words, seed))
}

/// It is copied by neither side: there would be no room for that. It is larger than what is kept to receive into.
fn large_vector(_: &Worker, other: &Peer) -> Result<()> {
    let words = large() / 8;
    let values = crate::patterns::words(words, 1);
    reset_peak()?;
    reset_peak::on(other).wait()?;
    assert_eq!(receive_vector::on(other, values, 1).wait()?, (words, true));
    check_peaks(other, 8 * words)?;

    for with_length in [false, true] {
        reset_peak()?;
        reset_peak::on(other).wait()?;
        let values = match with_length {
            true => send_with_length::on(other, words, 2).wait()?.1,
            false => send_vector::on(other, words, 2).wait()?,
        };
        ensure!(values.len() == words, "{} words", values.len());
        ensure!(check_words(&values, 2), "something else arrived");
        check_peaks(other, 8 * words)?;
    }
    Ok(())
}

#[farref::remote]
async fn echo_vectors(bytes: Vec<u8>, words: Option<Vec<f32>>, rows: Vec<Vec<i64>>) -> Vectors {
    Vectors { bytes, words, rows }
}

#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
struct Vectors {
    bytes: Vec<u8>,
    words: Option<Vec<f32>>,
    rows: Vec<Vec<i64>>,
}

#[farref::remote]
async fn echo_floats(floats: Vec<f64>) -> Vec<f64> {
    floats
}

fn all_vectors(_: &Worker, other: &Peer) -> Result<()> {
    for size in [
        0,
        8,
        THRESHOLD - 8,
        THRESHOLD,
        70_000,
        1 << 20,
        (5 << 20) + 24,
    ] {
        let floats: Vec<f64> = (0..size / 8).map(|n| n as f64).collect();
        let back = echo_floats::on(other, floats.clone()).wait()?;
        ensure!(back == floats, "{size} bytes of f64");
        let sent = Vectors {
            bytes: fill(size, 3).to_vec(),
            words: Some((0..size / 4).map(|n| n as f32).collect()),
            rows: vec![(0..size as i64 / 8).collect(), Vec::new(), vec![-1; 3]],
        };
        let Vectors { bytes, words, rows } = sent.clone();
        let back = echo_vectors::on(other, bytes, words, rows).wait()?;
        ensure!(back == sent, "{size} bytes each");
    }
    Ok(())
}

#[farref::remote]
async fn echo_buffers(buffers: Vec<Buffer>) -> Vec<Buffer> {
    buffers
}

fn all_buffers(_: &Worker, other: &Peer) -> Result<()> {
    fn elements<T: bytemuck::Pod>(size: usize) -> Vec<T> {
        let mut elements = vec![T::zeroed(); size / size_of::<T>()];
        fill_bytes(bytemuck::cast_slice_mut(&mut elements), 5);
        elements
    }
    fn same<T: bytemuck::Pod + PartialEq>(buffer: Buffer, size: usize) -> Result<()> {
        let width = buffer.width().bytes();
        ensure!(width == size_of::<T>(), "a width of {width}");
        ensure!(
            buffer.into_vec::<T>()? == elements::<T>(size),
            "{size} of {width}"
        );
        Ok(())
    }
    let sizes = [
        0,
        8,
        THRESHOLD - 1,
        THRESHOLD,
        THRESHOLD + 9,
        (16 << 10) + 8,
        1 << 20,
        (5 << 20) + 24,
        amount(16 << 20, 64 << 20),
    ];
    for size in sizes {
        let sent = vec![
            elements::<u8>(size).into(),
            elements::<u16>(size).into(),
            elements::<u32>(size).into(),
            elements::<u64>(size).into(),
            Storage::buffer(size / 8, 5),
        ];
        let back = echo_buffers::on(other, sent).wait()?;
        let back: [Buffer; 5] = back.try_into().map_err(|_| anyhow::anyhow!("not five"))?;
        let [one, two, four, eight, source] = back;
        same::<u8>(one, size)?;
        same::<u16>(two, size)?;
        same::<u32>(four, size)?;
        same::<u64>(eight, size)?;
        ensure!(
            check_words(&source.into_vec::<u64>()?, 5),
            "a source of {size}"
        );
    }
    Ok(())
}

#[farref::remote]
async fn swallow(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote]
async fn swallow_buffer(buffer: Buffer) -> usize {
    buffer.len()
}

/// As above, with the elements made the program's own.
#[farref::remote]
async fn swallow_vector(buffer: Buffer) -> Result<usize, farref::CodecError> {
    Ok(match buffer.width() {
        Width::Eight => 8 * buffer.into_vec::<u64>()?.len(),
        _ => buffer.into_vec::<u8>()?.len(),
    })
}

/// As a blob, as a buffer, and as vectors that are the program's.
fn all_forms(_: &Worker, other: &Peer) -> Result<()> {
    let size = 64 << 20;
    let blob = fill(size, 1);
    let words = Storage::buffer(size / 8, 1);
    let bytes = Buffer::from_vec(vec![1_u8; size]);
    // The memory of blobs and buffers is used again, that of vectors is fresh each time.
    for _ in 0..amount(2, 15) {
        for received in [
            swallow::on(other, blob.clone()).wait()?,
            swallow_buffer::on(other, words.clone()).wait()?,
            swallow_vector::on(other, words.clone()).wait()?,
            swallow_vector::on(other, bytes.clone()).wait()?,
        ] {
            ensure!(received == size, "something else arrived");
        }
    }
    Ok(())
}

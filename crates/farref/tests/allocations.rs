//! What calls and references cost on the heap.
//!
//! A program of its own, because the allocator that counts is the whole program's. For the same
//! reason its tests run one after the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anyhow::{Context as _, bail, ensure};
use farref::{RRef, StoreServer, Worker};
use libtest_mimic::{Arguments, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial(
            "a_call_takes_two_allocations_at_most_on_both_sides_together",
            calls,
        ),
        trial(
            "a_live_reference_takes_less_than_two_hundred_bytes_at_its_owner_and_at_its_holder",
            references,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit()
}

fn trial(name: &str, test: fn() -> anyhow::Result<()>) -> Trial {
    Trial::test(name, move || {
        test().map_err(|error| format!("{error:?}").into())
    })
}

/// The system's allocator, which counts allocations, and bytes by the thread that allocates.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Bytes of no worker, of the holder, of the owner.
static BYTES: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];
const HOLDER: usize = 1;
const OWNER: usize = 2;

thread_local! {
    static WHOSE: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let whose = WHOSE.try_with(Cell::get).unwrap_or(0);
    BYTES[whose].fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: all of it is the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; and `pointer` came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[farref::remote]
async fn nothing() {}

#[farref::remote]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

/// Allocations of a round. What goes on beside it, like heartbeats and acknowledgements, is counted
/// too, and there is more of it on a busy machine: of several lots of rounds, the median counts.
async fn allocations(
    rounds: u64,
    mut round: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    const LOTS: u64 = 10;
    let mut lots = Vec::new();
    // The first lot is for what is allocated once.
    for _ in 0..=LOTS {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..rounds / LOTS {
            round().await?;
        }
        lots.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    lots.sort_unstable();
    Ok((lots[lots.len() / 2] * LOTS) as f64 / rounds as f64)
}

/// The budget is six allocations a call; the test holds it to fewer.
fn calls() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Over sockets, as in production.
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = format!("tcp://{}", store.local_addr());
        let (me, other) = tokio::try_join!(join(0, &place), join(1, &place))?;
        let peer = me.peer("worker1")?;

        let one = allocations(2000, async || Ok(nothing::on(&peer).await?)).await?;
        ensure!(one <= 2.0, "an empty call takes {one} allocations");

        // Arguments and results have to be somewhere on their way: one for each.
        let with_values = allocations(2000, async || {
            ensure!(add::on(&peer, 1, 2).await? == 3);
            Ok(())
        });
        let with_values = with_values.await?;
        ensure!(
            with_values <= 4.0,
            "a call with arguments takes {with_values} allocations"
        );

        // Thirty-two at once. The vector that holds them counts too.
        let many = allocations(200, async || {
            let calls: Vec<_> = (0..32).map(|_| nothing::on(&peer).start()).collect();
            for call in calls {
                call.await?;
            }
            Ok(())
        });
        let each = many.await? / 32.0;
        println!(
            "allocations: {one} of an empty call, {each} of one of many, {with_values} with values"
        );
        ensure!(each <= 2.0, "one of many calls takes {each} allocations");
        tokio::try_join!(me.shutdown(), other.shutdown())?;
        store.close().await;
        Ok(())
    })
}

#[farref::remote]
async fn make(number: u64) -> u64 {
    number
}

/// A runtime whose threads count what they allocate for one worker.
fn runtime(whose: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let builder = builder.worker_threads(1).enable_all();
    let runtime = builder.on_thread_start(move || WHOSE.set(whose)).build();
    Ok(runtime?)
}

async fn join(rank: u32, place: &str) -> farref::Result<Worker> {
    Worker::builder(format!("worker{rank}"))
        .rank(rank)
        .world_size(2)
        .rendezvous(place)
        .store_is_hosted_elsewhere()
        .join()
        .await
}

/// Makes references, each to a number of the peer's, and waits until each is known to be there.
async fn created(me: &Worker, into: &mut Vec<RRef<u64>>, count: u64) -> anyhow::Result<()> {
    const AT_ONCE: u64 = 256;
    let peer = me.peer("worker1")?;
    let mut number = 0;
    while number < count {
        let lot: Vec<_> = (0..AT_ONCE)
            .map(|more| make::on(&peer, number + more).remote())
            .collect();
        number += AT_ONCE;
        for reference in &lot {
            reference.confirmed().await?;
        }
        let last = lot.last().context("an empty lot")?;
        ensure!(last.to_here().await? == number - 1);
        into.extend(lot);
    }
    Ok(())
}

/// The bytes that a reference may take at either end.
const BUDGET: f64 = 200.0;

/// No measurement is above the budget, and one of them is well below it.
///
/// Tables grow by where their random hashes put what comes and goes, and more comes and goes at once
/// on a busy machine: 161 to 177 bytes at the owner and 145 to 159 at the holder were seen in forty
/// runs. So a measurement that is above the limits is repeated.
fn references() -> anyhow::Result<()> {
    const MEASUREMENTS: usize = 3;
    let mut measured = Vec::new();
    for _ in 0..MEASUREMENTS {
        let cost = reference_cost()?;
        println!("bytes of a reference: {cost:?}");
        ensure!(
            cost.owner <= BUDGET && cost.holder <= BUDGET,
            "a reference takes more than {BUDGET} bytes: {cost:?}"
        );
        if cost.owner <= 185.0 && cost.holder <= 167.0 && cost.neither <= 2.0 {
            return Ok(());
        }
        measured.push(cost);
    }
    bail!("a reference takes too many bytes: {measured:?}")
}

/// Bytes of one reference.
#[derive(Debug)]
struct ReferenceCost {
    /// Beside the value.
    owner: f64,
    holder: f64,
    /// On threads that are not of a worker.
    neither: f64,
}

/// Measures it. Each worker has a runtime of its own, whose threads tell whose memory they allocate.
fn reference_cost() -> anyhow::Result<ReferenceCost> {
    const FIRST: u64 = 4096;
    const COUNT: u64 = 100 << 10;
    let [here, there] = [runtime(HOLDER)?, runtime(OWNER)?];
    let main = tokio::runtime::Runtime::new()?;
    main.block_on(async {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = format!("tcp://{}", store.local_addr());
        let [mine, others] = [(); 2].map(|()| place.clone());
        let joining = here.spawn(async move { join(0, &mine).await });
        let other = there.spawn(async move { join(1, &others).await }).await??;
        let me = joining.await??;

        let measured = here.spawn(async move {
            let mut references = Vec::with_capacity((FIRST + COUNT) as usize);
            // Allocations that are made once are made by the first ones. These stay, so that the
            // others find no free entries of theirs.
            created(&me, &mut references, FIRST).await?;
            let before = BYTES.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
            created(&me, &mut references, COUNT).await?;
            let after = BYTES.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
            let each = |side: usize| (after[side] - before[side]) as f64 / COUNT as f64;
            drop(references);
            let cost = ReferenceCost {
                owner: each(OWNER) - size_of::<u64>() as f64,
                holder: each(HOLDER),
                neither: each(0),
            };
            anyhow::Ok((me, cost))
        });
        let (me, cost) = measured.await??;
        tokio::try_join!(me.shutdown(), other.shutdown())?;
        store.close().await;
        Ok(cost)
    })
}

//! What a live reference takes of the heap, at its owner beside the value, and at its holder (budget: at most two
//! hundred bytes each; it is held to what it has come down to).
//!
//! A test of its own, because the allocator that counts is the whole program's. Each worker has a runtime of its own,
//! whose threads say whose memory they allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

use farref::{RRef, StoreServer, Worker};

/// The system's allocator, which counts bytes by who has them.
struct Counting;

/// Of nobody in particular, of the holder, of the owner.
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
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; and what is given back came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[farref::remote]
async fn make(number: u64) -> u64 {
    number
}

/// A thread that serves a worker, and allocates for it alone.
fn runtime(whose: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let builder = builder.worker_threads(1).enable_all();
    let runtime = builder.on_thread_start(move || WHOSE.set(whose)).build();
    runtime.expect("a runtime")
}

async fn join(rank: u32, place: String) -> Worker {
    let worker = Worker::builder(format!("worker{rank}"))
        .rank(rank)
        .world_size(2)
        .rendezvous(&place)
        .store_is_hosted_elsewhere();
    worker.join().await.expect("a group of two")
}

/// Makes references, each to a number of the peer's, and waits until each is known to be there.
async fn created(me: &Worker, into: &mut Vec<RRef<u64>>, count: u64) {
    const AT_ONCE: u64 = 256;
    let peer = me.peer("worker1").expect("the other one");
    let mut number = 0;
    while number < count {
        let lot: Vec<_> = (0..AT_ONCE)
            .map(|more| make::on(&peer, number + more).remote())
            .collect();
        number += AT_ONCE;
        for reference in &lot {
            reference.confirmed().await.expect("it is registered");
        }
        let last = lot.last().expect("some");
        assert_eq!(last.to_here().await.expect("it is there"), number - 1);
        into.extend(lot);
    }
}

#[test]
fn a_live_reference_takes_less_than_two_hundred_bytes_at_its_owner_and_at_its_holder() {
    const COUNT: u64 = 100 << 10;
    let [here, there] = [runtime(HOLDER), runtime(OWNER)];
    let main = tokio::runtime::Runtime::new().expect("a runtime");
    main.block_on(async {
        let store = StoreServer::bind("127.0.0.1:0").await.expect("a store");
        let place = format!("tcp://{}", store.local_addr());
        let joining = here.spawn(join(0, place.clone()));
        let other = there.spawn(join(1, place)).await.expect("it joins");
        let me = joining.await.expect("it joins");

        let measured = here.spawn(async move {
            const FIRST: u64 = 4096;
            let mut references = Vec::with_capacity((FIRST + COUNT) as usize);
            // What grows once has grown. They stay, so that nothing of theirs is there for the others.
            created(&me, &mut references, FIRST).await;
            let before = BYTES.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
            created(&me, &mut references, COUNT).await;
            let after = BYTES.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
            let each = |side: usize| (after[side] - before[side]) as f64 / COUNT as f64;
            drop(references);
            (me, each(OWNER), each(HOLDER), each(0))
        });
        let (me, owner, holder, nobody) = measured.await.expect("it is measured");
        let beside = owner - size_of::<u64>() as f64;
        println!(
            "bytes of a reference: {beside} at the owner, beside the value; {holder} at the holder; \
             {nobody} on threads of neither"
        );
        assert!(nobody <= 2.0, "{nobody} bytes that nobody accounts for");
        // Two of the tables have grown once more, or not yet, by where their random hashes put what comes and goes: 161
        // to 177 bytes at the owner and 145 to 159 at the holder were seen in forty runs.
        assert!(
            beside <= 185.0,
            "{beside} bytes at the owner, beside the value"
        );
        assert!(holder <= 167.0, "{holder} bytes at the holder");
        let ended = tokio::try_join!(me.shutdown(), other.shutdown());
        ended.expect("both shut down");
        store.close().await;
    });
}

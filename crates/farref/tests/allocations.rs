//! What a call costs in heap allocations, both sides together (budget: at most six; it is held to what it
//! has come down to).
//!
//! A test of its own, because the allocator that counts is the whole program's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use farref::{StoreServer, Worker};

/// The system's allocator, which counts.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all of it is the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; and what is given back came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

/// Allocations for each of so many rounds, once everything is warm. Signs of life and acknowledgements go on beside
/// them, so it is not a whole number.
async fn counted(rounds: u64, mut round: impl AsyncFnMut()) -> f64 {
    for _ in 0..200 {
        round().await;
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..rounds {
        round().await;
    }
    let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
    made as f64 / rounds as f64
}

#[tokio::test]
async fn a_call_takes_two_allocations_at_most_on_both_sides_together() {
    // Over sockets, as in production.
    let store = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let place = format!("tcp://{}", store.local_addr());
    let worker = |rank: u32| {
        Worker::builder(format!("worker{rank}"))
            .rank(rank)
            .world_size(2)
            .rendezvous(&place)
            .store_is_hosted_elsewhere()
            .join()
    };
    let (me, other) = tokio::try_join!(worker(0), worker(1)).unwrap();
    let peer = me.peer("worker1").unwrap();

    let one = counted(2000, async || nothing::on(&peer).await.unwrap()).await;
    assert!(one <= 2.0, "an empty call takes {one} allocations");

    // Arguments and results have to be somewhere on their way: one for each.
    let with_values = counted(2000, async || {
        assert_eq!(add::on(&peer, 1, 2).await.unwrap(), 3);
    });
    let with_values = with_values.await;
    assert!(
        with_values <= 4.0,
        "a call with arguments takes {with_values} allocations"
    );

    // Thirty-two at once: what holds them is ours, and counts too.
    let many = counted(200, async || {
        let calls: Vec<_> = (0..32).map(|_| nothing::on(&peer).start()).collect();
        for call in calls {
            call.await.unwrap();
        }
    });
    let each = many.await / 32.0;
    println!(
        "allocations: {one} of an empty call, {each} of one of many, {with_values} with values"
    );
    assert!(each <= 2.0, "one of many calls takes {each} allocations");
    let ended = tokio::try_join!(me.shutdown(), other.shutdown());
    ended.unwrap();
    store.close().await;
}

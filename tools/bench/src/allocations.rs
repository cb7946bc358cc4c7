//! Counts heap allocations, and the bytes that are in use, while `farref-bench` asks for it.
//!
//! The one place of this program that is `unsafe`: an allocator cannot be written otherwise, and there is no other way
//! to know. When nobody asks, an allocation costs one look at a flag that is never written.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static WANTED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Below zero where more was given back than taken since counting began.
static BYTES: AtomicI64 = AtomicI64::new(0);

/// Counts from now on, or no longer.
pub(crate) fn count(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

pub(crate) fn so_far() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// How many more bytes are in use than when counting began. Only the difference between two moments means something.
pub(crate) fn bytes_in_use() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

/// What an allocation takes out of the heap, as the allocator of the GNU C library has it: eight bytes of its own, in
/// steps of sixteen.
fn taken(size: usize) -> i64 {
    ((size + 8).next_multiple_of(16)).max(32) as i64
}

/// The system's allocator.
struct Counting;

impl Counting {
    #[inline]
    fn one_more(size: usize) {
        if WANTED.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(taken(size), Ordering::Relaxed);
        }
    }

    #[inline]
    fn one_less(size: usize) {
        if WANTED.load(Ordering::Relaxed) {
            BYTES.fetch_sub(taken(size), Ordering::Relaxed);
        }
    }
}

// SAFETY: all of it is the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::one_more(layout.size());
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::one_more(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::one_less(layout.size());
        // SAFETY: as above; and what is given back came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::one_less(layout.size());
        Self::one_more(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because what is counted is the whole process's: others of this file would be counted along.
    #[test]
    fn what_is_asked_for_is_counted() {
        const SIZE: usize = 64 << 20;
        let make = || std::hint::black_box(vec![1_u8; SIZE]);
        drop(make());
        assert_eq!((so_far(), bytes_in_use()), (0, 0), "before anybody asks");

        count(true);
        let kept = make();
        assert!(so_far() > 0);
        assert!(bytes_in_use() > SIZE as i64 / 2);
        drop(kept);
        count(false);
        assert!(bytes_in_use() < SIZE as i64 / 2);
    }
}

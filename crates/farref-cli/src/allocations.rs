//! Counts heap allocations while `farref bench` asks for it.
//!
//! The one place of this program that is `unsafe`: an allocator cannot be written otherwise, and there is no other way
//! to know. When nobody asks, an allocation costs one look at a flag that is never written.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static WANTED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts from now on, or no longer.
pub(crate) fn count(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

pub(crate) fn so_far() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// The system's allocator.
struct Counting;

impl Counting {
    #[inline]
    fn one_more() {
        if WANTED.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: all of it is the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::one_more();
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::one_more();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; and what is given back came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::one_more();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_counted() {
        let one = |size: usize| drop(std::hint::black_box(vec![1_u8; size]));
        count(true);
        let before = so_far();
        one(100);
        let after = so_far();
        count(false);
        assert!(after > before);
    }
}

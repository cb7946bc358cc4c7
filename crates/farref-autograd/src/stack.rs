//! Room on the stack: candle walks and drops its graph by recursion, one call per node, and a graph of
//! a hundred thousand nodes needs some 25 MiB. How deep a graph is nobody can see from outside, so every walk has
//! room for the deepest.
//!
//! - **ST-1** A walk has the same room wherever it begins: on a thread of the program's, of a runtime, or inside of
//!   another walk.
//! - **ST-2** A walk of a small graph makes no mapping: stacks are kept and used again. Of those that are kept, what was
//!   touched stays in memory, which is less than the graph took that was walked.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corosensei::on_stack;
use corosensei::stack::DefaultStack;

/// Enough for a million nodes. Only what is touched takes memory.
const ROOM: usize = 256 << 20;

/// How many stacks are kept for the next walk: passes of more contexts at once than this are seldom.
const KEPT: usize = 2;

static SPARE: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread is on a stack with room.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs something that recurses over a graph.
pub(crate) fn with_room<T>(work: impl FnOnce() -> T) -> T {
    if INSIDE.get() {
        return work();
    }
    let spare = spare().pop();
    let Some(stack) = spare.or_else(|| DefaultStack::new(ROOM).ok()) else {
        // There is no address space left. Most graphs are not deep.
        return work();
    };
    let mut room = Room(Some(stack));
    let Some(stack) = &mut room.0 else {
        unreachable!("it is there until it is dropped")
    };
    INSIDE.set(true);
    on_stack(stack, work)
}

/// A stack that is in use. It is given back also after a panic.
struct Room(Option<DefaultStack>);

impl Drop for Room {
    fn drop(&mut self) {
        INSIDE.set(false);
        let mut spare = spare();
        if spare.len() < KEPT {
            spare.extend(self.0.take());
        }
        // Otherwise it is unmapped, without the lock.
        drop(spare);
    }
}

fn spare() -> MutexGuard<'static, Vec<DefaultStack>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses about a kilobyte of stack per level.
    fn recurse(levels: usize) -> usize {
        let filler = std::hint::black_box([levels; 128]);
        match levels {
            0 => 0,
            _ => recurse(levels - 1) + filler[levels % 128] / levels,
        }
    }

    #[test]
    fn st1_there_is_room_on_a_small_thread_and_inside_of_a_walk() {
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        let walk = || with_room(|| with_room(|| recurse(100_000)));
        let deep = thread.spawn(walk).expect("a thread").join();
        assert_eq!(deep.expect("it has room"), 100_000);
    }

    #[test]
    fn st1_a_panic_leaves_the_thread_as_it_was() {
        let caught = std::panic::catch_unwind(|| with_room(|| panic!("in a walk")));
        assert!(caught.is_err());
        assert!(!INSIDE.get());
        assert_eq!(with_room(|| recurse(100_000)), 100_000);
    }

    #[test]
    fn st2_no_more_stacks_are_kept_than_a_few() {
        std::thread::scope(|scope| {
            for _ in 0..4 * KEPT {
                scope.spawn(|| with_room(|| recurse(1000)));
            }
        });
        assert!(spare().len() <= KEPT);
    }
}

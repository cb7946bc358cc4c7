//! Which graphs take so little that a task may run them, of which others expect that it does not take long, instead of a
//! thread that may.
//!
//! - **TG-1** A graph is run by a task only if one of its size took little when such a one was last run. A step of a training
//!   is much like the one before.
//! - **TG-2** It is looked at by a task only if the last one that was looked at was small: how large it is, is known after
//!   that.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a task may take.
const LITTLE: Duration = Duration::from_micros(500);
/// Looking at so many takes less than that.
const FEW_NODES: usize = 1024;
/// So many sizes are remembered; then they are learnt anew.
const MAX_SIZES: usize = 1024;

/// How large a graph is: what several roots share counts for each of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Size {
    pub(crate) roots: usize,
    pub(crate) nodes: usize,
    pub(crate) elements: usize,
}

impl Size {
    pub(crate) fn add(&mut self, other: Self) {
        self.roots = self.roots.saturating_add(other.roots);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.elements = self.elements.saturating_add(other.elements);
    }
}

/// How long the graphs of one worker take.
#[derive(Default)]
pub(crate) struct Timings {
    /// Whether the last one that was looked at was large.
    large: AtomicBool,
    /// The sizes of those that took little when one of them was last run.
    quick: Mutex<HashSet<Size>>,
}

impl Timings {
    /// Whether a task may look at a graph.
    pub(crate) fn may_look(&self) -> bool {
        !self.large.load(Ordering::Relaxed)
    }

    pub(crate) fn looked_at(&self, size: Size) {
        self.large.store(size.nodes > FEW_NODES, Ordering::Relaxed);
    }

    /// Whether a task may run a graph of that size. Running nothing always takes little.
    pub(crate) fn may_run(&self, size: Size) -> bool {
        size == Size::default() || self.quick().contains(&size)
    }

    pub(crate) fn ran(&self, size: Size, took: Duration) {
        let mut quick = self.quick();
        if took > LITTLE {
            quick.remove(&size);
        } else if quick.len() < MAX_SIZES || quick.contains(&size) {
            quick.insert(size);
        } else {
            *quick = HashSet::from([size]);
        }
    }

    fn quick(&self) -> MutexGuard<'_, HashSet<Size>> {
        self.quick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(nodes: usize) -> Size {
        Size {
            roots: 1,
            nodes,
            elements: 1,
        }
    }

    #[test]
    fn tg1_a_task_runs_what_took_little_the_last_time() {
        let timings = Timings::default();
        assert!(!timings.may_run(size(1)));
        timings.ran(size(1), LITTLE);
        assert!(timings.may_run(size(1)));
        assert!(!timings.may_run(size(2)));
        timings.ran(size(1), LITTLE * 2);
        assert!(!timings.may_run(size(1)));
        assert!(timings.may_run(Size::default()));
    }

    #[test]
    fn tg1_no_more_sizes_are_remembered_than_some() {
        let timings = Timings::default();
        for nodes in 1..3 * MAX_SIZES {
            timings.ran(size(nodes), Duration::ZERO);
            assert!(timings.may_run(size(nodes)));
            assert!(timings.quick().len() <= MAX_SIZES);
        }
    }

    #[test]
    fn tg2_a_task_looks_if_the_last_graph_was_small() {
        let timings = Timings::default();
        assert!(timings.may_look());
        timings.looked_at(size(FEW_NODES + 1));
        assert!(!timings.may_look());
        timings.looked_at(size(FEW_NODES));
        assert!(timings.may_look());
    }
}

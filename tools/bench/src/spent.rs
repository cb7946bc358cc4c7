//! What this process has used: CPU time, memory, heap allocations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allocations;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Spent {
    /// Of all threads; nothing where the system does not say.
    pub(super) cpu: Duration,
    /// Heap allocations, since they are counted.
    pub(super) allocations: u64,
    /// Bytes of the heap in use, since they are counted.
    pub(super) heap: i64,
}

impl Spent {
    pub(super) fn so_far() -> Self {
        Self {
            cpu: cpu_time(),
            allocations: allocations::so_far(),
            heap: allocations::bytes_in_use(),
        }
    }

    /// Between an earlier moment and this one.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            allocations: self.allocations.saturating_sub(earlier.allocations),
            heap: self.heap - earlier.heap,
        }
    }
}

/// Of all threads of this process, in nanoseconds as Linux counts them. (Threads that have ended no longer count: over
/// a measurement none does.)
pub(super) fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let numbers = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        numbers.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_time() {
        let before = Spent::so_far();
        drop(std::hint::black_box(vec![1_u8; 32 << 20]));
        let spent = Spent::so_far().since(before);
        if cfg!(target_os = "linux") {
            assert!(spent.cpu > Duration::ZERO);
        }
    }
}

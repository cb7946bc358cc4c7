//! What this process has used: CPU time, memory, heap allocations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allocations;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Spent {
    pub(super) cpu: Duration,
    /// Resident, in bytes; 0 where the system does not say.
    pub(super) memory: u64,
    /// Since they are counted.
    pub(super) allocations: u64,
}

impl Spent {
    pub(super) fn so_far() -> Self {
        Self {
            cpu: cpu_time(),
            memory: resident().unwrap_or_default(),
            allocations: allocations::so_far(),
        }
    }

    /// Between an earlier moment and this one.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            memory: self.memory.saturating_sub(earlier.memory),
            allocations: self.allocations.saturating_sub(earlier.allocations),
        }
    }
}

/// Of all threads of this process.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_time_and_memory() {
        let before = Spent::so_far();
        let filled = std::hint::black_box(vec![1_u8; 32 << 20]);
        let spent = Spent::so_far().since(before);
        assert!(spent.cpu > Duration::ZERO);
        if cfg!(target_os = "linux") {
            assert!(spent.memory > 16 << 20, "{spent:?}");
        }
        drop(filled);
    }
}

//! How many threads each process of a group computes with.

/// The variables that say how many threads a rank computes with: of OpenMP (so of PyTorch and NumPy) and
/// of rayon (so of candle).
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Which variables to set to 1. Several ranks that each compute with all processors are in each other's
/// way, so one thread is the default for them, as it is torchrun's. Who has set one of them has chosen.
pub fn threads_to_limit(ranks: u32) -> &'static [&'static str] {
    let is_set = |name: &&str| std::env::var_os(name).is_some();
    match ranks > 1 && !THREADS.iter().any(is_set) {
        true => &THREADS,
        false => &[],
    }
}

//! How many threads matrix products use.
//!
//! candle asks the environment at every product, and if `RAYON_NUM_THREADS` is not set, it has the
//! operating system's list of processors read each time: 33 µs for a product that takes 1 µs. So it is
//! set before `main`, to what it would come out as; or to this worker's share, if a launcher says how many
//! workers there are on this host.

/// Runs before `main`, while there is one thread only.
#[ctor::ctor(unsafe)]
fn set_thread_count() {
    const NAME: &str = "RAYON_NUM_THREADS";
    if std::env::var_os(NAME).is_some() {
        return;
    }
    let threads = share(
        std::thread::available_parallelism().map_or(1, usize::from),
        std::env::var("LOCAL_WORLD_SIZE").ok().as_deref(),
    );
    // SAFETY: no other thread exists yet that could read the environment at the same time.
    unsafe { std::env::set_var(NAME, threads.to_string()) };
}

/// A worker's share of the processors.
fn share(processors: usize, workers: Option<&str>) -> usize {
    let workers = workers.and_then(|text| text.parse().ok()).unwrap_or(1);
    (processors / std::cmp::max(workers, 1)).max(1)
}

/// What was set; asked for wherever tensors are made, so that the linker keeps this module.
pub(crate) fn keep() {
    std::hint::black_box(set_thread_count as fn());
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn workers_of_one_host_share_its_processors() {
        assert_eq!(share(8, None), 8);
        assert_eq!(share(8, Some("3")), 2);
        assert_eq!(share(2, Some("64")), 1);
        assert_eq!(share(4, Some("0")), 4);
        assert_eq!(share(4, Some("many")), 4);
    }

    #[test]
    fn the_thread_count_is_set_before_main() {
        assert!(std::env::var("RAYON_NUM_THREADS").is_ok());
    }
}

//! How many threads matrix products use.
//!
//! candle asks at every product: `RAYON_NUM_THREADS`, else the length of the list of processors in
//! `CANDLE_CPU_MASK`, which it reads once, else the operating system's list of processors, which it reads
//! each time: 33 µs for a product that takes 1 µs. Setting either variable for good would set it for every
//! process that the program starts, which is not a library's business. So candle is shown the second one
//! while the program has not begun, and remembers it; the environment is as it was when `main` is called.
//!
//! The number is `OMP_NUM_THREADS`, as torchrun sets it; else this worker's share of the processors, if a
//! launcher says how many workers there are on this host; else all of them. If the environment has a variable
//! of candle's own, candle does as that says.

/// What candle itself asks for.
#[cfg(target_os = "linux")]
const CANDLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_CPU_MASK"];

/// Runs before `main`, while there is one thread only.
#[cfg(target_os = "linux")]
#[ctor::ctor(unsafe)]
fn set_thread_count() {
    if CANDLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let processors = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| allowed(&status));
    let processors = processors.unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..count).collect()
    });
    let variable = |name| std::env::var(name).ok();
    let threads = thread_count(
        processors.len(),
        variable("OMP_NUM_THREADS").as_deref(),
        variable("LOCAL_WORLD_SIZE").as_deref(),
    );
    let rank = variable("LOCAL_RANK").and_then(|rank| rank.parse().ok());
    let mask = mask(&processors, threads, rank.unwrap_or(0));
    let [_, name] = CANDLES;
    // SAFETY: no other thread exists yet that could read the environment at the same time.
    unsafe { std::env::set_var(name, mask) };
    candle_core::utils::get_num_threads();
    // SAFETY: as above.
    unsafe { std::env::remove_var(name) };
}

/// The processors that this process may run on, by their numbers.
#[cfg(any(target_os = "linux", test))]
fn allowed(status: &str) -> Option<Vec<usize>> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut processors = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        processors.extend((first..=last).take(PROCESSORS));
    }
    (!processors.is_empty()).then_some(processors)
}

/// As many as a list of candle's can have.
#[cfg(any(target_os = "linux", test))]
const PROCESSORS: usize = 1024;

#[cfg(any(target_os = "linux", test))]
fn thread_count(processors: usize, asked: Option<&str>, workers: Option<&str>) -> usize {
    let positive = |text: &str| text.trim().parse().ok().filter(|count| *count > 0);
    // OpenMP's variable has a number for every level of nesting.
    let asked = asked.and_then(|list| positive(list.split(',').next()?));
    let workers = workers.and_then(positive).unwrap_or(1);
    let share: usize = processors / workers;
    asked.unwrap_or(share).clamp(1, PROCESSORS)
}

/// A list of that many processors: threads that candle pins to it are on others than those of the other workers
/// on this host, as far as there are enough.
#[cfg(any(target_os = "linux", test))]
fn mask(processors: &[usize], threads: usize, rank: usize) -> String {
    let first = rank.saturating_mul(threads) % processors.len().max(1);
    let own = processors.iter().cycle().skip(first).take(processors.len());
    // Numbers of processors that are not there only make the list long enough.
    let more = (0..PROCESSORS).filter(|number| !processors.contains(number));
    let numbers = own.copied().chain(more).take(threads);
    let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// What was set; asked for wherever tensors are made, so that the linker keeps this module.
pub(crate) fn keep() {
    #[cfg(target_os = "linux")]
    std::hint::black_box(set_thread_count as fn());
}

#[cfg(test)]
mod tests {
    use super::{allowed, mask, thread_count};

    #[test]
    fn workers_of_one_host_share_its_processors() {
        assert_eq!(thread_count(8, None, None), 8);
        assert_eq!(thread_count(8, None, Some("3")), 2);
        assert_eq!(thread_count(2, None, Some("64")), 1);
        assert_eq!(thread_count(4, None, Some("0")), 4);
        assert_eq!(thread_count(4, None, Some("many")), 4);
    }

    #[test]
    fn openmps_number_of_threads_is_taken() {
        assert_eq!(thread_count(8, Some("3"), None), 3);
        assert_eq!(thread_count(2, Some("16"), Some("2")), 16);
        assert_eq!(thread_count(8, Some("4,2"), None), 4);
        for nonsense in ["", "0", "-1", "all"] {
            assert_eq!(thread_count(8, Some(nonsense), Some("2")), 4);
        }
        assert_eq!(thread_count(8, Some("1000000000"), None), 1024);
    }

    #[test]
    fn the_list_of_processors_has_one_for_each_thread() {
        let processors = allowed("Name:\tfarref\nCpus_allowed_list:\t0-2,5,8-9\n");
        let processors = processors.expect("a list");
        assert_eq!(processors, [0, 1, 2, 5, 8, 9]);
        assert_eq!(allowed("Name:\tfarref\n"), None);
        assert_eq!(allowed("Cpus_allowed_list:\tall\n"), None);
        assert_eq!(mask(&processors, 6, 0), "0,1,2,5,8,9");
        assert_eq!(mask(&processors, 2, 0), "0,1");
        assert_eq!(mask(&processors, 2, 1), "2,5");
        assert_eq!(mask(&processors, 2, 3), "0,1");
        assert_eq!(mask(&processors, 7, 0), "0,1,2,5,8,9,3");
        assert_eq!(mask(&[], 2, usize::MAX), "0,1");
    }
}

//! Times of something done again and again.

use std::time::{Duration, Instant};

use serde::Serialize;

/// More than this many are not kept: the percentiles would not change.
const MAX_SAMPLES: usize = 1 << 20;
/// What comes first finds cold caches and sockets that have yet to grow.
const WARM_UP: usize = 20;

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    /// How many were measured.
    pub(super) samples: usize,
}

/// Says when enough was measured.
#[derive(Debug)]
pub(super) struct Stopwatch {
    end: Instant,
    least: usize,
    skipped: usize,
    times: Vec<Duration>,
}

impl Stopwatch {
    /// Measures for a `time`, and at least `least` times.
    pub(super) fn start(time: Duration, least: usize) -> Self {
        Self {
            end: Instant::now() + time,
            least: least.max(1),
            skipped: 0,
            times: Vec::new(),
        }
    }

    /// The first ones do not count.
    pub(super) fn warm_up(mut self) -> Self {
        self.skipped = WARM_UP;
        self
    }

    pub(super) fn goes_on(&self) -> bool {
        self.times.len() < self.least
            || (Instant::now() < self.end && self.times.len() < MAX_SAMPLES)
    }

    pub(super) fn record(&mut self, time: Duration) {
        match self.skipped {
            0 => self.times.push(time),
            _ => self.skipped -= 1,
        }
    }

    pub(super) fn finish(self) -> Times {
        Times::of(self.times)
    }
}

impl Times {
    /// Of at least one time.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let percentile = |permille: usize| {
            let index = times.len() * permille / 1000;
            let time = times.get(index).or_else(|| times.last());
            time.map_or(f64::NAN, |time| time.as_nanos() as f64 / 1e3)
        };
        Self {
            p50: percentile(500),
            p99: percentile(990),
            p999: percentile(999),
            samples: times.len(),
        }
    }

    /// If each one moved so many bytes, by the median.
    pub(super) fn gigabytes_per_second(&self, bytes: usize) -> f64 {
        bytes as f64 / 1e3 / self.p50
    }
}

/// Does something for a `time`, one after the other.
pub(super) async fn repeat<F: Future<Output = anyhow::Result<()>>>(
    time: Duration,
    mut something: impl FnMut() -> F,
) -> anyhow::Result<Times> {
    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        something().await?;
        watch.record(began.elapsed());
    }
    Ok(watch.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_found() {
        let mut watch = Stopwatch::start(Duration::ZERO, 1000);
        for time in (1..=1000).rev() {
            assert!(watch.goes_on());
            watch.record(Duration::from_micros(time));
        }
        assert!(!watch.goes_on());
        let times = watch.finish();
        assert_eq!((times.p50, times.p99, times.p999), (501.0, 991.0, 1000.0));
        assert_eq!(times.samples, 1000);
        assert_eq!(times.gigabytes_per_second(501_000), 1.0);
    }

    #[test]
    fn what_warms_up_does_not_count() {
        let mut watch = Stopwatch::start(Duration::ZERO, 1).warm_up();
        for _ in 0..WARM_UP {
            watch.record(Duration::from_secs(1));
        }
        assert!(watch.goes_on());
        watch.record(Duration::from_micros(1));
        assert_eq!(watch.finish().p99, 1.0);
    }
}

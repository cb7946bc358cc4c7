//! Times of something done again and again.

use std::time::{Duration, Instant};

/// How large the large message is.
pub(super) const BULK: usize = 64 << 20;

/// More than this many are not kept: the percentiles would not change.
const MAX_SAMPLES: usize = 1 << 20;
/// What comes first finds cold caches and sockets that have yet to grow.
const WARM_UP: usize = 20;

/// Sorted times; at least one.
#[derive(Debug)]
pub(super) struct Samples(Vec<Duration>);

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

    pub(super) fn finish(mut self) -> Samples {
        self.times.sort_unstable();
        Samples(self.times)
    }
}

impl Samples {
    /// In microseconds.
    pub(super) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// In microseconds.
    pub(super) fn p99(&self) -> f64 {
        self.percentile(99)
    }

    fn percentile(&self, percent: usize) -> f64 {
        let index = self.0.len() * percent / 100;
        let time = self.0.get(index).or_else(|| self.0.last());
        time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// If each one moved a large message.
    pub(super) fn gigabytes_per_second(&self) -> f64 {
        BULK as f64 / 1e3 / self.p50()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_found() {
        let mut watch = Stopwatch::start(Duration::ZERO, 100);
        for time in (1..=100).rev() {
            assert!(watch.goes_on());
            watch.record(Duration::from_micros(time));
        }
        assert!(!watch.goes_on());
        let samples = watch.finish();
        assert_eq!((samples.p50(), samples.p99()), (51.0, 100.0));
    }

    #[test]
    fn what_warms_up_does_not_count() {
        let mut watch = Stopwatch::start(Duration::ZERO, 1).warm_up();
        for _ in 0..WARM_UP {
            watch.record(Duration::from_secs(1));
        }
        assert!(watch.goes_on());
        watch.record(Duration::from_micros(1));
        assert_eq!(watch.finish().p99(), 1.0);
    }
}

//! Times of something done again and again, as `farref-bench` takes them.

use std::time::{Duration, Instant};

/// More than this many are not kept: the percentiles would not change.
const MAX_SAMPLES: usize = 1 << 20;
/// What comes first finds cold caches and sockets that have yet to grow.
const WARM_UP: usize = 20;

/// Sorted times; at least one.
#[derive(Debug)]
pub struct Samples(Vec<Duration>);

/// Says when enough was measured.
#[derive(Debug)]
pub struct Stopwatch {
    end: Instant,
    least: usize,
    skipped: usize,
    times: Vec<Duration>,
}

impl Stopwatch {
    /// Measures for a `time`, and at least `least` times.
    pub fn start(time: Duration, least: usize) -> Self {
        Self {
            end: Instant::now() + time,
            least: least.max(1),
            skipped: 0,
            times: Vec::new(),
        }
    }

    /// The first ones do not count.
    pub fn warm_up(mut self) -> Self {
        self.skipped = WARM_UP;
        self
    }

    pub fn goes_on(&self) -> bool {
        self.times.len() < self.least
            || (Instant::now() < self.end && self.times.len() < MAX_SAMPLES)
    }

    pub fn record(&mut self, time: Duration) {
        match self.skipped {
            0 => self.times.push(time),
            _ => self.skipped -= 1,
        }
    }

    pub fn finish(mut self) -> Samples {
        self.times.sort_unstable();
        Samples(self.times)
    }
}

impl Samples {
    /// In microseconds.
    pub fn percentile(&self, percent: usize) -> f64 {
        let index = self.0.len() * percent / 100;
        let time = self.0.get(index).or_else(|| self.0.last());
        time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }
}

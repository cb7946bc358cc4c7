//! An attempt to meet somebody: one at a time, again after a while if it failed, and again when there is more to tell.

use std::time::{Duration, Instant};

/// How long after an attempt that failed the next one may begin.
const PAUSE: Duration = Duration::from_secs(5);

/// How far it is.
#[derive(Default, Debug)]
pub(super) struct Attempt {
    is_under_way: bool,
    /// The pools that were told of, if it has succeeded: how many, or up to which number.
    told: Option<u64>,
    not_before: Option<Instant>,
}

impl Attempt {
    /// Whether it is to begin now, to tell of so many pools. Then it has to [end](Self::end).
    pub(super) fn begin(&mut self, pools: u64) -> bool {
        let is_done = self.told.is_some_and(|told| told >= pools);
        let is_early = self.not_before.is_some_and(|at| Instant::now() < at);
        let begins = !(self.is_under_way || is_done || is_early);
        self.is_under_way |= begins;
        begins
    }

    /// Both know each other, and so many pools were told of.
    pub(super) fn succeed(&mut self, told: u64) {
        self.told = self.told.max(Some(told));
        self.not_before = None;
    }

    /// It is over, however it went.
    pub(super) fn end(&mut self, has_failed: bool) {
        self.is_under_way = false;
        if has_failed {
            self.not_before = Some(Instant::now() + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_made_at_a_time_and_none_after_it_succeeded() {
        let mut attempt = Attempt::default();
        assert!(attempt.begin(1));
        assert!(!attempt.begin(1) && !attempt.begin(2));
        attempt.succeed(1);
        attempt.end(false);
        assert!(!attempt.begin(1));
    }

    #[test]
    fn one_that_failed_is_made_again_after_a_while() {
        let mut attempt = Attempt::default();
        assert!(attempt.begin(1));
        attempt.end(true);
        assert!(!attempt.begin(1), "not at once");
        attempt.not_before = attempt.not_before.map(|at| at - PAUSE);
        assert!(attempt.begin(1));
    }

    #[test]
    fn it_is_made_again_when_there_is_more_to_tell() {
        let mut attempt = Attempt::default();
        // The other one has begun.
        attempt.succeed(1);
        assert!(!attempt.begin(1) && attempt.begin(2));
        attempt.succeed(2);
        attempt.end(false);
        attempt.succeed(1);
        assert!(!attempt.begin(2) && attempt.begin(3));
    }
}

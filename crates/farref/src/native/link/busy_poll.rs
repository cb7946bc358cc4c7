//! Whether a stream's task looks at its socket again and again for a moment, before it waits to be woken.
//!
//! To be put to sleep and woken takes a thread several times as long as all that is done for a short call. Where
//! messages follow each other closely, as in a conversation of calls one after the other, looking saves that at both ends.
//! Where they do not it would only take time from others.
//!
//! # Invariants
//!
//! - **BP-1** A stream is looked at only after [`SHORT_WAITS`] waits in a row that were shorter than the limit; one that is
//!   not, be it spent looking, ends that.
//! - **BP-2** It is looked at for no longer than the limit at a time, and between two looks the other tasks of the runtime
//!   have their turn.
//! - **BP-3** Nobody looks who owes the peer an answer: the peer waits for that, and whatever makes it may need the core.

use std::time::Duration;

use crate::support::clock::Instant;
use crate::support::simulation;

/// So many short waits in a row let expect another.
const SHORT_WAITS: u32 = 4;

/// So many looks are made anyhow: in between a call that came last is answered, if it can be at once.
const LOOKS_OF_GRACE: u32 = 1;

/// What is known of how long one stream's task has to wait.
#[derive(Debug)]
pub(super) struct BusyPoll {
    limit: Duration,
    /// Since when nothing has come.
    waits_since: Option<Instant>,
    looks: u32,
    /// Whether nobody looks until something was read.
    is_over: bool,
    short_waits: u32,
}

/// What to do while there is nothing to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Idle {
    /// Wait to be woken.
    Wait,
    /// Look again, when others have had their turn.
    Look,
}

impl BusyPoll {
    /// Looks for no longer than that; never if it is zero.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            // There the clock stands still while anything runs.
            limit: if simulation::is_on() {
                Duration::ZERO
            } else {
                limit
            },
            waits_since: None,
            looks: 0,
            is_over: false,
            short_waits: 0,
        }
    }

    /// There is nothing to read. `owes` says whether this end owes the peer an answer.
    pub(super) fn idle(
        &mut self,
        now: impl FnOnce() -> Instant,
        owes: impl FnOnce() -> bool,
    ) -> Idle {
        if self.limit.is_zero() {
            return Idle::Wait;
        }
        let now = now();
        let since = *self.waits_since.get_or_insert(now);
        if self.is_over || self.short_waits < SHORT_WAITS {
            return Idle::Wait;
        }
        // BP-1, BP-2
        if now.saturating_duration_since(since) >= self.limit {
            self.short_waits = 0;
            return Idle::Wait;
        }
        // BP-3
        if self.looks == LOOKS_OF_GRACE && owes() {
            self.is_over = true;
            return Idle::Wait;
        }
        self.looks += 1;
        Idle::Look
    }

    /// Something was read.
    pub(super) fn read(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.waits_since.take() else {
            return;
        };
        self.looks = 0;
        self.is_over = false;
        if now().saturating_duration_since(since) < self.limit {
            self.short_waits = (self.short_waits + 1).min(SHORT_WAITS);
        } else {
            self.short_waits = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    /// A stream, and the time.
    struct Conversation(BusyPoll, Instant);

    impl Conversation {
        fn new(limit: Duration) -> Self {
            Self(BusyPoll::new(limit), Instant::now())
        }

        fn idle(&mut self, owes: bool) -> Idle {
            let now = self.1;
            self.0.idle(|| now, || owes)
        }

        /// Waits so long for a message. Says whether it looked for it at first.
        fn wait(&mut self, time: Duration) -> bool {
            let looked = self.idle(false) == Idle::Look;
            self.1 += time;
            let now = self.1;
            self.0.read(|| now);
            looked
        }
    }

    const SHORT: Duration = Duration::from_micros(10);

    /// BP-1
    #[test]
    fn only_after_some_short_waits_in_a_row_is_another_expected() {
        let mut stream = Conversation::new(LIMIT);
        for _ in 0..3 {
            for _ in 0..SHORT_WAITS {
                assert!(!stream.wait(SHORT));
            }
            assert!(stream.wait(SHORT));
            assert!(stream.wait(LIMIT));
        }
    }

    /// BP-1, BP-2
    #[test]
    fn what_does_not_come_soon_is_not_looked_for_any_longer_nor_the_next_time() {
        let mut stream = Conversation::new(LIMIT);
        for _ in 0..SHORT_WAITS {
            stream.wait(SHORT);
        }
        let mut looks = 0;
        while stream.idle(false) == Idle::Look {
            stream.1 += Duration::from_micros(1);
            looks += 1;
        }
        assert_eq!(looks, 50);
        assert_eq!(stream.idle(false), Idle::Wait, "it waits until it is woken");
        stream.wait(SHORT);
        assert!(!stream.wait(SHORT));
    }

    /// BP-3
    #[test]
    fn who_owes_an_answer_soon_stops_to_look() {
        let mut stream = Conversation::new(LIMIT);
        for _ in 0..SHORT_WAITS {
            stream.wait(SHORT);
        }
        for _ in 0..LOOKS_OF_GRACE {
            assert_eq!(stream.idle(true), Idle::Look);
        }
        for owes in [true, false] {
            assert_eq!(stream.idle(owes), Idle::Wait, "until something comes");
        }
        // Who owes nothing the next time looks.
        assert!(!stream.wait(SHORT) && stream.wait(SHORT));
    }

    #[test]
    fn nobody_looks_who_is_not_to() {
        let mut stream = Conversation::new(Duration::ZERO);
        assert!((0..20).all(|_| !stream.wait(Duration::ZERO)));
    }

    /// What is read without having been waited for says nothing.
    #[test]
    fn only_waits_count() {
        let mut stream = Conversation::new(LIMIT);
        let now = stream.1;
        for _ in 0..20 {
            stream.0.read(|| now);
        }
        assert!(!stream.wait(SHORT));
    }
}

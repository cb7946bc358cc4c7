//! How many streams of a worker's are busy, and so how much of a batch each may have.
//!
//! # Invariants
//!
//! - **BS-1** Streams are counted in rounds, in which each of them makes about two batches. Who is not asked for a batch
//!   any more is not counted after the next round, however many others there are: a reader that pauses takes nothing
//!   from those who do not.

use std::sync::Mutex;

use crate::support::lock::lock;

/// Of more busy streams than this the batches get smaller.
const FULL_BATCHES: usize = 4;

/// Batches of a round beside two for each stream.
const LEAST_ROUND: usize = 8;

/// How many streams of a worker's have more items ready than fit into a batch, and are asked for them.
#[derive(Default, Debug)]
pub(crate) struct BusyStreams(Mutex<Round>);

#[derive(Default, Debug)]
struct Round {
    number: u64,
    batches: usize,
    streams: usize,
    /// Streams of the round before.
    before: usize,
}

/// When a stream was last busy.
#[derive(Default, Debug)]
pub(crate) struct LastBusy(Option<u64>);

impl BusyStreams {
    /// A stream has made a batch, and there is more.
    pub(crate) fn count(&self, last: &mut LastBusy) {
        let mut round = lock(&self.0);
        round.batches += 1;
        if last.0.replace(round.number) != Some(round.number) {
            round.streams += 1;
        }
        if round.batches >= 2 * round.streams + LEAST_ROUND {
            *round = Round {
                number: round.number + 1,
                before: round.streams,
                ..Round::default()
            };
        }
    }

    /// What each may have of a batch.
    pub(crate) fn share(&self, most: usize, least: usize) -> usize {
        let round = lock(&self.0);
        let busy = round.streams.max(round.before).max(1);
        drop(round);
        (most * FULL_BATCHES / busy).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1024;
    const LEAST: usize = 64;

    #[test]
    fn bs_1_streams_whose_readers_pause_take_nothing_from_the_others() {
        let busy = BusyStreams::default();
        let mut streams: Vec<LastBusy> = (0..1000).map(|_| LastBusy::default()).collect();
        let share = || busy.share(MOST, LEAST);
        assert_eq!(share(), MOST);
        for _ in 0..10 {
            streams.iter_mut().for_each(|stream| busy.count(stream));
            assert_eq!(share(), LEAST, "also when a round has just begun");
        }
        // All but one pause.
        let mut batches = 0;
        while share() < MOST {
            busy.count(&mut streams[0]);
            batches += 1;
            assert!(batches < 5000, "they still count");
        }
        // Others come and go.
        for _ in 0..100 {
            streams[..16]
                .iter_mut()
                .for_each(|stream| busy.count(stream));
        }
        assert_eq!(share(), MOST / 4);
    }
}

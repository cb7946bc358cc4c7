//! Whoever can connect must not be able to fill the log: of each kind of refusal one line a minute, and one for each host
//! if somebody has to see to it there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::support::clock::Instant;

/// How long the same is not said again.
const PAUSE: Duration = Duration::from_secs(60);

/// Of how many kinds and hosts that is known; those above are taken for one.
const MOST: usize = 64;

/// Why somebody was refused, and from where it came.
type Kind = (&'static str, Option<IpAddr>);

/// What was said lately, and how many more of the same there were since.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    said: BTreeMap<Kind, (Instant, u64)>,
}

impl Warnings {
    /// Somebody was refused: whether to say so, and of how many more of the kind nothing was said.
    pub(super) fn note(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < PAUSE;
        if !self.said.contains_key(&kind) && self.said.len() >= MOST {
            // Whoever was quiet since has nothing that is yet to be said.
            self.said.retain(|_, (at, more)| is_fresh(*at) || *more > 0);
        }
        let kind = match self.said.contains_key(&kind) || self.said.len() < MOST {
            true => kind,
            false => ("others", None),
        };
        match self.said.get_mut(&kind) {
            Some((at, more)) if is_fresh(*at) => {
                *more += 1;
                None
            }
            before => {
                let more = before.map_or(0, |(_, more)| *more);
                self.said.insert(kind, (now, 0));
                Some(more)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    #[test]
    fn the_same_is_said_once_a_minute_with_how_often_it_was() {
        let mut warnings = Warnings::default();
        let begin = Instant::now();
        assert_eq!(warnings.note(("tls", HERE), begin), Some(0));
        assert_eq!(warnings.note(("tls", HERE), begin), None);
        assert_eq!(warnings.note(("tls", HERE), begin + PAUSE / 2), None);
        assert_eq!(warnings.note(("token", HERE), begin), Some(0));
        assert_eq!(warnings.note(("tls", None), begin), Some(0));
        assert_eq!(warnings.note(("tls", HERE), begin + PAUSE), Some(2));
        assert_eq!(warnings.note(("tls", HERE), begin + PAUSE), None);
    }

    #[test]
    fn many_hosts_cannot_fill_the_log_nor_the_table() {
        let mut warnings = Warnings::default();
        let begin = Instant::now();
        let from = |number: u32| Some(IpAddr::V4(number.into()));
        let said =
            (0..10_000).filter(|&number| warnings.note(("tls", from(number)), begin).is_some());
        assert_eq!(said.count(), MOST + 1);
        assert!(warnings.said.len() <= MOST + 1);
        // Those who are quiet make room.
        let later = begin + 2 * PAUSE;
        assert_eq!(warnings.note(("tls", from(20_000)), later), Some(0));
    }
}

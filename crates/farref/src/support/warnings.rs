//! Whoever can connect must not be able to fill the log: of each kind of refusal one line a minute, and one for each host
//! if somebody has to see to it there. The same of each kind of misbehaviour of those who are no members.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::support::clock::Instant;

/// How long the same is not said again.
const PAUSE: Duration = Duration::from_secs(60);

/// Of how many hosts that is known; those above are taken for one. Kinds are few.
const MOST: usize = 64;

/// After how long a host that does not come again is forgotten, with what was not said of it.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Why somebody was refused, and from where it came if that matters.
type Kind = (&'static str, Option<IpAddr>);

/// What was said lately, and how many more of the same there were since.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    said: BTreeMap<Kind, (Instant, u64)>,
}

impl Warnings {
    fn hosts(&self) -> usize {
        let hosts = self.said.keys().filter(|(_, host)| host.is_some());
        hosts.count()
    }

    /// Somebody was refused: whether to say so, and of how many more of the kind nothing was said.
    pub(crate) fn note(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        let age = |at: Instant| now.saturating_duration_since(at);
        let is_fresh = |at: Instant| age(at) < PAUSE;
        let mut is_known = self.said.contains_key(&kind) || kind.1.is_none();
        if !is_known && self.hosts() >= MOST {
            // Whoever was quiet since has nothing that is yet to be said.
            self.said.retain(|(_, host), (at, more)| {
                host.is_none() || is_fresh(*at) || *more > 0 && age(*at) < FORGOTTEN
            });
        }
        is_known |= self.hosts() < MOST;
        let kind = match is_known {
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

    #[test]
    fn hosts_that_do_not_come_again_keep_neither_others_nor_other_kinds_out() {
        let mut warnings = Warnings::default();
        let begin = Instant::now();
        let from = |number: u32| Some(IpAddr::V4(number.into()));
        for number in (0..MOST as u32).chain(0..MOST as u32) {
            warnings.note(("tls", from(number)), begin);
        }
        for kind in ["garbage", "overloaded"] {
            assert_eq!(warnings.note((kind, None), begin), Some(0), "{kind}");
        }
        assert_eq!(warnings.note(("tls", from(1000)), begin), Some(0), "others");
        assert_eq!(warnings.note(("tls", from(1001)), begin), None, "others");
        let later = begin + FORGOTTEN;
        for number in 2000..2010 {
            assert_eq!(warnings.note(("tls", from(number)), later), Some(0));
        }
    }
}

//! All that is kept of what was seen: the last look, and what the last minutes were like.
//!
//! # Invariants
//!
//! - **DB-1** Whatever the group does and however long this runs, what is kept is bounded: each part says by how much.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::history::History;
use super::leaks::LeakHistory;
use super::membership::Membership;
use super::timeline::Timeline;
use crate::view::fetch::Update;
use crate::view::references::{self, Reference};
use crate::view::seen::Seen;

/// How many contexts have an age.
const CONTEXTS: usize = 10_000;

/// What is known of a group.
pub(super) struct State {
    pub(super) address: String,
    pub(super) interval: Duration,
    /// Milliseconds since 1970; none before the first look.
    pub(super) at: Option<f64>,
    /// Why nobody can be found, if so.
    pub(super) lost: Option<String>,
    /// Whether all have gone in order.
    ended: bool,
    pub(super) seen: Vec<Seen>,
    pub(super) references: Vec<Reference>,
    pub(super) membership: Membership,
    pub(super) history: History,
    pub(super) leaks: LeakHistory,
    pub(super) timeline: Timeline,
    /// When each context was first seen.
    pub(super) contexts: BTreeMap<String, f64>,
}

impl State {
    pub(super) fn new(address: &str, interval: Duration) -> Self {
        Self {
            address: address.to_owned(),
            interval,
            at: None,
            lost: None,
            ended: false,
            seen: Vec::new(),
            references: Vec::new(),
            membership: Membership::default(),
            history: History::default(),
            leaks: LeakHistory::default(),
            timeline: Timeline::default(),
            contexts: BTreeMap::new(),
        }
    }

    pub(super) fn update(&mut self, update: Update, at: f64) {
        match update {
            Update::Seen(seen) => self.look(seen, at),
            // That nobody is found any more follows.
            Update::Lost(_) if self.ended => {}
            Update::Lost(why) => self.lost = Some(why),
            Update::End => {}
        }
    }

    fn look(&mut self, mut seen: Vec<Seen>, at: f64) {
        let silent = seen.iter().all(|one| one.snapshot.is_err());
        // They are known to have gone, each of them: who is only silent is looked for again.
        self.ended = seen.is_empty();
        self.lost = silent.then(|| match self.ended {
            true => "all of its workers have left or were shut down".to_owned(),
            false => {
                "no worker of the group answers; it was shut down, or cannot be reached".to_owned()
            }
        });
        self.membership.update(&seen, at);
        // The last state of a group that is gone is still worth seeing, and so is what came before.
        if silent {
            return;
        }
        self.at = Some(at);
        self.history.update(&seen, at);
        self.timeline.update(&seen, at);
        self.references = references::merge(&seen);
        self.leaks.update(&self.references);
        let open: Vec<&String> = seen
            .iter()
            .filter_map(Seen::answer)
            .flat_map(|one| one.open_contexts.iter().map(|context| &context.id))
            .take(CONTEXTS)
            .collect();
        let before = std::mem::take(&mut self.contexts);
        for id in open {
            let first = before.get(id).copied().unwrap_or(at);
            self.contexts.insert(id.clone(), first);
        }
        // They are on the line of time now.
        for one in &mut seen {
            if let Ok(snapshot) = &mut one.snapshot {
                snapshot.finished = Vec::new();
            }
        }
        self.seen = seen;
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    #[test]
    fn a_group_that_is_gone_is_said_to_be_and_its_last_state_stays() {
        let mut state = State::new("here:1", Duration::from_secs(1));
        state.update(Update::Seen(samples::group()), 1.0);
        assert_eq!((state.lost.as_ref(), state.seen.len()), (None, 3));
        let held = state.references.len();
        assert!(held > 0);
        let mut silent = samples::group();
        for one in &mut silent {
            one.snapshot = Err("killed".to_owned());
        }
        state.update(Update::Seen(silent), 2.0);
        assert!(state.lost.is_some());
        assert!(state.seen.iter().all(|one| one.snapshot.is_ok()));
        assert_eq!(state.references.len(), held);
        state.update(Update::Lost("nobody is there".to_owned()), 3.0);
        assert_eq!(state.lost.as_deref(), Some("nobody is there"));
        assert_eq!(state.at, Some(1.0), "since then nothing was seen");
        state.update(Update::Seen(samples::group()), 4.0);
        assert_eq!((state.lost.as_ref(), state.at), (None, Some(4.0)));
    }

    #[test]
    fn a_group_that_ended_in_order_is_said_to_have_and_its_last_state_stays() {
        let mut state = State::new("here:1", Duration::from_secs(1));
        state.update(Update::Seen(samples::group()), 1.0);
        state.update(Update::Seen(Vec::new()), 2.0);
        let ended = |state: &State| {
            let why = state.lost.as_deref();
            why.is_some_and(|why| why.contains("shut down")) && state.seen.len() == 3
        };
        assert!(ended(&state), "{:?}", state.lost);
        // Where they met, nobody is found any more.
        state.update(Update::Lost("refused".to_owned()), 3.0);
        assert!(ended(&state), "{:?}", state.lost);
        // Others meet there.
        state.update(Update::Seen(samples::group()), 4.0);
        assert_eq!(state.lost, None);
        state.update(Update::Lost("refused".to_owned()), 5.0);
        assert_eq!(state.lost.as_deref(), Some("refused"));
    }

    #[test]
    fn a_context_is_as_old_as_it_has_been_seen() {
        let mut state = State::new("here:1", Duration::from_secs(1));
        let mut seen = samples::group();
        samples::edit(&mut seen[0], |one| one.open_contexts = samples::contexts());
        state.update(Update::Seen(seen.clone()), 1.0);
        state.update(Update::Seen(seen), 2.0);
        assert_eq!(state.contexts.values().copied().collect::<Vec<_>>(), [1.0]);
        state.update(Update::Seen(samples::group()), 3.0);
        assert!(state.contexts.is_empty());
    }
}

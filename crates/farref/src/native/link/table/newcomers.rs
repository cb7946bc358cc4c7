//! Those who have connected, and are neither members nor joining.
//!
//! Whoever has the token can prove itself under any number that it makes up. What is kept of those numbers is bounded, and an honest
//! newcomer must neither be kept out by them for ever nor lose what it has said.
//!
//! # Invariants
//!
//! - **LT-1** Of lives that are neither members nor joining, whoever has proved itself under their numbers, there are links
//!   with at most `max_newcomers` at one time.
//! - **LT-2** A link is forgotten only if nothing was ever said on it, so that a new one serves its peer as well, or if it was closed for good.
//!   That is decided while the runtime neither says anything nor takes anything in, and what else is kept of the peer goes in the same step: whoever
//!   connects again or joins does so before, and keeps all, or after, and is met anew.
//! - **LT-3** When there are too many, those go who are not connected, or have said nothing for `newcomer_patience`. An honest
//!   newcomer asks to be let in as soon as it is connected, and a member that is asked knows at once that it joins.
//! - **LT-4** Whoever has said something and does not join, though this worker is a member and can let it in, is cut off
//!   when there have been too many for [`LONGER`] times as long, with no such time in between in which there was room. A newcomer repeats that it wants to be let in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{NodeId, Time};
use foldhash::fast::FixedState;

use super::{Entries, LinkTable};
use crate::native::handshake::Refusal;
use crate::native::link::Link;
use crate::native::link::disconnecting::Offence;

/// How much more patience there is with those who have said something (LT-4).
const LONGER: u32 = 6;

/// How long there is no search for room after one: whoever is turned away can come again as fast as it likes.
const SEARCH_EVERY: Duration = Duration::from_millis(100);

/// Those who were no members when they connected, and may be by now.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    all: HashMap<NodeId, Newcomer, FixedState>,
    /// When there was last a search for room.
    searched: Option<Time>,
}

#[derive(Debug)]
struct Newcomer {
    came: Time,
    /// When it was first found to have said something and not to join (LT-4).
    overdue_since: Option<Time>,
}

impl Newcomers {
    pub(super) fn remove_if(&mut self, is_over: impl Fn(&NodeId) -> bool) {
        self.all.retain(|node, _| !is_over(node));
    }

    /// Whether there is to be a search for room now.
    fn begin_search(&mut self, now: Time, patience: Duration) -> bool {
        let since_last = self.searched.map(|last| now.since(last));
        if since_last.is_some_and(|since| since < SEARCH_EVERY) {
            return false;
        }
        self.searched = Some(now);
        if since_last.is_some_and(|since| since > patience.max(10 * SEARCH_EVERY)) {
            // There was room meanwhile: the patience with each begins anew.
            for newcomer in self.all.values_mut() {
                newcomer.overdue_since = None;
            }
        }
        true
    }
}

/// What becomes of one of them in a search for room.
enum Fate {
    /// There is no link any more, or it is closed from now on.
    Forgotten(Option<Arc<Link>>),
    /// It has had time enough to join.
    Overdue(Arc<Link>),
    Stays,
}

impl LinkTable {
    /// The link with somebody who has connected and is no member. There is one already if it was quicker on another connection.
    pub(super) fn link_for_newcomer(&self, node: NodeId) -> Result<Arc<Link>, Refusal> {
        let now = self.endpoint.now();
        if let Some(known_or_new) = self.admit_newcomer(node, now) {
            return known_or_new;
        }
        let patience = self.endpoint.config.newcomer_patience;
        if self.write().newcomers.begin_search(now, patience) {
            self.make_room(now);
        }
        self.admit_newcomer(node, now)
            .unwrap_or(Err(Refusal::Crowded))
    }

    /// None if there are too many (LT-1).
    fn admit_newcomer(&self, node: NodeId, now: Time) -> Option<Result<Arc<Link>, Refusal>> {
        let mut table = self.write();
        if let Some(link) = table.links.get(&node) {
            return Some(Ok(Arc::clone(link)));
        }
        if table.newcomers.all.len() >= self.endpoint.config.max_newcomers {
            return None;
        }
        let link = self.new_link(&mut table, node);
        if link.is_some() {
            let newcomer = Newcomer {
                came: now,
                overdue_since: None,
            };
            table.newcomers.all.insert(node, newcomer);
        }
        Some(link.ok_or(Refusal::Gone))
    }

    /// Forgets whom nobody will miss, and cuts off those who do not join (LT-2, LT-3, LT-4).
    fn make_room(&self, now: Time) {
        let callbacks = &self.endpoint.callbacks;
        let lets_in = callbacks.is_member();
        let nodes: Vec<NodeId> = self.read().newcomers.all.keys().copied().collect();
        let mut strangers = HashMap::<NodeId, Fate, FixedState>::default();
        // Locked when the runtime is, and until all is gone that is kept of those who are forgotten (LT-2).
        let mut table = None;
        callbacks.unmet(&nodes, &mut |node| {
            let table = table.get_or_insert_with(|| self.write());
            let fate = self.fate(table, node, now, lets_in);
            let is_forgotten = matches!(fate, Fate::Forgotten(_));
            strangers.insert(node, fate);
            is_forgotten
        });
        let mut table = table.unwrap_or_else(|| self.write());
        for node in &nodes {
            if matches!(strangers.get(node), None | Some(Fate::Forgotten(_))) {
                // The others have become members, or are over and their links go with that.
                table.newcomers.all.remove(node);
            }
        }
        drop(table);
        for (node, fate) in strangers {
            match fate {
                Fate::Forgotten(Some(link)) => link.close(),
                // It may have joined since.
                Fate::Overdue(link) if !callbacks.is_live(node) => {
                    link.cut_off(Offence::new("not_joined", "peer does not join"))
                }
                Fate::Forgotten(None) | Fate::Overdue(_) | Fate::Stays => {}
            }
        }
    }

    fn fate(&self, table: &mut Entries, node: NodeId, now: Time, lets_in: bool) -> Fate {
        let patience = self.endpoint.config.newcomer_patience;
        let Some(newcomer) = table.newcomers.all.get_mut(&node) else {
            // It has departed in between.
            return Fate::Stays;
        };
        let Some(link) = table.links.get(&node) else {
            return Fate::Forgotten(None);
        };
        if link.close_if_unused(now.since(newcomer.came) >= patience) {
            return Fate::Forgotten(table.links.remove(&node));
        }
        if !link.is_used() || !lets_in {
            newcomer.overdue_since = None;
            return Fate::Stays;
        }
        let since = *newcomer.overdue_since.get_or_insert(now);
        match now.since(since) >= patience * LONGER {
            true => Fate::Overdue(Arc::clone(link)),
            false => Fate::Stays,
        }
    }

    /// A connection has failed after its peer was met: if its link was forgotten meanwhile, so is all else (LT-2).
    pub(crate) fn unmeet_if_forgotten(&self, node: NodeId) {
        let mut table = None;
        self.endpoint.callbacks.unmet(&[node], &mut |node| {
            let table = table.get_or_insert_with(|| self.write());
            !table.links.contains_key(&node)
        });
    }
}

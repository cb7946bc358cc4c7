//! Whether it is this worker that does not fit into its group: a member that was there before it does not take its connections.
//!
//! Two members that cannot talk cannot both stay. By silence alone nobody can say whose fault it is. Where one does not take the
//! other's certificate, token or version ([`Rejections`]), both live, and it is the newcomer that goes: the older one
//! fitted to all who were there before.
//!
//! # Invariants
//!
//! - **UW-1** A worker does not bring it before its group that it cannot reach a member which was there before it, which it has
//!   never had a connection with, and which refuses it, or which it refuses. It gives the group up itself: when it is let in, if it was
//!   refused before, or else when it would have brought it before the others.
//! - **UW-2** From the first connection on, UW-1 holds no more between the two: whatever is refused later, somebody else may listen
//!   where the member did.
//! - **UW-3** Whoever is declared dead by the others after a member refused it is told of the refusal.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

use farref_proto::NodeId;

use crate::rendezvous::RendezvousError;
use crate::support::lock::lock;
use crate::tables::rejections::Rejections;

/// Whether members that were there before this worker refuse it, and whether that has ended its membership.
#[derive(Debug)]
pub(crate) struct Unwelcome {
    known: Mutex<Known>,
    /// Why this worker has given its group up, or has been given up.
    reason: OnceLock<Arc<RendezvousError>>,
}

#[derive(Debug)]
enum Known {
    /// There was nobody before this worker.
    Founder,
    /// This worker is not in yet, and has met these.
    Joining { met: BTreeSet<NodeId> },
    /// Those were members before this worker was, and it has not met them.
    LetIn { elders: BTreeSet<NodeId> },
}

impl Unwelcome {
    pub(super) fn new(is_joining: bool) -> Self {
        let met = BTreeSet::new();
        Self {
            known: Mutex::new(match is_joining {
                true => Known::Joining { met },
                false => Known::Founder,
            }),
            reason: OnceLock::new(),
        }
    }

    /// This worker was let in, and these are the members. If one of them refuses it, it is not to stay (UW-1).
    pub(super) fn let_in(
        &self,
        members: impl Iterator<Item = NodeId>,
        rejections: &Rejections,
    ) -> Option<NodeId> {
        let elders: BTreeSet<NodeId> = {
            let mut known = lock(&self.known);
            let elders = match &*known {
                Known::Joining { met } => members.filter(|node| !met.contains(node)).collect(),
                // Once is enough.
                Known::LetIn { .. } | Known::Founder => return None,
            };
            let for_good = BTreeSet::clone(&elders);
            *known = Known::LetIn { elders: for_good };
            elders
        };
        elders
            .into_iter()
            .find(|&node| self.refused_by(node, rejections))
    }

    /// There is a connection with a worker (UW-2).
    pub(super) fn met(&self, node: NodeId) {
        match &mut *lock(&self.known) {
            Known::Founder => {}
            Known::Joining { met } => drop(met.insert(node)),
            Known::LetIn { elders } => drop(elders.remove(&node)),
        }
    }

    /// A worker is gone.
    pub(super) fn forget(&self, node: NodeId) {
        match &mut *lock(&self.known) {
            Known::Founder => {}
            Known::Joining { met } => drop(met.remove(&node)),
            Known::LetIn { elders } => drop(elders.remove(&node)),
        }
    }

    /// A worker cannot be reached: whether it is one that refuses this worker, which is to give its group up for that (UW-1).
    pub(super) fn refused_by(&self, node: NodeId, rejections: &Rejections) -> bool {
        let is_elder = match &*lock(&self.known) {
            Known::Founder | Known::Joining { .. } => false,
            Known::LetIn { elders } => elders.contains(&node),
        };
        let reason = rejections.by_itself(node).filter(|_| is_elder);
        let is_refused = reason.is_some();
        if let Some(reason) = reason {
            // One may have been given before.
            self.reason.set(reason).unwrap_or_default();
        }
        is_refused
    }

    /// This worker is out: perhaps because one of the others does not take its connections (UW-3).
    pub(super) fn evicted(&self, rejections: &Rejections) {
        let reason = match &*lock(&self.known) {
            Known::Founder => None,
            Known::Joining { .. } => rejections.first(),
            Known::LetIn { elders } => elders.iter().find_map(|node| rejections.by_itself(*node)),
        };
        if let Some(reason) = reason {
            self.reason.set(reason).unwrap_or_default();
        }
    }

    /// Why this worker is in the group no more, if it is for this.
    pub(super) fn reason(&self) -> Option<&Arc<RendezvousError>> {
        self.reason.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: NodeId = NodeId::new(0, 1);
    const NEW: NodeId = NodeId::new(5, 1);

    fn refusals(nodes: &[NodeId], are_their_own: bool) -> Rejections {
        let rejections = Rejections::default();
        for &node in nodes {
            let [name, by] = ["me".to_owned(), node.to_string()];
            let why = RendezvousError::WrongToken { name, by };
            rejections.insert(node, why, are_their_own);
        }
        rejections
    }

    fn refused_by(nodes: &[NodeId]) -> Rejections {
        refusals(nodes, true)
    }

    /// UW-1
    #[test]
    fn only_those_who_were_there_before_and_refuse_count() {
        let unwelcome = Unwelcome::new(true);
        assert!(!unwelcome.refused_by(OLD, &refused_by(&[OLD])), "not in");
        assert_eq!(
            unwelcome.let_in([OLD].into_iter(), &refused_by(&[NEW])),
            None
        );
        assert!(!unwelcome.refused_by(OLD, &refused_by(&[])), "it is silent");
        assert!(
            !unwelcome.refused_by(NEW, &refused_by(&[NEW])),
            "it is younger"
        );
        assert!(
            !unwelcome.refused_by(OLD, &refusals(&[OLD], false)),
            "another is in its place"
        );
        assert!(unwelcome.reason().is_none());
        assert!(unwelcome.refused_by(OLD, &refused_by(&[OLD])));
        assert!(unwelcome.reason().is_some());
    }

    /// UW-1
    #[test]
    fn who_was_refused_before_it_was_let_in_does_not_stay() {
        let unwelcome = Unwelcome::new(true);
        let by = unwelcome.let_in([OLD].into_iter(), &refused_by(&[OLD]));
        assert_eq!(by, Some(OLD));
        assert!(unwelcome.reason().is_some());
    }

    /// UW-2
    #[test]
    fn whom_it_has_met_is_not_believed_to_refuse() {
        let unwelcome = Unwelcome::new(true);
        unwelcome.let_in([OLD].into_iter(), &refused_by(&[]));
        unwelcome.met(OLD);
        assert!(!unwelcome.refused_by(OLD, &refused_by(&[OLD])));
        unwelcome.evicted(&refused_by(&[OLD]));
        assert!(unwelcome.reason().is_none());

        // The one that let it in, for instance.
        let unwelcome = Unwelcome::new(true);
        unwelcome.met(OLD);
        assert_eq!(
            unwelcome.let_in([OLD].into_iter(), &refused_by(&[OLD])),
            None
        );
        assert!(unwelcome.reason().is_none());
    }

    #[test]
    fn a_founder_fits_into_its_group() {
        let unwelcome = Unwelcome::new(false);
        assert!(!unwelcome.refused_by(OLD, &refused_by(&[OLD])));
        unwelcome.evicted(&refused_by(&[OLD]));
        assert!(unwelcome.reason().is_none());
    }

    /// UW-3: the others may be quicker.
    #[test]
    fn whoever_is_evicted_and_was_refused_knows_why() {
        for is_in in [true, false] {
            let unwelcome = Unwelcome::new(true);
            if is_in {
                unwelcome.let_in([OLD].into_iter(), &refused_by(&[]));
            }
            unwelcome.evicted(&refused_by(&[OLD, NEW]));
            let reason = unwelcome.reason().expect("there is one");
            assert!(reason.to_string().contains(&OLD.to_string()), "{reason}");
        }
    }
}

//! Members that are gone, or have to go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farref::agent::Departure;

use super::state::AgentShared;
use super::state::links::Link;
use crate::transport::PipeError;

impl AgentShared {
    /// The peer has no place in the group any more.
    pub(super) fn misbehaves(self: &Arc<Self>, link: &Arc<Link>, reason: &str) {
        tracing::error!(worker = %self.name, peer = %link.name, reason, "a peer misbehaves and is cut off");
        self.lost(link, Departure::Died);
    }

    /// A pipe of a peer's is over.
    pub(super) fn broken(self: &Arc<Self>, link: &Arc<Link>, error: Option<PipeError>) {
        if self.closing.load(Ordering::Relaxed) || link.is_gone() {
            return;
        }
        if self.parting.load(Ordering::Acquire) {
            tracing::debug!(worker = %self.name, peer = %link.name, "a peer has parted");
            return self.gatherings.lose(&self.group_kind, &link.name);
        }
        // Who has said that it leaves goes when its calls are answered.
        if link.is_leaving() {
            tracing::debug!(worker = %self.name, peer = %link.name, "a peer that leaves closed its pipe");
            return self.lost(link, Departure::Left);
        }
        match error {
            Some(error) => {
                tracing::warn!(worker = %self.name, peer = %link.name, %error, "a pipe broke");
            }
            None => {
                tracing::info!(worker = %self.name, peer = %link.name, "a peer closed its pipe")
            }
        }
        self.lost(link, Departure::Died);
    }

    /// A member is gone.
    pub(super) fn lost(self: &Arc<Self>, link: &Arc<Link>, departure: Departure) {
        if self.closing.load(Ordering::Relaxed) || !link.end() {
            return;
        }
        if let Some(inbound) = self.inbound.upgrade() {
            inbound.dismissed(link.node, departure);
        }
        // Whoever waits for it looks again, and finds it gone.
        self.gatherings.lose(&self.group_kind, &link.name);
        self.clear_up_after(link);
    }
}

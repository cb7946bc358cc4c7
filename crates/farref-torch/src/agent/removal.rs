//! Workers of a dynamic group that are gone without having left are taken off its list, and the others told.
//!
//! PyTorch does so with nobody. Its workers call the dead one when they join or leave, fail at that, and keep the turn to
//! change the group, so that nobody comes or goes any more. A Rust member does for the dead one what that would
//! have done to leave.
//!
//! - **MR-1** Removed is only who has had a pipe to this worker, whose pipe has ended, and whose process is gone: nobody
//!   listens any more where it did, or nothing comes back from its host for half a minute. A pipe that broke says nothing
//!   about the others' pipes.
//! - **MR-2** It is done in this worker's turn, and only if the list has that worker still and the store its address. So it
//!   is done once, whoever notices, and one that has come again under the name is not touched.
//! - **MR-3** The others are told before it is off the list. If this worker dies meanwhile, another one finds it there and
//!   tells them again, which is no news to those who knew.
//! - **MR-4** A Rust member that is told so by another believes nothing: it has a pipe to each member and sees for
//!   itself who is gone. So nobody is removed in its eyes by what somebody says.
//! - **MR-5** It is tried until it is done or this worker has left, whoever has the turn meanwhile. A worker that leaves waits a
//!   moment for it.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::state::AgentShared;
use super::state::accepted_pipes::AcceptedPipe;
use super::state::ending::GroupKind;
use super::state::links::Link;
use crate::group::{GroupError, Turn, is_over};
use crate::rpc::WorkerInfo;

/// After another one has had the turn for too long.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a worker that leaves waits for what it is at.
const LAST_REMOVALS: Duration = Duration::from_secs(5);

impl AgentShared {
    /// A member is gone. Also one that has said that it leaves may have failed at it.
    pub(super) fn clear_up_after(self: &Arc<Self>, link: &Arc<Link>) {
        if !matches!(self.group_kind, GroupKind::Dynamic) {
            return;
        }
        let (shared, link) = (Arc::clone(self), Arc::clone(link));
        self.spawn(async move { shared.clear_up(&link.name, &link.address).await });
    }

    /// One that asked to join is gone before it was a member.
    pub(super) async fn clear_up_after_joiner(self: &Arc<Self>, accepted: &AcceptedPipe) {
        let is_member = self.link_by_name(&accepted.name).is_some();
        if is_member || !matches!(self.group_kind, GroupKind::Dynamic) {
            return;
        }
        // It has said where it is before it asked. If not it is no worker.
        if let Ok(Some(address)) = self.group_store.last_address_of(&accepted.name).await {
            self.clear_up(&accepted.name, &address).await;
        }
    }

    /// Comes back when nobody is being looked after, or after a moment (MR-5).
    pub(super) async fn finish_removals(&self) {
        drop(timeout(LAST_REMOVALS, self.removals.all_done()).await);
    }

    async fn clear_up(self: &Arc<Self>, name: &str, address: &str) {
        let _open = self.removals.begin();
        let mut is_waiting = false;
        loop {
            match self.try_clear_up(name, address).await {
                Ok(true) => {
                    tracing::info!(worker = %self.name, peer = %name, "a worker that is gone is off the list");
                }
                Ok(false) => {}
                Err(GroupError::Busy { .. }) => {
                    if !is_waiting {
                        tracing::info!(worker = %self.name, peer = %name, "a worker that is gone stays on the list until the turn is free");
                        is_waiting = true;
                    }
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(worker = %self.name, peer = %name, %error, "a worker that is gone may still be on the list");
                }
            }
            return;
        }
    }

    /// Says whether it was this worker that took it off the list.
    async fn try_clear_up(self: &Arc<Self>, name: &str, address: &str) -> Result<bool, GroupError> {
        if !self.group_store.has_left_undone(name, address).await? {
            return Ok(false);
        }
        // MR-1
        if !is_over(address, &self.name).await {
            tracing::warn!(worker = %self.name, peer = %name, "a worker's pipe has ended, and it is still there: it stays on the list");
            return Ok(false);
        }
        // If it has the turn, that is given up for it (GR-5).
        let turn = Turn::take(&self.group_store, self.group_store.removal()).await?;
        let removed = self.remove(name, address).await;
        turn.end(true).await?;
        removed
    }

    /// In this worker's turn (MR-2, MR-3).
    async fn remove(self: &Arc<Self>, name: &str, address: &str) -> Result<bool, GroupError> {
        let Some(id) = self.group_store.number_on_list(name, address).await? else {
            return Ok(false);
        };
        for link in self.staying().iter().filter(|link| link.name != name) {
            let told = self.tell(link, WorkerInfo { name, id }, false);
            match timeout(self.group_store.patience(), told).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) if link.is_gone() => {}
                Ok(Err(error)) => {
                    tracing::warn!(worker = %self.name, peer = %link.name, error, "a peer does not take in that {name} is gone");
                }
                Err(_) => {
                    tracing::warn!(worker = %self.name, peer = %link.name, "a peer does not answer that {name} is gone");
                }
            }
        }
        self.group_store.strike(name, id).await?;
        Ok(true)
    }
}

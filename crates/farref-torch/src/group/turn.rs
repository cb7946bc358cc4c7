//! A worker's turn to change a dynamic group.
//!
//! Whoever changes the group writes its token into the store first, and takes it back when it is done. While it is
//! there nobody else joins or leaves, so it has to go whatever happens to its holder (GR-4): when the turn is dropped
//! before it was ended, a task takes this worker off the list and gives the turn up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::StoreError;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::change::Change;
use super::error::GroupError;
use super::gone::{BETWEEN_LOOKS, HolderWatch};
use super::store::GroupStore;
use crate::deadline::end_of;

/// Where the token is of whoever has the turn.
const TURN: &str = "RpcGroupManagementToken";
/// Between two attempts to get one's turn.
const PAUSE: Duration = Duration::from_millis(20);

/// A worker's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    group_store: Arc<GroupStore>,
    change: Change,
    /// Whether the token is known to be in the store. Until then it may be there all the same.
    held: bool,
    ended: bool,
}

impl Turn {
    /// Waits for this worker's turn, and takes it.
    pub(crate) async fn take(
        group_store: &Arc<GroupStore>,
        change: Change,
    ) -> Result<Self, GroupError> {
        // A turn of the same token that is being given up is not this one.
        drop(timeout(group_store.patience(), group_store.settled()).await);
        let mut turn = Self {
            group_store: Arc::clone(group_store),
            change,
            held: false,
            ended: false,
        };
        match group_store.lock(change).await {
            Ok(()) => turn.held = true,
            // It is somebody else's.
            Err(error @ GroupError::Busy { .. }) => {
                turn.ended = true;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        Ok(turn)
    }

    /// Gives the turn up. If the change has failed, the list does not have this worker any more (GR-2).
    pub(crate) async fn end(mut self, changed: bool) -> Result<(), GroupError> {
        if !changed {
            self.group_store.unlist().await?;
        }
        self.group_store.unlock(self.change).await?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Without a runtime the process is about to end, and there is nobody left to do it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.ended {
            return;
        }
        let (group_store, change, held) = (Arc::clone(&self.group_store), self.change, self.held);
        let task = group_store.abandoned.begin();
        runtime.spawn(async move {
            let given_up = async {
                if held {
                    if !matches!(change, Change::Remove(_)) {
                        group_store.unlist().await?;
                    }
                    return group_store.unlock_again(change).await;
                }
                group_store.unlock_if_held(change).await
            };
            if let Err(error) = given_up.await {
                tracing::warn!(%error, "the turn to change the group could not be given up");
            }
            drop(task);
        });
    }
}

impl GroupStore {
    /// Waits for this worker's turn to change a dynamic group, and takes it.
    pub(super) async fn lock(&self, change: Change) -> Result<(), GroupError> {
        let (began, end) = (Instant::now(), end_of(self.place.patience));
        let token = self.token(change);
        let mut watch = HolderWatch::new();
        loop {
            let holder = self.compare_set(TURN, b"", token.as_bytes()).await?;
            if holder == token {
                return Ok(());
            }
            let busy = |holder: String| GroupError::Busy {
                token: holder.chars().take(200).collect(),
                waited: began.elapsed(),
            };
            // Who is done says so under the name of its token. It may have said it before, in another turn.
            let left = end.saturating_duration_since(Instant::now());
            match self.wait_for_turn(&holder, left, &mut watch).await? {
                Ok(()) if Instant::now() + PAUSE < end => sleep(PAUSE).await,
                Ok(()) | Err(StoreError::Timeout { .. }) => return Err(busy(holder)),
                Err(error) => return Err(GroupError::store("waiting for a turn")(error)),
            }
        }
    }

    /// Waits until the one that has the turn says that it is done, and looks after it meanwhile (GR-5).
    async fn wait_for_turn(
        &self,
        holder: &str,
        left: Duration,
        watch: &mut HolderWatch,
    ) -> Result<Result<(), StoreError>, GroupError> {
        if self.release_if_gone(watch, holder).await? {
            return Ok(Ok(()));
        }
        let keys = [self.key(holder)];
        let waiting = self.store.wait(&keys, left);
        let looking = async {
            loop {
                sleep(BETWEEN_LOOKS).await;
                if self.release_if_gone(watch, holder).await? {
                    return Ok(());
                }
            }
        };
        // Both go on all the time: either may have what the other needs to be answered by the store.
        tokio::select! {
            waited = waiting => Ok(waited),
            gone = looking => gone.map(Ok),
        }
    }

    /// Gives the turn up.
    pub(super) async fn unlock(&self, change: Change) -> Result<(), GroupError> {
        self.set(TURN, b"").await?;
        self.set(&self.token(change), b"Done").await
    }

    /// The same, where that may have failed halfway, so that it can be another's turn by now.
    async fn unlock_again(&self, change: Change) -> Result<(), GroupError> {
        let token = self.token(change);
        self.compare_set(TURN, token.as_bytes(), b"").await?;
        self.set(&token, b"Done").await
    }

    /// Gives the turn up if this worker has it, which is not known: nobody has answered.
    async fn unlock_if_held(&self, change: Change) -> Result<(), GroupError> {
        self.release(&self.token(change)).await
    }

    /// Gives the turn up if it is taken with this token.
    pub(super) async fn release(&self, token: &str) -> Result<(), GroupError> {
        let holder = self.compare_set(TURN, token.as_bytes(), b"").await?;
        match holder.is_empty() {
            true => self.set(token, b"Done").await,
            false => Ok(()),
        }
    }

    /// The token of the one that has the turn; empty if nobody has it.
    pub(super) async fn holder(&self) -> Result<String, GroupError> {
        self.text_of(TURN, "reading whose turn it is")
            .await
            .map(Option::unwrap_or_default)
    }

    fn token(&self, change: Change) -> String {
        change.token(&self.place.name)
    }

    /// To take another worker off the list.
    pub(crate) fn removal(&self) -> Change {
        Change::Remove(self.abandoned.removals.fetch_add(1, Ordering::Relaxed))
    }

    /// Comes back when nothing is left of turns that were dropped.
    pub(crate) async fn settled(&self) {
        let mut tasks = self.abandoned.tasks.subscribe();
        drop(tasks.wait_for(|tasks| *tasks == 0).await);
    }

    /// Takes this worker off the list, if it is there by its own doing.
    async fn unlist(&self) -> Result<(), GroupError> {
        match self.abandoned.listed.load(Ordering::Acquire) {
            true => self.leave_dynamic().await,
            false => Ok(()),
        }
    }
}

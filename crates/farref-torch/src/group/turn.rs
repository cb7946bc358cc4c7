//! A worker's turn to change a dynamic group.
//!
//! Whoever changes the group writes its token into the store first, and takes it back when it is done. While it is
//! there nobody else joins or leaves, so it has to go whatever happens to its holder (GR-4): when the turn is dropped
//! before it was ended, a task takes this worker off the list and gives the turn up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{GroupError, Meeting};

/// What a worker does in its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Join,
    Leave,
    /// Takes another worker off the list, which is gone. A worker can be at several at once, so they have numbers.
    Remove(u32),
}

const TOKEN: &str = "Token_for_";

impl Change {
    /// What a worker puts into the store in its turn.
    pub(super) fn token(self, name: &str) -> String {
        match self {
            Self::Join => format!("{TOKEN}{name}_join"),
            Self::Leave => format!("{TOKEN}{name}_leave"),
            Self::Remove(number) => format!("{TOKEN}{name}_remove{number}"),
        }
    }

    /// Whose token it is, and what for.
    pub(super) fn of_token(token: &str) -> Option<(&str, Self)> {
        let (name, change) = token.strip_prefix(TOKEN)?.rsplit_once('_')?;
        let change = match change {
            "join" => Self::Join,
            "leave" => Self::Leave,
            _ => Self::Remove(change.strip_prefix("remove")?.parse().ok()?),
        };
        (!name.is_empty()).then_some((name, change))
    }
}

/// What is left to do for turns that were not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned {
    /// Whether the list has this worker by its own doing.
    pub(super) listed: Arc<AtomicBool>,
    removals: Arc<AtomicU32>,
    /// How many tasks are at it. Nobody who waits for them owns them: they are not given up with it.
    tasks: Arc<watch::Sender<usize>>,
}

/// A task that gives a turn up.
struct Task(Arc<watch::Sender<usize>>);

impl Abandoned {
    fn begin(&self) -> Task {
        self.tasks.send_modify(|tasks| *tasks += 1);
        Task(Arc::clone(&self.tasks))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.send_modify(|tasks| *tasks -= 1);
    }
}

/// A worker's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    meeting: Arc<Meeting>,
    change: Change,
    /// Whether the token is known to be in the store. Until then it may be there all the same.
    held: bool,
    ended: bool,
}

impl Turn {
    /// Waits for this worker's turn, and takes it.
    pub(crate) async fn take(meeting: &Arc<Meeting>, change: Change) -> Result<Self, GroupError> {
        // A turn of the same token that is being given up is not this one.
        drop(timeout(meeting.patience(), meeting.settled()).await);
        let mut turn = Self {
            meeting: Arc::clone(meeting),
            change,
            held: false,
            ended: false,
        };
        match meeting.lock(change).await {
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
            self.meeting.unlist().await?;
        }
        self.meeting.unlock(self.change).await?;
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
        let (meeting, change, held) = (Arc::clone(&self.meeting), self.change, self.held);
        let task = meeting.abandoned.begin();
        runtime.spawn(async move {
            let given_up = async {
                if held {
                    if !matches!(change, Change::Remove(_)) {
                        meeting.unlist().await?;
                    }
                    return meeting.unlock_again(change).await;
                }
                meeting.unlock_if_held(change).await
            };
            if let Err(error) = given_up.await {
                tracing::warn!(%error, "the turn to change the group could not be given up");
            }
            drop(task);
        });
    }
}

impl Meeting {
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

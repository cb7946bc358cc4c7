//! How the workers of a group end together, by PyTorch's rules.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::agent::Ending;

use super::group::ANSWER;
use super::{Shared, TorchAgent};
use crate::group::{Change, GroupError, Turn};

/// How often is looked whether the calls of a worker that leaves are answered.
const LOOK: Duration = Duration::from_millis(2);

/// How the group was made, and is unmade.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// All end together: they gather for the so manieth time, and then count calls in the store.
    Static { names: Vec<String>, gathering: u64 },
    /// Each leaves alone.
    Dynamic,
}

type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

impl Ending for TorchAgent {
    fn may_leave_alone(&self) -> bool {
        matches!(self.shared.way, Way::Dynamic)
    }

    fn waiting_for(&self) -> Vec<String> {
        self.shared.waited_for()
    }

    fn ready(&self) -> Agreed<'_> {
        Box::pin(async move {
            match &self.shared.way {
                Way::Static { names, gathering } => {
                    self.shared.watch_all();
                    self.shared.gather(names, *gathering).await
                }
                Way::Dynamic => Ok(()),
            }
        })
    }

    fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a> {
        Box::pin(async move {
            match &self.shared.way {
                Way::Static { .. } => self.shared.count_out(open_calls).await,
                Way::Dynamic => self.shared.leave(open_calls).await,
            }
        })
    }
}

impl Shared {
    /// Everything of ours that a peer has not answered.
    fn unanswered(&self) -> u64 {
        self.others().iter().map(|link| link.open() as u64).sum()
    }

    /// Waits for all and counts calls, again and again until there are none, then waits for all once more. So does
    /// PyTorch's `join`, round by round: whoever left one out would wait for others in another round.
    async fn count_out(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<(), String> {
        let open = || open_calls().max(self.unanswered());
        let mut number = 1;
        loop {
            while open() > 0 {
                tokio::time::sleep(LOOK).await;
            }
            self.round(number, 0).await?;
            let calls = self.round(number + 1, open()).await?;
            number += 2;
            if calls == 0 {
                break;
            }
        }
        // Whoever sees that all have come to the last round goes at once (TA-7).
        self.parting.store(true, Ordering::Release);
        self.round(number, 0).await.map(drop)
    }

    /// A round of all. Waits for as long as others work, and not for one that is gone.
    async fn round(&self, number: u64, calls: u64) -> Result<u64, String> {
        // In the last round the host of the store may be through, and the store with it: all are done then.
        let is_last = self.parting.load(Ordering::Acquire);
        let judged = |round: Result<u64, GroupError>| match round {
            Err(error) if is_last && error.is_lost_store() => Ok(0),
            other => other.map_err(|error| error.to_string()),
        };
        let mut round = std::pin::pin!(self.meeting.round(number, calls));
        loop {
            let changed = self.group.change();
            if let Some(lost) = self.group.first_lost() {
                // It may have seen that all are there, and be through.
                let complete = self.meeting.is_complete(number);
                return match tokio::time::timeout(ANSWER, complete).await {
                    Ok(Ok(true)) => judged(round.await),
                    Err(_) | Ok(Err(_)) if is_last => Ok(0),
                    _ => Err(self.agree_on_lost(self.gone(&lost)).await),
                };
            }
            tokio::select! {
                calls = &mut round => return judged(calls),
                () = changed => {}
            }
        }
    }

    /// Takes a turn, tells the others, and goes when the own calls are answered.
    async fn leave(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<(), String> {
        let text = |error: GroupError| error.to_string();
        self.finish_removals().await;
        let turn = Turn::take(&self.meeting, Change::Leave).await;
        let turn = turn.map_err(text)?;
        let left = async {
            self.announce(false).await?;
            while open_calls() + self.unanswered() > 0 {
                tokio::time::sleep(LOOK).await;
            }
            self.meeting.leave_dynamic().await.map_err(text)
        };
        let left = left.await;
        // Whatever went wrong, it goes.
        turn.end(left.is_ok()).await.map_err(text)?;
        left
    }
}

//! How the workers of a group end together, by PyTorch's rules.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use farref::agent::Ending;

use super::{Shared, TorchAgent};
use crate::group::Change;

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
                Way::Static { names, gathering } => self.shared.gather(names, *gathering).await,
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

    /// Waits for all, then counts calls until there are none, then waits for all again.
    async fn count_out(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<(), String> {
        let open = || open_calls().max(self.unanswered());
        let round = async |number, calls| {
            let round = self.meeting.round(number, calls).await;
            round.map_err(|error| error.to_string())
        };
        round(1, open()).await?;
        let mut number = 2;
        while round(number, open()).await? > 0 {
            number += 1;
        }
        round(number + 1, open()).await?;
        Ok(())
    }

    /// Takes a turn, tells the others, and goes when the own calls are answered.
    async fn leave(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<(), String> {
        let text = |error: crate::GroupError| error.to_string();
        self.meeting.lock(Change::Leave).await.map_err(text)?;
        let left = async {
            self.announce(false).await?;
            while open_calls() + self.unanswered() > 0 {
                tokio::time::sleep(LOOK).await;
            }
            self.meeting.leave_dynamic().await.map_err(text)
        };
        let left = left.await;
        self.meeting.unlock(Change::Leave).await.map_err(text)?;
        left
    }
}

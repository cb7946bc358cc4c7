//! How the workers of a group end together, by PyTorch's rules.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::agent::Ending;
use tokio::sync::oneshot;

use super::TorchAgent;
use super::gathering::ANSWER;
use super::state::AgentShared;
use super::state::ending::{GroupKind, Progress};
use crate::group::{Change, GroupError, Turn};

/// How often is looked whether the calls of a worker that leaves are answered.
const LOOK: Duration = Duration::from_millis(2);

/// How long requests that are none of the program's calls are waited for: PyTorch's time limit for all of its own.
const LONGEST_REQUEST: Duration = Duration::from_secs(60);

/// How long references are waited for in a static group, as PyTorch does (`_delete_all_user_and_unforked_owner_rrefs`).
/// Some may never be released: of one that has died, or to what is never made.
const REFERENCES: Duration = Duration::from_secs(100);

type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

impl Ending for TorchAgent {
    fn may_leave_alone(&self) -> bool {
        matches!(self.shared.group_kind, GroupKind::Dynamic)
    }

    fn patience(&self) -> Duration {
        match self.shared.group_kind {
            GroupKind::Static { .. } => REFERENCES,
            // What others hold or ask keeps nobody: the group goes on without it.
            GroupKind::Dynamic => Duration::ZERO,
        }
    }

    fn waiting_for(&self) -> Vec<String> {
        self.shared.waited_for()
    }

    fn ready(&self) -> Agreed<'_> {
        Box::pin(async move {
            let shared = &self.shared;
            let GroupKind::Static { names, gathering } = &shared.group_kind else {
                return Ok(());
            };
            let mut progress = shared.ending.lock().await;
            if let Some(gathered) = &progress.gathered {
                return gathered.clone();
            }
            shared.watch_all();
            let (gathers, names, gathering) = (Arc::clone(shared), names.clone(), *gathering);
            let gather = async move { gathers.gather(&names, gathering).await };
            let gathered = shared.step(&mut progress.gathering, gather).await;
            progress.gathered = Some(gathered.clone());
            gathered
        })
    }

    fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a> {
        Box::pin(async move {
            let shared = &self.shared;
            let mut progress = shared.ending.lock().await;
            if let Some(ended) = &progress.ended {
                return ended.clone();
            }
            let ended = match &shared.group_kind {
                GroupKind::Static { .. } => shared.count_out(open_calls, &mut progress).await,
                GroupKind::Dynamic => shared.leave(open_calls).await,
            };
            progress.ended = Some(ended.clone());
            ended
        })
    }
}

impl AgentShared {
    /// Begins a step, unless it was begun before, and waits for it. It goes on when nobody does.
    async fn step<T: Send + 'static>(
        &self,
        begun: &mut Option<oneshot::Receiver<Result<T, String>>>,
        step: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let running = begun.get_or_insert_with(|| self.begin(step));
        let outcome = running.await;
        *begun = None;
        outcome.unwrap_or_else(|_| Err("this worker has ended".to_owned()))
    }

    /// Begins something that goes on until this worker closes.
    fn begin<T: Send + 'static>(
        &self,
        step: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, outcome) = oneshot::channel();
        self.spawn(async move { drop(sender.send(step.await)) });
        outcome
    }

    /// What a peer has not answered of ours, besides the program's calls.
    fn unanswered(&self) -> u64 {
        let others = self.others();
        let open = others
            .iter()
            .map(|link| link.open_besides_calls(LONGEST_REQUEST));
        open.sum::<usize>() as u64
    }

    /// Waits for all and counts calls, again and again until there are none, then waits for all once more. So does
    /// PyTorch's `join`, round by round: whoever left one out would wait for others in another round.
    async fn count_out(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
        progress: &mut Progress,
    ) -> Result<(), String> {
        let open = || open_calls() + self.unanswered();
        loop {
            let is_last = self.parting.load(Ordering::Acquire);
            let counts = progress.round.is_multiple_of(2);
            if progress.in_round.is_none() {
                while !counts && !is_last && open() > 0 {
                    tokio::time::sleep(LOOK).await;
                }
                let (group_store, number) = (Arc::clone(&self.group_store), progress.round);
                let calls = if counts { open() } else { 0 };
                let round = async move { group_store.round(number, calls).await };
                progress.in_round = Some(self.begin(round));
            }
            let calls = self.round(progress).await?;
            if is_last {
                return Ok(());
            }
            progress.round += 1;
            if counts && calls == 0 {
                // Whoever sees that all have come to the last round goes at once (TA-7).
                self.parting.store(true, Ordering::Release);
            }
        }
    }

    /// The round that this worker is in. Waits for as long as others work, and not for one that is gone.
    async fn round(&self, progress: &mut Progress) -> Result<u64, String> {
        // In the last round the host of the store may be through, and the store with it: all are done then.
        let is_last = self.parting.load(Ordering::Acquire);
        let judged = |round: Result<u64, GroupError>| match round {
            Err(error) if is_last && error.is_lost_store() => Ok(0),
            other => other.map_err(|error| error.to_string()),
        };
        let Progress {
            round, in_round, ..
        } = progress;
        let waiting = async {
            let ended = match in_round {
                Some(running) => running.await.ok(),
                None => None,
            };
            // It has one outcome, which is not asked for again.
            *in_round = None;
            ended.ok_or_else(|| "this worker has ended".to_owned())
        };
        let mut waiting = std::pin::pin!(waiting);
        let outcome = loop {
            let changed = self.gatherings.change();
            if let Some(lost) = self.gatherings.first_lost() {
                // It may have seen that all are there, and be through.
                let complete = self.group_store.is_complete(*round);
                break match tokio::time::timeout(ANSWER, complete).await {
                    Ok(Ok(true)) => waiting.await.and_then(judged),
                    Err(_) | Ok(Err(_)) if is_last => Ok(0),
                    _ => Err(self.agree_on_lost(self.gone(&lost)).await),
                };
            }
            tokio::select! {
                calls = &mut waiting => break match calls {
                    Ok(Err(error)) if !is_last && error.is_lost_store() => {
                        Err(self.without_store(error.to_string()).await)
                    }
                    other => other.and_then(judged),
                },
                () = changed => {}
            }
        };
        progress.in_round = None;
        outcome
    }

    /// The store is gone: with its host, most likely, whose pipe ends at the same time, or that of another that has noticed.
    async fn without_store(&self, problem: String) -> String {
        let lost = async {
            loop {
                let changed = self.gatherings.change();
                if self.gatherings.first_lost().is_some() {
                    return;
                }
                changed.await;
            }
        };
        drop(tokio::time::timeout(ANSWER, lost).await);
        self.agree_on_lost(problem).await
    }

    /// Takes a turn, tells the others, and goes when the own calls are answered.
    async fn leave(
        self: &Arc<Self>,
        open_calls: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<(), String> {
        let text = |error: GroupError| error.to_string();
        self.finish_removals().await;
        let turn = Turn::take(&self.group_store, Change::Leave).await;
        let turn = turn.map_err(text)?;
        let left = async {
            self.announce(false).await?;
            while open_calls() + self.unanswered() > 0 {
                tokio::time::sleep(LOOK).await;
            }
            self.group_store.leave_dynamic().await.map_err(text)
        };
        let left = left.await;
        // Whatever went wrong, it goes.
        turn.end(left.is_ok()).await.map_err(text)?;
        left
    }
}

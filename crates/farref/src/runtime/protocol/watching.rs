//! Watching the members of the group: beginning with what the node's view says, so that nothing is missed.

use std::sync::Arc;

use farref_proto::{Control, Departure, NodeId, Standing, Status};
use tokio::sync::watch;

use super::work::Work;
use crate::error::Error;
use crate::rendezvous::Card;
use crate::runtime::core::{Core, WorkerStage};
use crate::support::mutation::mutated;
use crate::tables::watchers::{Wakers, Watcher, WorkerEnd};

/// The end of one life, for somebody who waits for it.
struct LifeEnd {
    core: Arc<Core>,
    node: NodeId,
    receiver: watch::Receiver<Option<Departure>>,
}

impl LifeEnd {
    /// How it has gone. An error if this worker ends before.
    async fn reached(mut self) -> Result<Departure, Error> {
        let departure = match self.receiver.wait_for(Option::is_some).await {
            Ok(departure) => *departure,
            Err(_) => None,
        };
        departure.ok_or_else(|| self.core.not_member())
    }
}

impl Drop for LifeEnd {
    fn drop(&mut self) {
        self.core.watchers.stop_waiting(self.node);
    }
}

/// What is known of the end of a life.
enum LifeState {
    Over(Departure),
    Lasts(LifeEnd),
}

impl Core {
    /// Begins to watch the members, those first who are there now.
    pub(crate) fn watch_members(&self) -> (u64, Arc<Watcher>) {
        let state = self.lock();
        let members: Vec<NodeId> = state.node.membership().view().members().collect();
        let watching = self
            .watchers
            .watch(members.iter().copied(), |node| self.known_name(node));
        drop(state);
        self.keep_in_sight(members);
        watching
    }

    /// Keeps a connection with all members, and so notices by itself when one is gone.
    pub(crate) fn keep_all_in_sight(&self) {
        let members = self.look(|node| node.membership().view().members().collect());
        self.keep_in_sight(members);
    }

    fn keep_in_sight(&self, members: Vec<NodeId>) {
        for node in members.into_iter().filter(|node| *node != self.me) {
            self.agent().watch(node);
        }
    }

    /// Ends when a life is over.
    pub(crate) fn gone(
        self: &Arc<Self>,
        node: NodeId,
    ) -> impl Future<Output = Result<Departure, Error>> + Send + use<> {
        // Now: what happens until the future is awaited is not missed.
        let state = self.life_state(node);
        async {
            match state? {
                LifeState::Over(departure) => Ok(departure),
                LifeState::Lasts(end) => end.reached().await,
            }
        }
    }

    fn life_state(self: &Arc<Self>, node: NodeId) -> Result<LifeState, Error> {
        let state = self.lock();
        let standing = state.node.membership().view().standing(node.worker);
        let over = match standing {
            // How it went is not kept for longer.
            Some(now) if now.incarnation > node.incarnation => Some(Departure::Died),
            Some(now) if now.incarnation == node.incarnation => match now.status {
                Status::Joining | Status::Alive => {
                    mutated!(GoneWhileThere).then_some(Departure::Died)
                }
                // The own one says so before it has gone.
                Status::Left => (node != self.me).then_some(Departure::Left),
                Status::Dead => Some(Departure::Died),
            },
            _ => None,
        };
        if self.is_over() {
            drop(state);
            return Err(self.not_member());
        }
        if let Some(departure) = over {
            return Ok(LifeState::Over(departure));
        }
        let receiver = self.watchers.await_end(node);
        drop(state);
        if node != self.me {
            self.agent().watch(node);
        }
        let core = Arc::clone(self);
        match receiver {
            Some(receiver) => Ok(LifeState::Lasts(LifeEnd {
                core,
                node,
                receiver,
            })),
            None => Err(self.not_member()),
        }
    }

    /// A member names another that is one, too. If this worker has only heard so far that it joins, it takes that word
    /// for it; what it has never heard of, or knows to be over, stays as it is.
    pub(crate) fn told_of_member(self: &Arc<Self>, from: NodeId, life: NodeId) {
        let standing = self.look(|node| node.membership().view().standing(life.worker));
        if standing != Some(Standing::of(life, Status::Joining)) || from == self.me {
            return;
        }
        let entries = vec![(life.worker, Standing::of(life, Status::Alive))];
        let view = Control::View { entries, ask: None };
        // One entry about a worker that is known is never too much.
        let _ = self.input(|node, out| node.handle(from, view, out));
    }

    /// It has become known what a worker is called and where it is.
    pub(crate) fn learned(&self, card: Card) {
        let node = card.node;
        self.names.insert(card);
        if let Some(name) = self.names.of(node) {
            self.watchers.named(node, &name).wake();
        }
    }

    /// Tells those who watch, when the lock is given back.
    pub(super) fn tell_watchers(work: &mut Work, wakers: Wakers) {
        if !wakers.is_empty() {
            work.woken.push(Box::new(|_| wakers.wake()));
        }
    }

    /// A life is a member.
    pub(super) fn watch_joined(&self, node: NodeId, work: &mut Work) {
        let wakers = self.watchers.joined(node, |node| self.known_name(node));
        Self::tell_watchers(work, wakers);
    }

    /// The worker is none any more.
    pub(super) fn watch_end(&self, stage: WorkerStage, work: &mut Work) {
        let how = match stage {
            WorkerStage::Joining | WorkerStage::Member => return,
            WorkerStage::ShutDown => WorkerEnd::ShutDown,
            WorkerStage::Departed => WorkerEnd::Left,
            WorkerStage::Evicted if self.too_few.get().is_some() => WorkerEnd::Minority,
            WorkerStage::Evicted => WorkerEnd::Evicted,
        };
        Self::tell_watchers(work, self.watchers.end(how));
    }

    fn known_name(&self, node: NodeId) -> Option<Arc<str>> {
        match node == self.me {
            true => Some(Arc::clone(&self.name)),
            false => self.names.of(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::testing::Cluster;

    /// W1, W5: from when it is seen who is there until whoever watches is told of what happens, nothing may happen.
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_changes_while_somebody_begins_to_watch_or_to_wait() -> crate::Result<()> {
        let cluster = Cluster::start(2).await?;
        let core = &cluster.worker(0).core;
        let other = cluster.worker(1).node();
        let watch = |core: Arc<Core>| {
            let (key, watcher) = core.watch_members();
            drop(watcher);
            core.watchers.unwatch(key);
        };
        let wait = move |core: Arc<Core>| drop(core.life_state(other));
        let begins: [Box<dyn FnOnce(Arc<Core>) + Send>; 2] = [Box::new(watch), Box::new(wait)];
        for (case, begin) in begins.into_iter().enumerate() {
            let holds = core.watchers.hold();
            let beginning = tokio::task::spawn_blocking({
                let core = Arc::clone(core);
                move || begin(core)
            });
            let until = Instant::now() + farref_testkit::TEST_TIMEOUT;
            let mut locked = 0;
            // Others have the lock for a moment only.
            while locked < 100 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
                let is_locked = core.state.try_lock().is_err();
                locked = if is_locked { locked + 1 } else { 0 };
            }
            drop(holds);
            beginning.await.expect("no panic");
            assert_eq!(locked, 100, "case {case}");
        }
        cluster.shutdown().await
    }
}

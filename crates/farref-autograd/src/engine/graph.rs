//! The graph of one worker in one pass. All that may take long is here: looking at the graph, running it,
//! hooks, adding gradients up, freeing it. What takes little (`timings`) is done by the task that waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::{AtLeaves, Backend};
use super::contexts::Participation;
use super::leaves::{Complete, Leaves};
use super::records::Snapshot;
use super::task::{Final, Root, Run, Task};
use super::timings::Size;
use crate::failure::Cause;

/// Gradients for a root, by the index of its tensors.
pub(crate) type Feed<B> = (Root, Vec<Option<<B as Backend>::Tensor>>);

pub(crate) struct Graph<B: Backend> {
    place: Arc<Participation<B>>,
    retain: bool,
    eager: bool,
    /// Until they are looked at.
    fresh: Option<Vec<(Root, Vec<B::Tensor>)>>,
    /// Without roots before they are looked at and after all have been run.
    task: Task<B>,
    leaves: Leaves<B>,
    /// Gradients that it has not been fed with.
    queue: Vec<Feed<B>>,
    /// Leaves that are final and have not been settled.
    finals: Vec<Final<B>>,
    /// A run of that size that a task did not get through with.
    unfinished: Option<(Run<B>, Size)>,
}

impl<B: Backend> Graph<B> {
    pub(crate) fn new(
        place: Arc<Participation<B>>,
        snapshot: Snapshot<B>,
        retain: bool,
        eager: bool,
    ) -> Self {
        let sends = snapshot.sends.into_iter();
        Self {
            leaves: Leaves::new(Arc::clone(&place), snapshot.recvs, eager),
            place,
            retain,
            eager,
            fresh: Some(
                sends
                    .map(|(number, _, tensors)| (Root::Send(number), tensors))
                    .collect(),
            ),
            task: Task::default(),
            queue: Vec::new(),
            finals: Vec::new(),
            unfinished: None,
        }
    }

    /// Before the graph is looked at: the pass begins at these.
    pub(crate) fn add_loss(&mut self, tensors: Vec<B::Tensor>) {
        if let Some(roots) = &mut self.fresh {
            roots.push((Root::Loss, tensors));
        }
    }

    /// Gradients that have come, for the next [advance](Self::advance).
    pub(crate) fn queue(&mut self, feeds: Vec<Feed<B>>) {
        self.queue.extend(feeds);
    }

    /// Advances if that takes no longer than a task may. None: somebody has to [advance](Self::advance) it who may take
    /// long.
    pub(crate) fn advance_quickly(&mut self) -> Option<Result<Vec<Complete<B>>, Cause>> {
        let timings = Arc::clone(&self.place.timings);
        if self.fresh.is_some() && !timings.may_look() {
            return None;
        }
        if let Err(cause) = self.feed_all() {
            return Some(Err(cause));
        }
        let may_run = timings.may_run(self.task.pending_size()) && self.leaves.are_quick();
        if !may_run {
            return None;
        }
        let begun = Instant::now();
        let size = self.task.pending_size();
        while let Some(run) = self.task.next_run() {
            // An operation of the program's may have wanted to wait for something, which a task must not.
            let Ok(computed) = catch_unwind(AssertUnwindSafe(|| run.compute())) else {
                self.unfinished = Some((run, size));
                return None;
            };
            if let Err(cause) = self.finish(run, computed) {
                return Some(Err(cause));
            }
        }
        timings.ran(size, begun.elapsed());
        Some(self.settle())
    }

    /// Feeds the graph and runs it as far as that is worth it. Says which received messages have all their
    /// gradients now.
    pub(crate) fn advance(&mut self) -> Result<Vec<Complete<B>>, Cause> {
        self.feed_all()?;
        if let Some((run, size)) = self.unfinished.take() {
            self.place.timings.ran(size, Duration::MAX);
            let computed = run.compute();
            self.finish(run, computed)?;
        }
        let begun = Instant::now();
        let size = self.task.pending_size();
        while let Some(run) = self.task.next_run() {
            let computed = run.compute();
            self.finish(run, computed)?;
        }
        self.place.timings.ran(size, begun.elapsed());
        self.settle()
    }

    fn finish(&mut self, run: Run<B>, computed: Result<AtLeaves<B>, String>) -> Result<(), Cause> {
        let gradients = computed.map_err(Cause::Compute)?;
        let finals = self.task.finish(run.done, gradients);
        self.finals.extend(finals.map_err(Cause::Compute)?);
        Ok(())
    }

    fn settle(&mut self) -> Result<Vec<Complete<B>>, Cause> {
        let finals = std::mem::take(&mut self.finals);
        let complete = self.leaves.settle(finals)?;
        self.end();
        Ok(complete)
    }

    fn feed_all(&mut self) -> Result<(), Cause> {
        let unreached = self.look()?;
        self.finals.extend(unreached);
        for (root, gradients) in std::mem::take(&mut self.queue) {
            let finals = self.feed(root, gradients)?;
            self.finals.extend(finals);
        }
        Ok(())
    }

    /// Whether there is nothing in it that has not been run.
    pub(crate) fn is_done(&self) -> bool {
        self.fresh.is_none() && self.unfinished.is_none() && self.task.is_done()
    }

    /// The roots whose gradients have not come.
    pub(crate) fn unfed(&self) -> Vec<Root> {
        self.task.unfed()
    }

    /// The first look: received leaves that no root reaches are final, without gradient (A2).
    fn look(&mut self) -> Result<Vec<Final<B>>, Cause> {
        let Some(roots) = self.fresh.take() else {
            return Ok(Vec::new());
        };
        let received = self.leaves.received();
        self.task = Task::new(roots, &received, self.eager);
        self.place.timings.looked_at(self.task.size());
        // No need to run anything to know this.
        if self.leaves.any_freed(self.task.reach(Root::Loss)) {
            return Err(Cause::GraphFreed);
        }
        self.leaves.expect(self.task.leaves());
        let unreached = received.into_iter();
        Ok(unreached
            .filter(|leaf| !self.task.reaches(leaf))
            .map(|leaf| (leaf, None))
            .collect())
    }

    /// Gives a root its gradients. For a message that is not in the graph of this pass they are taken in if
    /// it is still recorded, because it was sent since or has had some before; otherwise it was freed (EN-6).
    fn feed(
        &mut self,
        root: Root,
        gradients: Vec<Option<B::Tensor>>,
    ) -> Result<Vec<Final<B>>, Cause> {
        if !self.task.knows(root)
            && let Root::Send(number) = root
        {
            if gradients.iter().all(Option::is_none) {
                return Ok(Vec::new());
            }
            let sent = self.place.records(|records| records.sent(number));
            let tensors = sent.ok_or(Cause::GraphFreed)?;
            let reached = self.task.adopt(root, tensors, &self.leaves.received());
            self.leaves.expect_late(&reached);
        }
        Ok(self.task.feed(root, gradients))
    }

    /// When all roots have been run: frees what this pass has used, if nobody is to run it again. The only
    /// place where anything is freed before its context is over (EN-6).
    fn end(&mut self) {
        if !self.task.is_done() {
            return;
        }
        let task = std::mem::take(&mut self.task);
        if !self.retain {
            let (sends, recvs) = (task.used().into_iter(), self.leaves.take_used().into_iter());
            let graphs = self.place.records(|records| records.free(sends, recvs));
            drop(graphs);
        }
    }
}

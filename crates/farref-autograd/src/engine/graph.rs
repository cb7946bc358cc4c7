//! The graph of one worker in one pass. All that may take long is here: looking at the graph, running it,
//! hooks, adding gradients up, freeing it.

use std::sync::Arc;

use super::backend::Backend;
use super::contexts::Participation;
use super::leaves::{Complete, Leaves};
use super::records::Snapshot;
use super::task::{Final, Root, Task};
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
        }
    }

    /// Before the graph is looked at: the pass begins at these.
    pub(crate) fn add_loss(&mut self, tensors: Vec<B::Tensor>) {
        if let Some(roots) = &mut self.fresh {
            roots.push((Root::Loss, tensors));
        }
    }

    /// Feeds the graph and runs it as far as that is worth it. Says which received messages have all their
    /// gradients now.
    pub(crate) fn advance(&mut self, feeds: Vec<Feed<B>>) -> Result<Vec<Complete<B>>, Cause> {
        let mut finals = self.look()?;
        for (root, gradients) in feeds {
            finals.extend(self.feed(root, gradients)?);
        }
        while let Some(run) = self.task.next_run() {
            let gradients = run.compute().map_err(Cause::Compute)?;
            let more = self.task.finish(run.done, gradients);
            finals.extend(more.map_err(Cause::Compute)?);
        }
        let complete = self.leaves.settle(finals)?;
        self.end();
        Ok(complete)
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

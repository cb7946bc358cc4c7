//! The graph of one worker in one pass, and where its leaves belong. All that may take long is here:
//! looking at the graph, running it, hooks, adding gradients up, freeing it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::InContext;
use super::backend::Backend;
use super::parcel::Cause;
use super::records::{RecvId, Snapshot};
use super::task::{Final, Root, Task};

/// Gradients for a root, by the index of its tensors.
pub(crate) type Feed<B> = (Root, Vec<Option<<B as Backend>::Tensor>>);

/// The gradients of the tensors of one received message, by index.
pub(crate) type Complete<B> = (RecvId, Vec<Option<<B as Backend>::Tensor>>);

/// A received message whose gradients are not all final.
struct Open<B: Backend> {
    left: usize,
    gradients: Vec<Option<B::Tensor>>,
}

pub(crate) struct Graph<B: Backend> {
    place: Arc<InContext<B>>,
    retain: bool,
    eager: bool,
    stage: Stage<B>,
    /// Where received leaves belong.
    places: HashMap<B::Leaf, (RecvId, usize)>,
    open: HashMap<RecvId, Open<B>>,
    sends: Vec<u64>,
    recvs: Vec<RecvId>,
}

enum Stage<B: Backend> {
    /// Not looked at.
    Fresh(Vec<(Root, Vec<B::Tensor>)>),
    Looked(Task<B>),
    /// All roots have been run.
    Over,
}

impl<B: Backend> Graph<B> {
    pub(crate) fn new(
        place: Arc<InContext<B>>,
        snapshot: Snapshot<B>,
        retain: bool,
        eager: bool,
    ) -> Self {
        let mut places = HashMap::new();
        let mut open = HashMap::new();
        for (&recv, leaves) in &snapshot.recvs {
            for (index, &leaf) in leaves.iter().enumerate() {
                places.insert(leaf, (recv, index));
            }
            let state = Open {
                left: leaves.len(),
                gradients: vec![None; leaves.len()],
            };
            open.insert(recv, state);
        }
        Self {
            place,
            retain,
            eager,
            sends: snapshot.sends.iter().map(|(number, ..)| *number).collect(),
            recvs: snapshot.recvs.into_keys().collect(),
            stage: Stage::Fresh(
                snapshot
                    .sends
                    .into_iter()
                    .map(|(number, _, tensors)| (Root::Send(number), tensors))
                    .collect(),
            ),
            places,
            open,
        }
    }

    /// Before the graph is looked at: the pass begins at these.
    pub(crate) fn add_loss(&mut self, tensors: Vec<B::Tensor>) {
        if let Stage::Fresh(roots) = &mut self.stage {
            roots.push((Root::Loss, tensors));
        }
    }

    /// Feeds the graph and runs it as far as that is worth it. Says which received messages have all their
    /// gradients now.
    pub(crate) fn advance(&mut self, feeds: Vec<Feed<B>>) -> Result<Vec<Complete<B>>, Cause> {
        let mut complete = Vec::new();
        let mut finals = self.look()?;
        if let Stage::Looked(task) = &mut self.stage {
            for (root, gradients) in feeds {
                finals.extend(task.feed(root, gradients));
            }
            while let Some(run) = task.next_run() {
                let gradients = run.compute().map_err(Cause::Compute)?;
                let more = task.finish(run.done, gradients).map_err(Cause::Compute)?;
                finals.extend(more);
            }
        }
        for (leaf, gradient) in finals {
            self.settle(leaf, gradient, &mut complete)?;
        }
        self.end();
        Ok(complete)
    }

    /// The roots whose gradients have not come.
    pub(crate) fn unfed(&self) -> Vec<Root> {
        match &self.stage {
            Stage::Looked(task) => task.unfed(),
            Stage::Fresh(_) | Stage::Over => Vec::new(),
        }
    }

    /// The first look: received leaves that no root reaches are final, without gradient (A2).
    fn look(&mut self) -> Result<Vec<Final<B>>, Cause> {
        let Stage::Fresh(roots) = &mut self.stage else {
            return Ok(Vec::new());
        };
        let received: HashSet<_> = self.places.keys().copied().collect();
        let task = Task::new(std::mem::take(roots), &received, self.eager);
        // What is in this pass's own snapshot may have been freed by another since: it is still here.
        let freed = self.place.records(|records| {
            let mut others = task.leaves().filter(|leaf| !received.contains(*leaf));
            others.any(|leaf| records.is_freed(leaf))
        });
        if freed {
            return Err(Cause::GraphFreed);
        }
        let unreached = received
            .into_iter()
            .filter(|leaf| !task.reaches(leaf))
            .map(|leaf| (leaf, None))
            .collect();
        self.stage = Stage::Looked(task);
        Ok(unreached)
    }

    fn settle(
        &mut self,
        leaf: B::Leaf,
        gradient: Option<B::Tensor>,
        complete: &mut Vec<Complete<B>>,
    ) -> Result<(), Cause> {
        let Some(&(recv, index)) = self.places.get(&leaf) else {
            return match gradient {
                Some(gradient) => self.keep(leaf, gradient).map_err(Cause::Compute),
                None => Ok(()),
            };
        };
        if let Some(open) = self.open.get_mut(&recv) {
            if let Some(place) = open.gradients.get_mut(index) {
                *place = gradient;
            }
            open.left -= 1;
            if open.left == 0
                && let Some(open) = self.open.remove(&recv)
            {
                complete.push((recv, open.gradients));
            }
        }
        Ok(())
    }

    /// The final gradient of a leaf of this worker's own.
    fn keep(&self, leaf: B::Leaf, gradient: B::Tensor) -> Result<(), String> {
        // Hooks are the program's: they run without the lock.
        let observer = self.place.records(|records| records.observer(leaf));
        let gradient = match observer {
            Some(observer) => observer.on_gradient(gradient)?,
            None => gradient,
        };
        self.place
            .records(|records| records.accumulate(leaf, gradient))
    }

    /// When all roots have been run: frees what nobody will run again.
    fn end(&mut self) {
        if matches!(&self.stage, Stage::Looked(task) if task.is_done()) {
            self.stage = Stage::Over;
            if !self.retain {
                let sends = std::mem::take(&mut self.sends).into_iter();
                let recvs = std::mem::take(&mut self.recvs).into_iter();
                let graphs = self.place.records(|records| records.free(sends, recvs));
                drop(graphs);
            }
        }
    }
}

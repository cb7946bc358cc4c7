//! One backward pass through the graph of one worker, without any I/O.
//!
//! Gradients are fed to roots one by one, as they arrive. The task says when running the graph is worth
//! it: when some received leaf has all its roots fed, so that a peer can go on, or when nothing more is
//! awaited. A later run adds to what an earlier one left (EN-2).
//!
//! A root that is fed again is run again, by itself, and its leaves are final once more, with what was added.

use std::collections::{HashMap, HashSet};

use super::backend::{AtLeaves, Backend};
use super::timings::Size;

/// Where gradients come in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Root {
    /// What `backward` was called with.
    Loss,
    /// A message that was sent.
    Send(u64),
}

/// A leaf that is final, with its gradient; none if nothing reached it.
pub(crate) type Final<B> = (<B as Backend>::Leaf, Option<<B as Backend>::Tensor>);

/// The state of the pass on this worker.
pub(crate) struct Task<B: Backend> {
    roots: HashMap<Root, RootState<B>>,
    leaves: HashMap<B::Leaf, LeafState<B>>,
    /// Roots that have not been fed.
    waiting: usize,
    /// Roots that have been fed and not been run, in order of arrival.
    pending: Vec<Root>,
    /// Some peer waits for a run.
    urgent: bool,
    /// Whether own leaves are as urgent: some of the roots may never be fed.
    eager: bool,
}

struct RootState<B: Backend> {
    tensors: Vec<B::Tensor>,
    reach: HashSet<B::Leaf>,
    size: Size,
    /// What it was fed with and has not been run with.
    gradients: Vec<Vec<Option<B::Tensor>>>,
    fed: bool,
    /// Whether gradients came for it, not only the word that none do.
    used: bool,
}

struct LeafState<B: Backend> {
    /// Whether a peer waits for it.
    received: bool,
    unfed: usize,
    unrun: usize,
    gradient: Option<B::Tensor>,
}

/// A run of the graph: to be done wherever there is time and room for it.
pub(crate) struct Run<B: Backend> {
    pub(crate) done: Vec<Root>,
    inputs: Vec<(B::Tensor, B::Tensor)>,
    wanted: HashSet<B::Leaf>,
}

impl<B: Backend> Run<B> {
    pub(crate) fn compute(&self) -> Result<AtLeaves<B>, String> {
        B::vjp(&self.inputs, &self.wanted)
    }
}

impl<B: Backend> Default for Task<B> {
    /// Without roots.
    fn default() -> Self {
        Self {
            roots: HashMap::new(),
            leaves: HashMap::new(),
            waiting: 0,
            pending: Vec::new(),
            urgent: false,
            eager: false,
        }
    }
}

impl<B: Backend> Task<B> {
    /// Looks at the graph between `roots` and leaves. `received` are the leaves that peers wait for. With
    /// `eager`, every leaf is run as soon as its own roots have been fed.
    pub(crate) fn new(
        roots: Vec<(Root, Vec<B::Tensor>)>,
        received: &HashSet<B::Leaf>,
        eager: bool,
    ) -> Self {
        let mut task = Self {
            eager,
            ..Self::default()
        };
        for (root, tensors) in roots {
            task.add(root, tensors, received, false);
            task.waiting += 1;
            for leaf in task.reach(root) {
                if let Some(state) = task.leaves.get_mut(&leaf) {
                    state.unfed += 1;
                    state.unrun += 1;
                }
            }
        }
        task
    }

    fn add(&mut self, root: Root, tensors: Vec<B::Tensor>, received: &HashSet<B::Leaf>, fed: bool) {
        let mut reach = HashSet::new();
        let mut size = Size::default();
        for tensor in &tensors {
            let found = B::reach(tensor);
            reach.extend(found.leaves);
            size.add(Size {
                roots: 1,
                nodes: found.nodes,
                elements: found.elements,
            });
        }
        for &leaf in &reach {
            self.leaves.entry(leaf).or_insert_with(|| LeafState {
                received: received.contains(&leaf),
                unfed: 0,
                unrun: 0,
                gradient: None,
            });
        }
        let state = RootState {
            tensors,
            reach,
            size,
            gradients: Vec::new(),
            fed,
            used: false,
        };
        self.roots.insert(root, state);
    }

    /// Whether it is one of the roots.
    pub(crate) fn knows(&self, root: Root) -> bool {
        self.roots.contains_key(&root)
    }

    /// A root that nobody has waited for, because it was not there when the pass began or because the pass
    /// was done with it. Says which leaves it reaches.
    pub(crate) fn adopt(
        &mut self,
        root: Root,
        tensors: Vec<B::Tensor>,
        received: &HashSet<B::Leaf>,
    ) -> Vec<B::Leaf> {
        self.add(root, tensors, received, true);
        self.reach(root)
    }

    /// The leaves that a root reaches.
    pub(crate) fn reach(&self, root: Root) -> Vec<B::Leaf> {
        let state = self.roots.get(&root);
        state.map_or_else(Vec::new, |state| state.reach.iter().copied().collect())
    }

    /// Whether some root reaches the leaf.
    pub(crate) fn reaches(&self, leaf: &B::Leaf) -> bool {
        self.leaves.contains_key(leaf)
    }

    /// The leaves that roots reach.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &B::Leaf> {
        self.leaves.keys()
    }

    /// Gives a root its gradients, by the index of its tensors. Says which leaves are final.
    pub(crate) fn feed(&mut self, root: Root, gradients: Vec<Option<B::Tensor>>) -> Vec<Final<B>> {
        let Some(state) = self.roots.get_mut(&root) else {
            return Vec::new();
        };
        let nothing = gradients.iter().all(Option::is_none);
        let again = std::mem::replace(&mut state.fed, true);
        if again && nothing {
            return Vec::new();
        }
        for leaf in &state.reach {
            let Some(leaf) = self.leaves.get_mut(leaf) else {
                continue;
            };
            if again {
                leaf.unrun += 1;
            } else {
                leaf.unfed -= 1;
                self.urgent |= (leaf.received || self.eager) && leaf.unfed == 0;
            }
        }
        if again {
            self.urgent = true;
        } else {
            self.waiting -= 1;
        }
        if nothing {
            // Nothing to run.
            return self.done(root);
        }
        state.used = true;
        state.gradients.push(gradients);
        self.pending.push(root);
        Vec::new()
    }

    /// How large the graph is that was looked at.
    pub(crate) fn size(&self) -> Size {
        let mut size = Size::default();
        self.roots.values().for_each(|root| size.add(root.size));
        size
    }

    /// How large that part of it is that waits to be run.
    pub(crate) fn pending_size(&self) -> Size {
        let mut size = Size::default();
        let pending = self.pending.iter().filter_map(|root| self.roots.get(root));
        pending.for_each(|root| size.add(root.size));
        size
    }

    /// What to run now, if it is time.
    pub(crate) fn next_run(&mut self) -> Option<Run<B>> {
        if self.pending.is_empty() || !(self.urgent || self.waiting == 0) {
            return None;
        }
        self.urgent = false;
        let done = std::mem::take(&mut self.pending);
        let mut inputs = Vec::new();
        let mut wanted = HashSet::new();
        for root in &done {
            let Some(state) = self.roots.get_mut(root) else {
                continue;
            };
            wanted.extend(state.reach.iter().copied());
            for gradients in std::mem::take(&mut state.gradients) {
                for (tensor, gradient) in state.tensors.iter().zip(gradients) {
                    if let Some(gradient) = gradient {
                        inputs.push((tensor.clone(), gradient));
                    }
                }
            }
        }
        Some(Run {
            done,
            inputs,
            wanted,
        })
    }

    /// A run has come to its end. Says which leaves are final.
    pub(crate) fn finish(
        &mut self,
        done: Vec<Root>,
        gradients: AtLeaves<B>,
    ) -> Result<Vec<Final<B>>, String> {
        for (leaf, gradient) in gradients {
            let Some(leaf) = self.leaves.get_mut(&leaf) else {
                continue;
            };
            leaf.gradient = Some(match leaf.gradient.take() {
                Some(sum) => B::add(&sum, &gradient)?,
                None => gradient,
            });
        }
        Ok(done.into_iter().flat_map(|root| self.done(root)).collect())
    }

    fn done(&mut self, root: Root) -> Vec<Final<B>> {
        let mut finals = Vec::new();
        for leaf in self.reach(root) {
            if let Some(state) = self.leaves.get_mut(&leaf) {
                state.unrun -= 1;
                if state.unrun == 0 {
                    finals.push((leaf, state.gradient.take()));
                }
            }
        }
        finals
    }

    /// The roots that have not been fed.
    pub(crate) fn unfed(&self) -> Vec<Root> {
        let unfed = self.roots.iter().filter(|(_, state)| !state.fed);
        unfed.map(|(root, _)| *root).collect()
    }

    /// The messages for which gradients came.
    pub(crate) fn used(&self) -> Vec<u64> {
        let used = self.roots.iter().filter(|(_, state)| state.used);
        used.filter_map(|(root, _)| match root {
            Root::Send(number) => Some(*number),
            Root::Loss => None,
        })
        .collect()
    }

    /// Whether every root has been fed and run.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting == 0 && self.pending.is_empty()
    }
}

//! What happened in one context on one worker: sends, recvs, and the gradients that passes left.

use std::collections::{HashMap, HashSet};

use farref::context::NodeId;

use super::backend::{Backend, SharedObserver};

/// Names a message that was received: who sent it, under which number.
pub(crate) type RecvId = (NodeId, u64);

/// How much an engine keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Contexts.
    pub contexts: usize,
    /// Messages with tensors that were sent.
    pub sends: usize,
    /// Messages with tensors that were received.
    pub recvs: usize,
    /// Backward passes whose end is not known.
    pub passes: usize,
    /// Gradients.
    pub gradients: usize,
}

/// The records of one context.
pub(crate) struct Records<B: Backend> {
    sends: HashMap<u64, Sent<B>>,
    recvs: HashMap<RecvId, Received<B>>,
    /// Leaves of messages that an earlier pass has freed.
    freed: HashSet<B::Leaf>,
    observers: HashMap<B::Leaf, SharedObserver<B::Tensor>>,
    gradients: HashMap<Key<B::Leaf>, B::Tensor>,
}

struct Sent<B: Backend> {
    to: NodeId,
    tensors: Vec<B::Tensor>,
}

/// The leaves of a received message, in the order in which they are in it. One that nobody has read is missing.
pub(crate) type Received<B> = Vec<Option<<B as Backend>::Leaf>>;

/// How many tensors of a message may be read later than one that is behind them in it: serde reads what is
/// flattened last. It bounds what few bytes of a peer can take.
const MAX_AHEAD: usize = 1024;

/// Whose gradient it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key<L> {
    /// That of something with a name of its own.
    Observer(u64),
    Leaf(L),
}

impl<B: Backend> Default for Records<B> {
    fn default() -> Self {
        Self {
            sends: HashMap::new(),
            recvs: HashMap::new(),
            freed: HashSet::new(),
            observers: HashMap::new(),
            gradients: HashMap::new(),
        }
    }
}

/// What a pass works on: the sends and recvs there were when the pass came to this worker.
pub(crate) struct Snapshot<B: Backend> {
    pub(crate) sends: Vec<(u64, NodeId, Vec<B::Tensor>)>,
    pub(crate) recvs: HashMap<RecvId, Received<B>>,
}

impl<B: Backend> Records<B> {
    /// Tensors that need gradients go out in message `number`, in the order in which they are in it.
    pub(crate) fn send(&mut self, number: u64, to: NodeId, tensors: Vec<B::Tensor>) {
        self.sends.insert(number, Sent { to, tensors });
    }

    /// Such a tensor has come in, maybe once more, because the first that was to have it did not want it. `false`: it
    /// says to be far behind all that have come in of its message.
    pub(crate) fn receive(&mut self, message: RecvId, index: u32, leaf: B::Leaf) -> bool {
        let leaves = self.recvs.entry(message).or_default();
        let index = index as usize;
        if index > leaves.len() + MAX_AHEAD {
            return false;
        }
        if leaves.len() <= index {
            leaves.resize(index + 1, None);
        }
        leaves[index] = Some(leaf);
        true
    }

    /// Whom the gradient of a leaf belongs to.
    pub(crate) fn observe(&mut self, leaf: B::Leaf, observer: SharedObserver<B::Tensor>) {
        self.observers.entry(leaf).or_insert(observer);
    }

    /// Whom the gradient of a leaf belongs to, if anybody: in this context or at large.
    pub(crate) fn observer(&self, leaf: B::Leaf) -> Option<SharedObserver<B::Tensor>> {
        let here = self.observers.get(&leaf).cloned();
        here.or_else(|| B::observer(leaf))
    }

    pub(crate) fn snapshot(&self) -> Snapshot<B> {
        let sends = self.sends.iter();
        Snapshot {
            sends: sends
                .map(|(&number, sent)| (number, sent.to, sent.tensors.clone()))
                .collect(),
            recvs: self.recvs.clone(),
        }
    }

    /// The tensors of a message that was sent since some snapshot was taken. None: it was freed, or never
    /// sent.
    pub(crate) fn sent(&self, number: u64) -> Option<Vec<B::Tensor>> {
        self.sends.get(&number).map(|sent| sent.tensors.clone())
    }

    /// The received messages that some of these leaves belong to.
    pub(crate) fn received_with(&self, leaves: &HashSet<B::Leaf>) -> Vec<(RecvId, Received<B>)> {
        let recvs = self.recvs.iter();
        recvs
            .filter(|(_, received)| received.iter().flatten().any(|leaf| leaves.contains(leaf)))
            .map(|(&recv, received)| (recv, received.clone()))
            .collect()
    }

    /// A pass that does not retain the graph has used these (EN-6). Gives back what they held.
    pub(crate) fn free(
        &mut self,
        sends: impl Iterator<Item = u64>,
        recvs: impl Iterator<Item = RecvId>,
    ) -> Vec<B::Tensor> {
        for recv in recvs {
            let leaves = self.recvs.remove(&recv).unwrap_or_default();
            self.freed.extend(leaves.into_iter().flatten());
        }
        sends
            .filter_map(|number| self.sends.remove(&number))
            .flat_map(|sent| sent.tensors)
            .collect()
    }

    /// The numbers of the messages that took tensors along.
    pub(crate) fn sends(&self) -> HashSet<u64> {
        self.sends.keys().copied().collect()
    }

    /// Whether nothing of what is kept hangs on a graph: gradients do not.
    pub(crate) fn has_no_graphs(&self) -> bool {
        self.sends.is_empty()
    }

    /// Whether the leaf belongs to a message that an earlier pass has freed.
    pub(crate) fn is_freed(&self, leaf: &B::Leaf) -> bool {
        self.freed.contains(leaf)
    }

    /// Adds to the gradient of an observer, or of a leaf that has none (A4, EN-4).
    pub(crate) fn accumulate(
        &mut self,
        key: Key<B::Leaf>,
        gradient: B::Tensor,
    ) -> Result<(), String> {
        let sum = match self.gradients.get(&key) {
            Some(sum) => B::add(sum, &gradient)?,
            None => gradient,
        };
        self.gradients.insert(key, sum);
        Ok(())
    }

    /// The gradient of something with a key of its own.
    pub(crate) fn gradient_of(&self, key: u64) -> Option<B::Tensor> {
        self.gradients.get(&Key::Observer(key)).cloned()
    }

    /// The gradient of a leaf.
    pub(crate) fn gradient(&self, leaf: B::Leaf) -> Option<B::Tensor> {
        match self.observer(leaf) {
            Some(observer) => self.gradient_of(observer.key()),
            None => self.gradients.get(&Key::Leaf(leaf)).cloned(),
        }
    }

    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.sends += self.sends.len();
        counts.recvs += self.recvs.len();
        counts.gradients += self.gradients.len();
    }
}

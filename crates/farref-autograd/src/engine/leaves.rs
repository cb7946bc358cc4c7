//! Where the gradients of leaves go in one pass: into the message that brings them back to the worker that
//! sent the tensor, or to whom the leaf belongs here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::backend::{Backend, SharedObserver};
use super::contexts::Participation;
use super::records::{Key, Received, RecvId};
use super::task::Final;
use crate::failure::Cause;

/// The gradients of the tensors of one received message, by index.
pub(crate) type Complete<B> = (RecvId, Vec<Option<<B as Backend>::Tensor>>);

pub(crate) struct Leaves<B: Backend> {
    place: Arc<Participation<B>>,
    /// Own leaves do not wait for each other: some may never be final.
    eager: bool,
    /// Where received leaves belong.
    places: HashMap<B::Leaf, (RecvId, usize)>,
    messages: HashMap<RecvId, Message<B>>,
    own: HashMap<Key<B::Leaf>, Own<B>>,
}

/// A received message.
struct Message<B: Backend> {
    /// Those of its tensors whose gradients are not final.
    unsettled: HashSet<usize>,
    /// What its sender has not been told.
    gradients: Vec<Option<B::Tensor>>,
    told: bool,
    /// Whether its sender was told of gradients, not only that there are none.
    used: bool,
}

/// The leaves of this worker that share a gradient.
struct Own<B: Backend> {
    unsettled: HashSet<B::Leaf>,
    sum: Option<B::Tensor>,
    observer: Option<SharedObserver<B::Tensor>>,
}

impl<B: Backend> Leaves<B> {
    pub(crate) fn new(
        place: Arc<Participation<B>>,
        recvs: HashMap<RecvId, Received<B>>,
        eager: bool,
    ) -> Self {
        let mut leaves = Self {
            place,
            eager,
            places: HashMap::new(),
            messages: HashMap::new(),
            own: HashMap::new(),
        };
        for (recv, received) in recvs {
            leaves.add_message(recv, &received, |_| true);
        }
        leaves
    }

    fn add_message(
        &mut self,
        recv: RecvId,
        received: &Received<B>,
        awaited: impl Fn(&B::Leaf) -> bool,
    ) {
        let mut unsettled = HashSet::new();
        for (index, leaf) in received.iter().enumerate() {
            let Some(leaf) = leaf else {
                continue;
            };
            self.places.insert(*leaf, (recv, index));
            if awaited(leaf) {
                unsettled.insert(index);
            }
        }
        let message = Message {
            unsettled,
            gradients: vec![None; received.len()],
            told: false,
            used: false,
        };
        self.messages.insert(recv, message);
    }

    /// Those that other workers wait for.
    pub(crate) fn received(&self) -> HashSet<B::Leaf> {
        self.places.keys().copied().collect()
    }

    /// Before anything is run: these will be final. Those of them that share a gradient are so together.
    pub(crate) fn expect<'a>(&mut self, leaves: impl Iterator<Item = &'a B::Leaf>) {
        for &leaf in leaves {
            if self.places.contains_key(&leaf) {
                continue;
            }
            let (key, observer) = owner(&self.place, leaf);
            self.own_of(key, observer).unsettled.insert(leaf);
        }
    }

    /// A root that came into being after the snapshot reaches these; so may have the messages that brought
    /// them.
    pub(crate) fn expect_late(&mut self, leaves: &[B::Leaf]) {
        let unknown = leaves.iter().filter(|leaf| !self.places.contains_key(leaf));
        let unknown: HashSet<_> = unknown.copied().collect();
        if unknown.is_empty() {
            return;
        }
        let late = self
            .place
            .records(|records| records.received_with(&unknown));
        for (recv, received) in late {
            self.add_message(recv, &received, |leaf| unknown.contains(leaf));
        }
    }

    /// Whether nobody who gets a gradient takes long over it.
    pub(crate) fn are_quick(&self) -> bool {
        let mut observers = self.own.values().filter_map(|own| own.observer.as_ref());
        observers.all(|observer| observer.is_quick())
    }

    /// Whether one of these was received in a message that an earlier pass has freed. What is in this pass's
    /// own snapshot may have been freed by another since: it is still here.
    pub(crate) fn any_freed(&self, leaves: impl IntoIterator<Item = B::Leaf>) -> bool {
        let mut others = leaves
            .into_iter()
            .filter(|leaf| !self.places.contains_key(leaf));
        self.place
            .records(|records| others.any(|leaf| records.is_freed(&leaf)))
    }

    /// These are final. Says which received messages have all their gradients now. (EN-6) A gradient for
    /// something that was freed is an error, before any other is kept.
    pub(crate) fn settle(&mut self, finals: Vec<Final<B>>) -> Result<Vec<Complete<B>>, Cause> {
        let reached = finals.iter().filter(|(_, gradient)| gradient.is_some());
        if self.any_freed(reached.map(|(leaf, _)| *leaf)) {
            return Err(Cause::GraphFreed);
        }
        let mut complete = Vec::new();
        for (leaf, gradient) in finals {
            match self.places.get(&leaf) {
                Some(&(recv, index)) => {
                    complete.extend(self.settle_received(recv, index, gradient)?);
                }
                None => self.settle_own(leaf, gradient)?,
            }
        }
        Ok(complete)
    }

    fn settle_received(
        &mut self,
        recv: RecvId,
        index: usize,
        gradient: Option<B::Tensor>,
    ) -> Result<Option<Complete<B>>, Cause> {
        let Some(message) = self.messages.get_mut(&recv) else {
            return Ok(None);
        };
        message.unsettled.remove(&index);
        if let Some(place) = message.gradients.get_mut(index) {
            *place = sum::<B>(place.take(), gradient)?;
        }
        let some = message.gradients.iter().any(Option::is_some);
        if !message.unsettled.is_empty() || message.told && !some {
            return Ok(None);
        }
        message.told = true;
        message.used |= some;
        let none = vec![None; message.gradients.len()];
        let gradients = std::mem::replace(&mut message.gradients, none);
        Ok(Some((recv, gradients)))
    }

    fn settle_own(&mut self, leaf: B::Leaf, gradient: Option<B::Tensor>) -> Result<(), Cause> {
        let (key, observer) = owner(&self.place, leaf);
        let eager = self.eager;
        let own = self.own_of(key, observer);
        own.unsettled.remove(&leaf);
        own.sum = sum::<B>(own.sum.take(), gradient)?;
        if !own.unsettled.is_empty() && !eager {
            return Ok(());
        }
        let Some(mut gradient) = own.sum.take() else {
            return Ok(());
        };
        // Hooks are the program's: they run without the lock.
        if let Some(observer) = own.observer.clone() {
            gradient = observer.on_gradient(gradient).map_err(Cause::Compute)?;
        }
        self.place
            .records(|records| records.accumulate(key, gradient))
            .map_err(Cause::Compute)
    }

    fn own_of(
        &mut self,
        key: Key<B::Leaf>,
        observer: Option<SharedObserver<B::Tensor>>,
    ) -> &mut Own<B> {
        self.own.entry(key).or_insert_with(|| Own {
            unsettled: HashSet::new(),
            sum: None,
            observer,
        })
    }

    /// The received messages whose senders have got gradients since this was asked.
    pub(crate) fn take_used(&mut self) -> Vec<RecvId> {
        let used = self
            .messages
            .iter_mut()
            .filter_map(|(recv, message)| std::mem::take(&mut message.used).then_some(*recv));
        used.collect()
    }
}

/// Whose gradient that of a leaf of this worker is.
fn owner<B: Backend>(
    place: &Participation<B>,
    leaf: B::Leaf,
) -> (Key<B::Leaf>, Option<SharedObserver<B::Tensor>>) {
    let observer = place.records(|records| records.observer(leaf));
    let key = observer
        .as_ref()
        .map_or(Key::Leaf(leaf), |observer| Key::Observer(observer.key()));
    (key, observer)
}

fn sum<B: Backend>(
    one: Option<B::Tensor>,
    other: Option<B::Tensor>,
) -> Result<Option<B::Tensor>, Cause> {
    match (one, other) {
        (Some(one), Some(other)) => Ok(Some(B::add(&one, &other).map_err(Cause::Compute)?)),
        (one, other) => Ok(one.or(other)),
    }
}

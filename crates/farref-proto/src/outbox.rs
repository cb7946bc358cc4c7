//! Where state machines put their effects: control messages by peer, and events for the user above.

use std::collections::{BTreeMap, VecDeque};

use crate::event::Event;
use crate::ids::NodeId;
use crate::message::Control;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::mutation::{Mutant, mutated};

/// Collects the effects of any number of inputs until the driver takes them.
///
/// Messages to one peer keep their order, and neighbours of one kind become one message. The
/// longer a driver leaves them here (say, until a socket is writable), the more they merge.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outbox<V> {
    controls: BTreeMap<NodeId, VecDeque<Control>>,
    events: VecDeque<Event<V>>,
    mutant: Mutant,
}

impl<V> Outbox<V> {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            controls: BTreeMap::new(),
            events: VecDeque::new(),
            mutant: Mutant::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[cfg(feature = "mutations")]
    pub fn mutate(&mut self, mutation: Mutation) {
        self.mutant.broken = Some(mutation);
    }

    /// Takes the next message for the lowest-numbered peer that has any.
    pub fn pop_control(&mut self) -> Option<(NodeId, Control)> {
        let mut entry = self.controls.first_entry()?;
        let to = *entry.key();
        let control = entry.get_mut().pop_front();
        if entry.get().is_empty() {
            entry.remove();
        }
        control.map(|control| (to, control))
    }

    /// Takes the oldest event.
    pub fn pop_event(&mut self) -> Option<Event<V>> {
        self.events.pop_front()
    }

    /// How many control messages wait to be taken.
    pub fn controls(&self) -> usize {
        self.controls.values().map(VecDeque::len).sum()
    }

    /// Whether control messages wait to be taken.
    pub fn has_controls(&self) -> bool {
        !self.controls.is_empty()
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.controls.is_empty() && self.events.is_empty()
    }

    /// Throws away what was meant for a node that is gone.
    pub fn forget(&mut self, gone: NodeId) {
        self.controls.remove(&gone);
    }

    /// Throws away all messages: whoever put them here has nothing to say any more.
    pub(crate) fn forget_all(&mut self) {
        self.controls.clear();
    }

    /// Takes in all that another outbox holds, after what is here.
    pub(crate) fn append(&mut self, other: Self) {
        for (to, controls) in other.controls {
            for control in controls {
                self.send(to, control);
            }
        }
        self.events.extend(other.events);
    }

    /// Whom messages are for.
    pub(crate) fn receivers(&self) -> impl Iterator<Item = NodeId> {
        self.controls.keys().copied()
    }

    /// Takes the next message for one peer.
    pub(crate) fn pop_control_for(&mut self, to: NodeId) -> Option<Control> {
        let queue = self.controls.get_mut(&to)?;
        let control = queue.pop_front();
        if queue.is_empty() {
            self.controls.remove(&to);
        }
        control
    }

    pub(crate) fn send(&mut self, to: NodeId, control: Control) {
        let queue = self.controls.entry(to).or_default();
        let earlier = match mutated!(self.mutant, MergePastOthers) {
            true => queue
                .iter_mut()
                .rfind(|other| other.name() == control.name()),
            false => queue.back_mut(),
        };
        let rest = match earlier {
            Some(last) => last.merge(control),
            None => Some(control),
        };
        queue.extend(rest);
    }

    pub(crate) fn event(&mut self, event: Event<V>) {
        self.events.push_back(event);
    }
}

impl<V> Default for Outbox<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ForkId, RRefId};
    use crate::message::Share;

    /// ME-3, RT-7: a message is merged with the one right before it and never goes past another: a
    /// release that overtook an adoption would free what the adoption keeps.
    #[test]
    fn messages_never_go_past_others_of_another_kind() {
        let [owner, me] = [NodeId::new(0, 1), NodeId::new(1, 1)];
        let share = |counter| Share {
            rref: RRefId::new(me, counter),
            fork: ForkId::new(me, counter),
        };
        let release = |counter| Control::Release(vec![share(counter)]);
        let view = Control::View {
            entries: Vec::new(),
            ask: None,
        };
        let said = [release(1), view, Control::Adopt(Vec::new()), release(2)];
        let mut out = Outbox::<()>::new();
        said.iter().for_each(|it| out.send(owner, it.clone()));
        let taken: Vec<Control> = std::iter::from_fn(|| Some(out.pop_control()?.1)).collect();
        assert_eq!(taken, said);
    }

    #[test]
    fn many_drops_towards_one_owner_become_one_message() {
        let owner = NodeId::new(0, 1);
        let me = NodeId::new(1, 1);
        let mut out = Outbox::<()>::new();
        for counter in 0..1000 {
            let share = Share {
                rref: RRefId::new(me, counter),
                fork: ForkId::new(me, counter),
            };
            out.send(owner, Control::Release(vec![share]));
        }
        assert_eq!(out.controls(), 1);
        let (to, Control::Release(shares)) = out.pop_control().unwrap() else {
            panic!("a release")
        };
        assert_eq!((to, shares.len()), (owner, 1000));
        assert!(out.is_empty());
    }
}

//! What streams and lookups are called, for those who look at a worker.
//!
//! To the protocol a stream is a reference and a lookup is a call, both of farref's own. Whoever looks wants to know which
//! of the program's they are.
//!
//! # Invariants
//!
//! - **LA-1** What is kept goes with its [`Label`]s: nothing is left of what is over.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};

use farref_proto::{MessageId, NodeId, RRefId};

use crate::error::FunctionName;
use crate::support::lock::lock;

/// What has a label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Labelled {
    /// A stream that is made or read here, by the reference that leads to it.
    Stream(RRefId),
    /// A lookup of somebody's that waits here.
    Asked(NodeId, MessageId),
    /// A lookup of this worker's own, by a number.
    Asking(u64),
    /// A stream that is made here, and the worker that reads it.
    Read(NodeId, RRefId),
}

/// The labels of a worker.
#[derive(Default, Debug)]
pub(crate) struct Labels(Mutex<HashMap<Labelled, Named, crate::support::simulation::RandomState>>);

#[derive(Debug)]
struct Named {
    name: FunctionName,
    /// Both ends of a stream may be here.
    labels: usize,
}

/// Keeps a name as long as it is there.
pub(crate) struct Label {
    labels: Arc<Labels>,
    of: Labelled,
}

impl Labels {
    /// Says what something is called.
    pub(crate) fn put(self: &Arc<Self>, of: Labelled, name: &FunctionName) -> Label {
        let mut known = lock(&self.0);
        let named = known.entry(of).or_insert_with(|| Named {
            name: name.clone(),
            labels: 0,
        });
        named.labels += 1;
        drop(known);
        let labels = Arc::clone(self);
        Label { labels, of }
    }

    pub(crate) fn of(&self, what: Labelled) -> Option<FunctionName> {
        let known = lock(&self.0);
        known.get(&what).map(|named| named.name.clone())
    }

    /// What the streams and this worker's own lookups are called, at most so many; and how many there are.
    pub(crate) fn own(&self, most: usize) -> (Vec<String>, usize) {
        let known = lock(&self.0);
        let is_own = |of: &&Labelled| matches!(of, Labelled::Stream(_) | Labelled::Asking(_));
        let mut own: Vec<Labelled> = known.keys().filter(is_own).copied().collect();
        let in_all = own.len();
        own.sort_unstable();
        own.truncate(most);
        let names = own.iter().filter_map(|of| known.get(of));
        (names.map(|named| named.name.to_string()).collect(), in_all)
    }
}

impl Labels {
    /// The streams that others read.
    pub(crate) fn read(&self) -> BTreeMap<(NodeId, RRefId), FunctionName> {
        let known = lock(&self.0);
        let read = known.iter().filter_map(|(of, named)| match of {
            Labelled::Read(reader, rref) => Some(((*reader, *rref), named.name.clone())),
            _ => None,
        });
        read.collect()
    }
}

impl Label {
    /// Another one, which says who reads the stream.
    pub(crate) fn read_by(&self, reader: NodeId) -> Option<Self> {
        let Labelled::Stream(rref) = self.of else {
            return None;
        };
        let name = self.labels.of(self.of)?;
        Some(self.labels.put(Labelled::Read(reader, rref), &name))
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        let mut known = lock(&self.labels.0);
        if let Some(named) = known.get_mut(&self.of) {
            named.labels -= 1;
            if named.labels == 0 {
                known.remove(&self.of);
            }
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Label").field(&self.of).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn la_1_a_name_is_known_as_long_as_one_of_its_labels_is_there() {
        let labels = Arc::new(Labels::default());
        let asked = Labelled::Asked(NodeId::new(1, 1), MessageId(7));
        let name = FunctionName::stream_of("f");
        let one = labels.put(Labelled::Asking(3), &name);
        let both = [labels.put(asked, &name), labels.put(asked, &name)];
        assert_eq!(labels.of(asked), Some(name));
        assert_eq!(labels.own(9), (vec!["the stream of `f`".to_owned()], 1));
        assert_eq!(labels.own(0), (Vec::new(), 1));
        let [first, second] = both;
        drop(first);
        assert!(labels.of(asked).is_some());
        drop(second);
        assert_eq!(labels.of(asked), None);
        drop(one);
        assert!(lock(&labels.0).is_empty());
    }
}

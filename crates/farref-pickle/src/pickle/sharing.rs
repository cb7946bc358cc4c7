//! What is in a value more than once.

use super::read::{Id, Node, Pickle};

impl Pickle<'_> {
    /// Buffers beside the pickle that are in the value more than once, by themselves or in something that is.
    pub fn shared_buffers(&self) -> Vec<u32> {
        let mut found = Found {
            pickle: self,
            seen: vec![Seen::Never; self.nodes.len()],
            shared: Vec::new(),
        };
        found.walk(self.root, Seen::Once);
        // Whatever is in something that is there twice is there twice.
        while let Some(id) = found.shared.pop() {
            found.walk(id, Seen::Often);
        }
        let nodes = self.nodes.iter().zip(found.seen);
        let shared = nodes.filter(|(_, seen)| *seen == Seen::Often);
        shared
            .filter_map(|(node, _)| match node {
                Node::Buffer(number) => Some(*number),
                _ => None,
            })
            .collect()
    }
}

#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Seen {
    Never,
    Once,
    Often,
}

struct Found<'p, 'a> {
    pickle: &'p Pickle<'a>,
    seen: Vec<Seen>,
    /// Those that were come to a second time.
    shared: Vec<Id>,
}

impl Found<'_, '_> {
    /// Goes through all that is in a value, into each once.
    fn walk(&mut self, from: Id, as_seen: Seen) {
        let mut next = vec![from];
        while let Some(id) = next.pop() {
            let Some(node) = self.pickle.nodes.get(id as usize) else {
                continue;
            };
            let seen = &mut self.seen[id as usize];
            if *seen >= as_seen {
                if *seen == Seen::Once {
                    self.shared.push(id);
                }
                continue;
            }
            *seen = as_seen;
            match node {
                Node::Tuple(ids) | Node::List(ids) | Node::Set(ids) => next.extend(ids),
                Node::Dict(pairs) => {
                    next.extend(pairs.iter().flat_map(|&(key, value)| [key, value]))
                }
                Node::Call {
                    callee,
                    arguments,
                    state,
                    items,
                } => {
                    next.extend([*callee, *arguments]);
                    next.extend(state.iter().chain(items));
                }
                Node::Persistent(id) => next.push(*id),
                _ => {}
            }
        }
    }
}

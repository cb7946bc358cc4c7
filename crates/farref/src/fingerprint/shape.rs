//! The shape of a type: everything it asks of a deserializer, as text.
//!
//! A type can show its inside only by being deserialized, one part after the other, and the first
//! part that fails ends that. So the tracer does not try to see everything in one go. It keeps a
//! list of the parts it has not seen, and for each deserializes the whole type once more, led
//! straight to that part by a [`Run`]: by the field's name, the variant's number, the position in a
//! tuple. There it notes what is asked for and stops. That way neither a field that insists on a
//! value the tracer does not guess, nor one that can only be read inside a call, hides its
//! neighbours (FP-4).
//!
//! A type that was seen before is noted as such and not entered again, so recursive types end, and
//! a type that is used in many places is traced once.
//!
//! # What stays opaque
//!
//! - What reads whatever comes (`deserialize_any`): untagged and internally tagged enums, the
//!   content of adjacently tagged ones, flattened fields, `serde_json::Value`.
//! - Elements of a tuple or a tuple struct after one that cannot be made, and the value of a map
//!   whose key cannot. The tracer makes ones, `"1"`, `None`, vectors of one element, empty maps and
//!   the first variant that works.
//! - Elements of a tuple after the first [`MAX_POSITIONS`]; anything below [`MAX_DEPTH`]; whatever
//!   is left when the steps run out.
//! - Types of farref's own (`farref::RRef`, `farref::Blob`, `farref::Buffer`): their name is noted.
//!   To make one, for the sake of the elements after it, the tracer calls `visit_unit` of their
//!   visitor, which no codec does. It may answer with a hollow value or with an error.
//!
//! The codec has to be told of the first of these, and as nobody knows what the others do, of them too, see
//! [`Shape::reads_any`].

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
#[cfg(test)]
use serde::de::DeserializeOwned;

use super::found::{Found, MAX_DEPTH};
use super::probe::{Choices, Run, Step};

/// Steps (calls of a deserializer) to trace a type.
pub(super) const MAX_STEPS: usize = 1_000_000;
/// Steps to reach one part of it: one that is expensive to reach leaves some for the others.
pub(super) const MAX_STEPS_PER_PART: usize = 10_000;
/// Attempts to reach one part, each with another choice of variants on the way.
const MAX_RUNS_PER_PART: usize = 256;

/// The shape of a type.
pub(crate) fn shape_of<T: Deserialize<'static>>() -> Shape {
    Tracer::trace(deserialize::<T>).shape()
}

/// How many steps it takes to trace a type.
#[cfg(test)]
pub(super) fn steps_of<T: DeserializeOwned>() -> usize {
    Tracer::trace(deserialize::<T>).steps
}

/// What a type asks of a deserializer: equal for types that ask for the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    text: String,
}

impl Shape {
    /// A line for each distinct part: what is asked for, with names preceded by their length, and
    /// the numbers of the lines of its parts.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a part of it looks at what came before it knows what to read, or skips it, or may do so because
    /// it could not be traced. That takes a value that says what it is.
    pub(crate) fn reads_any(&self) -> bool {
        let mut lines = self.text.lines();
        lines.any(|line| matches!(line, "any" | "identifier" | "ignored" | "opaque"))
    }
}

/// Deserializes the type once. All else is compiled once for all types.
type DeserializeOnce = fn(&mut Run<'_>);

fn deserialize<T: Deserialize<'static>>(run: &mut Run<'_>) {
    drop(T::deserialize(run.probe()));
}

struct Tracer {
    deserialize: DeserializeOnce,
    /// In the order in which they were found, which is by distance from the root: the way to a node
    /// is always a shortest one.
    nodes: Vec<Node>,
    /// For lookup only: its order is not fixed (FP-1).
    known: HashMap<u64, usize>,
    choices: Choices,
    steps: usize,
}

/// A distinct part.
struct Node {
    found: Found,
    /// The nodes of its parts, as far as they have been seen.
    parts: Vec<usize>,
    /// How to get here from the root.
    path: Vec<Step>,
}

impl Tracer {
    fn trace(deserialize: DeserializeOnce) -> Self {
        let mut tracer = Self {
            deserialize,
            nodes: Vec::new(),
            known: HashMap::new(),
            choices: Choices::default(),
            steps: 0,
        };
        let root = tracer.reach(&[]).unwrap_or_else(Found::opaque);
        tracer.node(root, Vec::new());

        let mut current = 0;
        while let Some(node) = tracer.nodes.get(current) {
            let (parts, path) = (node.found.parts, node.path.clone());
            let by_name = node.found.by_name;
            for part in 0..parts {
                let child = tracer.part(&path, part, by_name);
                tracer.nodes[current].parts.push(child);
            }
            current += 1;
        }
        tracer
    }

    /// Visits one part of the node at `path`.
    fn part(&mut self, path: &[Step], part: usize, by_name: bool) -> usize {
        let mut path = path.to_vec();
        let ways: &[bool] = if by_name { &[true, false] } else { &[false] };
        for &by_name in ways {
            path.push(Step { part, by_name });
            if path.len() < MAX_DEPTH
                && let Some(found) = self.reach(&path)
            {
                return self.node(found, path);
            }
            path.pop();
        }
        self.node(Found::opaque(), Vec::new())
    }

    /// Deserializes the type up to the end of a path. `None` if it does not get there.
    fn reach(&mut self, path: &[Step]) -> Option<Found> {
        let mut left = MAX_STEPS_PER_PART.min(MAX_STEPS - self.steps);
        self.choices.forget_attempts();
        for _ in 0..MAX_RUNS_PER_PART {
            if left == 0 {
                break;
            }
            let mut run = Run::new(path, left, &mut self.choices);
            // A type that panics at a value it does not like is somebody's bug, but not a reason
            // for the program not to start.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.deserialize)(&mut run)));
            let ended = run.end();
            self.steps += left - ended.steps_left;
            left = ended.steps_left;
            if ended.found.is_some() || !ended.worth_another {
                return ended.found;
            }
        }
        None
    }

    /// The node of what was found: the one it already has, or a new one.
    fn node(&mut self, found: Found, path: Vec<Step>) -> usize {
        let new = self.nodes.len();
        if let Some(identity) = found.identity {
            let known = *self.known.entry(identity).or_insert(new);
            if known != new {
                return known;
            }
        }
        self.nodes.push(Node {
            found,
            parts: Vec::new(),
            path,
        });
        new
    }

    fn shape(&self) -> Shape {
        let mut text = String::new();
        for node in &self.nodes {
            text.push_str(&node.found.label);
            for part in &node.parts {
                text.push_str(&format!(" #{part}"));
            }
            text.push('\n');
        }
        Shape { text }
    }
}

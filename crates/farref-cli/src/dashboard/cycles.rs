//! Calls that wait for each other.
//!
//! A call that waits for a value says which values are used by calls that wait for *it*. So whoever uses one of those
//! waits for that value: an edge from value to value. Values on a circle of edges will never be given back.

use std::collections::{BTreeMap, BTreeSet};

use farref::{WaitingCall, WaitsFor};

use crate::view::seen::Seen;

/// The values that are waited for in circles.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Cycles<'a> {
    /// Each circle, or several that hang together.
    pub(super) circles: Vec<BTreeSet<&'a str>>,
}

impl<'a> Cycles<'a> {
    pub(super) fn find(seen: &'a [Seen]) -> Self {
        let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut back: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for call in seen
            .iter()
            .filter_map(Seen::answer)
            .flat_map(|one| &one.waiting)
        {
            let (Some(wanted), true) = (&call.value, call.waits_for != WaitsFor::Room) else {
                continue;
            };
            for held in &call.held_by_callers {
                edges.entry(held).or_default().insert(wanted);
                back.entry(wanted).or_default().insert(held);
            }
        }
        // What reaches a value and is reached by it is on a circle with it. Few values are waited for in chains.
        let mut circles: Vec<BTreeSet<&str>> = Vec::new();
        for &value in edges.keys() {
            if circles.iter().any(|circle| circle.contains(value)) {
                continue;
            }
            let ahead = reached(value, &edges);
            let circle: BTreeSet<&str> = ahead
                .intersection(&reached(value, &back))
                .copied()
                .collect();
            if circle.contains(value) {
                circles.push(circle);
            }
        }
        Self { circles }
    }

    /// The circle that a call waits in, by its number.
    pub(super) fn of(&self, call: &WaitingCall) -> Option<usize> {
        let value = &**call.value.as_ref()?;
        self.circles.iter().position(|circle| {
            let mut held = call.held_by_callers.iter();
            circle.contains(value) && held.any(|held| circle.contains(&**held))
        })
    }
}

/// What can be reached from a value, itself only in a circle.
fn reached<'a>(from: &'a str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(value) = next.pop() {
        for &further in edges.get(value).into_iter().flatten() {
            if reached.insert(further) {
                next.push(further);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    /// A call on each first value, for whom calls wait that use the others.
    fn waiting(calls: &[(&str, &[&str])]) -> Vec<Seen> {
        let mut seen = samples::group();
        let like = seen[0].answer().expect("it answers").waiting[0].clone();
        let calls = calls.iter().map(|(value, held)| {
            let mut call = like.clone();
            call.value = Some((*value).to_owned());
            call.held_by_callers = held.iter().map(|held| (*held).to_owned()).collect();
            call
        });
        let calls: Vec<WaitingCall> = calls.collect();
        samples::edit(&mut seen[0], |snapshot| snapshot.waiting = calls);
        seen
    }

    #[test]
    fn two_that_wait_for_each_other_are_a_circle_and_a_third_that_waits_for_them_is_not_in_it() {
        let seen = waiting(&[("a", &["b"]), ("b", &["a"]), ("a", &["c"]), ("a", &[])]);
        let cycles = Cycles::find(&seen);
        assert_eq!(cycles.circles, [BTreeSet::from(["a", "b"])]);
        let calls = &seen[0].answer().expect("it answers").waiting;
        let found: Vec<_> = calls.iter().map(|call| cycles.of(call)).collect();
        assert_eq!(found, [Some(0), Some(0), None, None]);
    }

    #[test]
    fn a_chain_is_no_circle() {
        let seen = waiting(&[("a", &["b"]), ("b", &["c"]), ("c", &["d"])]);
        assert_eq!(Cycles::find(&seen).circles, Vec::<BTreeSet<&str>>::new());
    }

    #[test]
    fn a_circle_may_be_long_and_there_may_be_several() {
        let seen = waiting(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["a"]),
            ("x", &["y"]),
            ("y", &["x"]),
        ]);
        assert_eq!(Cycles::find(&seen).circles.len(), 2);
    }
}

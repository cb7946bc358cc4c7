//! R1 and R2 under orders nobody thought of: programs that create, share, fetch and drop on nodes
//! whose lanes move at random.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::cluster::*;
use crate::ids::{MessageId, NodeId, RRefId};
use crate::message::{CallHead, Target};
use crate::node::{Arrival, Want};

const NODES: usize = 4;

/// What may happen next. Indices are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Local { owner: usize },
    Remote { handle: usize, by: usize, to: usize },
    Ask { handle: usize, to: usize },
    Fetch { handle: usize },
    Cancel { which: usize },
    Work { handle: usize, which: usize },
    Drop { handle: usize },
    Deliver { which: usize, control: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let (node, other, index) = (0..NODES, 1..NODES, any::<usize>());
    prop_oneof![
        1 => node.clone().prop_map(|owner| Step::Local { owner }),
        1 => (index, node.clone(), other).prop_map(|(handle, by, other)| {
            Step::Remote { handle, by, to: (by + other) % NODES }
        }),
        4 => (index, node).prop_map(|(handle, to)| Step::Ask { handle, to }),
        2 => index.prop_map(|handle| Step::Fetch { handle }),
        1 => index.prop_map(|which| Step::Cancel { which }),
        3 => (index, index).prop_map(|(handle, which)| Step::Work { handle, which }),
        4 => index.prop_map(|handle| Step::Drop { handle }),
        9 => (index, any::<bool>()).prop_map(|(which, control)| Step::Deliver { which, control }),
    ]
}

/// A cluster and the truth about it: who has which handle, what is to be worked on.
struct World {
    net: Cluster,
    handles: Vec<(usize, RRefId)>,
    /// Calls that wait for their answer or their value, by callee.
    work: Vec<(usize, NodeId, CallHead)>,
    /// Open requests, for cancelling.
    open: Vec<(usize, usize, MessageId)>,
    values: BTreeMap<RRefId, u32>,
    freed: Vec<u32>,
}

fn pick<T: Copy>(list: &[T], which: usize) -> Option<T> {
    list.get(which.checked_rem(list.len())?).copied()
}

impl World {
    fn new() -> Self {
        Self {
            net: Cluster::new(NODES),
            handles: Vec::new(),
            work: Vec::new(),
            open: Vec::new(),
            values: BTreeMap::new(),
            freed: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Local { owner } => {
                let value = self.values.len() as u32;
                let rref = self.net.local(owner, value);
                self.values.insert(rref, value);
                self.handles.push((owner, rref));
            }
            Step::Remote { handle, by, to } => {
                let argument = pick(&self.handles, handle).filter(|&(n, _)| n == by);
                let arguments: Vec<_> = argument.iter().map(|&(_, rref)| rref).collect();
                let head = self
                    .net
                    .call(by, to, Want::Reference(TYPE), &arguments, None)
                    .unwrap();
                let rref = reference(&head);
                self.values.insert(rref, self.values.len() as u32);
                self.handles.push((by, rref));
            }
            Step::Ask { handle, to } => {
                if let Some((n, rref)) = pick(&self.handles, handle) {
                    let request = self.net.ask(n, to, &[rref]);
                    self.open.push((n, to, request));
                }
            }
            Step::Fetch { handle } => {
                if let Some((n, rref)) = pick(&self.handles, handle) {
                    let owner = self.net.node(n).refs(rref).owner_of(rref).unwrap();
                    let owner = owner.worker.0 as usize;
                    let request = self.net.fetch(n, owner, rref);
                    self.open.push((n, owner, request));
                }
            }
            Step::Cancel { which } => {
                if let Some((from, to, request)) = pick(&self.open, which) {
                    self.net.cancel(from, to, request);
                }
            }
            Step::Work { handle, which } => self.work(handle, which),
            Step::Drop { handle } => {
                if !self.handles.is_empty() {
                    let (n, rref) = self.handles.swap_remove(handle % self.handles.len());
                    self.net.drop_handle(n, rref);
                }
            }
            Step::Deliver { which, control } => {
                if let Some(pair) = pick(&self.net.busy(), which) {
                    let brought = control && self.net.bring_control(pair);
                    let _ = brought || self.net.bring_call(pair) || self.net.bring_control(pair);
                }
            }
        }
        self.note();
    }

    /// Works on a call that has arrived: answers it, perhaps with a reference, or makes its value.
    fn work(&mut self, handle: usize, which: usize) {
        if self.work.is_empty() {
            return;
        }
        let (n, from, head) = self.work.swap_remove(which % self.work.len());
        let caller = from.worker.0 as usize;
        match head.target {
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                self.net.fulfil(caller, n, rref, self.values[&rref]);
            }
            Target::Answer(request) => {
                let result = pick(&self.handles, handle).filter(|&(holder, _)| holder == n);
                let results: Vec<_> = result.iter().map(|&(_, rref)| rref).collect();
                self.net.answer(n, caller, request, &results).unwrap();
            }
            Target::Fetch(request, ..) => {
                self.net.answer(n, caller, request, &[]).unwrap();
            }
        }
    }

    /// Takes note of what arrived.
    fn note(&mut self) {
        for (n, from, head, arrival) in std::mem::take(&mut self.net.arrivals) {
            self.handles
                .extend(head.carried.iter().map(|carried| (n, carried.share.rref)));
            match (&arrival, head.target) {
                (Arrival::Value(value), Target::Fetch(_, rref, _)) => {
                    assert_eq!(*value, self.values[&rref]);
                }
                (Arrival::Run, _) | (Arrival::Waiting, Target::Fetch(..)) => {}
                other => panic!("{other:?}"),
            }
            self.work.push((n, from, head));
        }
        for (n, head, wanted) in std::mem::take(&mut self.net.answers) {
            if wanted {
                self.handles
                    .extend(head.carried.iter().map(|carried| (n, carried.share.rref)));
            }
            self.open
                .retain(|&(by, _, request)| (by, request) != (n, head.id));
        }
        self.freed.extend(self.net.freed());
    }

    /// R1
    fn check(&self) {
        for &(n, rref) in &self.handles {
            assert!(
                !self.freed.contains(&self.values[&rref]),
                "w{n} has a handle on {rref}"
            );
            assert_eq!(self.net.node(n).refs(rref).check(rref), Ok(()));
        }
        for rref in self.net.carried() {
            assert!(
                !self.freed.contains(&self.values[&rref]),
                "{rref} is on its way"
            );
        }
    }

    /// R2
    fn drain(mut self) {
        while !(self.net.busy().is_empty() && self.work.is_empty() && self.handles.is_empty()) {
            self.net.deliver_all();
            self.note();
            while !self.work.is_empty() {
                self.take(Step::Work {
                    handle: 0,
                    which: 0,
                });
            }
            while !self.handles.is_empty() {
                self.take(Step::Drop { handle: 0 });
            }
        }
        self.freed.sort_unstable();
        assert_eq!(
            self.freed,
            (0..self.values.len() as u32).collect::<Vec<_>>()
        );
        self.net.finish();
    }
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(100, 1000))]

    /// R1, R2, R5
    #[test]
    fn values_live_while_referred_to_and_no_longer(steps in prop::collection::vec(step(), 0..100)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }
        world.drain();
    }
}

//! The laws R1 and R2 under orders nobody thought of, and R3 under a network that repeats and
//! reorders control messages.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::tables::{TYPE, id};
use crate::event::Event;
use crate::ids::{NodeId, RRefId};
use crate::message::{Carried, Control, Creation, Share};
use crate::outbox::Outbox;
use crate::refs::{RefTable, RefTableConfig};

const NODES: usize = 4;

/// What may happen next. Indices are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Local {
        owner: usize,
    },
    Remote {
        by: usize,
        owner: usize,
    },
    Share {
        handle: usize,
        to: usize,
    },
    Drop {
        handle: usize,
    },
    Fulfil {
        which: usize,
    },
    /// Brings a call, first in, first out per pair.
    Call {
        which: usize,
    },
    /// Brings any control message that is on its way; `again` leaves a copy behind.
    Control {
        which: usize,
        again: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NODES;
    let which = any::<usize>();
    prop_oneof![
        1 => node.clone().prop_map(|owner| Step::Local { owner }),
        1 => (node.clone(), 1..NODES).prop_map(|(by, other)| {
            Step::Remote { by, owner: (by + other) % NODES }
        }),
        4 => (which, node).prop_map(|(handle, to)| Step::Share { handle, to }),
        3 => which.prop_map(|handle| Step::Drop { handle }),
        1 => which.prop_map(|which| Step::Fulfil { which }),
        4 => which.prop_map(|which| Step::Call { which }),
        6 => (which, any::<bool>()).prop_map(|(which, again)| Step::Control { which, again }),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Fork(Carried),
    Create(Creation),
}

/// Tables under an adversary, with the truth beside them.
struct World {
    tables: Vec<RefTable<RRefId>>,
    outs: Vec<Outbox<RRefId>>,
    calls: BTreeMap<(usize, usize), VecDeque<Call>>,
    /// Control messages, one entry each, in no order.
    controls: Vec<(NodeId, usize, Control)>,
    /// Every handle that some program has.
    handles: Vec<(usize, RRefId)>,
    building: Vec<(usize, RRefId)>,
    freed: Vec<RRefId>,
    made: usize,
}

impl World {
    fn new() -> Self {
        Self {
            tables: (0..NODES)
                .map(|n| RefTable::new(id(n), RefTableConfig::default()))
                .collect(),
            outs: (0..NODES).map(|_| Outbox::new()).collect(),
            calls: BTreeMap::new(),
            controls: Vec::new(),
            handles: Vec::new(),
            building: Vec::new(),
            freed: Vec::new(),
            made: 0,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Local { owner } => {
                // The value is its own reference, which the table makes; it is known afterwards.
                let rref = self.tables[owner].create_self(TYPE).unwrap();
                self.tables[owner].fulfil(rref, rref, &mut self.outs[owner]);
                self.handles.push((owner, rref));
                self.made += 1;
            }
            Step::Remote { by, owner } => {
                let creation = self.tables[by].create_remote(id(owner), TYPE).unwrap();
                self.handles.push((by, creation.share.rref));
                self.calls
                    .entry((by, owner))
                    .or_default()
                    .push_back(Call::Create(creation));
                self.made += 1;
            }
            Step::Share { handle, to } => {
                if let Some(&(n, rref)) = pick(&self.handles, handle) {
                    let carried = self.tables[n].fork(rref, id(to)).unwrap();
                    self.calls
                        .entry((n, to))
                        .or_default()
                        .push_back(Call::Fork(carried));
                }
            }
            Step::Drop { handle } => {
                if !self.handles.is_empty() {
                    let (n, rref) = self.handles.swap_remove(handle % self.handles.len());
                    self.tables[n].drop_handle(rref, &mut self.outs[n]);
                }
            }
            Step::Fulfil { which } => {
                if !self.building.is_empty() {
                    let (n, rref) = self.building.swap_remove(which % self.building.len());
                    self.tables[n].fulfil(rref, rref, &mut self.outs[n]);
                }
            }
            Step::Call { which } => self.bring_call(which),
            Step::Control { which, again } => self.bring_control(which, again),
        }
        self.collect();
    }

    fn bring_call(&mut self, which: usize) {
        let busy: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .collect();
        let Some(&(&(from, to), _)) = pick(&busy, which) else {
            return;
        };
        let call = self
            .calls
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let (table, out) = (&mut self.tables[to], &mut self.outs[to]);
        match call {
            Some(Call::Fork(carried)) => {
                table.receive(id(from), &carried, out).unwrap();
                self.handles.push((to, carried.share.rref));
            }
            Some(Call::Create(creation)) => {
                table.accept_creation(id(from), creation, out).unwrap();
                self.building.push((to, creation.share.rref));
            }
            None => {}
        }
    }

    fn bring_control(&mut self, which: usize, again: bool) {
        if self.controls.is_empty() {
            return;
        }
        let at = which % self.controls.len();
        let (from, to, control) = self.controls.swap_remove(at);
        if again {
            self.controls.push((from, to, control.clone()));
        }
        let (table, out) = (&mut self.tables[to], &mut self.outs[to]);
        match control {
            Control::Register(list) => {
                list.into_iter()
                    .for_each(|entry| table.on_register(from, entry, out).unwrap());
            }
            Control::Release(list) => {
                list.into_iter()
                    .for_each(|share| table.on_release(from, share, out).unwrap());
            }
            Control::Accept(list) => {
                list.into_iter()
                    .for_each(|share| table.on_accept(from, share, out).unwrap());
            }
            Control::Confirm(list) => {
                list.into_iter()
                    .for_each(|share| table.on_confirm(from, share, out));
            }
            Control::Decline(list) => {
                for entry in list {
                    table.on_decline(from, entry.share, entry.reason, out);
                }
            }
            other => panic!("{other:?} without a crash"),
        }
    }

    /// Takes effects out of the outboxes, one entry per message so that each goes its own way.
    fn collect(&mut self) {
        for n in 0..NODES {
            while let Some(event) = self.outs[n].pop_event() {
                match event {
                    Event::Freed { rref, .. } => {
                        assert!(!self.freed.contains(&rref), "{rref} was freed twice");
                        self.freed.push(rref);
                    }
                    Event::Lost { rref, error } => panic!("{rref} was lost: {error}"),
                    _ => {}
                }
            }
            while let Some((to, control)) = self.outs[n].pop_control() {
                let to = to.worker.0 as usize;
                for single in split(control) {
                    self.controls.push((id(n), to, single));
                }
            }
        }
    }

    /// R1: nothing that a handle or a message on its way refers to is freed.
    fn check(&self) {
        for &(n, rref) in &self.handles {
            assert!(
                !self.freed.contains(&rref),
                "{rref} was freed, but w{n} has a handle"
            );
            assert_eq!(self.tables[n].check(rref), Ok(()));
        }
        for call in self.calls.values().flatten() {
            let (Call::Fork(Carried { share, .. }) | Call::Create(Creation { share, .. })) = call;
            assert!(
                !self.freed.contains(&share.rref),
                "{} was freed on its way",
                share.rref
            );
        }
    }

    fn busy(&self) -> bool {
        !self.controls.is_empty() || self.calls.values().any(|queue| !queue.is_empty())
    }

    /// R2: when every program has dropped everything and every message has arrived, nothing is left.
    fn drain(&mut self, mut order: usize) {
        while self.busy() || !self.handles.is_empty() || !self.building.is_empty() {
            order = order
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let which = order >> 33;
            self.take(Step::Call { which });
            self.take(Step::Control {
                which,
                again: false,
            });
            self.take(Step::Fulfil { which });
            self.take(Step::Drop { handle: which });
            self.check();
        }
        for table in &self.tables {
            assert!(table.is_empty(), "{:?} has {:?}", table.me(), table.leaks());
            assert!(table.counters().is_empty());
        }
        assert_eq!(self.freed.len(), self.made);
    }
}

fn pick<T>(list: &[T], which: usize) -> Option<&T> {
    list.get(which.checked_rem(list.len())?)
}

fn split(control: Control) -> Vec<Control> {
    fn each<T>(list: Vec<T>, wrap: impl Fn(Vec<T>) -> Control) -> Vec<Control> {
        list.into_iter().map(|entry| wrap(vec![entry])).collect()
    }
    match control {
        Control::Register(list) => each(list, Control::Register),
        Control::Confirm(list) => each::<Share>(list, Control::Confirm),
        Control::Decline(list) => each(list, Control::Decline),
        Control::Release(list) => each::<Share>(list, Control::Release),
        Control::Accept(list) => each::<Share>(list, Control::Accept),
        other => vec![other],
    }
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(200, 2000))]

    /// R1, R2, R3
    #[test]
    fn control_messages_may_be_repeated_and_reordered_at_will(
        steps in prop::collection::vec(step(), 0..80),
        order in any::<usize>(),
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }
        world.drain(order);
    }
}

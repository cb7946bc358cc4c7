//! The fixture: context tables and, between each two of them, a queue that only the test moves.

use std::collections::{BTreeMap, VecDeque};

use super::super::*;

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;
pub(super) const D: usize = 3;

pub(super) fn id(n: usize) -> NodeId {
    NodeId::new(n as u32, 1)
}

/// A call that arrives, or a control message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    Call(ContextId),
    Control(Control),
}

/// Context tables (one shard each) joined by queues, first in, first out for each pair.
pub(super) struct Tables {
    pub(super) tables: Vec<ContextTable>,
    outs: Vec<Outbox<()>>,
    pub(super) wires: BTreeMap<(usize, usize), VecDeque<Packet>>,
    alive: Vec<bool>,
    pub(super) events: Vec<(usize, Event<()>)>,
    /// Calls that arrived: whether they were taken in.
    pub(super) arrivals: Vec<(usize, usize, Result<(), ContextError>)>,
    finished: bool,
}

impl Tables {
    pub(super) fn new(n: usize) -> Self {
        Self {
            tables: (0..n).map(|me| ContextTable::new(id(me), 0, 0)).collect(),
            outs: (0..n).map(|_| Outbox::new()).collect(),
            wires: BTreeMap::new(),
            alive: vec![true; n],
            events: Vec::new(),
            arrivals: Vec::new(),
            finished: false,
        }
    }

    pub(super) fn on<T>(
        &mut self,
        n: usize,
        input: impl FnOnce(&mut ContextTable, &mut Outbox<()>) -> T,
    ) -> T {
        let result = input(&mut self.tables[n], &mut self.outs[n]);
        while let Some(event) = self.outs[n].pop_event() {
            self.events.push((n, event));
        }
        while let Some((to, control)) = self.outs[n].pop_control() {
            let to = to.worker.0 as usize;
            if self.alive[to] {
                self.wires
                    .entry((n, to))
                    .or_default()
                    .push_back(Packet::Control(control));
            }
        }
        result
    }

    pub(super) fn open(&mut self, n: usize) -> ContextId {
        self.on(n, |table, _| table.open())
    }

    pub(super) fn release(&mut self, n: usize, context: ContextId) {
        self.on(n, |table, out| table.release(context, out))
            .unwrap();
    }

    /// Makes a call; it waits in the queue.
    pub(super) fn call(&mut self, from: usize, to: usize, context: ContextId) {
        self.on(from, |table, _| table.start_call(context, id(to)))
            .unwrap();
        self.wires
            .entry((from, to))
            .or_default()
            .push_back(Packet::Call(context));
    }

    /// Makes a call that is worked on at once, but leaves what follows from it on its way.
    pub(super) fn called(&mut self, from: usize, to: usize, context: ContextId) {
        self.call(from, to, context);
        self.deliver(from, to);
    }

    pub(super) fn finish_call(&mut self, n: usize, from: usize, context: ContextId) {
        self.on(n, |table, out| table.finish_call(context, id(from), out));
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let packet = self
            .wires
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let from_id = id(from);
        match packet.unwrap_or_else(|| panic!("nothing on its way from w{from} to w{to}")) {
            Packet::Call(context) => {
                let arrival = self.on(to, |table, out| table.receive_call(context, from_id, out));
                self.arrivals.push((from, to, arrival));
            }
            Packet::Control(control) => {
                self.on(to, |table, out| handle(table, from_id, control, out));
            }
        }
    }

    pub(super) fn busy(&self) -> Vec<(usize, usize)> {
        let busy = self.wires.iter().filter(|(_, queue)| !queue.is_empty());
        busy.map(|(&pair, _)| pair).collect()
    }

    pub(super) fn deliver_all(&mut self) {
        while let Some(&(from, to)) = self.busy().first() {
            self.deliver(from, to);
        }
    }

    /// The worker stops, and everyone learns of it in the given order, messages in between.
    pub(super) fn bury(&mut self, n: usize) {
        self.crash(n);
        for by in 0..self.tables.len() {
            if self.alive[by] {
                self.gone(by, n);
            }
        }
    }

    pub(super) fn crash(&mut self, n: usize) {
        self.alive[n] = false;
        self.wires.retain(|&(_, to), _| to != n);
    }

    pub(super) fn gone(&mut self, by: usize, n: usize) {
        self.wires.remove(&(n, by));
        self.on(by, |table, out| table.on_gone(id(n), out));
    }

    pub(super) fn released(&mut self) -> Vec<(usize, ContextId)> {
        let events = std::mem::take(&mut self.events);
        let released = events.into_iter().filter_map(|(n, event)| match event {
            Event::ContextReleased(context) => Some((n, context)),
            _ => None,
        });
        released.collect()
    }

    pub(super) fn finish(mut self) {
        self.finished = true;
        self.deliver_all();
        for n in (0..self.tables.len()).filter(|&n| self.alive[n]) {
            let table = &self.tables[n];
            assert!(table.is_empty(), "w{n} has {:?}", table.contexts());
            assert!(self.outs[n].is_empty());
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        assert!(
            self.finished || std::thread::panicking(),
            "end the test with finish()"
        );
    }
}

fn handle(table: &mut ContextTable, from: NodeId, control: Control, out: &mut Outbox<()>) {
    match control {
        Control::ContextDone(list) => {
            for (context, calls) in list {
                table.on_done(from, context, calls, out).unwrap();
            }
        }
        Control::ContextCleanup(list) => {
            list.into_iter()
                .for_each(|(context, below)| table.on_cleanup(from, context, below, out));
        }
        Control::ContextCleaned(list) => {
            list.into_iter()
                .for_each(|context| table.on_cleaned(from, context, out));
        }
        Control::ContextAttach(list) => {
            list.into_iter()
                .for_each(|context| table.on_attach(from, context, out).unwrap());
        }
        other => panic!("{other:?} is not about contexts"),
    }
}

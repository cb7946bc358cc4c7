//! The fixture: a few tables and, between each two of them, a queue that only the test moves.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{PeerMisbehaved, RefError};
use crate::event::{Event, Waiter};
use crate::ids::{Fingerprint, MessageId, NodeId, RRefId};
use crate::message::{Carried, Control, Creation};
use crate::outbox::Outbox;
use crate::refs::{Fetch, RefTable, RefTableConfig};

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;
pub(super) const D: usize = 3;

/// The type of every value, unless a test says otherwise.
pub(super) const TYPE: Fingerprint = Fingerprint(0xf00d).native();

/// The first life of worker `n`.
pub(super) fn id(n: usize) -> NodeId {
    NodeId::new(n as u32, 1)
}

/// Request `request` of worker `n`.
pub(super) fn waiter(n: usize, request: u64) -> Waiter {
    Waiter {
        node: id(n),
        request: MessageId(request),
    }
}

/// What travels between tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    Control(Control),
    Fork(Carried),
    Create(Creation),
}

/// Tables of workers 0, 1, 2, … joined by queues, first in, first out for each pair.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<RefTable<u32>>,
    outs: Vec<Outbox<u32>>,
    wires: BTreeMap<(usize, usize), VecDeque<Packet>>,
    alive: Vec<bool>,
    freed: Vec<(RRefId, u32)>,
    events: Vec<(usize, Event<u32>)>,
    misbehaved: Vec<(usize, PeerMisbehaved)>,
    finished: bool,
}

impl Tables {
    pub(super) fn new(n: usize) -> Self {
        Self::with(n, RefTableConfig::default())
    }

    pub(super) fn with(n: usize, config: RefTableConfig) -> Self {
        Self {
            tables: (0..n).map(|me| RefTable::new(id(me), config)).collect(),
            outs: (0..n).map(|_| Outbox::new()).collect(),
            wires: BTreeMap::new(),
            alive: vec![true; n],
            freed: Vec::new(),
            events: Vec::new(),
            misbehaved: Vec::new(),
            finished: false,
        }
    }

    pub(super) fn table(&self, n: usize) -> &RefTable<u32> {
        &self.tables[n]
    }

    /// Does something to a table; its effects go onto the queues and into the logs.
    pub(super) fn on<T>(
        &mut self,
        n: usize,
        input: impl FnOnce(&mut RefTable<u32>, &mut Outbox<u32>) -> T,
    ) -> T {
        let result = input(&mut self.tables[n], &mut self.outs[n]);
        while let Some(event) = self.outs[n].pop_event() {
            if let Event::Freed { rref, value } = event {
                self.freed.push((rref, value));
            } else {
                self.events.push((n, event));
            }
        }
        while let Some((to, control)) = self.outs[n].pop_control() {
            let to = to.worker.0 as usize;
            if to == n {
                // What a node says to itself is heard at once.
                self.hand(n, n, Packet::Control(control)).unwrap();
            } else {
                self.push(n, to, Packet::Control(control));
            }
        }
        result
    }

    pub(super) fn push(&mut self, from: usize, to: usize, packet: Packet) {
        if self.alive[to] {
            self.wires.entry((from, to)).or_default().push_back(packet);
        }
    }

    // What programs do

    pub(super) fn local(&mut self, owner: usize, value: u32) -> RRefId {
        self.on(owner, |table, _| table.create_local(value, TYPE))
            .unwrap()
    }

    /// Asks `owner` for a value; the request waits in the queue.
    pub(super) fn remote(&mut self, by: usize, owner: usize) -> RRefId {
        let creation = self
            .on(by, |table, _| table.create_remote(id(owner), TYPE))
            .unwrap();
        self.push(by, owner, Packet::Create(creation));
        creation.share.rref
    }

    /// Asks `owner` for a value and waits until it is there and confirmed.
    pub(super) fn created(&mut self, by: usize, owner: usize, value: u32) -> RRefId {
        let rref = self.remote(by, owner);
        self.deliver_all();
        self.fulfil(owner, rref, value);
        rref
    }

    pub(super) fn fulfil(&mut self, owner: usize, rref: RRefId, value: u32) {
        self.on(owner, |table, out| table.fulfil(rref, value, out));
    }

    /// Puts a fork into a message that waits in the queue.
    pub(super) fn share(&mut self, from: usize, to: usize, rref: RRefId) -> Carried {
        let carried = self.on(from, |table, _| table.fork(rref, id(to))).unwrap();
        self.push(from, to, Packet::Fork(carried));
        carried
    }

    /// Shares a reference and lets everything settle.
    pub(super) fn shared(&mut self, from: usize, to: usize, rref: RRefId) {
        self.share(from, to, rref);
        self.deliver_all();
    }

    pub(super) fn drop_handle(&mut self, n: usize, rref: RRefId) {
        self.on(n, |table, out| table.drop_handle(rref, out));
    }

    pub(super) fn fetch(
        &mut self,
        owner: usize,
        rref: RRefId,
        by: Waiter,
    ) -> Result<Fetch<u32>, RefError> {
        self.on(owner, |table, _| table.fetch(rref, TYPE, by))
    }

    // What the network does

    /// The messages on their way.
    pub(super) fn pending(&self, from: usize, to: usize) -> Vec<Packet> {
        self.wires
            .get(&(from, to))
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Brings the oldest message of one queue to its receiver.
    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let packet = self
            .wires
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let packet = packet.unwrap_or_else(|| panic!("nothing on its way from {from} to {to}"));
        if let Err(error) = self.hand(from, to, packet) {
            self.misbehaved.push((to, error));
        }
    }

    /// Gives a message to a table as if it came from `from`.
    pub(super) fn hand(
        &mut self,
        from: usize,
        to: usize,
        packet: Packet,
    ) -> Result<(), PeerMisbehaved> {
        let from = id(from);
        self.on(to, |table, out| match packet {
            Packet::Fork(carried) => table.receive(from, &carried, out),
            Packet::Create(creation) => table.accept_creation(from, creation, out),
            Packet::Control(control) => handle(table, from, control, out),
        })
    }

    /// Empties one queue.
    pub(super) fn deliver_pair(&mut self, from: usize, to: usize) {
        while !self.pending(from, to).is_empty() {
            self.deliver(from, to);
        }
    }

    /// Empties all queues.
    pub(super) fn deliver_all(&mut self) {
        while let Some((from, to)) = self.busy().first().copied() {
            self.deliver(from, to);
        }
    }

    /// The pairs that have messages on their way.
    pub(super) fn busy(&self) -> Vec<(usize, usize)> {
        let busy = self.wires.iter().filter(|(_, queue)| !queue.is_empty());
        busy.map(|(&pair, _)| pair).collect()
    }

    /// Takes the messages of one queue away: the test gives them back, or not.
    pub(super) fn hold(&mut self, from: usize, to: usize) -> Vec<Packet> {
        self.wires
            .remove(&(from, to))
            .into_iter()
            .flatten()
            .collect()
    }

    // Departures

    /// The worker stops. What it has sent may still arrive.
    pub(super) fn crash(&mut self, n: usize) {
        self.alive[n] = false;
        self.wires.retain(|&(_, to), _| to != n);
    }

    /// One worker learns that another is gone: from now on it refuses its frames.
    pub(super) fn gone(&mut self, by: usize, n: usize) {
        self.wires.remove(&(n, by));
        self.on(by, |table, out| table.on_gone(id(n), out));
    }

    /// One worker learns that everyone knows.
    pub(super) fn settled(&mut self, by: usize, n: usize) {
        self.on(by, |table, out| table.on_settled(id(n), out));
    }

    /// The worker stops, all learn of it, and then learn that all know.
    pub(super) fn bury(&mut self, n: usize) {
        self.crash(n);
        self.live().into_iter().for_each(|by| self.gone(by, n));
        self.deliver_all();
        self.live().into_iter().for_each(|by| self.settled(by, n));
    }

    fn live(&self) -> Vec<usize> {
        (0..self.tables.len()).filter(|&n| self.alive[n]).collect()
    }

    // What the test looks at

    /// The values freed since the last look.
    pub(super) fn freed(&mut self) -> Vec<u32> {
        self.freed.drain(..).map(|(_, value)| value).collect()
    }

    /// The events of one worker since the last look, [`Event::Freed`] and [`Event::Confirmed`] aside.
    pub(super) fn events(&mut self, n: usize) -> Vec<Event<u32>> {
        let (of_n, rest) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|(at, _)| *at == n);
        self.events = rest;
        let of_n: Vec<(usize, Event<u32>)> = of_n;
        let events = of_n.into_iter().map(|(_, event)| event);
        events
            .filter(|event| !matches!(event, Event::Confirmed(_)))
            .collect()
    }

    /// Who holds the value besides its owner's program.
    pub(super) fn holders(&self, owner: usize, rref: RRefId) -> Vec<usize> {
        let leaks = self.tables[owner].leaks();
        let leak = leaks.into_iter().find(|leak| leak.rref == rref);
        let holders = leak.map(|leak| leak.holders).unwrap_or_default();
        let mut holders: Vec<usize> = holders
            .into_iter()
            .map(|(_, node)| node.worker.0 as usize)
            .collect();
        holders.sort_unstable();
        holders
    }

    /// Ends the test: everything arrives, nobody misbehaved, and nothing is left anywhere.
    pub(super) fn finish(mut self) {
        self.finished = true;
        self.deliver_all();
        assert_eq!(self.misbehaved, []);
        for n in self.live() {
            let table = &self.tables[n];
            assert!(
                table.counters().is_empty(),
                "w{n} has {:?}",
                table.counters()
            );
            assert!(table.is_empty(), "w{n} has {:?}", table.leaks());
            assert!(self.outs[n].is_empty());
        }
        assert_eq!(self.busy(), []);
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

fn handle(
    table: &mut RefTable<u32>,
    from: NodeId,
    control: Control,
    out: &mut Outbox<u32>,
) -> Result<(), PeerMisbehaved> {
    match control {
        Control::Register(list) => list
            .into_iter()
            .try_for_each(|entry| table.on_register(from, entry, out)),
        Control::Release(list) => list
            .into_iter()
            .try_for_each(|share| table.on_release(from, share, out)),
        Control::Accept(list) => list
            .into_iter()
            .try_for_each(|share| table.on_accept(from, share, out)),
        Control::Adopt(list) => list
            .into_iter()
            .try_for_each(|entry| table.on_adopt(from, entry)),
        Control::Confirm(list) => {
            list.into_iter()
                .for_each(|share| table.on_confirm(from, share, out));
            Ok(())
        }
        Control::Decline(list) => {
            list.into_iter()
                .for_each(|entry| table.on_decline(from, entry.share, entry.reason, out));
            Ok(())
        }
        other => panic!("{other:?} is not about references"),
    }
}

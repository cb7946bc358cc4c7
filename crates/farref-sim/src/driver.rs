//! A worker's process as the driver of its node: packets in, events acted on, messages out.

use std::time::Duration;

use farref_proto::{Control, Departure, Event, Lane, NodeId};

use crate::happening::Happening;
use crate::process::Packet;
use crate::world::{World, trace};

impl World {
    /// Lets the effects of an input take place: events at once, messages with the next flush.
    pub(crate) fn settle(&mut self, node: NodeId) {
        if self.has_resigned(node) {
            return;
        }
        while let Some(process) = self.process(node) {
            let Some(event) = process.out.pop_event() else {
                break;
            };
            self.on_event(node, event);
        }
        if self.process(node).is_some_and(|process| process.evicted) {
            self.check_evicted(node);
            return self.leave_the_stage(node);
        }
        let now = self.now;
        let most = self.conditions.max_flush.as_nanos() as u64;
        let wait = Duration::from_nanos(self.rng.u64(0..=most));
        let Some(process) = self.process(node) else {
            return;
        };
        if process.out.controls() > 0 && process.flush_scheduled.is_none() {
            process.flush_scheduled = Some(now);
            self.schedule(now + wait, Happening::Flush { node });
        }
    }

    pub(crate) fn flush(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let since = process.flush_scheduled.take().unwrap_or_default();
        while let Some((to, control)) = self.process(node).and_then(|p| p.out.pop_control()) {
            self.check_order(node, &control, since);
            self.send(node, to, Lane::Control, Packet::Control(control));
        }
    }

    pub(crate) fn poll(&mut self, node: NodeId) {
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        process.node.poll(now, &mut process.out);
        process.poll_scheduled = false;
        self.settle(node);
        self.schedule_poll(node);
    }

    pub(crate) fn schedule_poll(&mut self, node: NodeId) {
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        if let Some(due) = process.node.poll_timeout()
            && !process.poll_scheduled
        {
            process.poll_scheduled = true;
            self.schedule(
                due.max(now + Duration::from_micros(1)),
                Happening::Poll { node },
            );
        }
    }

    pub(crate) fn suspect(&mut self, node: NodeId, peer: NodeId) {
        if self.has_resigned(node) {
            return;
        }
        if self.is_unwelcome(node, peer) {
            return self.resign(node, peer);
        }
        self.oracle.unfit.remove(&(node, peer));
        trace!(self, "{node} suspects {peer}");
        self.oracle.suspicions.insert((node, peer));
        if let Some(process) = self.process(node) {
            process.node.suspect(peer, &mut process.out);
            self.settle(node);
        }
    }

    pub(crate) fn refused(&mut self, node: NodeId, by: NodeId) {
        trace!(self, "{node} is refused by {by}");
        if let Some(process) = self.process(node) {
            process.node.refused(by, &mut process.out);
            self.settle(node);
        }
    }

    /// A packet arrives at its worker.
    pub(crate) fn on_packet(&mut self, from: NodeId, to: NodeId, packet: &Packet) {
        if self.has_resigned(to) {
            return;
        }
        trace!(self, "{from} -> {to}: {packet:?}");
        self.stats.messages += 1;
        self.heard(from, to, packet);
        match packet {
            Packet::Control(control) => {
                self.stats.controls += 1;
                self.on_control(from, to, control);
            }
            Packet::Call(head, body) => self.on_call(from, to, head, *body),
            Packet::Answer(head, reply) => self.on_answer(from, to, head, *reply),
            Packet::Cancel(request) => {
                if let Some(process) = self.process(to) {
                    process
                        .node
                        .receive_cancel(from, *request, &mut process.out);
                }
            }
        }
        self.settle(to);
        self.oracle.handling = None;
        self.check_memory(to);
        self.schedule_poll(to);
    }

    fn on_control(&mut self, from: NodeId, to: NodeId, control: &Control) {
        if let Control::ContextCleanup(list) = control
            && self.together(from, to)
        {
            for (context, _) in list {
                self.oracle
                    .contexts
                    .entry(*context)
                    .or_default()
                    .closed_on
                    .insert(to);
            }
        }
        let now = self.now;
        self.begin_handling(from, to, control);
        let Some(process) = self.process(to) else {
            return;
        };
        if let Control::Adopt(list) = control {
            let by_creator = list.iter().filter(|it| it.share.rref.origin == from);
            process.program.adopted += by_creator.count();
        }
        if let Err(error) = process.node.handle(from, control.clone(), &mut process.out) {
            self.oracle
                .violated("F4", now, format!("{to} accuses {from}: {error}"));
        }
    }

    fn on_event(&mut self, node: NodeId, event: Event<u64>) {
        trace!(self, "{node}: {event:?}");
        match event {
            Event::Gone {
                node: peer,
                departure,
            } => {
                self.check_loss(node, peer, departure);
                if self.check_departure(node, peer, departure) {
                    self.lose_sponsor(node);
                }
                self.context_members_lost(peer);
                let left = departure == Departure::Left;
                let Some(channel) = self.channel(node, peer) else {
                    return;
                };
                // A leaver still gets what is queued for it, among that the answer to its good-bye.
                if left && channel.session.is_connected() {
                    channel.lingering = true;
                } else {
                    self.drop_channel(node, peer);
                    self.close_link(node, peer);
                }
            }
            // It asks another, and again: somebody may leave.
            Event::NoRoom { .. } => self.stats.faults.no_room += 1,
            Event::Minority(too_few) => self.check_minority(node, too_few),
            Event::Evicted => {
                self.stats.faults.evictions += 1;
                if let Some(process) = self.process(node) {
                    process.evicted = true;
                }
            }
            Event::Departed => self.kill(node),
            Event::ShutdownComplete => self.check_shutdown(node),
            Event::Welcomed => {
                self.check_welcomed(node);
                if let Some(refused_by) = self.let_in(node) {
                    return self.resign_at_once(node, refused_by);
                }
                self.keep_in_sight(node);
                self.start_program(node);
            }
            Event::Settled(peer) => {
                self.check_sides(node, peer);
                self.check_settled(node, peer);
            }
            Event::Joined(peer) => self.see(node, peer),
            event => self.on_program_event(node, event),
        }
    }
}

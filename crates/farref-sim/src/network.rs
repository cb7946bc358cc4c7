//! The network: connections that delay, lose, duplicate, reorder and break.
//!
//! A connection between two lives has an epoch; frames of an earlier epoch are dropped. Each lane
//! has its own stream, so lanes overtake each other, frames of one lane only when the network
//! reorders them (which a session takes for a broken connection and heals by replay).

use std::rc::Rc;
use std::time::Duration;

use farref_proto::{
    Frame, GroupId, HandshakeError, Lane, NodeId, Session, SessionConfig, SessionError,
    SessionEvent, Time,
};

use crate::config::Config;
use crate::happening::Happening;
use crate::link::{Parcel, pair};
use crate::process::{Channel, Packet, Process, Stamped};
use crate::world::World;

const GROUP: GroupId = GroupId(1);
const RECONNECT: Duration = Duration::from_millis(10);

impl World {
    /// Hands a packet to the session with its receiver, or to the sender itself.
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, lane: Lane, packet: Packet) {
        if from == to {
            let at = self.now + Duration::from_micros(1);
            self.schedule(
                at,
                Happening::Loopback {
                    node: from,
                    packet: Rc::new(packet),
                },
            );
            return;
        }
        let now = self.now;
        let (config, patience) = (self.config.clone(), self.patience.clone());
        let Some(process) = self.process(from) else {
            return;
        };
        let gone = process.node.membership().view().is_gone(to);
        if gone && !process.channels.contains_key(&to) {
            // Its session is over; if it still lives it will be told when it connects.
            return;
        }
        let channel = open_channel(process, to, now, &config, &patience);
        let number = channel.sent[lane.index()];
        channel.sent[lane.index()] += 1;
        let stamped = Rc::new(Stamped { number, packet });
        channel.session.enqueue(lane, stamped, 64);
        self.service(from, to);
    }

    /// Where a majority is needed, a worker keeps a connection with every member, to notice when one is lost.
    pub(crate) fn keep_in_sight(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let members: Vec<NodeId> = process.node.membership().view().members().collect();
        members.into_iter().for_each(|peer| self.see(node, peer));
    }

    /// The same with one of them.
    pub(crate) fn see(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now;
        let (config, patience) = (self.config.clone(), self.patience.clone());
        if !config.require_majority || node == peer {
            return;
        }
        self.oracle.met.entry(node).or_default().insert(peer);
        if let Some(process) = self.process(node)
            && !process.node.membership().view().is_gone(peer)
        {
            open_channel(process, peer, now, &config, &patience);
            self.service(node, peer);
        }
    }

    /// Lets a session send, act and set its timer.
    pub(crate) fn service(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now;
        loop {
            let Some(channel) = self.channel(node, peer) else {
                return;
            };
            let mut frames = Vec::new();
            while let Some(frame) = channel.session.poll_transmit(now) {
                frames.push(frame);
            }
            let event = channel.session.poll_event();
            let idle = !channel.session.is_connected() && !channel.connecting;
            for frame in frames {
                self.transmit(node, peer, frame);
            }
            match event {
                Some(SessionEvent::Suspect { .. }) => self.suspect(node, peer),
                Some(SessionEvent::Reset(_)) => self.disconnect(node, peer),
                Some(_) => {}
                None => {
                    if idle {
                        self.connect_later(node, peer, Duration::from_micros(50));
                    }
                    break;
                }
            }
        }
        let Some(channel) = self.channel(node, peer) else {
            return;
        };
        if let Some(due) = channel.session.poll_timeout()
            && channel
                .timer
                .is_none_or(|timer| due < timer || timer <= now)
        {
            let due = due.max(now + Duration::from_micros(1));
            channel.timer = Some(due);
            self.schedule(due, Happening::Timer { node, peer });
        }
    }

    pub(crate) fn on_timer(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now;
        let Some(channel) = self.channel(node, peer) else {
            return;
        };
        if channel.timer.is_some_and(|timer| timer <= now) {
            channel.timer = None;
        }
        if channel.session.poll_timeout().is_some_and(|due| due <= now) {
            channel.session.handle_timeout(now);
        }
        self.service(node, peer);
    }

    pub(crate) fn connect_later(&mut self, node: NodeId, peer: NodeId, after: Duration) {
        let at = self.now + after;
        if let Some(channel) = self.channel(node, peer)
            && !channel.connecting
        {
            channel.connecting = true;
            self.schedule(at, Happening::Connect { node, peer });
        }
    }

    /// One end tries to connect to the other.
    pub(crate) fn on_connect(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now;
        let Some(channel) = self.channel(node, peer) else {
            return;
        };
        channel.connecting = false;
        if channel.session.is_connected() {
            return;
        }
        let (config, patience) = (self.config.clone(), self.patience.clone());
        let link = self.links.entry(pair(node, peer)).or_default();
        if link.blocked_until > now {
            return self.connect_later(node, peer, RECONNECT * 2);
        }
        let (is_unfit, is_up) = (link.unfit, link.up);
        let runs = self.process(peer).is_some();
        if is_unfit && runs {
            self.not_taken(node, peer);
            return self.connect_later(node, peer, RECONNECT * 4);
        }
        if is_up && runs {
            // The other end has connected meanwhile; its greeting is on the way.
            return self.connect_later(node, peer, RECONNECT * 4);
        }
        let Some(other) = self.process(peer) else {
            if let Some(channel) = self.channel(node, peer) {
                channel.session.connection_refused(now);
                channel.connecting = false;
            }
            self.connect_later(node, peer, RECONNECT * 4);
            self.service(node, peer);
            return;
        };
        if other.node.membership().view().is_gone(node) {
            let link = self.links.entry(pair(node, peer)).or_default();
            link.epoch += 1;
            let epoch = link.epoch;
            self.deliver_later(peer, node, epoch, Parcel::Refused);
            return self.connect_later(node, peer, RECONNECT * 8);
        }
        let other_end = open_channel(other, node, now, &config, &patience);
        if other_end.session.is_connected() {
            other_end.session.connection_lost(now);
        }
        let answer = other_end.session.connection_opened(now);
        let Some(channel) = self.channel(node, peer) else {
            return;
        };
        let hello = channel.session.connection_opened(now);
        let link = self.links.entry(pair(node, peer)).or_default();
        link.epoch += 1;
        link.up = true;
        let epoch = link.epoch;
        self.deliver_later(node, peer, epoch, Parcel::Hello(hello));
        self.deliver_later(peer, node, epoch, Parcel::Hello(answer));
        self.service(node, peer);
        self.service(peer, node);
    }

    /// One end closes the connection; the other notices a little later.
    pub(crate) fn disconnect(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now;
        let link = self.links.entry(pair(node, peer)).or_default();
        let was_up = std::mem::replace(&mut link.up, false);
        let epoch = link.epoch;
        if let Some(channel) = self.channel(node, peer) {
            channel.session.connection_lost(now);
            self.connect_later(node, peer, RECONNECT);
        }
        if was_up {
            let delay = self.delay();
            self.deliver_at(now + delay, node, peer, epoch, Parcel::Closed);
        }
    }

    /// Closes a connection from one end, which has no session any more.
    pub(crate) fn close_link(&mut self, node: NodeId, peer: NodeId) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&pair(node, peer)) else {
            return;
        };
        if std::mem::replace(&mut link.up, false) {
            let epoch = link.epoch;
            self.deliver_at(self.now + delay, node, peer, epoch, Parcel::Closed);
        }
    }

    /// Puts a frame on the network.
    fn transmit(&mut self, from: NodeId, to: NodeId, frame: Frame<Rc<Stamped>>) {
        let Some(link) = self.links.get(&pair(from, to)) else {
            return;
        };
        if !link.up || link.blocked_until > self.now {
            self.stats.faults.frames_lost += 1;
            return;
        }
        let epoch = link.epoch;
        self.stats.frames += 1;
        if self.chance(self.conditions.loss) {
            self.stats.faults.frames_lost += 1;
            return;
        }
        if self.chance(self.conditions.duplication) {
            self.stats.faults.frames_duplicated += 1;
            self.deliver_later(from, to, epoch, Parcel::Frame(frame.clone()));
        }
        if self.chance(self.conditions.reordering) {
            self.stats.faults.frames_reordered += 1;
            let at = self.now + self.delay();
            self.deliver_at(at, from, to, epoch, Parcel::Frame(frame));
            return;
        }
        self.deliver_later(from, to, epoch, Parcel::Frame(frame));
    }

    /// Schedules an arrival behind those that were sent before on the same stream.
    fn deliver_later(&mut self, from: NodeId, to: NodeId, epoch: u64, parcel: Parcel) {
        let lane = match &parcel {
            Parcel::Frame(Frame::Data { lane, .. }) => *lane,
            _ => Lane::Control,
        };
        let delay = self.delay();
        let now = self.now;
        let key = pair(from, to);
        let link = self.links.entry(key).or_default();
        let last = &mut link.last_arrival[usize::from(from == key.0)][lane.index()];
        let at = (now + delay).max(*last + Duration::from_nanos(1));
        *last = at;
        self.deliver_at(at, from, to, epoch, parcel);
    }

    pub(crate) fn deliver_at(
        &mut self,
        at: Time,
        from: NodeId,
        to: NodeId,
        epoch: u64,
        parcel: Parcel,
    ) {
        self.schedule(
            at,
            Happening::Deliver {
                from,
                to,
                epoch,
                parcel,
            },
        );
    }

    pub(crate) fn on_deliver(&mut self, from: NodeId, to: NodeId, epoch: u64, parcel: Parcel) {
        let now = self.now;
        let Some(link) = self.links.get(&pair(from, to)) else {
            return;
        };
        if link.epoch != epoch {
            return;
        }
        let up = link.up;
        match parcel {
            Parcel::Closed => {
                self.links.entry(pair(from, to)).or_default().up = false;
                if let Some(channel) = self.channel(to, from) {
                    channel.session.connection_lost(now);
                    if channel.lingering {
                        self.drop_channel(to, from);
                    } else {
                        self.connect_later(to, from, RECONNECT);
                        self.service(to, from);
                    }
                }
            }
            Parcel::Refused => self.refused(to, from),
            Parcel::Hello(hello) if up => {
                let (config, patience) = (self.config.clone(), self.patience.clone());
                let Some(process) = self.process(to) else {
                    return;
                };
                if process.node.membership().view().is_gone(from) {
                    return;
                }
                let channel = open_channel(process, from, now, &config, &patience);
                match channel.session.handle_hello(now, &hello) {
                    Ok(()) => self.service(to, from),
                    Err(HandshakeError::ResumeImpossible { .. }) => self.oracle.violated(
                        "D2",
                        now,
                        format!("{to} cannot resume its session with {from}"),
                    ),
                    Err(_) => self.disconnect(to, from),
                }
            }
            Parcel::Frame(frame) if up => self.on_frame(from, to, frame),
            Parcel::Hello(_) | Parcel::Frame(_) => {}
        }
    }

    fn on_frame(&mut self, from: NodeId, to: NodeId, frame: Frame<Rc<Stamped>>) {
        let now = self.now;
        let Some(channel) = self.channel(to, from) else {
            return;
        };
        match channel.session.handle_frame(now, frame) {
            Ok(Some((lane, stamped))) => {
                let expected = channel.received[lane.index()];
                channel.received[lane.index()] += 1;
                if stamped.number != expected {
                    self.oracle.violated(
                        "D2",
                        now,
                        format!(
                            "{to} got packet {} of {from}'s {lane:?} lane, {expected} was due",
                            stamped.number
                        ),
                    );
                }
                self.on_packet(from, to, &stamped.packet);
            }
            Ok(None) => {}
            Err(SessionError::Gap { .. }) => self.disconnect(to, from),
            Err(SessionError::NotConnected) => {}
            Err(error) => {
                self.oracle
                    .violated("F4", now, format!("{to} accuses {from}: {error}"));
            }
        }
        self.service(to, from);
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let most = self.conditions.max_delay.as_nanos() as u64;
        Duration::from_nanos(self.rng.u64(20_000..=most.max(20_001)))
    }

    pub(crate) fn channel(&mut self, node: NodeId, peer: NodeId) -> Option<&mut Channel> {
        self.process(node)?.channels.get_mut(&peer)
    }

    pub(crate) fn drop_channel(&mut self, node: NodeId, peer: NodeId) {
        if let Some(process) = self.process(node) {
            process.channels.remove(&peer);
        }
    }
}

/// The channel to a peer, made if it is not there.
fn open_channel<'a>(
    process: &'a mut Process,
    peer: NodeId,
    now: Time,
    config: &Config,
    patience: &SessionConfig,
) -> &'a mut Channel {
    let me = process.me();
    process.channels.entry(peer).or_insert_with(|| {
        let mut session = Session::new(me, peer, GROUP, patience.clone(), now);
        config.break_session(&mut session);
        Channel {
            session,
            sent: [0; Lane::COUNT],
            received: [0; Lane::COUNT],
            timer: None,
            lingering: false,
            connecting: false,
        }
    })
}

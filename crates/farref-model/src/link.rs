//! Two sessions over a connection that loses, duplicates, reorders and breaks.

use std::time::Duration;

use farref_proto::{
    Frame, GroupId, Hello, Lane, NodeId, Session, SessionConfig, SessionError, Time,
};
use stateright::{Model, Property};

/// How large the model is. Time stands still: what timers would do (notice a stuck connection and
/// cut it) may happen at any moment anyway.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Link {
    /// How many frames each end sends, in turn on the control and the bulk lane.
    pub frames: u8,
    /// How many frames are lost without the connection breaking.
    pub losses: u32,
    /// How many frames arrive twice.
    pub duplicates: u32,
    /// How often the connection breaks, each time losing all that is on it.
    pub cuts: u32,
    /// How often a frame overtakes those before it.
    pub overtakings: u32,
    /// Sessions forget that they have handed a frame over.
    #[cfg(feature = "mutations")]
    pub break_dedup: bool,
    /// Sessions do not send again what a broken connection lost.
    #[cfg(feature = "mutations")]
    pub break_replay: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            frames: 2,
            losses: 0,
            duplicates: 0,
            cuts: 1,
            overtakings: 0,
            #[cfg(feature = "mutations")]
            break_dedup: false,
            #[cfg(feature = "mutations")]
            break_replay: false,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Parcel {
    Hello(Hello),
    Frame(Frame<u8>),
}

/// Everything at one moment. End 0 is the left one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinkState {
    ends: [Session<u8>; 2],
    /// What is on its way to each end, if there is a connection.
    towards: Option<[Vec<Parcel>; 2]>,
    enqueued: [u8; 2],
    received: [[Vec<u8>; Lane::COUNT]; 2],
    losses: u32,
    duplicates: u32,
    cuts: u32,
    overtakings: u32,
    fault: bool,
}

/// Something that can happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkAction {
    /// An end's owner sends the next frame.
    Enqueue(usize),
    /// An end writes a frame to the connection.
    Transmit(usize),
    /// The parcel at this place arrives at an end.
    Deliver(usize, usize),
    /// It arrives, and will arrive again.
    DeliverTwice(usize, usize),
    /// It is lost.
    Lose(usize, usize),
    /// The connection breaks.
    Cut,
    /// A connection is made.
    Connect,
}

const NOW: Time = Time(1);

fn lane_of(payload: u8) -> Lane {
    if payload.is_multiple_of(2) {
        Lane::Control
    } else {
        Lane::Bulk
    }
}

impl LinkState {
    fn in_order(&self) -> bool {
        !self.fault
            && self.received.iter().all(|lanes| {
                Lane::ALL.into_iter().all(|lane| {
                    let due = (0..).filter(|&payload| lane_of(payload) == lane);
                    lanes[lane.index()]
                        .iter()
                        .copied()
                        .eq(due.take(lanes[lane.index()].len()))
                })
            })
    }

    fn complete(&self, frames: u8) -> bool {
        self.received
            .iter()
            .all(|lanes| lanes.iter().map(Vec::len).sum::<usize>() == usize::from(frames))
    }
}

impl Model for Link {
    type State = LinkState;
    type Action = LinkAction;

    fn init_states(&self) -> Vec<LinkState> {
        let (left, right) = (NodeId::new(0, 1), NodeId::new(1, 1));
        let mut config = SessionConfig::default();
        config.ack_delay = Duration::ZERO;
        let session = |local, remote| {
            #[allow(unused_mut, reason = "only broken sessions are changed")]
            let mut session = Session::new(local, remote, GroupId(1), config.clone(), NOW);
            #[cfg(feature = "mutations")]
            {
                if self.break_dedup {
                    session.break_dedup();
                }
                if self.break_replay {
                    session.break_replay();
                }
            }
            session
        };
        vec![LinkState {
            ends: [session(left, right), session(right, left)],
            towards: None,
            enqueued: [0; 2],
            received: Default::default(),
            losses: self.losses,
            duplicates: self.duplicates,
            cuts: self.cuts,
            overtakings: self.overtakings,
            fault: false,
        }]
    }

    fn actions(&self, state: &LinkState, actions: &mut Vec<LinkAction>) {
        for end in 0..2 {
            if state.enqueued[end] < self.frames {
                actions.push(LinkAction::Enqueue(end));
            }
        }
        let Some(towards) = &state.towards else {
            actions.push(LinkAction::Connect);
            return;
        };
        for (end, parcels) in towards.iter().enumerate() {
            if state.ends[end].clone().poll_transmit(NOW).is_some() {
                actions.push(LinkAction::Transmit(end));
            }
            let reach = if state.overtakings > 0 {
                parcels.len()
            } else {
                1
            };
            for (at, parcel) in parcels.iter().enumerate().take(reach) {
                actions.push(LinkAction::Deliver(end, at));
                let is_frame = matches!(parcel, Parcel::Frame(_)) && at == 0;
                if is_frame && state.duplicates > 0 {
                    actions.push(LinkAction::DeliverTwice(end, at));
                }
                if is_frame && state.losses > 0 {
                    actions.push(LinkAction::Lose(end, at));
                }
            }
        }
        // A connection on which something was lost without trace is stuck; its timer cuts it.
        let stuck = towards.iter().all(Vec::is_empty)
            && state.ends.iter().any(|end| end.unacked() > 0)
            && actions.is_empty();
        if state.cuts > 0 || stuck {
            actions.push(LinkAction::Cut);
        }
    }

    fn next_state(&self, last: &LinkState, action: LinkAction) -> Option<LinkState> {
        let mut state = last.clone();
        match action {
            LinkAction::Enqueue(end) => {
                let payload = state.enqueued[end];
                state.enqueued[end] += 1;
                state.ends[end].enqueue(lane_of(payload), payload, 1);
            }
            LinkAction::Transmit(end) => {
                let frame = state.ends[end].poll_transmit(NOW)?;
                state.towards.as_mut()?[1 - end].push(Parcel::Frame(frame));
            }
            LinkAction::Deliver(end, at) => {
                state.overtakings -= u32::from(at > 0);
                let parcel = state.towards.as_mut()?[end].remove(at);
                state.receive(end, parcel);
            }
            LinkAction::DeliverTwice(end, at) => {
                state.duplicates -= 1;
                let parcel = state.towards.as_ref()?[end].get(at)?.clone();
                state.receive(end, parcel);
            }
            LinkAction::Lose(end, at) => {
                state.losses -= 1;
                state.towards.as_mut()?[end].remove(at);
            }
            LinkAction::Cut => {
                state.cuts = state.cuts.saturating_sub(1);
                state.disconnect();
            }
            LinkAction::Connect => {
                let hellos = [0, 1].map(|end| state.ends[1 - end].connection_opened(NOW));
                state.towards = Some(hellos.map(|hello| vec![Parcel::Hello(hello)]));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("D2: exactly once and in order", |_, state: &LinkState| {
                state.in_order()
            }),
            Property::eventually(
                "D2: everything arrives",
                |model: &Self, state: &LinkState| {
                    state.complete(model.frames) && state.ends.iter().all(|end| end.unacked() == 0)
                },
            ),
            Property::sometimes("a frame is replayed", |_, state: &LinkState| {
                state.ends.iter().any(|end| end.counters().replayed > 0)
            }),
        ]
    }
}

impl LinkState {
    fn disconnect(&mut self) {
        self.towards = None;
        for end in &mut self.ends {
            end.connection_lost(NOW);
        }
    }

    fn receive(&mut self, end: usize, parcel: Parcel) {
        match parcel {
            Parcel::Hello(hello) => {
                self.fault |= self.ends[end].handle_hello(NOW, &hello).is_err();
            }
            Parcel::Frame(frame) => match self.ends[end].handle_frame(NOW, frame) {
                Ok(Some((lane, payload))) => self.received[end][lane.index()].push(payload),
                Ok(None) => {}
                // What a real owner does: close the connection; the next one replays.
                Err(SessionError::Gap { .. } | SessionError::NotConnected) => self.disconnect(),
                Err(_) => self.fault = true,
            },
        }
    }
}

//! Two sessions, the links between them and a clock that only moves when told to.
//!
//! When a [`Pair`] is dropped it lets arrive what is under way and then holds both ends to SE-1 and
//! SE-2: all that was accepted has been handed over once and in order, and nothing is stored.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use super::*;

pub(super) const LEFT: usize = 0;
pub(super) const RIGHT: usize = 1;

pub(super) const GROUP: GroupId = GroupId(7);

/// The lives at the two ends: both workers have been restarted before.
pub(super) const NODES: [NodeId; 2] = [NodeId::new(0, 3), NodeId::new(1, 5)];

/// What a link carries.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Hello(Hello),
    Frame(Frame<u64>),
}

/// An end refused what it was given, which breaks the connection.
#[derive(Debug)]
pub(super) struct Broken;

/// Two ends of one session. Arrays are indexed by [`LEFT`] and [`RIGHT`].
pub(super) struct Pair {
    pub(super) now: Time,
    pub(super) ends: [Session<u64>; 2],
    /// What is on its way *to* each end.
    pub(super) links: [VecDeque<Item>; 2],
    /// Whether what is sent *to* an end vanishes.
    pub(super) muted: [bool; 2],
    pub(super) events: [Vec<SessionEvent>; 2],
    pub(super) accepted: [Vec<(Lane, u64)>; 2],
    pub(super) delivered: [Vec<(Lane, u64)>; 2],
    abandoned: bool,
}

impl Pair {
    /// Two ends that are not connected.
    pub(super) fn new(config: SessionConfig) -> Self {
        let now = Time(1_000_000_000);
        let end =
            |local: usize| Session::new(NODES[local], NODES[1 - local], GROUP, config.clone(), now);
        Self {
            now,
            ends: [end(LEFT), end(RIGHT)],
            links: Default::default(),
            muted: [false; 2],
            events: Default::default(),
            accepted: Default::default(),
            delivered: Default::default(),
            abandoned: false,
        }
    }

    /// Two ends that have greeted.
    pub(super) fn connected() -> Self {
        Self::connected_with(SessionConfig::default())
    }

    pub(super) fn connected_with(config: SessionConfig) -> Self {
        let mut pair = Self::new(config);
        pair.connect();
        pair.exchange();
        assert!(pair.ends.iter().all(Session::is_connected));
        pair
    }

    /// Makes a connection, in place of the one there is, and puts the greetings on their way.
    pub(super) fn connect(&mut self) {
        for link in &mut self.links {
            link.clear();
        }
        for end in [LEFT, RIGHT] {
            let hello = self.ends[end].connection_opened(self.now);
            self.carry(1 - end, Item::Hello(hello));
        }
    }

    /// Breaks the connection; what is on its way is lost.
    pub(super) fn cut(&mut self) {
        for end in [LEFT, RIGHT] {
            self.ends[end].connection_lost(self.now);
            self.links[end].clear();
        }
    }

    fn carry(&mut self, to: usize, item: Item) {
        if !self.muted[to] {
            self.links[to].push_back(item);
        }
    }

    /// Enqueues a frame of weight one.
    pub(super) fn send(&mut self, end: usize, lane: Lane, payload: u64) {
        self.enqueue(end, lane, payload, 1);
    }

    pub(super) fn enqueue(&mut self, end: usize, lane: Lane, payload: u64, bytes: usize) {
        self.ends[end].enqueue(lane, payload, bytes);
        self.accepted[end].push((lane, payload));
    }

    /// Puts the next frame of an end on its way. Says whether there was one.
    pub(super) fn transmit(&mut self, end: usize) -> bool {
        let frame = self.ends[end].poll_transmit(self.now);
        let some = frame.is_some();
        if let Some(frame) = frame {
            self.carry(1 - end, Item::Frame(frame));
        }
        some
    }

    /// All the frames an end wants to send; they go nowhere.
    pub(super) fn drain(&mut self, end: usize) -> Vec<Frame<u64>> {
        let now = self.now;
        std::iter::from_fn(|| self.ends[end].poll_transmit(now)).collect()
    }

    /// Hands the next item on its way to an end over. Says whether there was one.
    pub(super) fn deliver(&mut self, end: usize) -> Result<bool, Broken> {
        let Some(item) = self.links[end].pop_front() else {
            return Ok(false);
        };
        let session = &mut self.ends[end];
        match item {
            Item::Hello(hello) => session
                .handle_hello(self.now, &hello)
                .map_err(|_refused| Broken)?,
            Item::Frame(frame) => {
                let news = session
                    .handle_frame(self.now, frame)
                    .map_err(|_refused| Broken)?;
                self.delivered[end].extend(news);
            }
        }
        Ok(true)
    }

    /// Lets the ends talk until neither has anything to say at this time.
    pub(super) fn exchange(&mut self) {
        loop {
            let mut moved = false;
            for end in [LEFT, RIGHT] {
                while self.transmit(end) {
                    moved = true;
                }
                while self.deliver(1 - end).expect("a whole connection") {
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        self.collect_events();
    }

    pub(super) fn collect_events(&mut self) {
        for end in [LEFT, RIGHT] {
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event);
            }
        }
    }

    /// When the next timer of either end falls due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.ends.iter().filter_map(Session::poll_timeout).min()
    }

    /// Lets time pass, with the ends talking and their timers firing on the way.
    pub(super) fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        loop {
            self.exchange();
            let Some(next) = self.timeout().filter(|next| *next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            self.fire();
        }
        self.now = until;
        self.fire();
        self.exchange();
    }

    /// Tells both ends what time it is.
    pub(super) fn fire(&mut self) {
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        self.collect_events();
    }

    /// What an end was handed over on one lane.
    pub(super) fn delivered_on(&self, end: usize, lane: Lane) -> Vec<u64> {
        on_lane(&self.delivered[end], lane)
    }

    /// Excuses the pair from the laws that hold only while both ends live.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Holds the pair to SE-1 and SE-2.
    pub(super) fn assert_all_arrived(&self) {
        for end in [LEFT, RIGHT] {
            for lane in Lane::ALL {
                assert_eq!(
                    self.delivered_on(1 - end, lane),
                    on_lane(&self.accepted[end], lane),
                    "SE-1 on the {lane} lane from end {end}"
                );
                assert_eq!(self.ends[end].stored_bytes(lane), 0, "SE-2: bytes left");
            }
            assert_eq!(self.ends[end].unacked(), 0, "SE-2: frames left");
        }
    }
}

fn on_lane(frames: &[(Lane, u64)], lane: Lane) -> Vec<u64> {
    frames
        .iter()
        .filter(|(on, _)| *on == lane)
        .map(|(_, payload)| *payload)
        .collect()
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.abandoned || thread::panicking() {
            return;
        }
        self.pass(Duration::from_millis(100));
        self.assert_all_arrived();
    }
}

//! Frames out and frames in, on a connection on which both ends have greeted.
//!
//! Holds SE-3, SE-4 and SE-8, and the receiver's part of SE-1.

use crate::time::Time;

use super::Session;
use super::error::SessionError;
use super::wire::{Acks, Frame, Lane};

impl<F: Clone> Session<F> {
    /// The next frame to write to the present connection, if there is one.
    ///
    /// To be called only when the connection can take a frame: what is taken too early is beyond
    /// the reach of more urgent frames.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Frame<F>> {
        self.poll_transmit_on(now, &Lane::ALL)
    }

    /// Like [`poll_transmit`](Self::poll_transmit), for one of several streams that make up the
    /// present connection: only data of these lanes is given out.
    ///
    /// Each lane has to travel on one stream of a connection, always the same. Heartbeats and
    /// acknowledgements of their own travel with [`Lane::Control`]. What data on another stream
    /// acknowledges is said there once more: that stream may be slow.
    pub fn poll_transmit_on(&mut self, now: Time, lanes: &[Lane]) -> Option<Frame<F>> {
        if !self.is_connected() {
            return None;
        }
        let leads = lanes.contains(&Lane::Control);
        if leads
            && self.owes_frame(now)
            && let Some(frame) = self.poll_own(now)
        {
            return Some(frame);
        }
        let lane = Lane::ALL
            .into_iter()
            .find(|lane| self.outboxes[lane.index()].has_more() && lanes.contains(lane))?;
        let outgoing = self.outboxes[lane.index()].transmit()?;
        if outgoing.replayed {
            self.tally.0.replayed += 1;
        } else {
            self.tally.0.sent += 1;
        }
        self.unacked_since[lane.index()].get_or_insert(now);
        Some(Frame::Data {
            lane,
            seq: outgoing.seq,
            acks: if leads {
                self.inbox.announce()
            } else {
                self.inbox.acks()
            },
            payload: outgoing.payload,
        })
    }

    /// The next frame that is the session's own and carries no data.
    fn poll_own(&mut self, now: Time) -> Option<Frame<F>> {
        if let Some(generation) = self.liveness.take_pong() {
            let acks = self.inbox.announce();
            return Some(Frame::Pong { generation, acks });
        }
        if let Some(generation) = self.liveness.take_ping(now, &self.config) {
            let acks = self.inbox.announce();
            return Some(Frame::Ping { generation, acks });
        }
        if self.inbox.ack_is_due(now) {
            let acks = self.inbox.announce();
            return Some(Frame::Ack { acks });
        }
        None
    }
}

impl<F> Session<F> {
    /// A frame came on the present connection. Returns what it brought, if that is new.
    pub fn handle_frame(
        &mut self,
        now: Time,
        frame: Frame<F>,
    ) -> Result<Option<(Lane, F)>, SessionError> {
        self.handle_frame_with(now, frame, drop)
    }

    /// Like [`handle_frame`](Self::handle_frame), and gives each frame that it acknowledges to
    /// `acknowledged`: an owner that keeps the session behind a lock can drop them outside it.
    ///
    /// What a peer sends is not stored, so its payload `G` may have another type than what is
    /// enqueued here, say that of a decoded message.
    pub fn handle_frame_with<G>(
        &mut self,
        now: Time,
        frame: Frame<G>,
        acknowledged: impl FnMut(F),
    ) -> Result<Option<(Lane, G)>, SessionError> {
        self.check_frame(&frame)?;
        self.apply_acks(now, frame.acks(), acknowledged);
        match frame {
            Frame::Data {
                lane, seq, payload, ..
            } => {
                self.liveness.heard(now);
                self.inbox.owe_ack(now, &self.config);
                Ok(self.deliver(lane, seq, payload))
            }
            Frame::Ack { .. } => {
                self.liveness.heard(now);
                Ok(None)
            }
            Frame::Ping { generation, .. } => {
                self.liveness.heard(now);
                self.liveness.handle_ping(generation);
                Ok(None)
            }
            Frame::Pong { generation, .. } => {
                let current = self.liveness.handle_pong(now, generation);
                // A round trip shows that the connection works, unless data is in flight: then
                // only an acknowledgement shows that data gets through.
                if current && self.unacked_since.iter().all(Option::is_none) {
                    self.fruitless_resets = 0;
                }
                Ok(None)
            }
        }
    }

    /// Part of a frame was read from the present connection: a sign of life, however long the
    /// whole frame takes.
    pub fn handle_bytes_read(&mut self, now: Time) {
        if self.is_connected() {
            self.liveness.heard(now);
        }
    }

    /// The present connection took part of a frame of this lane: it is not stuck, however long the
    /// whole frame takes.
    pub fn handle_bytes_written(&mut self, now: Time, lane: Lane) {
        if let Some(since) = &mut self.unacked_since[lane.index()] {
            *since = now;
        }
    }

    /// Whether a heartbeat or an acknowledgement of its own is to leave now. Data aside, an owner
    /// need not call [`poll_transmit`](Self::poll_transmit) while it is not so.
    pub fn owes_frame(&self, now: Time) -> bool {
        self.is_connected() && (self.liveness.is_due() || self.inbox.ack_is_due(now))
    }

    /// Whatever was received is to be acknowledged by the next frame, without waiting for company:
    /// the owner is about to close the connection for good.
    pub fn acknowledge_now(&mut self) {
        self.inbox.hurry();
    }

    /// Checks all that can be wrong with a frame, before any of it takes effect.
    fn check_frame<G>(&self, frame: &Frame<G>) -> Result<(), SessionError> {
        if !self.is_connected() {
            return Err(SessionError::NotConnected);
        }
        let acks = frame.acks();
        for lane in Lane::ALL {
            let (acked, sent) = (acks.expected(lane), self.outboxes[lane.index()].sent());
            if acked > sent {
                return Err(SessionError::AckOfUnsent { lane, acked, sent });
            }
        }
        if let Frame::Data { lane, seq, .. } = *frame {
            let expected = self.inbox.expected(lane);
            if seq > expected {
                return Err(SessionError::Gap {
                    lane,
                    expected,
                    received: seq,
                });
            }
        }
        Ok(())
    }

    /// Drops what the peer has. Acknowledgements overtaken by later ones are without effect.
    fn apply_acks(&mut self, now: Time, acks: Acks, mut acknowledged: impl FnMut(F)) {
        let mut progress = false;
        for lane in Lane::ALL {
            let outbox = &mut self.outboxes[lane.index()];
            // Most frames acknowledge something of one lane, if at all.
            if acks.expected(lane) <= outbox.first() {
                continue;
            }
            if outbox.acknowledge(acks.expected(lane), &mut acknowledged) {
                progress = true;
                self.unacked_since[lane.index()] = outbox.in_flight().then_some(now);
            }
        }
        if progress {
            self.fruitless_resets = 0;
            self.liveness.heard(now);
        }
    }

    /// Hands a frame over if it is the one that is due. `check_frame` has excluded later ones.
    fn deliver<G>(&mut self, lane: Lane, seq: u64, payload: G) -> Option<(Lane, G)> {
        if seq < self.inbox.expected(lane) {
            self.tally.0.duplicates += 1;
            #[cfg(feature = "mutations")]
            if self.dedup_broken {
                return Some((lane, payload));
            }
            return None;
        }
        self.inbox.advance(lane);
        self.tally.0.delivered += 1;
        Some((lane, payload))
    }
}

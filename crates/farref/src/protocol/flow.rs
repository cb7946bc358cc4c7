//! How much this worker may ask of one peer at once (guarantee D5).
//!
//! A call counts from when it is sent until it is answered; a call whose result stays, until the peer
//! says that it has carried it out ([`Message::Credit`]). What is over the limit is parked here, in
//! order, and sent when there is room.
//!
//! # Invariants
//!
//! - **FL-1** No more calls are open with a peer than it said it accepts.
//! - **FL-2** No more bytes of arguments are open than [`MAX_OPEN_BYTES`], but a single call of any
//!   size passes alone.
//! - **FL-3** Calls leave in the order in which they were made.

use std::collections::VecDeque;
use std::time::Instant;

use farref_proto::MessageId;

use crate::agent::{CallMessage, Message};

/// What every worker accepts, also before it has said how much more.
const LEAST_CALLS: u32 = 64;

/// Bytes of arguments that may be open with one peer.
const MAX_OPEN_BYTES: u64 = 1 << 30;

/// Calls towards one peer: how many are open, which ones wait.
#[derive(Debug)]
pub(super) struct Flow {
    limit: u32,
    open_calls: u32,
    open_bytes: u64,
    parked: VecDeque<Parked>,
}

/// A call that waits for room.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) message: CallMessage,
    /// Its time limit runs while it waits.
    pub(super) deadline: Option<Instant>,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            limit: LEAST_CALLS,
            open_calls: 0,
            open_bytes: 0,
            parked: VecDeque::new(),
        }
    }
}

impl Flow {
    /// The peer says how many calls it accepts at once.
    pub(super) fn raise_limit(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Parks a call; [`next`](Self::next) gives it back when it may leave, which may be at once.
    pub(super) fn push(&mut self, call: Parked) {
        self.parked.push_back(call);
    }

    /// The next call that may leave.
    pub(super) fn next(&mut self) -> Option<Message> {
        let bytes = self.parked.front()?.message.arguments.len() as u64;
        let fits = self.open_calls == 0
            || (self.open_calls < self.limit && self.open_bytes + bytes <= MAX_OPEN_BYTES);
        if !fits {
            return None;
        }
        let Parked {
            mut message,
            deadline,
        } = self.parked.pop_front()?;
        self.open_calls += 1;
        self.open_bytes += bytes;
        message.remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        Some(Message::Call(message))
    }

    /// So many calls are no longer open.
    pub(super) fn release(&mut self, calls: u32, bytes: u64) {
        self.open_calls = self.open_calls.saturating_sub(calls);
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
    }

    /// Takes a parked call out again, if it has not left.
    pub(super) fn withdraw(&mut self, request: MessageId) -> Option<CallMessage> {
        let position = self
            .parked
            .iter()
            .position(|call| call.message.request() == Some(request))?;
        self.parked.remove(position).map(|call| call.message)
    }

    /// How many calls wait.
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }
}

//! How much this worker may ask of one peer at once (guarantee D5).
//!
//! A call counts from when it is sent until it is answered; a call whose result stays, until the peer
//! says that it has carried it out ([`Message::Credit`]). What is over the limit is parked here, in
//! order, and sent when there is room.
//!
//! Large calls and small ones wait in lines of their own, as they travel on streams of their own: a
//! large one, which may be open for long, holds up no small one.
//!
//! # Invariants
//!
//! - **FL-1** No more calls are open with a peer than it said it accepts.
//! - **FL-2** No more bytes of arguments are open than [`MAX_OPEN_BYTES`], but a large call of any
//!   size passes if no other large one is open. Small calls do not count, as their number is limited.
//! - **FL-3** Small calls leave in the order in which they were made, and so do large ones.

use std::collections::VecDeque;
use std::time::Instant;

use farref_proto::MessageId;

use crate::agent::{CallMessage, Message};

/// What every worker accepts, also before it has said how much more.
const LEAST_CALLS: u32 = 64;

/// Bytes of arguments that may be open with one peer.
const MAX_OPEN_BYTES: u64 = 1 << 30;

/// Arguments of up to this size make a small call.
const SMALL: u64 = 64 << 10;

/// Calls towards one peer: how many are open, which ones wait.
#[derive(Debug)]
pub(super) struct Flow {
    limit: u32,
    open_calls: u32,
    /// Of large calls.
    open_bytes: u64,
    small: VecDeque<Parked>,
    large: VecDeque<Parked>,
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
            small: VecDeque::new(),
            large: VecDeque::new(),
        }
    }
}

/// What arguments of some size count for (FL-2). Both ends count alike.
pub(crate) fn weigh(bytes: u64) -> u64 {
    if bytes > SMALL { bytes } else { 0 }
}

impl Flow {
    /// The peer says how many calls it accepts at once.
    pub(super) fn raise_limit(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Parks a call; [`next`](Self::next) gives it back when it may leave, which may be at once.
    pub(super) fn push(&mut self, call: Parked) {
        let line = match weigh(call.weight()) {
            0 => &mut self.small,
            _ => &mut self.large,
        };
        line.push_back(call);
    }

    /// The next call that may leave.
    pub(super) fn next(&mut self) -> Option<Message> {
        if self.open_calls >= self.limit {
            return None;
        }
        let call = match self.large.front().map(Parked::weight) {
            Some(bytes) if self.open_bytes == 0 || self.open_bytes + bytes <= MAX_OPEN_BYTES => {
                self.open_bytes += bytes;
                self.large.pop_front()
            }
            _ => self.small.pop_front(),
        };
        let Parked {
            mut message,
            deadline,
        } = call?;
        self.open_calls += 1;
        message.remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        Some(Message::Call(message))
    }

    /// So many calls are no longer open; their bytes have been [weighed](weigh).
    pub(super) fn release(&mut self, calls: u32, bytes: u64) {
        self.open_calls = self.open_calls.saturating_sub(calls);
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
    }

    /// Takes a parked call out again, if it has not left.
    pub(super) fn withdraw(&mut self, request: MessageId) -> Option<CallMessage> {
        [&mut self.small, &mut self.large]
            .into_iter()
            .find_map(|line| {
                let is_it = |call: &Parked| call.message.request() == Some(request);
                let position = line.iter().position(is_it)?;
                line.remove(position).map(|call| call.message)
            })
    }

    /// How many calls wait.
    pub(super) fn parked(&self) -> usize {
        self.small.len() + self.large.len()
    }
}

impl Parked {
    fn weight(&self) -> u64 {
        self.message.arguments.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use farref_proto::{CallHead, Target};

    use super::*;
    use crate::agent::{Origins, TraceContext};
    use crate::codec::Payload;

    fn call(id: u64, bytes: usize) -> Parked {
        Parked {
            message: CallMessage {
                head: CallHead {
                    target: Target::Answer(MessageId(id)),
                    context: None,
                    carried: Vec::new(),
                },
                function: None,
                remaining: None,
                trace: TraceContext::default(),
                callers: Vec::new(),
                origins: Origins::default(),
                arguments: Payload {
                    body: vec![0; bytes].into(),
                    parts: Vec::new(),
                },
            },
            deadline: None,
        }
    }

    fn leaving(flow: &mut Flow) -> Vec<u64> {
        std::iter::from_fn(|| match flow.next()? {
            Message::Call(call) => call.request().map(|id| id.0),
            _ => None,
        })
        .collect()
    }

    /// FL-2, FL-3
    #[test]
    fn a_large_call_holds_up_no_small_one() {
        let large = SMALL as usize + 1;
        let mut flow = Flow {
            open_bytes: MAX_OPEN_BYTES,
            open_calls: 1,
            ..Flow::default()
        };
        for (id, bytes) in [(1, large), (2, 10), (3, large), (4, 20)] {
            flow.push(call(id, bytes));
        }
        assert_eq!(leaving(&mut flow), [2, 4]);
        assert_eq!(flow.parked(), 2);
        flow.release(1, weigh(MAX_OPEN_BYTES));
        assert_eq!(leaving(&mut flow), [1, 3]);
        for bytes in [10, 20, large, large] {
            flow.release(1, weigh(bytes as u64));
        }
        assert_eq!((flow.open_calls, flow.open_bytes), (0, 0));
    }

    /// FL-1
    #[test]
    fn no_more_calls_leave_than_the_peer_accepts() {
        let mut flow = Flow::default();
        (0..100).for_each(|id| flow.push(call(id, 1)));
        assert_eq!(leaving(&mut flow).len(), LEAST_CALLS as usize);
        assert!(flow.withdraw(MessageId(99)).is_some());
        assert!(flow.withdraw(MessageId(0)).is_none(), "it has left");
        flow.raise_limit(1000);
        assert_eq!(
            leaving(&mut flow),
            (LEAST_CALLS.into()..99).collect::<Vec<u64>>()
        );
    }
}

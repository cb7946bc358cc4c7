//! How much this worker may ask of one peer at once (guarantee D5).
//!
//! A call counts from when it is sent until it is answered; a call whose result stays, until the peer
//! says that it has carried it out ([`Message::Credit`]). What is over the limit is parked here, in
//! order, and sent when there is room. What may be parked is limited too; callers beyond that have to
//! wait before their calls are made, and are told when to try again.
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
//! - **FL-4** No more calls are parked than the limit for those, and no more bytes of arguments than
//!   [`MAX_PARKED_BYTES`], but one call always is, and what can leave at once needs no place. Whoever
//!   found no place is told when there is a place again, and one that nobody takes is not lost on
//!   those who gave up.
//! - **FL-5** Parking a call and taking one out again cost the same however many are parked, and
//!   what was taken out leaves nothing behind that grows, nor does who gave up waiting for a place.
//! - **FL-6** Of parked calls that may leave, the one that was made first does.

use std::collections::{HashMap, VecDeque};

use farref_proto::MessageId;
use tokio::sync::oneshot;

use crate::agent::{CallMessage, Message, weigh};
use crate::support::clock::Instant;
use crate::support::mutation::mutated;

/// Calls of one peer that a worker accepts at once unless told otherwise.
pub(crate) const DEFAULT_MAX_CALLS: u32 = 16_384;

/// Calls to one peer that may wait for it unless told otherwise.
pub(crate) const DEFAULT_MAX_PARKED: usize = 262_144;

/// What every worker accepts, also before it has said how much more.
const LEAST_CALLS: u32 = 64;

/// Bytes of arguments that may be open with one peer.
const MAX_OPEN_BYTES: u64 = 1 << 30;

/// Bytes of arguments that may wait for one peer.
const MAX_PARKED_BYTES: u64 = 1 << 30;

/// Calls towards one peer: how many are open, which ones wait.
#[derive(Debug)]
pub(crate) struct Flow {
    limit: u32,
    open_calls: u32,
    /// Of large calls.
    open_bytes: u64,
    small: Line,
    large: Line,
    /// The numbers of those parked calls that can be withdrawn.
    numbers: HashMap<MessageId, u64, crate::support::simulation::RandomState>,
    next_number: u64,
    parked_bytes: u64,
    /// Who waits to be told that a call can be parked.
    waiting_for_room: VecDeque<oneshot::Sender<()>>,
    /// How many of those make it worth while to look for some that gave up (FL-5).
    tidy_waiting_for_room_at: usize,
}

/// Calls that wait, in order.
#[derive(Debug, Default)]
struct Line {
    calls: HashMap<u64, Parked, crate::support::simulation::RandomState>,
    /// The numbers of these calls, and of some that were taken out.
    order: VecDeque<u64>,
}

/// Those who waited for a place and need not any more. To be let go of after the lock (PR-2).
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    /// To be told that there is a place.
    pub(crate) told: Vec<oneshot::Sender<()>>,
    /// Nobody listens.
    pub(crate) gave_up: Vec<oneshot::Sender<()>>,
}

/// A call that waits for room.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) message: CallMessage,
    /// Its time limit runs while it waits.
    pub(crate) deadline: Option<Instant>,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            limit: LEAST_CALLS,
            open_calls: 0,
            open_bytes: 0,
            small: Line::default(),
            large: Line::default(),
            numbers: HashMap::default(),
            next_number: 0,
            parked_bytes: 0,
            waiting_for_room: VecDeque::new(),
            tidy_waiting_for_room_at: SPARE,
        }
    }
}

impl Flow {
    /// The peer says how many calls it accepts at once.
    pub(crate) fn raise_limit(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Whether a call with so many bytes of arguments leaves or can be parked (FL-4).
    pub(crate) fn has_place(&self, bytes: u64, most: usize) -> bool {
        if self.leaves_at_once(bytes) {
            return true;
        }
        let parked = self.parked();
        parked == 0 || (parked < most && self.parked_bytes + bytes <= MAX_PARKED_BYTES)
    }

    /// Whether a call with so many bytes of arguments need not be parked.
    pub(crate) fn leaves_at_once(&self, bytes: u64) -> bool {
        // Whatever is parked may not leave now, or it would have.
        self.line(bytes).calls.is_empty() && self.may_leave(bytes)
    }

    /// A call with so many bytes of arguments [leaves](Self::leaves_at_once).
    pub(crate) fn left(&mut self, bytes: u64) {
        self.open_calls += 1;
        self.open_bytes += weigh(bytes);
    }

    /// The line that a call with so many bytes of arguments waits in.
    fn line(&self, bytes: u64) -> &Line {
        if weigh(bytes) == 0 {
            &self.small
        } else {
            &self.large
        }
    }

    /// Asks to be told when that may have changed. Gives back who gave up: their wakers are the
    /// program's, and must not go under the lock (PR-2).
    pub(crate) fn wait_for_room(&mut self) -> (oneshot::Receiver<()>, Vec<oneshot::Sender<()>>) {
        let mut gave_up = Vec::new();
        if self.waiting_for_room.len() >= self.tidy_waiting_for_room_at {
            let all = std::mem::take(&mut self.waiting_for_room);
            for waiting in all {
                if waiting.is_closed() {
                    gave_up.push(waiting);
                } else {
                    self.waiting_for_room.push_back(waiting);
                }
            }
            self.tidy_waiting_for_room_at = 2 * self.waiting_for_room.len() + SPARE;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting_for_room.push_back(sender);
        (receiver, gave_up)
    }

    /// Who is to be told that there are places again. There may be fewer than these need, if others
    /// are quicker: then they ask again.
    pub(crate) fn recalled(&mut self, most: usize) -> Recalled {
        let mut recalled = Recalled::default();
        if self.waiting_for_room.is_empty() || !self.has_place(0, most) {
            return recalled;
        }
        let places = most.saturating_sub(self.parked()).max(1);
        while recalled.told.len() < places
            && let Some(waiting) = self.waiting_for_room.pop_front()
        {
            if waiting.is_closed() {
                recalled.gave_up.push(waiting);
            } else {
                recalled.told.push(waiting);
            }
        }
        recalled
    }

    /// All who wait to be told that there is a place, for there will be none.
    pub(crate) fn take_waiting_for_room(&mut self) -> VecDeque<oneshot::Sender<()>> {
        std::mem::take(&mut self.waiting_for_room)
    }

    /// Takes a call that is made. Gives it back if it may leave at once; or else it is parked, and
    /// [`next`](Self::next) gives it back when it may. It is made now.
    pub(crate) fn offer(&mut self, call: Parked, now: Instant) -> Option<Message> {
        if self.leaves_at_once(call.weight()) {
            return Some(self.leave(call, now));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.parked_bytes += call.weight();
        if let Some(request) = call.message.request() {
            self.numbers.insert(request, number);
        }
        let line = if weigh(call.weight()) == 0 {
            &mut self.small
        } else {
            &mut self.large
        };
        line.push(number, call);
        None
    }

    /// The next call that may leave. The clock is asked only if there is one.
    pub(crate) fn next(&mut self, now: impl FnOnce() -> Instant) -> Option<Message> {
        if !self.has_room() || self.parked() == 0 {
            return None;
        }
        let small = self.small.first().map(|(number, _)| number);
        let large = self
            .large
            .first()
            .map(|(number, call)| (number, call.weight()));
        // FL-6
        let call = match large {
            Some((number, bytes))
                if self.may_leave(bytes) && small.is_none_or(|small| number < small) =>
            {
                self.large.pop()
            }
            _ => self.small.pop(),
        }?;
        self.parked_bytes -= call.weight();
        if let Some(request) = call.message.request() {
            self.numbers.remove(&request);
        }
        Some(self.leave(call, now()))
    }

    /// FL-1, FL-2
    fn may_leave(&self, bytes: u64) -> bool {
        let bytes = weigh(bytes);
        let fits = bytes == 0
            || self.open_bytes == 0
            || self.open_bytes.saturating_add(bytes) <= MAX_OPEN_BYTES;
        fits && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.open_calls < self.limit
            // More than that would have the callee cut this worker off.
            || (mutated!(IgnoreWindow) && self.open_calls < self.limit + self.limit / 2)
    }

    fn leave(&mut self, call: Parked, now: Instant) -> Message {
        self.left(call.weight());
        let Parked {
            mut message,
            deadline,
        } = call;
        message.remaining = deadline.map(|at| at.saturating_duration_since(now));
        Message::Call(message)
    }

    /// So many calls are no longer open; their bytes have been [weighed](weigh).
    pub(crate) fn release(&mut self, calls: u32, bytes: u64) {
        self.open_calls = self.open_calls.saturating_sub(calls);
        self.open_bytes = self.open_bytes.saturating_sub(bytes);
    }

    /// Whether calls wait for room, or somebody for a place among those.
    pub(crate) fn is_awaited(&self) -> bool {
        self.parked() > 0 || !self.waiting_for_room.is_empty()
    }

    /// Takes a parked call out again, if it has not left.
    pub(crate) fn withdraw(&mut self, request: MessageId) -> Option<CallMessage> {
        let number = self.numbers.remove(&request)?;
        let small = self.small.remove(number);
        let call = small.or_else(|| self.large.remove(number))?;
        self.parked_bytes -= call.weight();
        Some(call.message)
    }

    /// How many calls wait.
    pub(crate) fn parked(&self) -> usize {
        self.small.calls.len() + self.large.calls.len()
    }
}

impl Line {
    fn push(&mut self, number: u64, call: Parked) {
        self.order.push_back(number);
        self.calls.insert(number, call);
    }

    fn first(&mut self) -> Option<(u64, &Parked)> {
        while let Some(number) = self.order.front() {
            if self.calls.contains_key(number) {
                break;
            }
            self.order.pop_front();
        }
        let number = *self.order.front()?;
        Some((number, self.calls.get(&number)?))
    }

    fn pop(&mut self) -> Option<Parked> {
        self.first()?;
        let call = self.calls.remove(&self.order.pop_front()?);
        self.tidy();
        call
    }

    fn remove(&mut self, number: u64) -> Option<Parked> {
        let call = self.calls.remove(&number)?;
        self.tidy();
        Some(call)
    }

    /// Lets go of what is no longer needed: seldom enough that it costs little for each call (FL-5).
    fn tidy(&mut self) {
        let left = self.calls.len();
        if self.order.len() > 2 * left + SPARE {
            self.order.retain(|number| self.calls.contains_key(number));
        }
        if self.calls.capacity() > 4 * left + 4 * SPARE {
            self.calls.shrink_to(2 * left);
            self.order.shrink_to(2 * left);
        }
    }
}

/// What a line keeps at least: below that, tidying is not worth its while.
const SPARE: usize = 64;

impl Parked {
    fn weight(&self) -> u64 {
        self.message.arguments.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use farref_proto::{CallHead, Target};

    use super::*;
    use crate::agent::SMALL;
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
        std::iter::from_fn(|| match flow.next(Instant::now)? {
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
            assert_eq!(
                flow.offer(call(id, bytes), Instant::now()).is_some(),
                bytes < large
            );
        }
        assert_eq!(flow.open_calls, 3, "the small ones have left");
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
        let left = (0..100).filter(|&id| flow.offer(call(id, 1), Instant::now()).is_some());
        assert_eq!(left.count(), LEAST_CALLS as usize);
        assert!(flow.withdraw(MessageId(99)).is_some());
        assert!(flow.withdraw(MessageId(0)).is_none(), "it has left");
        flow.raise_limit(1000);
        assert_eq!(
            leaving(&mut flow),
            (LEAST_CALLS.into()..99).collect::<Vec<u64>>()
        );
    }

    /// FL-1: also by one that says it again, after it was out of reach, and less.
    #[test]
    fn what_a_peer_accepts_is_never_less_than_all_accept() {
        let mut flow = Flow::default();
        flow.raise_limit(1);
        assert_eq!(flow.limit, LEAST_CALLS);
        flow.raise_limit(1000);
        flow.raise_limit(LEAST_CALLS);
        assert_eq!(flow.limit, 1000);
    }

    /// FL-5: in any order, and with the first in line stuck for ever.
    #[test]
    fn a_hundred_thousand_parked_calls_are_withdrawn_without_a_search_for_each() {
        const CALLS: u64 = 100_000;
        let mut flow = Flow {
            open_calls: LEAST_CALLS,
            ..Flow::default()
        };
        (0..CALLS).for_each(|id| drop(flow.offer(call(id, 1), Instant::now())));
        // The later half from its end, then the others, but for the first.
        let backwards = (CALLS / 2..CALLS).rev();
        for id in backwards.chain(1..CALLS / 2) {
            assert!(flow.withdraw(MessageId(id)).is_some());
            assert!(flow.withdraw(MessageId(id)).is_none());
        }
        assert_eq!((flow.parked(), flow.parked_bytes), (1, 1));
        for id in 1..CALLS {
            drop(flow.offer(call(id, 1), Instant::now()));
            assert!(flow.withdraw(MessageId(id)).is_some());
        }
        let Line { calls, order } = &flow.small;
        assert!(order.len() <= 2 * SPARE, "{} numbers are left", order.len());
        assert!(
            calls.capacity() + order.capacity() < 20 * SPARE,
            "{}",
            calls.capacity()
        );
        flow.raise_limit(LEAST_CALLS + 1);
        assert_eq!(leaving(&mut flow), [0]);
        assert_eq!((flow.numbers.len(), flow.parked_bytes), (0, 0));
    }

    /// FL-4
    #[test]
    fn who_finds_no_place_is_told_when_there_is_one() {
        const MOST: usize = 3;
        let mut flow = Flow {
            open_calls: LEAST_CALLS,
            ..Flow::default()
        };
        for id in 0..3 {
            assert!(flow.has_place(1, MOST));
            drop(flow.offer(call(id, 1), Instant::now()));
        }
        assert!(!flow.has_place(1, MOST));
        let mut waiting: Vec<_> = (0..3).map(|_| flow.wait_for_room().0).collect();
        assert!(flow.recalled(MOST).told.is_empty());
        flow.release(1, 0);
        assert_eq!(leaving(&mut flow), [0]);
        for told in flow.recalled(MOST).told {
            told.send(()).unwrap();
        }
        let told: Vec<_> = waiting.iter_mut().map(|it| it.try_recv().is_ok()).collect();
        assert_eq!(told, [true, false, false], "there is one place");
    }

    /// FL-4: nor is a place, when others wait that did not.
    #[test]
    fn who_gives_up_waiting_for_a_place_is_not_told_of_one_and_leaves_nothing_behind() {
        const MOST: usize = 1;
        let mut flow = Flow {
            open_calls: LEAST_CALLS,
            ..Flow::default()
        };
        drop(flow.offer(call(0, 1), Instant::now()));
        let gave_up: Vec<_> = (0..10).map(|_| flow.wait_for_room().0).collect();
        let mut waiting = flow.wait_for_room().0;
        drop(gave_up);
        flow.release(1, 0);
        assert_eq!(leaving(&mut flow), [0]);
        for told in flow.recalled(MOST).told {
            told.send(()).unwrap();
        }
        assert!(waiting.try_recv().is_ok());
        // FL-5
        let waiting: Vec<_> = (0..10).map(|_| flow.wait_for_room().0).collect();
        (0..100 * SPARE).for_each(|_| drop(flow.wait_for_room().0));
        assert!(flow.waiting_for_room.len() < 4 * SPARE);
        let told = flow.take_waiting_for_room();
        let live = told.iter().filter(|told| !told.is_closed());
        assert_eq!(live.count(), waiting.len());
    }

    /// FL-4: however much waits that may not.
    #[test]
    fn a_call_that_can_leave_at_once_needs_no_place() {
        let mut flow = Flow {
            open_bytes: MAX_OPEN_BYTES,
            open_calls: 1,
            ..Flow::default()
        };
        drop(flow.offer(call(1, SMALL as usize + 1), Instant::now()));
        assert!(!flow.has_place(SMALL + 1, 1));
        assert!(flow.has_place(1, 1));
        assert!(flow.offer(call(2, 1), Instant::now()).is_some());
        flow.parked_bytes += MAX_PARKED_BYTES;
        assert!(flow.has_place(1, 10));
        flow.open_calls = LEAST_CALLS;
        assert!(!flow.has_place(1, 10));
        let mut waiting = flow.wait_for_room().0;
        flow.release(1, 0);
        assert!(flow.next(Instant::now).is_none(), "the large one may not");
        for told in flow.recalled(10).told {
            told.send(()).unwrap();
        }
        assert!(waiting.try_recv().is_ok());
    }

    /// FL-6
    #[test]
    fn large_calls_do_not_overtake_small_ones_that_were_made_before() {
        let large = SMALL as usize + 1;
        let mut flow = Flow {
            open_calls: LEAST_CALLS,
            ..Flow::default()
        };
        for (id, bytes) in [(1, 1), (2, large), (3, large), (4, 1), (5, large)] {
            assert!(flow.offer(call(id, bytes), Instant::now()).is_none());
        }
        flow.raise_limit(2 * LEAST_CALLS);
        assert_eq!(leaving(&mut flow), [1, 2, 3, 4, 5]);
    }

    /// FL-4
    #[test]
    fn large_arguments_wait_in_bounded_memory_but_one_always_can() {
        let mut flow = Flow::default();
        assert!(flow.has_place(2 * MAX_PARKED_BYTES, 10));
        flow.open_bytes = MAX_OPEN_BYTES;
        drop(flow.offer(call(1, SMALL as usize + 1), Instant::now()));
        assert!(!flow.has_place(MAX_PARKED_BYTES, 10));
        assert!(flow.has_place(MAX_PARKED_BYTES / 2, 10));
        assert!(flow.withdraw(MessageId(1)).is_some());
        assert!(flow.has_place(2 * MAX_PARKED_BYTES, 10));
    }
}

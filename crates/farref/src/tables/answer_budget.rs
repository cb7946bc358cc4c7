//! How much of what this worker answers one peer may be in memory at once (guarantee D5).
//!
//! An answer takes memory from when its function has made it until the peer has all of it, and a peer
//! may be slow, or stopped. So each peer has a budget. A function whose answers are large starts only
//! when the budget has room for one more of them; how large they are is known from those before. Who
//! finds no room waits without a thread, and can be cancelled.
//!
//! What running functions are expected to bring is set aside for them, and they may run for long. So that
//! one of them does not keep all others of the same peer waiting, answers come in three [sizes](Size).
//!
//! # Invariants
//!
//! - **AN-1** A function whose answers are large starts only if what it is expected to bring fits into
//!   the budget, or nothing else is in it. Functions with small answers never wait here.
//! - **AN-2** Room is given in the order in which it was asked for, among answers of one size. A huge one
//!   is overtaken by others only while another huge one runs.
//! - **AN-3** Nobody waits for ever. What is queued goes as the peer reads it. What is set aside for
//!   functions that run may stay for long, and they may even wait for one that is held back here: so
//!   while nothing is queued, one more of each size starts after each [`PAUSE`].
//! - **AN-4** What was taken of the budget is given back once: with the reservation, or with the bytes
//!   of the answer, wherever they are dropped.
//! - **AN-5** What is set aside for the huge and the large leaves a quarter of the budget to the others,
//!   and what is set aside for one huge answer leaves half of it: whoever runs for long, these go on. One
//!   huge answer runs at a time (but for AN-3), so no more is in memory than the budget, and by how much
//!   that one is over half of it.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::{MessageId, NodeId};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use crate::codec::Payload;
use crate::support::clock::Instant;
use crate::support::lock::lock;

/// The bytes of answers that one peer may have under way unless told otherwise.
pub(crate) const DEFAULT_MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Answers of up to this size do not count: the number of calls is limited.
const SMALL: u64 = 4 << 10;

/// How long nothing may happen before one more function starts (AN-3).
const PAUSE: Duration = Duration::from_millis(100);

/// The budgets of all peers.
#[derive(Debug)]
pub(crate) struct Answers {
    limit: u64,
    runtime: Handle,
    peers: Mutex<HashMap<NodeId, Arc<Budget>>>,
    /// What values of a type weigh when they are fetched.
    fetched: Mutex<HashMap<&'static str, Arc<Expected>>>,
    /// The calls that wait for room, and since when.
    held_back: Mutex<HashMap<(NodeId, MessageId), Instant>>,
}

impl Answers {
    pub(crate) fn new(limit: u64, runtime: Handle) -> Self {
        Self {
            limit,
            runtime,
            peers: Mutex::default(),
            fetched: Mutex::default(),
            held_back: Mutex::default(),
        }
    }

    /// Lists a call of a peer as one that waits for room, as long as somebody has what is returned.
    pub(crate) fn hold_back(&self, from: NodeId, request: MessageId) -> HeldBack<'_> {
        let call = (from, request);
        lock(&self.held_back).insert(call, Instant::now());
        HeldBack {
            answers: self,
            call,
        }
    }

    /// Since when a call has waited for room, if it does.
    pub(crate) fn held_back_since(&self, from: NodeId, request: MessageId) -> Option<Instant> {
        lock(&self.held_back).get(&(from, request)).copied()
    }

    /// The budget of a peer.
    pub(crate) fn of(&self, peer: NodeId) -> Arc<Budget> {
        let new = || Arc::new(Budget::new(self.limit, self.runtime.clone()));
        Arc::clone(lock(&self.peers).entry(peer).or_insert_with(new))
    }

    /// An answer is made, for which room may have been set aside: from now on it takes what it weighs.
    pub(crate) fn charge(&self, peer: NodeId, room: Option<Reservation>, answer: &mut Payload) {
        if answer.len() as u64 > SMALL {
            self.of(peer).charge(answer);
        }
        drop(room);
    }

    /// The peer is gone: whoever still waits is cancelled, and gives back into nothing.
    pub(crate) fn forget(&self, peer: NodeId) {
        let budget = lock(&self.peers).remove(&peer);
        drop(budget);
    }

    /// What is known of values of a type.
    pub(crate) fn fetched(&self, type_name: &'static str) -> Arc<Expected> {
        Arc::clone(lock(&self.fetched).entry(type_name).or_default())
    }
}

/// A call that waits for room.
#[derive(Debug)]
pub(crate) struct HeldBack<'a> {
    answers: &'a Answers,
    call: (NodeId, MessageId),
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        lock(&self.answers.held_back).remove(&self.call);
    }
}

/// What answers of one kind have weighed lately: the most, forgotten by and by.
#[derive(Debug, Default)]
pub(crate) struct Expected(AtomicU64);

impl Expected {
    /// Zero if small.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// An answer weighed so much. Of several at once any may be the last to be heeded.
    pub(crate) fn learn(&self, bytes: u64) {
        let bytes = if bytes > SMALL { bytes } else { 0 };
        let before = self.bytes();
        if bytes == before {
            return;
        }
        let now = before.saturating_sub(before.saturating_sub(bytes).div_ceil(8));
        let now = if now > SMALL { now } else { 0 };
        self.0.store(now.max(bytes), Ordering::Relaxed);
    }
}

/// What one peer's answers may take.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    runtime: Handle,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    /// Answers that are made and that the peer does not have.
    queued: u64,
    /// What running functions are expected to bring, by its size.
    reserved: [u64; SIZES],
    /// How many of those are huge.
    huge: usize,
    /// Who waits, in order, by the size of its answer.
    lines: [BTreeMap<u64, WaitingReservation>; SIZES],
    next: u64,
}

#[derive(Debug)]
struct WaitingReservation {
    bytes: u64,
    waker: Waker,
}

/// How large an answer is beside the budget (AN-5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    /// A 64th of it or less.
    Modest,
    Large,
    /// More than half of it; half of it is set aside.
    Huge,
}

const SIZES: usize = 3;

impl Size {
    const ALL: [Self; SIZES] = [Self::Modest, Self::Large, Self::Huge];

    fn of(bytes: u64, limit: u64) -> Self {
        if bytes <= limit / 64 {
            Self::Modest
        } else if bytes <= limit / 2 {
            Self::Large
        } else {
            Self::Huge
        }
    }
}

impl Budget {
    fn new(limit: u64, runtime: Handle) -> Self {
        Self {
            limit,
            runtime,
            state: Mutex::default(),
        }
    }

    /// Sets room aside, if there is some and nobody waits for it.
    pub(crate) fn try_reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let mut state = lock(&self.state);
        let size = Size::of(bytes, self.limit);
        let is_next = match size {
            Size::Modest => state.line(size).is_empty(),
            Size::Large => state.line(size).is_empty() && !state.huge_is_next(),
            Size::Huge => Size::ALL[1..].iter().all(|&it| state.line(it).is_empty()),
        };
        if !is_next || !state.fits(bytes, self.limit) {
            return None;
        }
        state.reserve(bytes, self.limit);
        drop(state);
        Some(self.reservation(bytes))
    }

    /// Waits for room (AN-2).
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> ReserveFuture {
        ReserveFuture {
            budget: Arc::clone(self),
            bytes,
            place: ReservationState::None,
            pause: None,
        }
    }

    /// Makes the bytes of an answer count until they are dropped.
    fn charge(self: &Arc<Self>, answer: &mut Payload) {
        let bytes = answer.len() as u64;
        lock(&self.state).queued += bytes;
        let body = Charged {
            body: std::mem::take(&mut answer.body),
            _charge: Charge {
                budget: Arc::clone(self),
                bytes,
            },
        };
        answer.body = Bytes::from_owner(body);
    }

    fn reservation(self: &Arc<Self>, bytes: u64) -> Reservation {
        Reservation {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Changes the sums, and wakes who may go on. Only tasks of this worker wait here, so a waker
    /// does nothing but to schedule one, and may be woken anywhere.
    fn change(&self, change: impl FnOnce(&mut BudgetState)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let woken = state.advance(self.limit);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl BudgetState {
    fn line(&self, size: Size) -> &BTreeMap<u64, WaitingReservation> {
        &self.lines[size as usize]
    }

    /// Who is the first of those with answers of a size, and how large its answer is.
    fn first(&self, size: Size) -> Option<(u64, u64)> {
        let (&number, first) = self.line(size).first_key_value()?;
        Some((number, first.bytes))
    }

    /// Whether a huge answer waits for nothing but room.
    fn huge_is_next(&self) -> bool {
        self.huge == 0 && !self.line(Size::Huge).is_empty()
    }

    /// AN-1, AN-5
    fn fits(&self, bytes: u64, limit: u64) -> bool {
        let modest = self.queued + self.reserved[Size::Modest as usize];
        let used = self.queued + self.reserved.iter().sum::<u64>();
        let share = limit / 4;
        // Of a tiny budget nothing is set aside for a huge answer, but it runs.
        used == 0 && self.huge == 0
            || match Size::of(bytes, limit) {
                Size::Modest => {
                    let others_wait = !self.line(Size::Large).is_empty() || self.huge_is_next();
                    modest + bytes <= share || !others_wait && used + bytes <= limit
                }
                Size::Large => used + bytes <= limit - share,
                Size::Huge => self.huge == 0 && used + limit / 2 <= limit - share,
            }
    }

    /// Whose turn it is, if there is room for it.
    fn next(&self, limit: u64) -> Option<Size> {
        let fits = |bytes| self.fits(bytes, limit);
        if self
            .first(Size::Modest)
            .is_some_and(|(_, bytes)| fits(bytes))
        {
            return Some(Size::Modest);
        }
        let large = self.first(Size::Large);
        let huge = self.first(Size::Huge).filter(|_| self.huge == 0);
        // AN-2
        let (_, bytes) = large.into_iter().chain(huge).min()?;
        fits(bytes).then_some(Size::of(bytes, limit))
    }

    /// Gives room to those who are next, and says whom to wake: those, and whoever is next after them,
    /// for it may have to look at the clock now.
    fn advance(&mut self, limit: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(size) = self.next(limit) {
            woken.extend(self.admit_first(size, limit));
        }
        if self.queued == 0 {
            let first = self.lines.iter().filter_map(BTreeMap::first_key_value);
            woken.extend(first.map(|(_, first)| first.waker.clone()));
        }
        woken
    }

    fn admit_first(&mut self, size: Size, limit: u64) -> Option<Waker> {
        let (_, first) = self.lines[size as usize].pop_first()?;
        self.reserve(first.bytes, limit);
        Some(first.waker)
    }

    fn reserve(&mut self, bytes: u64, limit: u64) {
        let size = Size::of(bytes, limit);
        self.reserved[size as usize] += bytes.min(limit / 2);
        self.huge += usize::from(size == Size::Huge);
    }

    fn give_back(&mut self, bytes: u64, limit: u64) {
        let size = Size::of(bytes, limit);
        self.reserved[size as usize] -= bytes.min(limit / 2);
        self.huge -= usize::from(size == Size::Huge);
    }
}

/// Room that is set aside for an answer. Dropped without one, it is given back.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Self { budget, bytes } = self;
        budget.change(|state| state.give_back(*bytes, budget.limit));
    }
}

/// The room that a made answer takes.
#[derive(Debug)]
struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.change(|state| state.queued -= self.bytes);
    }
}

/// The body of an answer, and its room.
struct Charged {
    body: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Waits for room.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub(crate) struct ReserveFuture {
    budget: Arc<Budget>,
    bytes: u64,
    place: ReservationState,
    /// Runs while it is the first in line and nothing is queued (AN-3).
    pause: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum ReservationState {
    None,
    InLine(u64),
    Done,
}

impl Future for ReserveFuture {
    type Output = Reservation;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reservation> {
        let this = self.get_mut();
        let budget = Arc::clone(&this.budget);
        let size = Size::of(this.bytes, budget.limit);
        let number = match this.place {
            ReservationState::InLine(number) => number,
            ReservationState::None | ReservationState::Done => {
                if let Some(reserved) = budget.try_reserve(this.bytes) {
                    this.place = ReservationState::Done;
                    return Poll::Ready(reserved);
                }
                let mut state = lock(&budget.state);
                let number = state.next;
                state.next += 1;
                let waiting = WaitingReservation {
                    bytes: this.bytes,
                    waker: context.waker().clone(),
                };
                state.lines[size as usize].insert(number, waiting);
                this.place = ReservationState::InLine(number);
                number
            }
        };
        loop {
            let mut state = lock(&budget.state);
            let queued = state.queued;
            let is_first = state.first(size).map(|(first, _)| first) == Some(number);
            let Some(waiting) = state.lines[size as usize].get_mut(&number) else {
                // Somebody has given it room.
                this.place = ReservationState::Done;
                return Poll::Ready(budget.reservation(this.bytes));
            };
            waiting.waker.clone_from(context.waker());
            // What was given back between the look and the place in the line woke nobody.
            if state.next(budget.limit).is_some() {
                drop(state);
                budget.change(|_| {});
                continue;
            }
            if !is_first || queued > 0 {
                this.pause = None;
                return Poll::Pending;
            }
            drop(state);
            let pause = this.pause.get_or_insert_with(|| {
                let _runtime = budget.runtime.enter();
                Box::pin(sleep(PAUSE))
            });
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.pause = None;
            // AN-3
            budget.change(|state| {
                let first = state.first(size).map(|(first, _)| first);
                if state.queued == 0 && first == Some(number) {
                    state.admit_first(size, budget.limit);
                }
            });
        }
    }
}

impl Drop for ReserveFuture {
    fn drop(&mut self) {
        if let ReservationState::InLine(number) = self.place {
            let Self { budget, bytes, .. } = self;
            let size = Size::of(*bytes, budget.limit);
            budget.change(|state| {
                // It may have been given room that nobody will use.
                if state.lines[size as usize].remove(&number).is_none() {
                    state.give_back(*bytes, budget.limit);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(limit: u64) -> Arc<Budget> {
        Arc::new(Budget::new(limit, Handle::current()))
    }

    fn poll(reserve: &mut ReserveFuture) -> Poll<Reservation> {
        Pin::new(reserve).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn answer(bytes: u64) -> Payload {
        Payload {
            body: vec![1; bytes as usize].into(),
            parts: Vec::new(),
        }
    }

    fn used(budget: &Budget) -> (u64, u64, usize) {
        let state = lock(&budget.state);
        let waiting = state.lines.iter().map(BTreeMap::len);
        (state.queued, state.reserved.iter().sum(), waiting.sum())
    }

    /// AN-1, AN-2, AN-4
    #[tokio::test]
    async fn room_is_given_in_order_and_given_back_once() {
        let budget = budget(16 * MIB);
        let first = budget.try_reserve(6 * MIB).expect("it is empty");
        let mut second = budget.reserve(7 * MIB);
        let mut third = budget.reserve(MIB);
        assert!(poll(&mut second).is_pending());
        assert!(poll(&mut third).is_pending(), "it would fit, but is later");
        assert!(budget.try_reserve(MIB).is_none(), "so is this");
        let mut made = answer(4 * MIB);
        budget.charge(&mut made);
        drop(first);
        assert_eq!(
            used(&budget),
            (4 * MIB, 8 * MIB, 0),
            "what it weighs counts"
        );
        let (Poll::Ready(second), Poll::Ready(third)) = (poll(&mut second), poll(&mut third))
        else {
            panic!("there is room");
        };
        let clone = made.clone();
        drop(made);
        assert_eq!(used(&budget).0, 4 * MIB, "somebody still has it");
        drop((clone, second, third));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// AN-5: of whatever budget, and none is one, too.
    #[tokio::test]
    async fn a_tiny_budget_is_not_an_unlimited_one() {
        for limit in 0..4 {
            let budget = budget(limit);
            let huge = budget.try_reserve(MIB).expect("nothing else is in it");
            assert!(budget.try_reserve(MIB).is_none(), "one at a time: {limit}");
            let mut another = budget.reserve(MIB);
            assert!(poll(&mut another).is_pending());
            drop(huge);
            assert!(poll(&mut another).is_ready(), "{limit}");
        }
    }

    /// AN-5
    #[tokio::test]
    async fn what_runs_for_long_leaves_room_for_others() {
        let budget = budget(64 * MIB);
        let huge = budget.try_reserve(1000 * MIB).expect("it is empty");
        let mut another = budget.reserve(33 * MIB);
        assert!(poll(&mut another).is_pending(), "one at a time");
        for _ in 0..100 {
            let large = budget.try_reserve(16 * MIB).expect("beside the huge one");
            let modest = budget.try_reserve(MIB).expect("beside both");
            assert!(budget.try_reserve(16 * MIB).is_none(), "AN-1");
            drop((large, modest));
        }
        drop(huge);
        let Poll::Ready(another) = poll(&mut another) else {
            panic!("it is its turn");
        };
        drop(another);
        let large: Vec<_> = (0..3).map(|_| budget.try_reserve(16 * MIB)).collect();
        assert!(large.iter().all(Option::is_some));
        let mut fourth = budget.reserve(16 * MIB);
        assert!(poll(&mut fourth).is_pending());
        let modest: Vec<_> = (0..17).map(|_| budget.try_reserve(MIB)).collect();
        assert_eq!(modest.iter().flatten().count(), 16, "AN-1");
        drop((large, modest, fourth));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// AN-2
    #[tokio::test]
    async fn a_huge_answer_that_waits_for_room_is_not_overtaken() {
        let budget = budget(64 * MIB);
        let large = budget.try_reserve(20 * MIB);
        let mut huge = budget.reserve(40 * MIB);
        assert!(poll(&mut huge).is_pending());
        assert!(budget.try_reserve(10 * MIB).is_none(), "it is later");
        let mut later = budget.reserve(10 * MIB);
        assert!(poll(&mut later).is_pending());
        drop(large);
        assert!(poll(&mut huge).is_ready());
        assert!(poll(&mut later).is_ready(), "beside it");
        drop((huge, later));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// AN-1
    #[tokio::test]
    async fn one_answer_above_the_budget_passes_at_a_time() {
        let budget = budget(MIB);
        let large = budget.try_reserve(5 * MIB).expect("the first");
        assert!(budget.try_reserve(5 * MIB).is_none());
        drop(large);
        assert!(budget.try_reserve(5 * MIB).is_some());
    }

    /// AN-3
    #[tokio::test]
    async fn functions_that_wait_for_one_that_is_held_back_do_so_in_vain_for_a_while_only() {
        let budget = budget(10 * MIB);
        let mut running = vec![budget.try_reserve(10 * MIB)];
        for _ in 0..5 {
            let more = budget.reserve(10 * MIB);
            let more = tokio::time::timeout(600 * PAUSE, more).await;
            running.push(Some(more.expect("nothing is queued")));
        }
        // A peer that does not read what is queued is another matter.
        let mut made = answer(MIB);
        budget.charge(&mut made);
        let more = tokio::time::timeout(5 * PAUSE, budget.reserve(10 * MIB)).await;
        assert!(more.is_err());
        drop((made, running));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// Waits until somebody is in line.
    async fn in_line(budget: &Budget) {
        while used(budget).2 == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// AN-3: it does not look at the clock before the peer has read all, so it has to be told of that, be there no
    /// room for it then.
    #[tokio::test]
    async fn who_waits_is_woken_when_nothing_is_queued_any_more() {
        let budget = budget(10 * MIB);
        let running = budget.try_reserve(10 * MIB);
        let mut made = answer(MIB);
        budget.charge(&mut made);
        let waiting = tokio::spawn(budget.reserve(10 * MIB));
        in_line(&budget).await;
        drop(made);
        let more = tokio::time::timeout(600 * PAUSE, waiting).await;
        drop((more.expect("it is woken"), running));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// AN-2: whoever polled it before.
    #[tokio::test]
    async fn who_waits_is_woken_where_it_waits_now() {
        let budget = budget(16 * MIB);
        let first = budget.try_reserve(6 * MIB);
        let mut made = answer(MIB);
        budget.charge(&mut made);
        let mut second = budget.reserve(7 * MIB);
        assert!(poll(&mut second).is_pending());
        let (said, polled) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(async move {
            let mut said = Some(said);
            std::future::poll_fn(|context| {
                let reserved = Pin::new(&mut second).poll(context);
                said.take().map(|said| said.send(()));
                reserved
            })
            .await
        });
        polled.await.expect("it waits");
        drop(first);
        let second = tokio::time::timeout(600 * PAUSE, waiting).await;
        drop((second.expect("it is woken"), made));
        assert_eq!(used(&budget), (0, 0, 0));
    }

    /// AN-4
    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing_behind() {
        let budget = budget(10 * MIB);
        let first = budget.try_reserve(10 * MIB);
        let (mut second, mut third) = (budget.reserve(10 * MIB), budget.reserve(10 * MIB));
        assert!(poll(&mut second).is_pending());
        assert!(poll(&mut third).is_pending());
        drop(second);
        drop(first);
        assert_eq!(
            used(&budget),
            (0, 5 * MIB, 0),
            "half is given, and not taken"
        );
        drop(third);
        assert_eq!(used(&budget), (0, 0, 0));
    }

    #[farref_macros::remote]
    async fn large() -> Vec<u8> {
        vec![1; 2 * SMALL as usize]
    }

    /// AN-4: budgets go with their peers, also if an answer is made when its asker is gone.
    #[tokio::test]
    async fn of_peers_that_are_gone_no_budget_is_kept() -> crate::Result<()> {
        let cluster = crate::testing::Cluster::start(2).await?;
        let (me, other) = (&cluster.worker(0).core, cluster.worker(1).node());
        let budgets = || lock(&me.answers.peers).len();
        let asking = cluster.worker(1).peer("worker0")?;
        assert_eq!(large::on(&asking).await?.len(), 2 * SMALL as usize);
        assert_eq!(budgets(), 1);
        cluster.crash(1).await;
        farref_testkit::eventually("the budget goes with the peer", || budgets() == 0)
            .await
            .expect("it goes with the peer");

        let mut late = answer(2 * SMALL);
        me.answers.charge(other, None, &mut late);
        assert_eq!(budgets(), 1);
        let mut made = crate::runtime::value_scope::Encoded::default();
        made.payload = late;
        me.respond(other, MessageId(7), Ok(made));
        assert_eq!(budgets(), 0);
        Ok(())
    }

    #[test]
    fn small_answers_make_large_ones_be_forgotten_in_time() {
        let expected = Expected::default();
        expected.learn(100);
        assert_eq!(expected.bytes(), 0);
        expected.learn(32 * MIB);
        assert_eq!(expected.bytes(), 32 * MIB);
        expected.learn(10);
        assert_eq!(expected.bytes(), 28 * MIB);
        (0..100).for_each(|_| expected.learn(10));
        assert_eq!(expected.bytes(), 0);
    }
}

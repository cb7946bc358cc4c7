//! Whose turn it is to use a value: one queue for each value that is in use.
//!
//! Values that nobody uses cost nothing here. A place is taken in the moment in which a [`QueueTicket`] is
//! drawn, whatever runtime, task or thread draws it and whether it is ever polled.
//!
//! # Invariants
//!
//! - **VQ-1** If nobody uses a value, nobody waits for it.
//! - **VQ-2** Nobody is let in before one who drew earlier and still waits, but for readers that work for
//!   a reader which is inside: they would wait for one that waits for them.
//! - **VQ-3** A user whose caller is inside and has to leave first is refused, as it would never be let in.
//! - **VQ-4** Nobody is woken and nothing is dropped while a lock of this module is held.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use farref_proto::{NodeId, RRefId};
use tokio::sync::oneshot;

use crate::support::clock::Instant;
use crate::support::lock::lock;

const SHARDS: usize = 16;

/// The queues of one worker's values.
#[derive(Default)]
pub(crate) struct Queues {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    queues: HashMap<RRefId, Queue, crate::support::simulation::RandomState>,
    /// Numbers the tickets that have to wait.
    drawn: u64,
}

/// Who uses one value, and who waits for it in which order.
#[derive(Default)]
struct Queue {
    users: u32,
    /// Whether the user is the only one.
    exclusive: bool,
    waiting: BTreeMap<u64, WaitingUser>,
}

struct WaitingUser {
    admitted: oneshot::Sender<QueuePermit>,
    user: ValueUser,
    since: Instant,
}

/// Who wants to use a value, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueUser {
    pub(crate) exclusive: bool,
    pub(crate) function: &'static str,
    pub(crate) caller: NodeId,
    /// How a caller of this call, which waits for it, uses the value; true is exclusively.
    pub(crate) caller_uses: Option<bool>,
}

/// Somebody who waits, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuedUser {
    pub(crate) rref: RRefId,
    pub(crate) number: u64,
    pub(crate) user: ValueUser,
    pub(crate) since: Instant,
}

/// It would never be let in: the value's user waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WouldDeadlock;

impl Queues {
    fn shard(&self, rref: RRefId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[rref.counter as usize % SHARDS])
    }

    /// Takes a place in the queue of a value.
    pub(crate) fn draw(
        self: &Arc<Self>,
        rref: RRefId,
        user: ValueUser,
    ) -> Result<QueueTicket, WouldDeadlock> {
        let mut shard = self.shard(rref);
        let Shard { queues, drawn } = &mut *shard;
        let queue = queues.entry(rref).or_default();
        if queue.lets_in(&user) {
            queue.enter(&user);
            drop(shard);
            return Ok(QueueTicket::Admitted(QueuePermit::new(self, rref)));
        }
        // VQ-3. The user may be another one by now, if the caller gave up: then it is worth waiting.
        if user.caller_uses == Some(queue.exclusive) {
            return Err(WouldDeadlock);
        }
        let (admitted, receiver) = oneshot::channel();
        *drawn += 1;
        let number = *drawn;
        let since = Instant::now();
        queue.waiting.insert(
            number,
            WaitingUser {
                admitted,
                user,
                since,
            },
        );
        Ok(QueueTicket::Waiting(WaitingTicket {
            queues: Arc::clone(self),
            rref,
            number: Some(number),
            admitted: receiver,
        }))
    }

    /// A user has left.
    fn leave(self: &Arc<Self>, rref: RRefId) {
        let mut leaving = 1;
        while leaving > 0 {
            let mut shard = self.shard(rref);
            let Some(queue) = shard.queues.get_mut(&rref) else {
                return;
            };
            queue.users = queue.users.saturating_sub(leaving);
            let admitted = queue.admit();
            if queue.users == 0 {
                shard.queues.remove(&rref);
            }
            drop(shard);
            leaving = self.let_in(rref, admitted);
        }
    }

    /// One that waited gives its place up, and those behind it may be let in.
    fn withdraw(self: &Arc<Self>, rref: RRefId, number: u64) {
        let mut shard = self.shard(rref);
        let Some(queue) = shard.queues.get_mut(&rref) else {
            return;
        };
        let withdrawn = queue.waiting.remove(&number);
        let admitted = queue.admit();
        drop(shard);
        drop(withdrawn);
        for _ in 0..self.let_in(rref, admitted) {
            self.leave(rref);
        }
    }

    /// Tells those who may come in. Returns how many of them do not want to any more.
    fn let_in(self: &Arc<Self>, rref: RRefId, admitted: Vec<WaitingUser>) -> u32 {
        let mut gone = 0;
        for waiting in admitted {
            if let Err(mut permit) = waiting.admitted.send(QueuePermit::new(self, rref)) {
                // The caller lets it leave, in a loop: a long queue of such must not use the stack up.
                permit.queues = None;
                gone += 1;
            }
        }
        gone
    }

    /// All that wait, in no order.
    pub(crate) fn waiting(&self) -> Vec<QueuedUser> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            for (&rref, queue) in &shard.queues {
                all.extend(queue.waiting.iter().map(|(&number, waiting)| QueuedUser {
                    rref,
                    number,
                    user: waiting.user,
                    since: waiting.since,
                }));
            }
        }
        all
    }
}

impl Queue {
    /// VQ-2
    fn lets_in(&self, user: &ValueUser) -> bool {
        let works_for_a_reader = user.caller_uses == Some(false);
        self.users == 0
            || (!self.exclusive
                && !user.exclusive
                && (self.waiting.is_empty() || works_for_a_reader))
    }

    fn enter(&mut self, user: &ValueUser) {
        self.users += 1;
        self.exclusive = user.exclusive;
    }

    /// Takes out those whose turn it is.
    fn admit(&mut self) -> Vec<WaitingUser> {
        let mut admitted = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let user = first.get().user;
            if self.users > 0 && (self.exclusive || user.exclusive) {
                break;
            }
            admitted.push(first.remove());
            self.enter(&user);
        }
        admitted
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}

/// A place in the queue of one value.
#[derive(Debug)]
pub(crate) enum QueueTicket {
    Admitted(QueuePermit),
    Waiting(WaitingTicket),
}

impl QueueTicket {
    /// What [`Queues::waiting`] calls it, if it has to wait.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Admitted(_) => None,
            Self::Waiting(ticket) => ticket.number,
        }
    }

    /// Waits to be let in. None comes only if the worker is torn down.
    pub(crate) async fn wait(self) -> Option<QueuePermit> {
        match self {
            Self::Admitted(permit) => Some(permit),
            Self::Waiting(ticket) => ticket.await,
        }
    }
}

/// The ticket of one that is not let in yet. Dropping it lets those behind move up.
#[derive(Debug)]
pub(crate) struct WaitingTicket {
    queues: Arc<Queues>,
    rref: RRefId,
    /// None when it has been let in.
    number: Option<u64>,
    admitted: oneshot::Receiver<QueuePermit>,
}

impl Future for WaitingTicket {
    type Output = Option<QueuePermit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<QueuePermit>> {
        let polled = Pin::new(&mut self.admitted).poll(context);
        polled.map(|permit| {
            self.number = None;
            permit.ok()
        })
    }
}

impl Drop for WaitingTicket {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.queues.withdraw(self.rref, number);
        }
    }
}

/// The right to use a value, until it is dropped.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    /// None if somebody else sees to it that it is given back.
    queues: Option<Arc<Queues>>,
    rref: RRefId,
}

impl QueuePermit {
    fn new(queues: &Arc<Queues>, rref: RRefId) -> Self {
        Self {
            queues: Some(Arc::clone(queues)),
            rref,
        }
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take() {
            queues.leave(self.rref);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use tokio::sync::Semaphore;

    use super::*;

    const RREF: RRefId = RRefId::new(NodeId::new(0, 1), 7);

    fn user(exclusive: bool, caller_uses: Option<bool>) -> ValueUser {
        ValueUser {
            exclusive,
            function: "f",
            caller: NodeId::new(1, 1),
            caller_uses,
        }
    }

    fn draw(queues: &Arc<Queues>, exclusive: bool) -> QueueTicket {
        queues
            .draw(RREF, user(exclusive, None))
            .expect("it has no callers")
    }

    /// The permit, if it has come.
    fn has_come(
        ticket: &mut Pin<&mut impl Future<Output = Option<QueuePermit>>>,
    ) -> Option<QueuePermit> {
        match ticket
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(permit) => permit,
            Poll::Pending => None,
        }
    }

    /// VQ-2, PR-4: the order is that of drawing, also for a task that has used its share of the
    /// runtime's time up, after which tokio's own locks may put whoever polls them off.
    #[tokio::test]
    async fn vq_2_a_place_is_taken_whatever_is_left_of_a_tasks_budget() {
        let queues = Arc::new(Queues::default());
        let inside = draw(&queues, true);
        let semaphore = Semaphore::new(1);
        let first = poll_fn(|context| {
            while pin!(semaphore.acquire()).poll(context).is_ready() {}
            Poll::Ready(draw(&queues, true))
        })
        .await;
        let other = Arc::clone(&queues);
        let second = std::thread::spawn(move || draw(&other, true)).join();
        let Ok(second) = second else {
            panic!("it panicked")
        };
        assert_eq!(queues.waiting().len(), 2);
        drop(inside);
        let mut second = pin!(second.wait());
        assert!(has_come(&mut second).is_none());
        drop(first.wait().await);
        assert!(second.await.is_some());
    }

    /// VA-1, VQ-2
    #[test]
    fn vq_2_readers_are_let_in_together_and_not_past_a_writer() {
        let queues = Arc::new(Queues::default());
        let readers = [draw(&queues, false), draw(&queues, false)];
        assert!(readers.iter().all(|ticket| ticket.number().is_none()));
        let mut writer = pin!(draw(&queues, true).wait());
        let mut late = [
            Box::pin(draw(&queues, false).wait()),
            Box::pin(draw(&queues, false).wait()),
        ];
        assert!(has_come(&mut late[0].as_mut()).is_none());
        drop(readers);
        let permit = has_come(&mut writer);
        assert!(permit.is_some());
        assert!(has_come(&mut late[0].as_mut()).is_none());
        drop(permit);
        let permits = late.each_mut().map(|ticket| has_come(&mut ticket.as_mut()));
        assert!(permits.iter().all(Option::is_some));
        drop(permits);
        assert!(queues.shard(RREF).queues.is_empty(), "VQ-1");
    }

    /// VA-2: one that gives up, in the middle or just as its turn comes, holds nobody up. In a queue of
    /// any length: nothing of this may use the stack up.
    #[test]
    fn va_2_a_place_that_is_given_up_lets_the_next_ones_in() {
        let queues = Arc::new(Queues::default());
        let reader = draw(&queues, false);
        let writer = draw(&queues, true);
        let mut behind = pin!(draw(&queues, false).wait());
        assert!(has_come(&mut behind).is_none());
        drop(writer);
        let permit = has_come(&mut behind);
        assert!(permit.is_some(), "the first reader is still inside");
        drop((reader, permit));

        let inside = draw(&queues, true);
        let crowd: Vec<_> = (0..100_000).map(|_| draw(&queues, true)).collect();
        let last = draw(&queues, true);
        // Their receivers go while their places stay: as if each gave up in the very moment.
        let crowd: Vec<_> = crowd
            .into_iter()
            .map(|ticket| match ticket {
                QueueTicket::Waiting(mut ticket) => {
                    ticket.admitted.close();
                    ticket
                }
                QueueTicket::Admitted(_) => panic!("there is somebody inside"),
            })
            .collect();
        drop(inside);
        assert!(has_come(&mut pin!(last.wait())).is_some());
        drop(crowd);
        assert!(queues.shard(RREF).queues.is_empty(), "VQ-1");
    }

    /// VQ-2, VQ-3
    #[test]
    fn vq_3_who_works_for_a_user_passes_or_is_refused_and_never_waits_for_it() {
        let queues = Arc::new(Queues::default());
        let reader = draw(&queues, false);
        let writer = draw(&queues, true);
        let nested = queues.draw(RREF, user(false, Some(false)));
        assert!(
            matches!(nested, Ok(QueueTicket::Admitted(_))),
            "past the writer"
        );
        let upgrade = queues.draw(RREF, user(true, Some(false)));
        assert!(matches!(upgrade, Err(WouldDeadlock)));
        drop((reader, nested));
        // The writer is inside now. Whoever works for the reader, which is gone, may wait for it.
        let orphan = queues.draw(RREF, user(true, Some(false)));
        assert!(matches!(orphan, Ok(QueueTicket::Waiting(_))));
        for exclusive in [false, true] {
            let nested = queues.draw(RREF, user(exclusive, Some(true)));
            assert!(matches!(nested, Err(WouldDeadlock)));
        }
        drop((writer, orphan));
        assert!(queues.shard(RREF).queues.is_empty(), "VQ-1");
    }
}

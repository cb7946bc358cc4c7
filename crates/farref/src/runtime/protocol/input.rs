//! Bringing inputs to the node, and carrying out what follows from them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use farref_proto::{Node, NodeId, Outbox};

use super::work::Work;
use crate::agent::Message;
use crate::runtime::core::{Core, ProtocolState, WorkerNode};
use crate::support::clock::Instant;
use crate::support::{signal, user_code};
use crate::values::Value;

impl Core {
    /// Brings an input to the node and carries out what follows.
    pub(crate) fn input<T>(
        self: &Arc<Self>,
        input: impl FnOnce(&mut WorkerNode, &mut Outbox<Value>) -> T,
    ) -> T {
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        let result = input(node, out);
        self.finish_input(state, Work::new());
        result
    }

    /// Does what the clock says, and sends what has gathered.
    pub(crate) fn tick(self: &Arc<Self>) {
        let now = self.now();
        user_code::forbid_during(|| {
            let mut state = self.lock();
            state.clock_told = false;
            let ProtocolState { node, out, .. } = &mut *state;
            node.poll(now, out);
            self.finish_input(state, Work::new());
        });
    }

    /// Whether the clock was told of releases, which gather for a moment before it sends them.
    pub(crate) fn gathers(&self) -> bool {
        self.lock().clock_told
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let at = self.look(Node::poll_timeout)?;
        Some(self.began + Duration::from_nanos(at.0))
    }

    /// Ends an input: events are acted on, messages queued, the lock is given back, and only then
    /// everything is done that must not be done under it.
    pub(super) fn finish_input(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ProtocolState>,
        mut work: Box<Work>,
    ) {
        self.handle_events(&mut state, &mut work);
        while let Some((to, control)) = state.out.pop_control() {
            self.send(to, Message::Control(control), &mut work);
        }
        let number = state.node.membership().view().number();
        if self.view_number.load(Ordering::Relaxed) != number {
            self.view_number.store(number, Ordering::Release);
        }
        drop(state);
        self.carry_out(work);
    }

    /// Ends an input that led to no more than one message, which has been queued.
    pub(super) fn finish_message(
        self: &Arc<Self>,
        state: MutexGuard<'_, ProtocolState>,
        to: NodeId,
        needs_flush: bool,
    ) {
        if state.out.is_empty() {
            drop(state);
            if needs_flush {
                self.agent().flush(to);
            }
            return;
        }
        let mut work = Work::new();
        if needs_flush {
            work.flush(to);
        }
        self.finish_input(state, work);
    }

    /// Queues a message. It leaves when the lock is given back, if the wire does not see to that itself.
    pub(super) fn send(&self, to: NodeId, message: Message, work: &mut Work) {
        if self.agent().enqueue_needs_flush(to, message) {
            work.flush(to);
        }
    }

    /// Does what was deferred.
    pub(super) fn carry_out(self: &Arc<Self>, mut work: Box<Work>) {
        if let Some(first) = work.first.take() {
            self.agent().flush(first);
            for peer in work.others.drain(..) {
                self.agent().flush(peer);
            }
        }
        // Most calls and answers.
        if work.only_flushes() {
            return work.keep();
        }
        if !work.replies.is_empty() {
            let came = work.now();
            for (sender, reply) in work.replies.drain(..) {
                // Whoever waited may have gone; what came for it is then let go.
                if let Err(unwanted) = sender.send(reply, came) {
                    self.user_code.run(move || drop(unwanted));
                }
            }
        }
        for job in work.jobs.drain(..) {
            job.start();
        }
        for message in work.loopback.drain(..) {
            self.loop_back(message);
        }
        work.cancelled
            .drain(..)
            .for_each(|call| signal::cancel(&call));
        for (node, departure) in work.forgotten.drain(..) {
            self.agent().forget(node, departure);
            self.names.forget(node);
            self.answers.forget(node);
            self.unpublish_values_of(node);
        }
        for node in work.joined.drain(..) {
            self.learn_name(node);
            if self.watchers.watch_all() || self.settings.require_majority {
                self.agent().watch(node);
            }
        }
        work.woken.drain(..).for_each(|wake| wake(self));
        work.handles.clear();
        // One by one: a panic in one must not take the others along (UC-2).
        for callback in work.callbacks.drain(..) {
            self.user_code.run(callback);
        }
        // Those that have none need not go where destructors may run.
        work.freed.retain(Value::has_destructor);
        if !work.freed.is_empty() {
            self.user_code.drop_values(std::mem::take(&mut work.freed));
        }
        for dropped in work.dropped.drain(..) {
            self.user_code.run(move || drop(dropped));
        }
        work.recycle();
    }

    /// Hands a message of this worker to itself.
    pub(super) fn loop_back(self: &Arc<Self>, mut message: Message) {
        if let Err(error) = self.take_in(self.me, &mut std::iter::once(&mut message)) {
            tracing::error!(worker = %self.name, %error, "a call of this worker to itself failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::eventually;

    use crate::testing::Cluster;

    #[farref_macros::remote]
    async fn number() -> u64 {
        7
    }

    /// Releases gather until the clock sends them. Those that come after that have to tell it again.
    #[tokio::test]
    async fn releases_that_were_sent_do_not_gather_any_more() -> crate::Result<()> {
        let cluster = Cluster::start(2).await?;
        let (me, owner) = (cluster.worker(0), cluster.worker(1));
        let peer = me.peer("worker1")?;
        for _ in 0..3 {
            let there = number::on(&peer).remote();
            there.confirmed().await?;
            drop(there);
            let is_sent = || !me.core.gathers() && owner.references().is_empty();
            eventually("they are sent", is_sent)
                .await
                .expect("they are sent");
        }
        cluster.shutdown().await
    }
}

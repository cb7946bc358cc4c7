//! The tasks that write pipes, and read answers to requests of ours. What peers ask is read in [`super::accepting`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::agent::Departure;
use tokio::sync::mpsc;

use super::state::AgentShared;
use super::state::links::{Link, ToSend, lock};
use super::tensors;
use crate::transport::{Outgoing, PipeError, PipeReceiver, PipeSender, connect};

/// How long the host of the store waits for the others to let go of it.
const LAST_CLIENTS: Duration = Duration::from_secs(5);

/// How long a worker that ends waits at least until its turn to change the group is given up. It is in any case, as long as
/// the process lives.
const LAST_TURN: Duration = Duration::from_secs(2);

/// This worker's own connection to a store that it hosts.
const OWN_CONNECTIONS: usize = 1;

/// The most messages that are written at once.
const BATCH: usize = 64;

impl AgentShared {
    /// Queues something for the pipe that this worker's requests travel on. The first opens it.
    pub(super) fn queue(self: &Arc<Self>, link: &Arc<Link>, message: ToSend) {
        link.say(message, || {
            let (queue, messages) = mpsc::unbounded_channel();
            let task = Arc::clone(self).send_requests(Arc::clone(link), messages);
            self.spawn_writer(task);
            queue
        });
    }

    pub(super) fn spawn_writer(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut writers = lock(&self.writers);
        while writers.try_join_next().is_some() {}
        writers.spawn_on(task, &self.runtime);
    }

    /// Opens a pipe to a peer, and writes requests to it until nobody has any more. Answers are read beside.
    async fn send_requests(
        self: Arc<Self>,
        link: Arc<Link>,
        mut messages: mpsc::UnboundedReceiver<ToSend>,
    ) {
        let connected = connect(&link.address, &self.name, self.limits.clone()).await;
        let (mut sender, mut receiver) = match connected {
            Ok(pipe) => pipe,
            Err(error) => {
                tracing::warn!(worker = %self.name, peer = %link.name, %error, "a peer cannot be reached");
                return self.lost(&link, Departure::Died);
            }
        };
        receiver.set_widths(tensors::widths);
        link.count(sender.traffic());
        let reader = Arc::clone(&self).read_answers(Arc::clone(&link), receiver);
        self.spawn(reader);
        let compose = |message| self.compose(&link, message);
        let written = self.write(&link.name, &mut sender, &mut messages, compose);
        if let Err(error) = written.await {
            self.broken(&link, Some(error));
        }
        sender.close();
    }

    async fn read_answers(self: Arc<Self>, link: Arc<Link>, mut receiver: PipeReceiver) {
        let end = loop {
            match receiver.next().await {
                Ok(Some(message)) => self.response(&link, message),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
            if link.is_gone() {
                return;
            }
        };
        self.broken(&link, end);
    }

    /// Writes until there is nothing more to write, or the pipe breaks.
    pub(super) async fn write(
        &self,
        peer: &str,
        sender: &mut PipeSender,
        messages: &mut mpsc::UnboundedReceiver<ToSend>,
        compose: impl Fn(ToSend) -> Option<Outgoing<farref::Part>>,
    ) -> Result<(), PipeError> {
        let mut queued = Vec::with_capacity(BATCH);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            // What peers have read out of memory need not wait for the next message to be given back.
            let came = tokio::select! {
                came = messages.recv_many(&mut queued, BATCH) => came,
                read = sender.some_read(), if sender.has_lent() => {
                    read?;
                    continue;
                }
            };
            if came == 0 {
                break;
            }
            batch.extend(queued.drain(..).filter_map(&compose));
            match sender.send(&batch).await {
                Ok(()) => {}
                // Nothing was written because of one of them.
                Err(_) if sender.is_open() => {
                    self.send_singly(peer, sender, &batch).await?;
                }
                Err(error) => return Err(error),
            }
            batch.clear();
        }
        // Otherwise the peer is gone, or has been cut off.
        if self.closing.load(Ordering::Relaxed) {
            sender.settled().await;
        }
        Ok(())
    }

    /// The message that is to be written. A call that cannot be written fails instead.
    fn compose(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: ToSend,
    ) -> Option<Outgoing<farref::Part>> {
        match message {
            ToSend::Call(id, call) => {
                let message = self.compose_call(link.node, id, &call);
                match message.and_then(|message| self.judge(&message).map(|()| message)) {
                    Ok(message) => Some(message),
                    Err(error) => {
                        self.not_sent(link, id, &call.head.carried, &error);
                        None
                    }
                }
            }
            reply => self.compose_reply(reply),
        }
    }

    /// Writes what is queued, for so long at most, and ends everything.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let links = {
            let mut members = self.members_mut();
            members.by_name.clear();
            std::mem::take(&mut members.by_node)
        };
        // The queues end with the last of those who can fill them.
        for link in links.values() {
            link.end();
        }
        drop(links);
        let mut tasks = {
            let mut tasks = lock(&self.tasks);
            std::mem::take(&mut *tasks)
        };
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        let mut writers = {
            let mut writers = lock(&self.writers);
            std::mem::take(&mut *writers)
        };
        let written = async { while writers.join_next().await.is_some() {} };
        drop(tokio::time::timeout(patience, written).await);
        writers.abort_all();
        while writers.join_next().await.is_some() {}
        // What a dropped future has left undone in the store, however slow that is.
        drop(tokio::time::timeout(patience.max(LAST_TURN), self.group_store.settled()).await);
        self.close_store(patience).await;
    }

    /// The others may still read from the store that all are done: it is there until they have closed their
    /// connections, for so long at most.
    async fn close_store(&self, patience: Duration) {
        let server = {
            let mut server = lock(&self.server);
            server.take()
        };
        let Some(server) = server else {
            return;
        };
        let end = tokio::time::Instant::now() + patience.min(LAST_CLIENTS);
        while server.connections() > OWN_CONNECTIONS && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.close().await;
    }
}

//! The tasks that write and read pipes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farref::CodecError;
use farref::agent::{AnswerHead, AnswerMessage, Departure, Failure, Message, Origins, Target};
use tokio::sync::mpsc;

use super::links::{Link, Queue, ToSend, lock};
use super::{Shared, answering, tensors};
use crate::transport::{Incoming, Listener, Outgoing, PipeReceiver, PipeSender, connect};

/// How long the host of the store waits for the others to let go of it.
const LAST_CLIENTS: Duration = Duration::from_secs(5);

/// This worker's own connection to a store that it hosts.
const OWN_CONNECTIONS: usize = 1;

/// Requests of one peer beyond which no more are read for a while.
const MAX_SERVED: usize = 8192;
/// Until it is looked again whether there are fewer.
const SHORT_STOP: Duration = Duration::from_millis(1);
/// What they wait for may be behind: a request is read now and then in any case.
const LONGEST_STOP: Duration = Duration::from_secs(1);

/// The most messages that are written at once.
const BATCH: usize = 64;

impl Shared {
    /// Queues something for the pipe that this worker's requests travel on. The first opens it.
    pub(super) fn queue(self: &Arc<Self>, link: &Arc<Link>, message: ToSend) {
        link.say(message, || {
            let (queue, messages) = mpsc::unbounded_channel();
            let task = Arc::clone(self).talk(Arc::clone(link), messages);
            self.spawn_writer(task);
            queue
        });
    }

    fn spawn_writer(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut writers = lock(&self.writers);
        while writers.try_join_next().is_some() {}
        writers.spawn(task);
    }

    /// Opens a pipe to a peer, and writes requests to it until nobody has any more. Answers are read beside.
    async fn talk(self: Arc<Self>, link: Arc<Link>, mut messages: mpsc::UnboundedReceiver<ToSend>) {
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
        self.write(&link, &mut sender, &mut messages).await;
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

    fn broken(self: &Arc<Self>, link: &Arc<Link>, error: Option<crate::PipeError>) {
        if self.closing.load(Ordering::Relaxed) || link.is_gone() {
            return;
        }
        match error {
            Some(error) => {
                tracing::warn!(worker = %self.name, peer = %link.name, %error, "a pipe broke");
            }
            None => {
                tracing::info!(worker = %self.name, peer = %link.name, "a peer closed its pipe")
            }
        }
        self.lost(link, Departure::Died);
    }

    /// Writes until there is nothing more to write, or the pipe breaks.
    async fn write(
        self: &Arc<Self>,
        link: &Arc<Link>,
        sender: &mut PipeSender,
        messages: &mut mpsc::UnboundedReceiver<ToSend>,
    ) {
        let mut queued = Vec::with_capacity(BATCH);
        let mut batch = Vec::with_capacity(BATCH);
        while messages.recv_many(&mut queued, BATCH).await > 0 {
            for message in queued.drain(..) {
                batch.extend(self.compose(link, message));
            }
            match sender.send(&batch).await {
                Ok(()) => {}
                // Refused before anything was written, though it was checked before.
                Err(error) if sender.is_open() => {
                    tracing::error!(worker = %self.name, peer = %link.name, %error, "messages were not sent");
                }
                Err(error) => return self.broken(link, Some(error)),
            }
            batch.clear();
        }
    }

    /// The message that is to be written. A call that cannot be written fails instead.
    fn compose(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: ToSend,
    ) -> Option<Outgoing<farref::Part>> {
        match message {
            ToSend::Ready(message) => Some(message),
            ToSend::Answer(served, answer) => {
                let message = self.compose_answer(&served, &answer);
                match self.check_size(&message) {
                    Ok(()) => Some(message),
                    Err(error) => {
                        Some(self.compose_failure(&served, "RuntimeError", &error.to_string()))
                    }
                }
            }
            ToSend::Call(id, call) => match self
                .compose_call(link.node, id, &call)
                .and_then(|message| self.check_size(&message).map(|()| message))
            {
                Ok(message) => Some(message),
                Err(error) => {
                    link.answered(id);
                    tracing::warn!(worker = %self.name, peer = %link.name, %error, "a call cannot be sent");
                    if let Target::Answer(id) | Target::Fetch(id, ..) = call.head.target {
                        let head = AnswerHead {
                            id,
                            carried: Vec::new(),
                        };
                        let outcome = Err(Failure::BadArguments(error.to_string()));
                        let answer = AnswerMessage {
                            head,
                            origins: Origins::default(),
                            outcome,
                        };
                        self.give(link, Message::Answer(answer));
                    }
                    None
                }
            },
        }
    }

    /// Whether the wire takes a message. Asked before, so that one that is too large costs nobody the pipe.
    fn check_size(&self, message: &Outgoing<farref::Part>) -> Result<(), CodecError> {
        let storages: usize = message.storages.iter().map(farref::Part::len).sum();
        let payload = message.payload.len().max(message.tensor_list.len()) as u64;
        let all = payload + message.tensor_list.len() as u64 + storages as u64;
        match payload > self.limits.payload || all > self.limits.message {
            true => Err(CodecError::new(format_args!(
                "{all} bytes are more than this wire takes at once ({} with tensors, {} without)",
                self.limits.message, self.limits.payload
            ))),
            false => Ok(()),
        }
    }

    /// Takes in pipes of peers, each with its requests.
    pub(super) async fn listen(self: Arc<Self>, mut listener: Listener) {
        loop {
            match listener.accept().await {
                Ok((name, sender, receiver)) => {
                    let census = listener.census();
                    tracing::debug!(worker = %self.name, peer = name, ?census, "a peer opened a pipe");
                    let task = Arc::clone(&self).hear(name, sender, receiver);
                    self.spawn(task);
                }
                Err(error) => {
                    tracing::warn!(worker = %self.name, %error, "the listener failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Reads the requests of one pipe. Answers are written beside.
    async fn hear(
        self: Arc<Self>,
        name: String,
        mut sender: PipeSender,
        mut receiver: PipeReceiver,
    ) {
        receiver.set_widths(tensors::widths);
        let (back, mut messages) = mpsc::unbounded_channel();
        let traffic = sender.traffic();
        let writer = Arc::clone(&self);
        // A worker that is joining is no member yet, and asks all the same.
        let stranger = Link::new(
            farref::agent::NodeId::new(u32::MAX, 0),
            name.clone(),
            String::new(),
        );
        let unknown = Arc::clone(&stranger);
        self.spawn_writer(async move {
            writer.write(&unknown, &mut sender, &mut messages).await;
            sender.close();
        });
        let mut link = None;
        let end = loop {
            match receiver.next().await {
                Ok(Some(message)) => {
                    let known = self.known(&name, &mut link, &traffic);
                    match known {
                        Some(link) if link.is_gone() => return,
                        Some(link) => {
                            self.request(link, message, &back);
                            // PyTorch has no limit of its own: its socket fills up instead.
                            let since = Instant::now();
                            while link.serving() > MAX_SERVED && since.elapsed() < LONGEST_STOP {
                                tokio::time::sleep(SHORT_STOP).await;
                            }
                        }
                        None => self.stranger(&stranger, message, &back),
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(link) = self.known(&name, &mut link, &traffic) {
            let link = Arc::clone(link);
            self.broken(&link, end);
        }
    }

    /// What there is with the worker of that name, if it is a member by now.
    fn known<'a>(
        &self,
        name: &str,
        link: &'a mut Option<Arc<Link>>,
        traffic: &Arc<crate::transport::Traffic>,
    ) -> Option<&'a Arc<Link>> {
        if link.is_none()
            && let Some(found) = self.link_by_name(name)
        {
            found.count(Arc::clone(traffic));
            *link = Some(found);
        }
        link.as_ref()
    }

    /// A request of a worker that is no member: it may only ask what one asks who is joining.
    fn stranger(self: &Arc<Self>, stranger: &Arc<Link>, message: Incoming, back: &Queue) {
        let id = message.id;
        if !self.is_group_request(&message) {
            let text = format!("worker {} is no member of this group", stranger.name);
            let (kind, bytes) = answering::exception_message(&text);
            let message = answering::ready(kind, id, bytes);
            return drop(back.send(ToSend::Ready(message)));
        }
        self.request(stranger, message, back);
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

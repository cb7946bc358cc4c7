//! Pipes that peers open, and whose they are.
//!
//! Whoever opens a pipe says its name, and nothing vouches for it. So a pipe belongs to nobody at first, and what is
//! done with it is a stranger's doing.
//!
//! - **IN-1** A pipe becomes a member's when a request comes over it under the name of a member that has no other such
//!   pipe. PyTorch's workers open one, and never a second.
//! - **IN-2** Only the end of a member's own pipe is the end of the member.
//! - **IN-3** A stranger may ask what one asks who joins a dynamic group, for itself. When that group has taken it in,
//!   the pipe is the new member's. If the pipe ends before, what the stranger has left undone is looked after (MR-1).
//! - **IN-4** Pipes that belong to nobody have places of their own. When all are taken the oldest goes, and those of
//!   strangers go before those with the name of a member.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use farref::Part;
use tokio::sync::{Notify, mpsc};

use super::incoming::is_call;
use super::links::{Link, Queue, ToSend, lock};
use super::load::Reading;
use super::{Shared, answering, tensors};
use crate::pickle::Pickle;
use crate::rpc::{Kind, Message, RpcError, Udf};
use crate::transport::{Incoming, Listener, Outgoing, PipeReceiver, PipeSender, Traffic};

/// The longest question of a stranger's that is looked at. What joiners ask has a few hundred bytes.
const MAX_QUESTION: usize = 64 << 10;

/// A pipe that somebody has opened.
pub(super) struct Inlet {
    number: u64,
    /// What the peer says its name is.
    pub(super) name: String,
    traffic: Arc<Traffic>,
    /// Whose it is, if it is a member's (IN-1).
    member: OnceLock<Arc<Link>>,
    /// It has asked what one asks who joins.
    asked: AtomicBool,
    ended: AtomicBool,
    /// It has to make room (IN-4).
    evicted: Notify,
}

impl Inlet {
    fn new(number: u64, name: String, traffic: Arc<Traffic>) -> Arc<Self> {
        Arc::new(Self {
            number,
            name,
            traffic,
            member: OnceLock::new(),
            asked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            evicted: Notify::new(),
        })
    }

    /// The pipe is this member's from now on.
    fn belongs_to(&self, link: &Arc<Link>) {
        link.count(Arc::clone(&self.traffic));
        drop(self.member.set(Arc::clone(link)));
    }

    /// Whether the pipe ended before this was called, or before it was anybody's: who reads it looks whose it is after it
    /// has noted the end, and who takes it for a member looks for the end after that.
    pub(super) fn has_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ended.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Pipes that are nobody's, the oldest first.
#[derive(Default)]
pub(super) struct Unclaimed {
    pipes: Mutex<BTreeMap<u64, Arc<Inlet>>>,
    next: AtomicU64,
}

impl Unclaimed {
    /// One more, for which another one may have to go (IN-4).
    fn add(
        &self,
        name: String,
        traffic: Arc<Traffic>,
        most: usize,
        is_member: impl Fn(&str) -> bool,
    ) -> Arc<Inlet> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let inlet = Inlet::new(number, name, traffic);
        let mut pipes = lock(&self.pipes);
        if pipes.len() >= most {
            let stranger = pipes.values().find(|inlet| !is_member(&inlet.name));
            let oldest = stranger.or_else(|| pipes.values().next());
            if let Some(number) = oldest.map(|inlet| inlet.number)
                && let Some(evicted) = pipes.remove(&number)
            {
                evicted.evicted.notify_one();
            }
        }
        pipes.insert(number, Arc::clone(&inlet));
        inlet
    }

    /// Says whether it was one of them: it may have had to go.
    fn remove(&self, inlet: &Inlet) -> bool {
        lock(&self.pipes).remove(&inlet.number).is_some()
    }
}

impl Shared {
    /// Takes in pipes of peers, each with its requests.
    pub(super) async fn listen(self: Arc<Self>, mut listener: Listener) {
        loop {
            match listener.accept().await {
                Ok((name, sender, receiver)) => {
                    let census = listener.census();
                    tracing::debug!(worker = %self.name, peer = name, ?census, "a peer opened a pipe");
                    let is_member = |name: &str| self.link_by_name(name).is_some();
                    let most = self.limits.unclaimed;
                    let inlet = self.unclaimed.add(name, sender.traffic(), most, is_member);
                    let task = Arc::clone(&self).hear(inlet, sender, receiver);
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
        inlet: Arc<Inlet>,
        mut sender: PipeSender,
        mut receiver: PipeReceiver,
    ) {
        receiver.set_widths(tensors::widths);
        let (back, mut messages) = mpsc::unbounded_channel();
        let (writer, written) = (Arc::clone(&self), Arc::clone(&inlet));
        self.spawn_writer(async move {
            let compose = |message| writer.compose_reply(message);
            let end = writer.write(&written.name, &mut sender, &mut messages, compose);
            if let (Err(error), Some(link)) = (end.await, written.member.get()) {
                writer.broken(link, Some(error));
            }
            sender.close();
        });
        let mut reading = Reading::default();
        let end = loop {
            let next = tokio::select! {
                biased;
                () = inlet.evicted.notified() => return,
                next = receiver.next() => next,
            };
            match next {
                Ok(Some(message)) => match self.whose(&inlet) {
                    Some(link) if link.is_gone() => return,
                    Some(link) => {
                        let is_call = is_call(&message);
                        self.request(link, message, &back);
                        if is_call {
                            link.load.room(self.max_calls(), &mut reading).await;
                        }
                    }
                    None => self.stranger(&inlet, &message, &back),
                },
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        inlet.end();
        // IN-2
        if let Some(link) = inlet.member.get() {
            return self.broken(link, end);
        }
        if inlet.asked.load(Ordering::Relaxed) {
            // It has its place meanwhile, so that there are not too many of them (IN-4).
            tokio::select! {
                () = inlet.evicted.notified() => {}
                () = self.clear_up_after_joiner(&inlet) => {}
            }
        }
        self.unclaimed.remove(&inlet);
    }

    /// The member whose pipe it is, if there is one by now (IN-1).
    fn whose<'a>(&self, inlet: &'a Inlet) -> Option<&'a Arc<Link>> {
        if inlet.member.get().is_none()
            && let Some(link) = self.link_by_name(&inlet.name)
        {
            self.claim(inlet, &link);
        }
        inlet.member.get()
    }

    /// A pipe is a member's from now on, unless the member has one, or the pipe has just had to go. Says whether the
    /// member had none.
    pub(super) fn claim(&self, inlet: &Inlet, link: &Arc<Link>) -> bool {
        if !link.claim_inlet() {
            return false;
        }
        match self.unclaimed.remove(inlet) {
            true => inlet.belongs_to(link),
            false => link.unclaim_inlet(),
        }
        true
    }

    /// A request of one that is no member (IN-3).
    fn stranger(self: &Arc<Self>, inlet: &Arc<Inlet>, message: &Incoming, back: &Queue) {
        if let Err(error) = self.try_stranger(inlet, message, back) {
            let text = format!("On worker {} (Rust): {error}", self.name);
            let (kind, bytes) = answering::exception_message(&text);
            let message = answering::ready(kind, message.id, bytes);
            drop(back.send(ToSend::Ready(message)));
        }
    }

    fn try_stranger(
        self: &Arc<Self>,
        inlet: &Arc<Inlet>,
        message: &Incoming,
        back: &Queue,
    ) -> Result<(), RpcError> {
        let no_member = || {
            let text = format!(
                "anything of worker {}, which is no member of this group",
                inlet.name
            );
            RpcError::Unsupported(text)
        };
        if message.payload.len() > MAX_QUESTION {
            return Err(no_member());
        }
        let kind = Kind::from_code(message.kind)?;
        let Message::PythonCall { udf, .. } = Message::decode(kind, &message.payload)? else {
            return Err(no_member());
        };
        let pickle = Pickle::read(udf)?;
        let budget = pickle.budget();
        let udf = Udf::read(pickle.view(&budget))?;
        match self.joins(&udf.function) {
            true => {
                inlet.asked.store(true, Ordering::Relaxed);
                self.ask_to_join(inlet, &udf, message.id, back)
            }
            false => Err(no_member()),
        }
    }

    /// What is to be written over a pipe of the peer's.
    pub(super) fn compose_reply(self: &Arc<Self>, message: ToSend) -> Option<Outgoing<Part>> {
        match message {
            ToSend::Ready(message) => Some(message),
            ToSend::Answer(served, answer) => Some(self.compose_answer(&served, &answer)),
            // Requests of ours go over a pipe of ours.
            ToSend::Call(..) => None,
        }
    }
}

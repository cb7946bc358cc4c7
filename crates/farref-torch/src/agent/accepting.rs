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
//!   strangers go before those with the name of a member. The first pipe with the name of a member that has none has that
//!   member's place, and stays. One that has to go is closed, whether its peer reads or not.
//! - **IN-5** Over a pipe that no member is expected to open, and that is nobody's, comes nothing that is larger than what one
//!   asks who joins; one at a time is carried out, and if the answers are not read no more is.

#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::Part;
use tokio::sync::mpsc;

use super::incoming::is_call;
use super::messages::{exception_message, ready};
use super::state::AgentShared;
use super::state::accepted_pipes::{AcceptedPipe, Standing};
use super::state::links::{Link, Queue, ToSend};
use super::state::load::Reading;
use super::tensors;
use crate::pickle::Pickle;
use crate::rpc::{Kind, Message, RpcError, Udf};
use crate::transport::{Incoming, Limits, Listener, Outgoing, PipeError, PipeReceiver, PipeSender};

/// The longest question of a stranger's that is looked at. What joiners ask has a few hundred bytes.
const MAX_QUESTION: usize = 64 << 10;

/// How many answers to a stranger may wait to be read by it.
const MAX_UNREAD: u64 = 64;

impl AgentShared {
    /// Takes in pipes of peers, each with its requests.
    pub(super) async fn listen(self: Arc<Self>, mut listener: Listener) {
        loop {
            match listener.accept().await {
                Ok((name, sender, receiver)) => {
                    let census = listener.census();
                    tracing::debug!(worker = %self.name, peer = name, ?census, "a peer opened a pipe");
                    let standing = |name: &str| self.standing(name);
                    let most = self.limits.unclaimed;
                    let accepted = self.unclaimed.add(name, sender.traffic(), most, standing);
                    let task = Arc::clone(&self).read_requests(accepted, sender, receiver);
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
    async fn read_requests(
        self: Arc<Self>,
        accepted: Arc<AcceptedPipe>,
        mut sender: PipeSender,
        mut receiver: PipeReceiver,
    ) {
        receiver.set_widths(tensors::widths);
        let (back, mut messages) = mpsc::unbounded_channel();
        let (writer, written) = (Arc::clone(&self), Arc::clone(&accepted));
        self.spawn_writer(async move {
            let compose = |message| writer.compose_reply(message);
            let end = writer.write(&written.name, &mut sender, &mut messages, compose);
            if let (Err(error), Some(link)) = (end.await, written.member.get()) {
                writer.broken(link, Some(error));
            }
            sender.close();
        });
        // IN-5
        if self.standing(&accepted.name) != Standing::Expected {
            receiver.set_limits(Arc::new(self.question_limits()));
        }
        let (mut reading, mut questions) = (Reading::default(), 0);
        let end = loop {
            let next = tokio::select! {
                biased;
                () = accepted.stop.notified() => return self.stop_reading(&mut receiver),
                () = accepted.claimed.notified() => {
                    receiver.set_limits(Arc::new(self.limits.clone()));
                    continue;
                }
                next = receiver.next() => next,
            };
            match next {
                Ok(Some(message)) => match self.whose(&accepted) {
                    Some(link) if link.is_gone() => return self.stop_reading(&mut receiver),
                    Some(link) => {
                        let is_call = is_call(&message);
                        self.request(link, message, &back);
                        if is_call {
                            link.load.room(self.max_calls(), &mut reading).await;
                        }
                    }
                    None => {
                        questions += 1;
                        if let Some(worker) = self.stranger(&accepted, &message, &back) {
                            self.join(&accepted, worker, message.id, &back).await;
                        }
                        let answered = accepted.traffic.messages_sent.load(Ordering::Relaxed);
                        if questions > answered + MAX_UNREAD {
                            break Some(PipeError::Rules("a stranger asks, and does not read"));
                        }
                    }
                },
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        receiver.end();
        // IN-2
        if let Some(link) = accepted.member.get() {
            return self.broken(link, end);
        }
        if accepted.asked.load(Ordering::Relaxed) {
            // It has its place meanwhile, so that there are not too many of them (IN-4).
            tokio::select! {
                () = accepted.stop.notified() => {}
                () = self.clear_up_after_joiner(&accepted) => {}
            }
        }
        self.unclaimed.remove(&accepted);
    }

    /// Nothing more is read from a pipe, or written to it. When this worker closes, what is queued is still written.
    fn stop_reading(&self, receiver: &mut PipeReceiver) {
        if !self.closing.load(Ordering::Relaxed) {
            receiver.end();
        }
    }

    fn standing(&self, name: &str) -> Standing {
        match self.link_by_name(name) {
            Some(link) if link.has_peer_pipe() => Standing::Member,
            Some(_) => Standing::Expected,
            None => Standing::Stranger,
        }
    }

    /// How much one may send that is no member (IN-5).
    fn question_limits(&self) -> Limits {
        Limits {
            payload: self.limits.payload.min(MAX_QUESTION as u64),
            message: self.limits.message.min(2 * MAX_QUESTION as u64),
            tensors: 0,
            ..self.limits.clone()
        }
    }

    /// The member whose pipe it is, if there is one by now (IN-1).
    fn whose<'a>(&self, accepted: &'a AcceptedPipe) -> Option<&'a Arc<Link>> {
        if accepted.member.get().is_none()
            && let Some(link) = self.link_by_name(&accepted.name)
        {
            self.claim(accepted, &link);
        }
        accepted.member.get()
    }

    /// A pipe is a member's from now on, unless the member has one, or the pipe has just had to go. Says whether the
    /// member had none.
    pub(super) fn claim(&self, accepted: &AcceptedPipe, link: &Arc<Link>) -> bool {
        if !link.claim_peer_pipe() {
            return false;
        }
        match self.unclaimed.remove(accepted) {
            true => accepted.belongs_to(link),
            false => link.unclaim_peer_pipe(),
        }
        true
    }

    /// A request of one that is no member (IN-3). Says which number it has if it joins.
    fn stranger(&self, accepted: &AcceptedPipe, message: &Incoming, back: &Queue) -> Option<u16> {
        self.try_stranger(accepted, message, back)
            .unwrap_or_else(|error| {
                let text = format!("On worker {} (Rust): {error}", self.name);
                let (kind, bytes) = exception_message(&text);
                let message = ready(kind, message.id, bytes);
                drop(back.send(ToSend::Ready(message)));
                None
            })
    }

    fn try_stranger(
        &self,
        accepted: &AcceptedPipe,
        message: &Incoming,
        back: &Queue,
    ) -> Result<Option<u16>, RpcError> {
        let no_member = || {
            let text = format!(
                "anything of worker {}, which is no member of this group",
                accepted.name
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
                accepted.asked.store(true, Ordering::Relaxed);
                self.ask_to_join(accepted, &udf, message.id, back)
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

//! Requests of peers, as the runtime takes them. Those that call something are in [`calls`](super::calls).

use std::sync::Arc;

use farref::Payload;
use farref::agent::{self, Control, Fingerprint};
use farref_proto::Registration;

use super::messages::{exception_message, ready};
use super::pickled::{Found, own_arguments};
use super::request::{Asked, Request, Wanted};
use super::state::links::{AnswerKind, Link, Queue, ToSend};
use super::state::{AgentShared, ids};
use super::tensors;
use crate::pickle::Writer;
use crate::rpc::{GlobalId, Kind, Message, RpcError};
use crate::transport::Incoming;
use crate::value::{Body, Form, Received};

impl AgentShared {
    /// A request of a peer's. The answer to one that is wrong says so; a peer that breaks the rules of
    /// references is cut off.
    pub(super) fn request(self: &Arc<Self>, link: &Arc<Link>, message: Incoming, back: &Queue) {
        let (id, code) = (message.id, message.kind);
        if let Err(error) = self.try_request(link, message, back) {
            tracing::debug!(worker = %self.name, peer = %link.name, id, code, %error, "a request is refused");
            let text = format!("On worker {} (Rust): {error}", self.name);
            let (kind, bytes) = exception_message(&text);
            drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
        }
    }

    fn try_request(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: Incoming,
        back: &Queue,
    ) -> Result<(), RpcError> {
        let kind = Kind::from_code(message.kind)?;
        let payload = message.payload;
        let mut request = Request {
            id: message.id,
            back: back.clone(),
            list: message.tensor_list,
            storages: message.storages,
            context: None,
            method: None,
            profile: None,
        };
        let mut decoded = Message::decode(kind, &payload)?;
        // Messages in messages: at most one for autograd in one for profiling (RM-3).
        loop {
            decoded = match decoded {
                Message::Forward {
                    kind,
                    inner,
                    context,
                    autograd,
                    ..
                } => {
                    request.context = Some((context, autograd));
                    Message::decode(kind, inner)?
                }
                Message::Profiled {
                    kind,
                    inner,
                    profile,
                    ..
                } => {
                    request.profile = Some(profile);
                    Message::decode(kind, inner)?
                }
                other => break self.dispatch(link, other, request),
            };
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: Message<'_>,
        request: Request,
    ) -> Result<(), RpcError> {
        let done = |message: Message<'_>| {
            let (kind, bytes) = message.encode();
            let message = ready(kind, request.id, bytes);
            drop(request.back.send(ToSend::Ready(message)));
        };
        match message {
            Message::PythonCall { udf, .. } => {
                self.python(link, udf, Wanted::Answer(AnswerKind::Python), request)
            }
            Message::PythonRemoteCall {
                udf, rref, fork, ..
            } => self.python(link, udf, Wanted::Stay(rref, fork), request),
            Message::ScriptCall(call) => {
                self.script(link, &call, Wanted::Answer(AnswerKind::Script), request)
            }
            Message::ScriptRemoteCall { call, rref, fork } => {
                self.script(link, &call, Wanted::Stay(rref, fork), request)
            }
            Message::PythonFetch { rref, .. } => {
                self.fetch(link, rref, AnswerKind::PythonFetch, request)
            }
            Message::ScriptFetch { rref, .. } => {
                self.fetch(link, rref, AnswerKind::ScriptFetch, request)
            }
            Message::RRefBackward {
                rref,
                context,
                retain_graph,
            } => {
                let function = self.functions.by_name(farref_autograd::REMOTE_BACKWARD);
                let context = Some((context, 0));
                let request = Request { context, ..request };
                let mut flag = Writer::new(4);
                flag.bool(retain_graph).tuple_of(1);
                let asked = Asked {
                    target: self.fetch_target(&request, rref),
                    function: function.map(|info| info.reference),
                    carried: Vec::new(),
                    arguments: own_arguments(flag, 1),
                    how: AnswerKind::RRefBackward,
                };
                self.hand_in(link, asked, request);
                Ok(())
            }
            Message::ForkRequest { rref, fork } => {
                let share = self.incarnations.share(rref, fork);
                link.confirm_later(share, request.confirming(Kind::Ack));
                let fingerprint = Fingerprint::foreign(0);
                let registration = Registration { share, fingerprint };
                self.control(link, Control::Register(vec![registration]));
                Ok(())
            }
            Message::UserDelete { rref, fork } => {
                let share = self.incarnations.share(rref, fork);
                self.control(link, Control::Release(vec![share]));
                done(Message::Ack);
                Ok(())
            }
            Message::ChildAccept { fork } => {
                // The reference is not said. The runtime goes by the fork, which it keeps in the same part of
                // its table as the reference, and finds that part by any number of it.
                let share = self.incarnations.share(fork, fork);
                self.control(link, Control::Accept(vec![share]));
                done(Message::Ack);
                Ok(())
            }
            Message::Cleanup { context } => {
                let context = self.incarnations.context(context);
                self.control(link, Control::ContextCleanup(vec![(context, 0)]));
                done(Message::CleanupDone);
                Ok(())
            }
            Message::Backward {
                gradients,
                context,
                autograd,
                retain_graph,
            } => {
                let (entries, parts) =
                    tensors::receive(&request.list, request.storages, |place| {
                        gradients.iter().filter(|other| **other == place).count()
                    })?;
                let back = (request.id, request.back);
                let work = (gradients, entries, parts);
                self.receive_gradients(link, work, context, autograd, retain_graph, back);
                Ok(())
            }
            other => Err(RpcError::Unsupported(format!(
                "a message of type {}",
                other.kind().name()
            ))),
        }
    }

    fn fetch(
        self: &Arc<Self>,
        link: &Arc<Link>,
        rref: GlobalId,
        how: AnswerKind,
        request: Request,
    ) -> Result<(), RpcError> {
        let asked = Asked {
            target: self.fetch_target(&request, rref),
            function: None,
            carried: Vec::new(),
            arguments: Payload::default(),
            how,
        };
        self.hand_in(link, asked, request);
        Ok(())
    }

    /// A value that came in a message of a peer's, with its tensors.
    #[expect(clippy::too_many_arguments, reason = "all that a message consists of")]
    pub(super) fn receive_value(
        &self,
        link: &Link,
        form: Form,
        pickle: &[u8],
        references: Vec<usize>,
        found: &Found,
        (list, storages): (&[u8], Vec<crate::transport::Storage>),
        context: Option<(i64, i64)>,
    ) -> Result<Payload, RpcError> {
        let uses = |place| found.tensors.get(&place).copied().unwrap_or(0);
        let (entries, parts) = tensors::receive(list, storages, uses)?;
        let received = context.and_then(|(context, autograd)| {
            let needs_gradients = entries.iter().any(|entry| entry.requires_grad);
            needs_gradients.then(|| Received {
                context,
                from: ids::number_of(link.node),
                message: autograd as u64,
            })
        });
        let node = |node| u32::try_from(node).unwrap_or(u32::MAX);
        let body = Body {
            form,
            pickle: pickle.to_vec(),
            placeholders: Vec::new(),
            tensors: entries,
            references: references.into_iter().map(node).collect(),
            received,
        };
        let body = body
            .into_bytes()
            .map_err(|error| RpcError::Unsupported(error.to_string()))?;
        Ok(Payload { body, parts })
    }

    /// Gives something that a peer says to the runtime, which may find that the peer breaks its rules.
    pub(super) fn give(self: &Arc<Self>, link: &Arc<Link>, message: agent::Message) {
        let Some(inbound) = self.inbound.upgrade() else {
            return;
        };
        if let Err(error) = inbound.receive(link.node, message) {
            self.misbehaves(link, &error.to_string());
        }
    }

    pub(super) fn control(self: &Arc<Self>, link: &Arc<Link>, control: Control) {
        self.give(link, agent::Message::Control(control));
    }
}

/// Whether a request is one that stays open until it is carried out, as far as its type says.
pub(super) fn is_call(message: &Incoming) -> bool {
    let kind = Kind::from_code(message.kind);
    !matches!(
        kind,
        Ok(Kind::ForkRequest | Kind::UserDelete | Kind::ChildAccept | Kind::Cleanup)
    )
}

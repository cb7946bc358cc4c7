//! Requests of peers, as the runtime takes them.

use std::sync::Arc;

use farref::Payload;
use farref::agent::{
    self, CallHead, CallMessage, Carried, Control, Fingerprint, FunctionRef, MessageId, Target,
    TraceContext,
};
use farref_proto::{Creation, Registration, Share};

use super::answering::{exception_message, ready};
use super::links::{Confirming, How, Link, Queue, Served, ToSend};
use super::outgoing::{RUST, RUST_METHOD, RUST_METHOD_THERE};
use super::pickled::Found;
use super::{Shared, ids, tensors};
use crate::PyException;
use crate::aten;
use crate::pickle::{Pickle, Writer};
use crate::rpc::{Fork, GlobalId, Kind, Message, Named, RpcError, ScriptCall, ScriptTarget, Udf};
use crate::transport::Incoming;
use crate::value::{Arrival, Body, Form, Received};

/// Where PyTorch's functions are that call methods where a value is.
const PROXY: &str = "torch.distributed.rpc.rref_proxy";
const API: &str = "torch.distributed.rpc.api";

/// Stands for functions that this program does not have.
const UNKNOWN: &str = "farref_torch::unknown";

/// Says that there is no such function, when its value is asked for.
#[farref::remote(name = "farref_torch::unknown")]
async fn unknown(text: String) -> Result<(), PyException> {
    Err(PyException::new("AttributeError", text))
}

/// A request that came, but for what it is.
pub(super) struct Request {
    id: i64,
    back: Queue,
    list: bytes::Bytes,
    storages: Vec<crate::transport::Storage>,
    /// The context, and what the sender has recorded the message as.
    context: Option<(i64, i64)>,
    /// The method that is called, by the name that it has on the value.
    method: Option<Box<str>>,
    /// What PyTorch's profiler knows it by, if it asked for it.
    profile: Option<GlobalId>,
}

/// What a call is on and where its result goes.
enum Wanted {
    Answer(How),
    Stay(GlobalId, GlobalId),
}

impl Shared {
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
                self.python(link, udf, Wanted::Answer(How::Python), request)
            }
            Message::PythonRemoteCall {
                udf, rref, fork, ..
            } => self.python(link, udf, Wanted::Stay(rref, fork), request),
            Message::ScriptCall(call) => {
                self.script(link, &call, Wanted::Answer(How::Script), request)
            }
            Message::ScriptRemoteCall { call, rref, fork } => {
                self.script(link, &call, Wanted::Stay(rref, fork), request)
            }
            Message::PythonFetch { rref, .. } => self.fetch(link, rref, How::PythonFetch, request),
            Message::ScriptFetch { rref, .. } => self.fetch(link, rref, How::ScriptFetch, request),
            Message::RRefBackward {
                rref,
                context,
                retain_graph,
            } => {
                let function = self.functions.by_name(farref_autograd::REMOTE_BACKWARD);
                let function = function.map(|info| info.reference);
                let context = Some((context, 0));
                let request = Request { context, ..request };
                let target = self.fetch_target(&request, rref);
                let mut flag = Writer::new(4);
                flag.bool(retain_graph).tuple_of(1);
                let arguments = own_arguments(flag)?;
                let how = How::RRefBackward;
                self.hand_in(link, target, function, Vec::new(), arguments, how, request);
                Ok(())
            }
            Message::ForkRequest { rref, fork } => {
                let share = self.lives.share(rref, fork);
                self.confirm_later(link, share, Kind::Ack, &request);
                let fingerprint = Fingerprint::foreign(0);
                let registration = Registration { share, fingerprint };
                self.control(link, Control::Register(vec![registration]));
                Ok(())
            }
            Message::UserDelete { rref, fork } => {
                let share = self.lives.share(rref, fork);
                self.control(link, Control::Release(vec![share]));
                done(Message::Ack);
                Ok(())
            }
            Message::ChildAccept { fork } => {
                // The reference is not said. The runtime goes by the fork, which it keeps in the same part of
                // its table as the reference, and finds that part by any number of it.
                let share = self.lives.share(fork, fork);
                self.control(link, Control::Accept(vec![share]));
                done(Message::Ack);
                Ok(())
            }
            Message::Cleanup { context } => {
                let context = self.lives.context(context);
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

    /// A call of a Python function.
    fn python(
        self: &Arc<Self>,
        link: &Arc<Link>,
        udf: &[u8],
        wanted: Wanted,
        mut request: Request,
    ) -> Result<(), RpcError> {
        let pickle = Pickle::read(udf)?;
        let budget = pickle.budget();
        let called = Udf::read(pickle.view(&budget))?;
        let name = &called.function;
        if self.is_group_call(name) {
            return self.group_call(link, &called, request.id, &request.back);
        }
        let mut found = Found::default();
        let (form, function, receiver) = match (name.module, &*name.name) {
            (PROXY, "_local_invoke" | "_local_invoke_async_execution") => {
                let items = called.arguments.tuple()?;
                let [_, method, ..] = items[..] else {
                    return Err(wrong("a call of a method has four parts"));
                };
                let method =
                    std::str::from_utf8(method.text()?).map_err(|_| wrong("a name is UTF-8"))?;
                request.method = Some(method.into());
                (Form::Method, Some(self.functions.method(method)), true)
            }
            (API, "_rref_typeof_on_owner") => (
                Form::Nothing,
                Some(self.functions.method("__class__")),
                true,
            ),
            (RUST_METHOD, name) => return self.rust_method(link, udf, &called, name, request),
            (RUST_METHOD_THERE, name) => {
                let function = self.functions.by_name(name).map(|info| info.reference);
                (Form::RustMethod, function, true)
            }
            (RUST, name) => {
                let function = self.functions.by_name(name).map(|info| info.reference);
                (Form::Udf, function, false)
            }
            _ => {
                let full = format!("{}.{}", name.module, name.name);
                let info = self.functions.by_foreign_name(&full).or_else(|| {
                    let operators = aten::operators(name.module, &name.name);
                    operators
                        .into_iter()
                        .find_map(|name| self.functions.by_foreign_name(&name))
                });
                let is_method = info.is_some_and(|info| info.is_method);
                if is_method {
                    let what =
                        format!("the method {full} without an object (use `rref.rpc_sync()`)");
                    return Err(RpcError::Unsupported(what));
                }
                (Form::Udf, info.map(|info| info.reference), false)
            }
        };
        let Some(mut function) = function else {
            return self.unknown_function(link, name, wanted, request);
        };
        found.look(called.arguments)?;
        found.look(called.keywords)?;
        let carried = self.carried(&found);
        let target = match (&wanted, receiver) {
            (Wanted::Stay(rref, fork), _) => {
                function.on_first_reference = receiver;
                self.stay_target(link, *rref, *fork, &function, &request)
            }
            (Wanted::Answer(_), true) => match found.references.first() {
                Some((_, fork)) => self.fetch_target(&request, fork.rref),
                None => return Err(wrong("a method is called on a reference")),
            },
            (Wanted::Answer(_), false) => Target::Answer(MessageId(request.id as u64)),
        };
        // The runtime takes the receiver of a call whose result stays out of the references.
        let skipped = usize::from(receiver && matches!(wanted, Wanted::Stay(..)));
        let references = found.references.iter().skip(skipped);
        let how = match wanted {
            Wanted::Answer(how) => how,
            Wanted::Stay(..) => How::Python,
        };
        let (body, request) = self.body(link, form, udf, references, &found, request)?;
        self.hand_in(link, target, Some(function), carried, body, how, request);
        Ok(())
    }

    /// A method of a Rust value, called by a Rust worker that holds a reference to it.
    fn rust_method(
        self: &Arc<Self>,
        link: &Arc<Link>,
        udf: &[u8],
        called: &Udf<'_, '_>,
        name: &str,
        request: Request,
    ) -> Result<(), RpcError> {
        let [rref, _] = called.arguments.tuple_of()?;
        let [on, number] = rref.tuple_of()?;
        let on = u16::try_from(on.int()?).map_err(|_| wrong("the id of a worker"))?;
        let number = u64::try_from(number.int()?).map_err(|_| wrong("a counter"))?;
        let Some(info) = self.functions.by_name(name) else {
            return self.unknown_function(
                link,
                &called.function,
                Wanted::Answer(How::Python),
                request,
            );
        };
        let mut found = Found::default();
        found.look(called.arguments)?;
        let carried = self.carried(&found);
        let target = self.fetch_target(&request, GlobalId::new(on, number));
        let references = found.references.iter();
        let (body, request) =
            self.body(link, Form::RustMethod, udf, references, &found, request)?;
        self.hand_in(
            link,
            target,
            Some(info.reference),
            carried,
            body,
            How::Python,
            request,
        );
        Ok(())
    }

    /// A call of a builtin operator, or of TorchScript.
    fn script(
        self: &Arc<Self>,
        link: &Arc<Link>,
        call: &ScriptCall<'_>,
        wanted: Wanted,
        request: Request,
    ) -> Result<(), RpcError> {
        let name = match call.target {
            ScriptTarget::Builtin { name, .. } | ScriptTarget::Function { name, .. } => name,
        };
        // Overloads that are served by themselves go before the operator as a whole.
        let overload = match call.target {
            ScriptTarget::Builtin { schema, .. } => aten::overload(schema),
            ScriptTarget::Function { .. } => None,
        };
        let overload = overload.map(|overload| format!("{name}.{overload}"));
        let overload = overload.and_then(|name| self.functions.by_foreign_name(&name));
        let Some(info) = overload.or_else(|| self.functions.by_foreign_name(name)) else {
            return Err(RpcError::NotServed(name.to_owned()));
        };
        let pickle = Pickle::read(call.pickle)?;
        let budget = pickle.budget();
        let mut found = Found::default();
        for argument in pickle
            .view(&budget)
            .tuple()?
            .into_iter()
            .take(call.arguments)
        {
            found.look(argument)?;
        }
        let carried = self.carried(&found);
        let (target, how) = match wanted {
            Wanted::Answer(how) => (Target::Answer(MessageId(request.id as u64)), how),
            Wanted::Stay(rref, fork) => (
                self.stay_target(link, rref, fork, &info.reference, &request),
                How::Script,
            ),
        };
        let form = Form::Head(u32::try_from(call.arguments).unwrap_or(u32::MAX));
        let references = found.references.iter();
        let (body, request) = self.body(link, form, call.pickle, references, &found, request)?;
        self.hand_in(
            link,
            target,
            Some(info.reference),
            carried,
            body,
            how,
            request,
        );
        Ok(())
    }

    fn fetch(
        self: &Arc<Self>,
        link: &Arc<Link>,
        rref: GlobalId,
        how: How,
        request: Request,
    ) -> Result<(), RpcError> {
        let target = self.fetch_target(&request, rref);
        self.hand_in(
            link,
            target,
            None,
            Vec::new(),
            Payload::default(),
            how,
            request,
        );
        Ok(())
    }

    fn fetch_target(&self, request: &Request, rref: GlobalId) -> Target {
        let rref = self.lives.rref(rref);
        Target::Fetch(MessageId(request.id as u64), rref, Fingerprint::foreign(0))
    }

    /// The answer to a call whose result stays comes when the runtime has taken it in.
    fn stay_target(
        &self,
        link: &Link,
        rref: GlobalId,
        fork: GlobalId,
        function: &FunctionRef,
        request: &Request,
    ) -> Target {
        let share = self.lives.share(rref, fork);
        self.confirm_later(link, share, Kind::RemoteRet, request);
        // What a method returns shows when its value is there.
        let output = self.functions.by_id(function.id);
        let output = output.filter(|_| function.signature.foreign_label().is_none());
        let fingerprint = output.map_or(Fingerprint::foreign(0), |info| info.output);
        Target::Stay(Creation { share, fingerprint })
    }

    fn confirm_later(&self, link: &Link, share: Share, kind: Kind, request: &Request) {
        let confirming = Confirming {
            id: request.id,
            kind,
            back: request.back.clone(),
            profile: request.profile,
        };
        link.confirm_later(share, confirming);
    }

    pub(super) fn carried(&self, found: &Found) -> Vec<Carried> {
        let forks = found.references.iter();
        forks
            .map(|(_, fork)| ids::carried(fork, &self.lives, &self.types))
            .collect()
    }

    /// The value of a message, as the runtime takes it.
    fn body<'f>(
        &self,
        link: &Link,
        form: Form,
        pickle: &[u8],
        references: impl Iterator<Item = &'f (usize, Fork)>,
        found: &Found,
        mut request: Request,
    ) -> Result<(Payload, Request), RpcError> {
        let storages = std::mem::take(&mut request.storages);
        let references = references.map(|(node, _)| *node).collect();
        let context = request.context;
        let list = &request.list;
        let payload = self.receive_value(
            link,
            form,
            pickle,
            references,
            found,
            (list, storages),
            context,
        )?;
        Ok((payload, request))
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
            let tensors: Vec<_> = entries
                .iter()
                .filter(|entry| entry.requires_grad)
                .map(|entry| (entry.dtype, entry.shape.clone()))
                .collect();
            if tensors.is_empty() {
                return None;
            }
            let received = Received {
                context,
                from: ids::number_of(link.node),
                message: autograd as u64,
            };
            let read = Vec::new();
            self.arrivals.expect(received, Arrival { tensors, read });
            Some(received)
        });
        let node = |node| u32::try_from(node).unwrap_or(u32::MAX);
        let body = Body {
            form,
            pickle: pickle.to_vec(),
            holes: Vec::new(),
            tensors: entries,
            references: references.into_iter().map(node).collect(),
            received,
        };
        let body = body
            .into_bytes()
            .map_err(|error| RpcError::Unsupported(error.to_string()))?;
        Ok(Payload { body, parts })
    }

    /// Gives a call to the runtime.
    #[expect(clippy::too_many_arguments, reason = "all that a call consists of")]
    fn hand_in(
        self: &Arc<Self>,
        link: &Arc<Link>,
        target: Target,
        function: Option<FunctionRef>,
        carried: Vec<Carried>,
        arguments: Payload,
        how: How,
        request: Request,
    ) {
        let context = request.context.map(|(context, _)| context);
        if let Target::Answer(id) | Target::Fetch(id, ..) = target {
            let served = Served {
                id: request.id,
                how,
                context,
                back: request.back.clone(),
                method: request.method,
                profile: request.profile,
            };
            if !link.serve(id, served) {
                return self.misbehaves(link, "it uses the id of a request twice");
            }
        }
        let message = CallMessage {
            head: CallHead {
                target,
                context: context.map(|context| self.lives.context(context)),
                carried,
            },
            function,
            remaining: None,
            trace: TraceContext::default(),
            callers: Vec::new(),
            // PyTorch's messages have no room for it.
            origins: agent::Origins::default(),
            arguments,
        };
        self.give(link, agent::Message::Call(message));
    }

    /// The answer to a call of a function that this program does not have.
    fn unknown_function(
        self: &Arc<Self>,
        link: &Arc<Link>,
        name: &Named<'_>,
        wanted: Wanted,
        request: Request,
    ) -> Result<(), RpcError> {
        let text = format!(
            "this worker has no function {}.{}: it is a Rust program, which serves what it declares with \
             #[farref::remote(python = \"{}.{}\")]",
            name.module, name.name, name.module, name.name
        );
        match wanted {
            Wanted::Answer(how) => {
                let served = Served {
                    id: request.id,
                    how,
                    context: None,
                    back: request.back.clone(),
                    method: None,
                    profile: request.profile,
                };
                let message = self.compose_failure(&served, "AttributeError", &text);
                drop(request.back.send(ToSend::Ready(message)));
                Ok(())
            }
            // Errors of calls whose results stay surface when they are fetched.
            Wanted::Stay(rref, fork) => {
                let Some(missing) = self.functions.by_name(UNKNOWN) else {
                    return Err(RpcError::Unsupported(text));
                };
                let mut writer = Writer::new(4);
                writer.text(text.as_bytes()).tuple_of(1);
                let arguments = own_arguments(writer)?;
                let target = self.stay_target(link, rref, fork, &missing.reference, &request);
                let function = Some(missing.reference);
                self.hand_in(
                    link,
                    target,
                    function,
                    Vec::new(),
                    arguments,
                    How::Python,
                    request,
                );
                Ok(())
            }
        }
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

/// A tuple of one, as the arguments of a function of this crate's.
fn own_arguments(writer: Writer) -> Result<Payload, RpcError> {
    let body = Body {
        form: Form::Head(1),
        pickle: writer.finish(),
        ..Body::default()
    };
    let body = body.into_bytes();
    Ok(Payload {
        body: body.map_err(|error| RpcError::Unsupported(error.to_string()))?,
        parts: Vec::new(),
    })
}

fn wrong(what: &'static str) -> RpcError {
    RpcError::Wrong {
        what,
        found: "something else".to_owned(),
    }
}

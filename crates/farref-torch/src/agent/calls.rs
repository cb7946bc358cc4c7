//! Calls of peers: understood and handed to the runtime, or refused.
//!
//! A refusal is a call as well, of a function that says why (TA-5). So the runtime takes in whatever the message
//! brought, as if the function had run: references are registered and let go again, so that whoever handed them on
//! hears of it; a result that was to stay is there, and is the error; a call in a context is done.

use std::sync::Arc;

use farref::Payload;
use farref::agent::{
    self, CallHead, CallMessage, Carried, Fingerprint, FunctionRef, MessageId, Target, TraceContext,
};
use farref_proto::Creation;

use super::outgoing::{RUST, RUST_METHOD, RUST_METHOD_THERE};
use super::pickled::{Found, own_arguments, references_of};
use super::request::{Asked, Request, Wanted};
use super::state::links::{AnswerKind, Link, Served};
use super::state::{AgentShared, ids};
use crate::PyException;
use crate::aten;
use crate::pickle::{Pickle, PickleError, Writer};
use crate::rpc::{Fork, GlobalId, Kind, Named, RpcError, ScriptCall, ScriptTarget, Udf};
use crate::value::Form;

/// Where PyTorch's functions are that call methods where a value is.
const PROXY: &str = "torch.distributed.rpc.rref_proxy";
const API: &str = "torch.distributed.rpc.api";

/// Stands for calls that are refused.
const REFUSED: &str = "farref_torch::refused";

/// Says why a call is refused.
#[farref::remote(name = "farref_torch::refused")]
async fn refused(class: String, text: String) -> Result<(), PyException> {
    Err(PyException::new(class, text))
}

/// Why a call is refused, and the Python exception that it is.
pub(super) struct Refusal {
    class: &'static str,
    text: String,
}

impl From<RpcError> for Refusal {
    fn from(error: RpcError) -> Self {
        let class = "RuntimeError";
        let text = error.to_string();
        Self { class, text }
    }
}

impl From<PickleError> for Refusal {
    fn from(error: PickleError) -> Self {
        RpcError::from(error).into()
    }
}

impl AgentShared {
    /// A call of a Python function.
    pub(super) fn python(
        self: &Arc<Self>,
        link: &Arc<Link>,
        udf: &[u8],
        wanted: Wanted,
        mut request: Request,
    ) -> Result<(), RpcError> {
        let pickle = match Pickle::read(udf) {
            Ok(pickle) => pickle,
            Err(error) => {
                self.refuse(link, wanted, Vec::new(), error.into(), request);
                return Ok(());
            }
        };
        let budget = pickle.budget();
        let called = Udf::read(pickle.view(&budget));
        if let Ok(called) = &called
            && called.bound.is_none()
            && self.is_group_call(&called.function)
        {
            return self.group_call(link, called, request.id, &request.back);
        }
        let understood = called
            .map_err(Refusal::from)
            .and_then(|called| self.understand(link, udf, &called, wanted, &mut request));
        match understood {
            Ok(asked) => self.hand_in(link, asked, request),
            Err(refusal) => {
                let carried = self.carried(&references_of(&pickle));
                self.refuse(link, wanted, carried, refusal, request);
            }
        }
        Ok(())
    }

    /// What a call of a Python function means here.
    fn understand(
        &self,
        link: &Link,
        udf: &[u8],
        called: &Udf<'_, '_>,
        wanted: Wanted,
        request: &mut Request,
    ) -> Result<Asked, Refusal> {
        let name = &called.function;
        let is_proxy = (name.module, &*name.name) == (PROXY, "_invoke_rpc");
        if called.bound.is_some() && is_ours(name.module) && !is_proxy {
            let what = format!("a partial of {}.{}", name.module, name.name);
            return Err(RpcError::Unsupported(what).into());
        }
        let (form, function, receiver) = match (name.module, &*name.name) {
            (PROXY, "_local_invoke" | "_local_invoke_async_execution") => {
                let items = called.arguments.tuple()?;
                let [_, method, ..] = items[..] else {
                    return Err(wrong("a call of a method has four parts").into());
                };
                let method =
                    std::str::from_utf8(method.text()?).map_err(|_| wrong("a name is UTF-8"))?;
                request.method = Some(method.into());
                (Form::Method, Some(self.functions.method(method)), true)
            }
            // A method of `rref.rpc_sync()`, which was sent to the owner as it is.
            (PROXY, "_invoke_rpc") => {
                let method = proxied_method(called)?;
                request.method = Some(method.into());
                (Form::Proxied, Some(self.functions.method(method)), true)
            }
            (API, "_rref_typeof_on_owner") => (
                Form::Nothing,
                Some(self.functions.method("__class__")),
                true,
            ),
            (RUST_METHOD, name) => {
                return self.understand_rust_method(link, udf, called, name, wanted, request);
            }
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
                    return Err(RpcError::Unsupported(what).into());
                }
                (Form::Udf, info.map(|info| info.reference), false)
            }
        };
        let mut function = function.ok_or_else(|| unknown_function(name))?;
        let mut found = Found::default();
        for bound in called.bound.iter().flat_map(|bound| &bound.arguments) {
            found.look(*bound)?;
        }
        found.look(called.arguments)?;
        found.look(called.keywords)?;
        if let Some(bound) = &called.bound {
            found.look(bound.keywords)?;
        }
        if receiver
            && let Some((_, fork)) = found.references.first()
            && fork.owner != self.me
        {
            // PyTorch calls on, and waits in a thread meanwhile.
            let what = format!(
                "a method of a value of worker {}: send it to that worker",
                fork.owner
            );
            return Err(RpcError::Unsupported(what).into());
        }
        let target = match (wanted, receiver) {
            (Wanted::Stay(rref, fork), _) => {
                function.on_first_reference = receiver;
                self.stay_target(rref, fork, &function)
            }
            (Wanted::Answer(_), true) => match found.references.first() {
                Some((_, fork)) => self.fetch_target(request, fork.rref),
                None => return Err(wrong("a method is called on a reference").into()),
            },
            (Wanted::Answer(_), false) => Target::Answer(MessageId(request.id as u64)),
        };
        // The runtime takes the receiver of a call whose result stays out of the references.
        let skipped = usize::from(receiver && matches!(wanted, Wanted::Stay(..)));
        let references = found.references.iter().skip(skipped);
        Ok(Asked {
            target,
            function: Some(function),
            carried: self.carried(&found.references),
            arguments: self.body(link, form, udf, references, &found, request)?,
            how: wanted.how(AnswerKind::Python),
        })
    }

    /// A method of a Rust value, called by a Rust worker that holds a reference to it.
    fn understand_rust_method(
        &self,
        link: &Link,
        udf: &[u8],
        called: &Udf<'_, '_>,
        name: &str,
        wanted: Wanted,
        request: &mut Request,
    ) -> Result<Asked, Refusal> {
        if let Wanted::Stay(..) = wanted {
            return Err(wrong("a result that stays is of a reference that comes along").into());
        }
        let [rref, _] = called.arguments.tuple_of()?;
        let [on, number] = rref.tuple_of()?;
        let on = u16::try_from(on.int()?).map_err(|_| wrong("the id of a worker"))?;
        let number = u64::try_from(number.int()?).map_err(|_| wrong("a counter"))?;
        let info = self.functions.by_name(name);
        let info = info.ok_or_else(|| unknown_function(&called.function))?;
        let mut found = Found::default();
        found.look(called.arguments)?;
        let references = found.references.iter();
        Ok(Asked {
            target: self.fetch_target(request, GlobalId::new(on, number)),
            function: Some(info.reference),
            carried: self.carried(&found.references),
            arguments: self.body(link, Form::RustMethod, udf, references, &found, request)?,
            how: AnswerKind::Python,
        })
    }

    /// A call of a builtin operator, or of TorchScript.
    pub(super) fn script(
        self: &Arc<Self>,
        link: &Arc<Link>,
        call: &ScriptCall<'_>,
        wanted: Wanted,
        mut request: Request,
    ) -> Result<(), RpcError> {
        match self.understand_script(link, call, wanted, &mut request) {
            Ok(asked) => self.hand_in(link, asked, request),
            Err(refusal) => {
                let pickle = Pickle::read(call.pickle);
                let references = pickle.map(|pickle| references_of(&pickle));
                let carried = self.carried(&references.unwrap_or_default());
                self.refuse(link, wanted, carried, refusal, request);
            }
        }
        Ok(())
    }

    fn understand_script(
        &self,
        link: &Link,
        call: &ScriptCall<'_>,
        wanted: Wanted,
        request: &mut Request,
    ) -> Result<Asked, Refusal> {
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
        let info = overload.or_else(|| self.functions.by_foreign_name(name));
        let info = info.ok_or_else(|| RpcError::NotServed(name.to_owned()))?;
        let pickle = Pickle::read(call.pickle)?;
        let budget = pickle.budget();
        let mut found = Found::default();
        let arguments = pickle.view(&budget).tuple()?;
        for argument in arguments.into_iter().take(call.arguments) {
            found.look(argument)?;
        }
        let form = Form::Head(u32::try_from(call.arguments).unwrap_or(u32::MAX));
        let references = found.references.iter();
        Ok(Asked {
            target: match wanted {
                Wanted::Answer(_) => Target::Answer(MessageId(request.id as u64)),
                Wanted::Stay(rref, fork) => self.stay_target(rref, fork, &info.reference),
            },
            function: Some(info.reference),
            carried: self.carried(&found.references),
            arguments: self.body(link, form, call.pickle, references, &found, request)?,
            how: wanted.how(AnswerKind::Script),
        })
    }

    pub(super) fn fetch_target(&self, request: &Request, rref: GlobalId) -> Target {
        let rref = self.incarnations.rref(rref);
        Target::Fetch(MessageId(request.id as u64), rref, Fingerprint::foreign(0))
    }

    fn stay_target(&self, rref: GlobalId, fork: GlobalId, function: &FunctionRef) -> Target {
        let share = self.incarnations.share(rref, fork);
        // What a method returns shows when its value is there.
        let output = self.functions.by_id(function.id);
        let output = output.filter(|_| function.signature.foreign_label().is_none());
        let fingerprint = output.map_or(Fingerprint::foreign(0), |info| info.output);
        Target::Stay(Creation { share, fingerprint })
    }

    pub(super) fn carried(&self, references: &[(usize, Fork)]) -> Vec<Carried> {
        let forks = references.iter();
        forks
            .map(|(_, fork)| ids::carried(fork, &self.incarnations, &self.types))
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
        request: &mut Request,
    ) -> Result<Payload, RpcError> {
        let storages = std::mem::take(&mut request.storages);
        let references = references.map(|(node, _)| *node).collect();
        let tensors = (&request.list[..], storages);
        self.receive_value(
            link,
            form,
            pickle,
            references,
            found,
            tensors,
            request.context,
        )
    }

    /// TA-5: what the message carried is taken in all the same.
    fn refuse(
        self: &Arc<Self>,
        link: &Arc<Link>,
        wanted: Wanted,
        carried: Vec<Carried>,
        refusal: Refusal,
        request: Request,
    ) {
        let Refusal { class, text } = refusal;
        let peer = &link.name;
        tracing::debug!(worker = %self.name, %peer, id = request.id, text, "a call is refused");
        let mut arguments = Writer::new(4);
        arguments.text(class.as_bytes()).text(text.as_bytes());
        arguments.tuple_of(2);
        let function = self.functions.by_name(REFUSED).map(|info| info.reference);
        let share = |rref, fork| self.incarnations.share(rref, fork);
        let asked = Asked {
            target: match wanted {
                Wanted::Answer(_) => Target::Answer(MessageId(request.id as u64)),
                Wanted::Stay(rref, fork) => Target::Stay(Creation {
                    share: share(rref, fork),
                    fingerprint: Fingerprint::foreign(0),
                }),
            },
            function,
            carried,
            arguments: own_arguments(arguments, 2),
            how: wanted.how(AnswerKind::Python),
        };
        self.hand_in(link, asked, request);
    }

    /// Gives a call to the runtime. From here on it is answered by what the runtime says.
    pub(super) fn hand_in(self: &Arc<Self>, link: &Arc<Link>, asked: Asked, request: Request) {
        let context = request.context.map(|(context, _)| context);
        let confirming = request.confirming(Kind::RemoteRet);
        let (target, how) = (asked.target, asked.how);
        let message = CallMessage {
            head: CallHead {
                target: asked.target,
                context: context.map(|context| self.incarnations.context(context)),
                carried: asked.carried,
            },
            function: asked.function,
            remaining: None,
            trace: TraceContext::default(),
            callers: Vec::new(),
            // PyTorch's messages have no room for it.
            origins: agent::Origins::default(),
            arguments: asked.arguments,
        };
        match target {
            Target::Answer(id) | Target::Fetch(id, ..) => {
                let served = Served {
                    id: request.id,
                    how,
                    context,
                    back: request.back,
                    method: request.method,
                    profile: request.profile,
                    from: link.node,
                    weight: message.weight(),
                };
                if !link.serve(id, served) {
                    return self.misbehaves(link, "it uses the id of a request twice");
                }
            }
            Target::Stay(creation) => {
                link.load.add(message.weight());
                link.confirm_later(creation.share, confirming);
            }
        }
        self.give(link, agent::Message::Call(message));
    }
}

fn unknown_function(name: &Named<'_>) -> Refusal {
    let class = "AttributeError";
    let full = format!("{}.{}", start_of(name.module), start_of(&name.name));
    let text = format!(
        "this worker has no function {full}: it is a Rust program, which serves what it declares with \
         #[farref::remote(python = \"{full}\")]"
    );
    Refusal { class, text }
}

/// As much of a name as anybody reads.
fn start_of(name: &str) -> &str {
    const READ: usize = 1000;
    match name.char_indices().nth(READ) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

/// Whether functions of a module are PyTorch's own, or other Rust workers', and not the program's.
fn is_ours(module: &str) -> bool {
    let rust = [RUST, RUST_METHOD, RUST_METHOD_THERE];
    module.starts_with("torch.distributed.rpc.") || rust.contains(&module)
}

/// Which method is called by a method of `rref.rpc_sync()` that was sent away.
fn proxied_method<'a>(called: &Udf<'_, 'a>) -> Result<&'a str, RpcError> {
    let bound = called.bound.as_ref().map(|bound| &bound.arguments[..]);
    let Some([_, api, method, _, ..]) = bound else {
        return Err(wrong("a method of a proxy has four parts"));
    };
    let waits = Named::read(*api)?.is_some_and(|api| api.module == API && api.name == "rpc_sync");
    if !waits {
        let what = "a method of `rref.rpc_async()` or `rref.remote()` that is sent away";
        return Err(RpcError::Unsupported(what.to_owned()));
    }
    std::str::from_utf8(method.text()?).map_err(|_| wrong("a name is UTF-8"))
}

fn wrong(what: &'static str) -> RpcError {
    RpcError::Wrong {
        what,
        found: "something else".to_owned(),
    }
}

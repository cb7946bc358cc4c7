//! Payload 2: what a message says, one level deep. What is inside of it stays where it is in the payload.

use super::error::RpcError;
use super::jit::read_tensor;
use super::jit::{JitValue, JitWriter};
use super::kind::Kind;
use super::reference::{GlobalId, read_str, read_worker};
use crate::pickle::{Pickle, View};

/// What the names of builtin operators begin with.
const BUILTINS: &str = "torch.ops.aten.";

/// A message.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message<'a> {
    /// Run a builtin operator or TorchScript, and answer with the result.
    ScriptCall(ScriptCall<'a>),
    /// Run it and keep the result as `rref`, to which the caller has the reference `fork`.
    ScriptRemoteCall {
        call: ScriptCall<'a>,
        rref: GlobalId,
        fork: GlobalId,
    },
    /// A result: all of its pickle, as [`JitValue`] reads and writes it.
    ScriptRet {
        value: &'a [u8],
    },
    /// Run a Python function. `udf` is all of the pickle, as [`super::Udf`] reads it.
    PythonCall {
        is_async: bool,
        udf: &'a [u8],
    },
    /// A result, or the exception that it is: all of a pickle of Python's.
    PythonRet {
        value: &'a [u8],
    },
    /// Run a Python function and keep the result as `rref`.
    PythonRemoteCall {
        udf: &'a [u8],
        /// How many tensors of the message belong to it: all of them.
        tensors: usize,
        rref: GlobalId,
        fork: GlobalId,
        is_async: bool,
    },
    /// The remote call was received.
    RemoteRet {
        rref: GlobalId,
        fork: GlobalId,
    },
    /// Send the value, which is one of TorchScript's.
    ScriptFetch {
        rref: GlobalId,
        /// The worker that it is fetched from: the owner.
        from: u16,
    },
    /// Send the value, which is one of Python's.
    PythonFetch {
        rref: GlobalId,
        /// The worker that it is fetched from: the owner.
        from: u16,
    },
    /// The value: the pickle of a tuple of just it, as [`JitValue::decode_fetched`] reads it.
    ScriptFetchRet {
        value: &'a [u8],
    },
    /// The value: a pickle of Python's.
    PythonFetchRet {
        /// How many tensors of the message belong to it: all of them.
        tensors: usize,
        value: &'a [u8],
    },
    /// A reference is gone.
    UserDelete {
        rref: GlobalId,
        fork: GlobalId,
    },
    /// A reference came from another worker than the owner, who hears of it by this.
    ForkRequest {
        rref: GlobalId,
        fork: GlobalId,
    },
    /// A reference has arrived: the sender need not keep the value alive for it.
    ChildAccept {
        fork: GlobalId,
    },
    /// A message about references was received.
    Ack,
    /// Another message, whose tensors take part in a context of distributed autograd.
    Forward {
        request: bool,
        /// The type of the other message.
        kind: Kind,
        inner: &'a [u8],
        context: i64,
        autograd: i64,
        /// The worker that sends it.
        sender: u16,
    },
    /// Go on with the backward pass from what was sent as `autograd`.
    Backward {
        /// The tensors of the message that they are, one for each tensor that was sent. Mostly `0, 1, ..`; a
        /// tensor that is the gradient of two is there once.
        gradients: Vec<usize>,
        context: i64,
        autograd: i64,
        retain_graph: bool,
    },
    BackwardDone,
    /// A context of distributed autograd is over.
    Cleanup {
        context: i64,
    },
    CleanupDone,
    /// Begin a backward pass at that value.
    RRefBackward {
        rref: GlobalId,
        context: i64,
        retain_graph: bool,
    },
    RRefBackwardDone,
    /// Another message, to be profiled, or that was.
    Profiled {
        request: bool,
        /// The type of the other message.
        kind: Kind,
        inner: &'a [u8],
        profile: GlobalId,
        /// Of a request: one row of settings. Of an answer: a row for each event.
        rows: Vec<JitValue>,
    },
    /// The request failed before or outside of Python.
    Exception {
        text: &'a [u8],
    },
}

/// What to run, and with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) target: ScriptTarget<'a>,
    /// How many items of the pickled tuple are arguments: the first ones.
    pub(crate) arguments: usize,
    /// All of the pickle.
    pub(crate) pickle: &'a [u8],
}

/// What to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScriptTarget<'a> {
    /// An operator of PyTorch's.
    Builtin {
        /// Such as `torch.ops.aten.add`.
        name: &'a str,
        /// Which overload, such as `aten::add.Tensor(Tensor self, ..) -> Tensor`.
        schema: &'a str,
    },
    /// A TorchScript function.
    Function {
        /// Such as `__torch__.module.function`.
        name: &'a str,
        /// Whether it returns a future of its result.
        is_async: bool,
    },
}

impl ScriptCall<'_> {
    #[cfg(any(test, feature = "fuzzing"))]
    /// The arguments.
    pub(crate) fn read_arguments(&self) -> Result<Vec<JitValue>, RpcError> {
        let pickle = Pickle::read(self.pickle)?;
        let budget = pickle.budget();
        let items = pickle.view(&budget).tuple()?;
        let arguments = items.into_iter().take(self.arguments);
        arguments.map(JitValue::read).collect()
    }
}

#[cfg(any(test, feature = "fuzzing"))]
/// The pickle of a [`Message::ScriptCall`], or with ids of a [`Message::ScriptRemoteCall`].
pub(crate) fn write_script_call(
    target: ScriptTarget<'_>,
    arguments: &[JitValue],
    stays: Option<(GlobalId, GlobalId)>,
) -> Vec<u8> {
    let items = arguments.len() + if stays.is_some() { 4 } else { 2 };
    let mut writer = JitWriter::new();
    writer.begin_tuple(items);
    for argument in arguments {
        writer.shared(argument);
    }
    match target {
        ScriptTarget::Builtin { name, schema } => {
            writer.text(schema.as_bytes()).text(name.as_bytes())
        }
        ScriptTarget::Function { name, is_async } => writer.bool(is_async).text(name.as_bytes()),
    };
    if let Some((rref, fork)) = stays {
        writer.id(rref).id(fork);
    }
    writer.end_tuple(items);
    writer.finish()
}

impl<'a> Message<'a> {
    /// The type of message that it is.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::ScriptCall(_) => Kind::ScriptCall,
            Self::ScriptRemoteCall { .. } => Kind::ScriptRemoteCall,
            Self::ScriptRet { .. } => Kind::ScriptRet,
            Self::PythonCall { .. } => Kind::PythonCall,
            Self::PythonRet { .. } => Kind::PythonRet,
            Self::PythonRemoteCall { .. } => Kind::PythonRemoteCall,
            Self::RemoteRet { .. } => Kind::RemoteRet,
            Self::ScriptFetch { .. } => Kind::ScriptFetch,
            Self::PythonFetch { .. } => Kind::PythonFetch,
            Self::ScriptFetchRet { .. } => Kind::ScriptFetchRet,
            Self::PythonFetchRet { .. } => Kind::PythonFetchRet,
            Self::UserDelete { .. } => Kind::UserDelete,
            Self::ForkRequest { .. } => Kind::ForkRequest,
            Self::ChildAccept { .. } => Kind::ChildAccept,
            Self::Ack => Kind::Ack,
            Self::Forward { request: true, .. } => Kind::ForwardRequest,
            Self::Forward { request: false, .. } => Kind::ForwardResponse,
            Self::Backward { .. } => Kind::Backward,
            Self::BackwardDone => Kind::BackwardDone,
            Self::Cleanup { .. } => Kind::Cleanup,
            Self::CleanupDone => Kind::CleanupDone,
            Self::RRefBackward { .. } => Kind::RRefBackward,
            Self::RRefBackwardDone => Kind::RRefBackwardDone,
            Self::Profiled { request: true, .. } => Kind::ProfiledRequest,
            Self::Profiled { request: false, .. } => Kind::ProfiledResponse,
            Self::Exception { .. } => Kind::Exception,
        }
    }

    /// Reads payload 2 of a message of that type.
    pub(crate) fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, RpcError> {
        Ok(match kind {
            Kind::ScriptRet => Self::ScriptRet { value: payload },
            Kind::ScriptFetchRet => Self::ScriptFetchRet { value: payload },
            Kind::PythonRet => Self::PythonRet { value: payload },
            Kind::Exception => Self::Exception { text: payload },
            Kind::PythonCall => match payload {
                [is_async, udf @ ..] => Self::PythonCall {
                    is_async: *is_async != 0,
                    udf,
                },
                [] => return Err(RpcError::wrong("a call of Python has a flag", "nothing")),
            },
            Kind::Ack => nothing(payload, Self::Ack)?,
            Kind::BackwardDone => nothing(payload, Self::BackwardDone)?,
            Kind::CleanupDone => nothing(payload, Self::CleanupDone)?,
            Kind::RRefBackwardDone => nothing(payload, Self::RRefBackwardDone)?,
            Kind::ForwardRequest | Kind::ForwardResponse => {
                let (inner, wrapper) = unwrap(payload)?;
                read_forward(kind, inner, &Pickle::read(wrapper)?)?
            }
            Kind::ProfiledRequest | Kind::ProfiledResponse => {
                let (inner, wrapper) = unwrap(payload)?;
                read_profiled(kind, inner, &Pickle::read(wrapper)?)?
            }
            _ => {
                let pickle = Pickle::read(payload)?;
                let budget = pickle.budget();
                Self::read(kind, pickle.view(&budget), payload)?
            }
        })
    }

    /// Those that are one pickle.
    fn read(kind: Kind, view: View<'_, 'a>, payload: &'a [u8]) -> Result<Self, RpcError> {
        Ok(match kind {
            Kind::ScriptCall => Self::ScriptCall(read_script_call(&view.tuple()?, payload)?),
            Kind::ScriptRemoteCall => {
                let items = view.tuple()?;
                let [call @ .., rref, fork] = &items[..] else {
                    return Err(RpcError::wrong("a remote call has two ids", items.len()));
                };
                Self::ScriptRemoteCall {
                    call: read_script_call(call, payload)?,
                    rref: GlobalId::read(*rref)?,
                    fork: GlobalId::read(*fork)?,
                }
            }
            Kind::PythonRemoteCall => {
                let items = view.tuple()?;
                let [tensors @ .., udf, rref, fork, is_async] = &items[..] else {
                    return Err(RpcError::wrong("a remote call has four parts", items.len()));
                };
                Self::PythonRemoteCall {
                    udf: udf.text()?,
                    tensors: all_tensors(tensors)?,
                    rref: GlobalId::read(*rref)?,
                    fork: GlobalId::read(*fork)?,
                    is_async: is_async.bool()?,
                }
            }
            Kind::RemoteRet => {
                let (rref, fork) = read_ids(view)?;
                Self::RemoteRet { rref, fork }
            }
            Kind::UserDelete => {
                let (rref, fork) = read_ids(view)?;
                Self::UserDelete { rref, fork }
            }
            Kind::ForkRequest => {
                let (rref, fork) = read_ids(view)?;
                Self::ForkRequest { rref, fork }
            }
            Kind::ChildAccept => {
                let [fork] = view.tuple_of()?;
                let fork = GlobalId::read(fork)?;
                Self::ChildAccept { fork }
            }
            Kind::ScriptFetch | Kind::PythonFetch => {
                let [rref, from] = view.tuple_of()?;
                let (rref, from) = (GlobalId::read(rref)?, read_worker(from)?);
                match kind {
                    Kind::ScriptFetch => Self::ScriptFetch { rref, from },
                    _ => Self::PythonFetch { rref, from },
                }
            }
            Kind::PythonFetchRet => {
                let items = view.tuple()?;
                let [tensors @ .., value] = &items[..] else {
                    return Err(RpcError::wrong("a fetched value is there", "nothing"));
                };
                Self::PythonFetchRet {
                    tensors: all_tensors(tensors)?,
                    value: value.text()?,
                }
            }
            Kind::Backward => {
                let items = view.tuple()?;
                let [gradients @ .., context, autograd, retain_graph] = &items[..] else {
                    return Err(RpcError::wrong(
                        "a backward pass has three parts",
                        items.len(),
                    ));
                };
                let gradients = gradients.iter().copied().map(read_tensor);
                Self::Backward {
                    gradients: gradients.collect::<Result<_, _>>()?,
                    context: context.int()?,
                    autograd: autograd.int()?,
                    retain_graph: retain_graph.bool()?,
                }
            }
            Kind::Cleanup => Self::Cleanup {
                context: view.int()?,
            },
            Kind::RRefBackward => {
                let [rref, context, retain_graph] = view.tuple_of()?;
                Self::RRefBackward {
                    rref: GlobalId::read(rref)?,
                    context: context.int()?,
                    retain_graph: retain_graph.bool()?,
                }
            }
            // The others are no pickles: they do not come here.
            other => return Err(RpcError::wrong("a message that is a pickle", other.name())),
        })
    }

    /// The type, and payload 2.
    pub(crate) fn encode(&self) -> (Kind, Vec<u8>) {
        let mut writer = JitWriter::new();
        match self {
            Self::ScriptCall(call) | Self::ScriptRemoteCall { call, .. } => {
                return (self.kind(), call.pickle.to_vec());
            }
            Self::ScriptRet { value }
            | Self::ScriptFetchRet { value }
            | Self::PythonRet { value }
            | Self::Exception { text: value } => return (self.kind(), value.to_vec()),
            Self::PythonCall { is_async, udf } => {
                return (self.kind(), [&[u8::from(*is_async)], *udf].concat());
            }
            Self::Ack | Self::BackwardDone | Self::CleanupDone | Self::RRefBackwardDone => {
                return (self.kind(), Vec::new());
            }
            Self::Forward {
                kind,
                inner,
                context,
                autograd,
                sender,
                ..
            } => {
                writer.begin_tuple(5).int(kind.code().into());
                writer.int(*context).int(*autograd).int((*sender).into());
                // Devices of the caller to devices of the callee: there is none but the processor here.
                writer.shared(&JitValue::Dict {
                    items: Vec::new(),
                    type_name: "Dict[str, str]".to_owned(),
                });
                writer.end_tuple(5);
                return (self.kind(), wrap(inner, &writer.finish()));
            }
            Self::Profiled {
                request,
                kind,
                inner,
                profile,
                rows,
            } => {
                let items = if *request { 2 } else { 3 } + rows.len();
                writer.begin_tuple(items).int(kind.code().into());
                if !request {
                    let events = i64::try_from(rows.len()).unwrap_or(i64::MAX);
                    writer.id(*profile).int(events);
                }
                for row in rows {
                    writer.value(row);
                }
                if *request {
                    writer.id(*profile);
                }
                writer.end_tuple(items);
                return (self.kind(), wrap(inner, &writer.finish()));
            }
            Self::PythonRemoteCall {
                udf,
                tensors,
                rref,
                fork,
                is_async,
            } => {
                writer.begin_tuple(tensors + 4);
                for tensor in 0..*tensors {
                    writer.shared(&JitValue::Tensor(tensor));
                }
                writer.text(udf).shared_id(*rref).shared_id(*fork);
                writer.bool(*is_async).end_tuple(tensors + 4);
            }
            Self::RemoteRet { rref, fork }
            | Self::UserDelete { rref, fork }
            | Self::ForkRequest { rref, fork } => {
                writer.shared_id(*rref).shared_id(*fork).end_tuple(2);
            }
            Self::ChildAccept { fork } => drop(writer.shared_id(*fork).end_tuple(1)),
            Self::ScriptFetch { rref, from } | Self::PythonFetch { rref, from } => {
                writer.id(*rref).int((*from).into()).end_tuple(2);
            }
            Self::PythonFetchRet { tensors, value } => {
                writer.begin_tuple(tensors + 1);
                for tensor in 0..*tensors {
                    writer.shared(&JitValue::Tensor(tensor));
                }
                writer.text(value).end_tuple(tensors + 1);
            }
            Self::Backward {
                gradients,
                context,
                autograd,
                retain_graph,
            } => {
                writer.begin_tuple(gradients.len() + 3);
                for gradient in gradients {
                    writer.shared(&JitValue::Tensor(*gradient));
                }
                writer.int(*context).int(*autograd).bool(*retain_graph);
                writer.end_tuple(gradients.len() + 3);
            }
            Self::Cleanup { context } => drop(writer.int(*context)),
            Self::RRefBackward {
                rref,
                context,
                retain_graph,
            } => {
                writer.id(*rref).int(*context).bool(*retain_graph);
                writer.end_tuple(3);
            }
        }
        (self.kind(), writer.finish())
    }
}

fn nothing<'a>(payload: &[u8], message: Message<'a>) -> Result<Message<'a>, RpcError> {
    match payload.len() {
        0 => Ok(message),
        bytes => Err(RpcError::wrong(
            "this answer is empty",
            format!("{bytes} bytes"),
        )),
    }
}

fn read_ids(view: View<'_, '_>) -> Result<(GlobalId, GlobalId), RpcError> {
    let [rref, fork] = view.tuple_of()?;
    Ok((GlobalId::read(rref)?, GlobalId::read(fork)?))
}

/// How many they are: all tensors of the message, in order.
fn all_tensors(items: &[View<'_, '_>]) -> Result<usize, RpcError> {
    for (place, item) in items.iter().enumerate() {
        let found = read_tensor(*item)?;
        if found != place {
            return Err(RpcError::wrong(
                "tensors are in the order of their list",
                found,
            ));
        }
    }
    Ok(items.len())
}

fn read_script_call<'a>(
    items: &[View<'_, 'a>],
    pickle: &'a [u8],
) -> Result<ScriptCall<'a>, RpcError> {
    let [arguments @ .., how, name] = items else {
        return Err(RpcError::wrong("a call has a name", items.len()));
    };
    let name = read_str(*name)?;
    let target = match name.starts_with(BUILTINS) {
        true => ScriptTarget::Builtin {
            name,
            schema: read_str(*how)?,
        },
        false => ScriptTarget::Function {
            name,
            is_async: how.bool()?,
        },
    };
    Ok(ScriptCall {
        target,
        arguments: arguments.len(),
        pickle,
    })
}

/// Another message, the pickle that is added to it, and how long that is.
fn wrap(inner: &[u8], wrapper: &[u8]) -> Vec<u8> {
    let length = (wrapper.len() as u64).to_be_bytes();
    [inner, wrapper, &length].concat()
}

fn unwrap(payload: &[u8]) -> Result<(&[u8], &[u8]), RpcError> {
    let parts = payload.split_last_chunk().and_then(|(rest, length)| {
        let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
        rest.split_at_checked(rest.len().checked_sub(length)?)
    });
    parts.ok_or_else(|| RpcError::wrong("a wrapped message ends with a length", payload.len()))
}

/// The type of the message in another one, if it may be there (RM-3).
fn read_inner(outer: Kind, view: View<'_, '_>) -> Result<Kind, RpcError> {
    let kind = Kind::from_field(view.int()?)?;
    let is_profiled = matches!(kind, Kind::ProfiledRequest | Kind::ProfiledResponse);
    let is_forward = matches!(kind, Kind::ForwardRequest | Kind::ForwardResponse);
    let in_profile = matches!(outer, Kind::ProfiledRequest | Kind::ProfiledResponse);
    if is_profiled || (is_forward && !in_profile) || kind.is_request() != outer.is_request() {
        return Err(RpcError::wrong(
            "this message cannot be wrapped like that",
            kind.name(),
        ));
    }
    Ok(kind)
}

fn read_forward<'a>(
    outer: Kind,
    inner: &'a [u8],
    wrapper: &Pickle<'_>,
) -> Result<Message<'a>, RpcError> {
    let budget = wrapper.budget();
    let [kind, context, autograd, sender, _devices] = wrapper.view(&budget).tuple_of()?;
    Ok(Message::Forward {
        request: outer.is_request(),
        kind: read_inner(outer, kind)?,
        inner,
        context: context.int()?,
        autograd: autograd.int()?,
        sender: read_worker(sender)?,
    })
}

fn read_profiled<'a>(
    outer: Kind,
    inner: &'a [u8],
    wrapper: &Pickle<'_>,
) -> Result<Message<'a>, RpcError> {
    let budget = wrapper.budget();
    let items = wrapper.view(&budget).tuple()?;
    let (kind, profile, rows) = match (outer.is_request(), &items[..]) {
        (true, [kind, settings @ .., profile]) if settings.len() == 1 => (kind, profile, settings),
        (false, [kind, profile, count, events @ ..])
            if usize::try_from(count.int()?) == Ok(events.len()) =>
        {
            (kind, profile, events)
        }
        _ => return Err(RpcError::wrong("a profile has another length", items.len())),
    };
    Ok(Message::Profiled {
        request: outer.is_request(),
        kind: read_inner(outer, *kind)?,
        inner,
        profile: GlobalId::read(*profile)?,
        rows: rows
            .iter()
            .copied()
            .map(JitValue::read)
            .collect::<Result<_, _>>()?,
    })
}

//! Calls of this worker, as PyTorch's messages.

use farref::agent::{CallMessage, Carried, FunctionRef, NodeId, Target};
use farref::{CodecError, Part};

use super::state::AgentShared;
use super::state::ids::{self, PY_OBJECT};
use super::{pickled, tensors};
use crate::pickle::Writer;
use crate::rpc::{self, Kind, Message};
use crate::transport::Outgoing;
use crate::value::{self, Body};

/// Where functions are that only Rust workers have, in the eyes of the wire.
pub(super) const RUST: &str = "farref";
/// The same for methods, called on a value by the number of a reference that the caller holds.
pub(super) const RUST_METHOD: &str = "farref.method";
/// The same for methods whose results stay, called on a value by a reference that comes along.
pub(super) const RUST_METHOD_THERE: &str = "farref.method_there";

impl AgentShared {
    /// A call of the program's.
    pub(super) fn compose_call(
        &self,
        to: NodeId,
        id: i64,
        call: &CallMessage,
    ) -> Result<Outgoing<Part>, CodecError> {
        let body = pickled::body_of(&call.arguments)?;
        let parts = &call.arguments.parts;
        let head = &call.head;
        let mut in_context = head.context;
        let message = match (&head.target, &call.function) {
            (Target::Fetch(_, rref, fingerprint), None) => {
                let (rref, from) = (ids::rref_id(*rref), ids::number_of(to));
                let message = match self.types.name(*fingerprint) == PY_OBJECT {
                    true => Message::PythonFetch { rref, from },
                    false => Message::ScriptFetch { rref, from },
                };
                message.encode()
            }
            (Target::Fetch(_, rref, _), Some(function)) if self.is_backward(function) => {
                let Some(context) = in_context.take() else {
                    return Err(CodecError::new(
                        "a backward pass is made inside of a context",
                    ));
                };
                let (retain_graph,) = self.decode::<(bool,)>(&call.arguments)?;
                let message = Message::RRefBackward {
                    rref: ids::rref_id(*rref),
                    context: ids::context_number(context),
                    retain_graph,
                };
                message.encode()
            }
            (Target::Fetch(_, rref, _), Some(function)) => {
                let name = self.name_of_function(function)?;
                let arguments = arguments(&body, &head.carried, parts, self)?;
                let rref = ids::rref_id(*rref);
                let udf = pickled::udf(RUST_METHOD, name, |writer| {
                    let number = i64::try_from(rref.number).unwrap_or(i64::MAX);
                    writer.int(rref.on.into()).int(number).tuple_of(2);
                    writer.raw(&arguments).tuple_of(2);
                });
                python_call(false, &udf)
            }
            (Target::Answer(_), Some(function)) => {
                let udf = self.udf(function, &body, &head.carried, parts)?;
                python_call(self.returns_future(function), &udf)
            }
            (Target::Stay(creation), Some(function)) => {
                let message = Message::PythonRemoteCall {
                    udf: &self.udf(function, &body, &head.carried, parts)?,
                    tensors: body.tensors.len(),
                    rref: ids::rref_id(creation.share.rref),
                    fork: ids::fork_id(creation.share.fork),
                    is_async: self.returns_future(function),
                };
                message.encode()
            }
            _ => return Err(CodecError::new("a call without a function")),
        };
        let (kind, payload) = match in_context {
            Some(context) => {
                let number = body.recorded().unwrap_or_else(|| self.next_unrecorded());
                self.wrap(true, message, ids::context_number(context), number)
            }
            None => message,
        };
        let (tensor_list, storages) =
            tensors::send(&body.tensors, parts).map_err(CodecError::new)?;
        Ok(Outgoing {
            kind: kind.code(),
            id,
            payload: payload.into(),
            tensor_list,
            storages,
        })
    }

    /// A message as one of a context.
    pub(super) fn wrap(
        &self,
        request: bool,
        (kind, inner): (Kind, Vec<u8>),
        context: i64,
        number: u64,
    ) -> (Kind, Vec<u8>) {
        let message = Message::Forward {
            request,
            kind,
            inner: &inner,
            context,
            autograd: ids::record_number(self.me, number),
            sender: self.me,
        };
        message.encode()
    }

    /// The call of a function that the peer has.
    fn udf(
        &self,
        function: &FunctionRef,
        body: &Body,
        carried: &[Carried],
        parts: &[Part],
    ) -> Result<Vec<u8>, CodecError> {
        let info = self.functions.by_id(function.id);
        let info = info.ok_or_else(|| CodecError::new("a function that this worker has not"))?;
        if [value::UDF, value::UDF_ASYNC].contains(&info.name) {
            let mut writer = Writer::new(4);
            writer.raw(&pickled::opcodes(body, carried, parts, &self.types, true)?);
            return Ok(writer.finish());
        }
        if function.on_first_reference {
            let [receiver, rest @ ..] = carried else {
                return Err(CodecError::new("a method without a value"));
            };
            let arguments = arguments(body, rest, parts, self)?;
            return Ok(pickled::udf(RUST_METHOD_THERE, info.name, |writer| {
                rpc::write_rref(writer, &ids::fork(receiver, &self.types));
                writer.raw(&arguments).tuple_of(2);
            }));
        }
        let (module, name) = match info.foreign_name {
            Some(name) => value::split_name(name).map_err(CodecError::new)?,
            None => (RUST, info.name),
        };
        let arguments = arguments(body, carried, parts, self)?;
        Ok(pickled::udf(module, name, |writer| {
            writer.raw(&arguments);
        }))
    }

    fn name_of_function(&self, function: &FunctionRef) -> Result<&'static str, CodecError> {
        let info = self.functions.by_id(function.id);
        let name = info.map(|info| info.name);
        name.ok_or_else(|| CodecError::new("a function that this worker has not"))
    }

    /// Whether it is a function of Python that returns a future.
    fn returns_future(&self, function: &FunctionRef) -> bool {
        let info = self.functions.by_id(function.id);
        info.is_some_and(|info| info.name == value::UDF_ASYNC)
    }

    /// Whether it is the one that begins a backward pass at a far loss.
    fn is_backward(&self, function: &FunctionRef) -> bool {
        let info = self.functions.by_id(function.id);
        info.is_some_and(|info| info.name == farref_autograd::REMOTE_BACKWARD)
    }
}

/// The tuple of a call's arguments.
fn arguments(
    body: &Body,
    carried: &[Carried],
    parts: &[Part],
    shared: &AgentShared,
) -> Result<Vec<u8>, CodecError> {
    let mut nothing = Writer::new(4);
    nothing.none();
    let opcodes = pickled::opcodes(body, carried, parts, &shared.types, false)?;
    // A function without arguments takes the unit, which is `None` elsewhere.
    let is_unit = nothing.finish() == body.pickle;
    Ok(match is_unit {
        true => {
            let mut empty = Writer::new(4);
            empty.tuple_of(0);
            empty.finish()[2..3].to_vec()
        }
        false => opcodes,
    })
}

fn python_call(is_async: bool, udf: &[u8]) -> (Kind, Vec<u8>) {
    Message::PythonCall { is_async, udf }.encode()
}

//! Values inside of messages: holes filled on the way out, references and tensors found on the way in.

use std::collections::{HashMap, HashSet};

use farref::agent::Carried;
use farref::{CodecError, Part, Payload};

use super::ids::{self, Types};
use crate::pickle::{Pickle, Shape, View, Writer};
use crate::rpc::{self, Fork, JitValue, RpcError};
use crate::value::{Body, Filling};

/// The pickle of a value with its holes filled, without its first two bytes and its last: to be put into another
/// pickle. `wrapped` leaves out the tuple of one that it is, too.
pub(super) fn opcodes(
    body: &Body,
    carried: &[Carried],
    parts: &[Part],
    types: &Types,
    wrapped: bool,
) -> Result<Vec<u8>, CodecError> {
    const START: usize = 2;
    let end = body.pickle.len().saturating_sub(1);
    // A tuple of one is a mark before it and an opcode behind it.
    let (start, end) = match wrapped {
        true => (START + 1, end.saturating_sub(1)),
        false => (START, end),
    };
    let wrong = || CodecError::new("a value was not written by this wire's codec");
    let mut filled = Writer::new(4);
    let mut from = start;
    for hole in &body.holes {
        let at = hole.at as usize;
        filled.raw(body.pickle.get(from..at).ok_or_else(wrong)?);
        from = at + hole.len as usize;
        match hole.filling {
            Filling::Reference(number) => {
                let carried = carried.get(number as usize).ok_or_else(wrong)?;
                rpc::write_rref(&mut filled, &ids::fork(carried, types));
            }
            Filling::Part(number) => {
                let part = parts.get(number as usize).ok_or_else(wrong)?;
                part.look(0..part.len(), |bytes| {
                    filled.byte_string(bytes);
                })?;
            }
        }
    }
    filled.raw(body.pickle.get(from..end).ok_or_else(wrong)?);
    let mut filled = filled.finish();
    filled.pop();
    Ok(filled.split_off(2))
}

/// The whole pickle of a value with its holes filled.
pub(super) fn whole(
    body: &Body,
    carried: &[Carried],
    parts: &[Part],
    types: &Types,
) -> Result<Vec<u8>, CodecError> {
    let mut writer = Writer::new(4);
    writer.raw(&opcodes(body, carried, parts, types, false)?);
    Ok(writer.finish())
}

/// A value that the runtime has written, and its parts.
pub(super) fn body_of(payload: &Payload) -> Result<Body, CodecError> {
    Body::decode(&payload.body).map_err(CodecError::new)
}

/// What is found in a value that came in a message.
#[derive(Default)]
pub(super) struct Found {
    /// Nodes that are references, and the references, in the order in which they are met.
    pub(super) references: Vec<(usize, Fork)>,
    /// How often each tensor is met.
    pub(super) tensors: HashMap<usize, usize>,
    seen: HashSet<usize>,
}

impl Found {
    /// Looks through a value. Each node is looked at once for references, and as often as it is there for
    /// tensors, within the budget of the pickle.
    pub(super) fn look(&mut self, view: View<'_, '_>) -> Result<(), RpcError> {
        match view.shape()? {
            Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
                items.into_iter().try_for_each(|item| self.look(item))
            }
            Shape::Dict(items) => items.into_iter().try_for_each(|(key, value)| {
                self.look(key)?;
                self.look(value)
            }),
            Shape::Call {
                callee,
                arguments,
                state,
                items,
            } => {
                if let Some(place) = rpc::read_tensor(view)? {
                    *self.tensors.entry(place).or_default() += 1;
                    return Ok(());
                }
                if is_tensor_of_jit(callee)? {
                    if let Some(place) = arguments.tuple()?.first() {
                        let place = usize::try_from(place.int()?).unwrap_or(usize::MAX);
                        *self.tensors.entry(place).or_default() += 1;
                    }
                    return Ok(());
                }
                if let Some(fork) = read_rref(view, callee, arguments)? {
                    if self.seen.insert(view.key()) {
                        self.references.push((view.key(), fork));
                    }
                    return Ok(());
                }
                self.look(arguments)?;
                [state, items]
                    .into_iter()
                    .flatten()
                    .try_for_each(|inside| self.look(inside))
            }
            _ => Ok(()),
        }
    }
}

fn is_tensor_of_jit(callee: View<'_, '_>) -> Result<bool, RpcError> {
    Ok(matches!(
        callee.shape()?,
        Shape::Global(b"torch.jit._pickle", b"build_tensor_from_id")
    ))
}

/// A reference in either of the two languages.
fn read_rref(
    view: View<'_, '_>,
    callee: View<'_, '_>,
    arguments: View<'_, '_>,
) -> Result<Option<Fork>, RpcError> {
    if let Shape::Global(b"torch.distributed.rpc", b"rref") = callee.shape()? {
        return Fork::read(&arguments.tuple()?).map(Some);
    }
    rpc::read_rref(view)
}

/// A value for PyTorch's C++, which has fewer types than Python, and wants to know them.
pub(super) fn jit_value(pickle: &[u8]) -> Result<JitValue, RpcError> {
    let pickle = Pickle::read(pickle)?;
    let budget = pickle.budget();
    jit_of(pickle.view(&budget))
}

fn jit_of(view: View<'_, '_>) -> Result<JitValue, RpcError> {
    if let Some(place) = rpc::read_tensor(view)? {
        return Ok(JitValue::Tensor(place));
    }
    if let Some(fork) = rpc::read_rref(view)? {
        return Ok(JitValue::RRef(fork));
    }
    let all =
        |items: Vec<View<'_, '_>>| items.into_iter().map(jit_of).collect::<Result<Vec<_>, _>>();
    Ok(match view.shape()? {
        Shape::None => JitValue::None,
        Shape::Bool(value) => JitValue::Bool(value),
        Shape::Int(value) => JitValue::Int(value),
        Shape::Float(value) => JitValue::Float(value),
        Shape::Text(text) => JitValue::Text(String::from_utf8_lossy(text).into_owned()),
        Shape::Tuple(items) => JitValue::Tuple(all(items)?),
        Shape::List(items) => jit_list(all(items)?),
        Shape::Dict(pairs) => {
            let pairs = pairs
                .into_iter()
                .map(|(key, value)| Ok((jit_of(key)?, jit_of(value)?)));
            let items = pairs.collect::<Result<Vec<_>, RpcError>>()?;
            let (key, value) = match items.first() {
                Some((key, value)) => (type_of(key), type_of(value)),
                None => ("str".to_owned(), "Tensor".to_owned()),
            };
            let type_name = format!("Dict[{key}, {value}]");
            JitValue::Dict { items, type_name }
        }
        other => {
            let what = format!("{other} as a value of TorchScript's");
            return Err(RpcError::Unsupported(what));
        }
    })
}

fn jit_list(items: Vec<JitValue>) -> JitValue {
    macro_rules! all {
        ($variant:ident, $list:ident) => {
            if items
                .iter()
                .all(|item| matches!(item, JitValue::$variant(_)))
            {
                let items = items.into_iter().filter_map(|item| match item {
                    JitValue::$variant(item) => Some(item),
                    _ => None,
                });
                return JitValue::$list(items.collect());
            }
        };
    }
    all!(Tensor, TensorList);
    all!(Int, IntList);
    all!(Float, FloatList);
    all!(Bool, BoolList);
    let item = items.first().map_or_else(|| "Tensor".to_owned(), type_of);
    let type_name = format!("List[{item}]");
    JitValue::List { items, type_name }
}

/// TorchScript's word for the type of a value.
fn type_of(value: &JitValue) -> String {
    match value {
        JitValue::None => "NoneType".to_owned(),
        JitValue::Bool(_) => "bool".to_owned(),
        JitValue::Int(_) => "int".to_owned(),
        JitValue::Float(_) => "float".to_owned(),
        JitValue::Complex { .. } => "complex".to_owned(),
        JitValue::Text(_) | JitValue::Bytes(_) => "str".to_owned(),
        JitValue::Tensor(_) => "Tensor".to_owned(),
        JitValue::Device(_) => "Device".to_owned(),
        JitValue::IntList(_) => "List[int]".to_owned(),
        JitValue::FloatList(_) => "List[float]".to_owned(),
        JitValue::BoolList(_) => "List[bool]".to_owned(),
        JitValue::TensorList(_) => "List[Tensor]".to_owned(),
        JitValue::List { type_name, .. } | JitValue::Dict { type_name, .. } => type_name.clone(),
        JitValue::Tuple(items) => {
            let items: Vec<_> = items.iter().map(type_of).collect();
            format!("Tuple[{}]", items.join(", "))
        }
        JitValue::RRef(fork) => format!("RRef[{}]", fork.type_name),
    }
}

/// Writes a call of a Python function: `arguments` writes the tuple of its arguments.
pub(super) fn udf(module: &str, name: &str, arguments: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(4);
    rpc::Udf::begin(&mut writer, module, name);
    arguments(&mut writer);
    writer.empty_dict();
    rpc::Udf::end(&mut writer);
    writer.finish()
}

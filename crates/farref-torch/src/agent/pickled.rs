//! Values inside of messages: placeholders replaced on the way out, references and tensors found on the way in.

use std::collections::{HashMap, HashSet};

use farref::agent::Carried;
use farref::{CodecError, Part, Payload};

use super::state::ids::{self, Types};
use crate::pickle::{Pickle, Shape, View, Writer};
use crate::rpc::{self, Fork, JitValue, RpcError};
use crate::value::{Body, Form, Replacement};

/// The pickle of a value with its placeholders replaced, without its first two bytes and its last: to be put into
/// another pickle. `wrapped` leaves out the tuple of one that it is, too.
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
    for placeholder in &body.placeholders {
        let at = placeholder.at as usize;
        filled.raw(body.pickle.get(from..at).ok_or_else(wrong)?);
        from = at + placeholder.len as usize;
        match placeholder.replacement {
            Replacement::Reference(number) => {
                let carried = carried.get(number as usize).ok_or_else(wrong)?;
                rpc::write_rref(&mut filled, &ids::fork(carried, types));
            }
            Replacement::Part(number) => {
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

/// The whole pickle of a value with its placeholders replaced.
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

/// All references in a pickle, whatever it is: for whoever has to let go of them. A peer hands a reference on by writing
/// it, be it to where nobody looks.
pub(super) fn references_of(pickle: &Pickle<'_>) -> Vec<(usize, Fork)> {
    let budget = pickle.budget();
    let mut references = Vec::new();
    for view in pickle.calls(&budget) {
        let Ok(Shape::Call {
            callee, arguments, ..
        }) = view.shape()
        else {
            break; // the budget is used up
        };
        if let Ok(Some(fork)) = read_rref(view, callee, arguments) {
            references.push((view.key(), fork));
        }
    }
    references
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
            let (key, value) = match items.is_empty() {
                false => (
                    common_type(items.iter().map(|(key, _)| key)),
                    common_type(items.iter().map(|(_, value)| value)),
                ),
                true => ("str".to_owned(), "Tensor".to_owned()),
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
    let item = common_type(items.iter());
    let type_name = format!("List[{item}]");
    JitValue::List { items, type_name }
}

/// TorchScript's word for the type that all of them have.
fn common_type<'a>(values: impl Iterator<Item = &'a JitValue>) -> String {
    let mut types = values.map(type_of);
    let first = types.next().unwrap_or_else(|| "Tensor".to_owned());
    match types.all(|other| other == first) {
        true => first,
        false => "Any".to_owned(),
    }
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

/// A tuple of so many, as the arguments of a function of this crate's.
pub(super) fn own_arguments(writer: Writer, count: u32) -> Payload {
    let body = Body {
        form: Form::Head(count),
        pickle: writer.finish(),
        ..Body::default()
    };
    // Without arguments the function fails to read them, which is a refusal as well.
    Payload {
        body: body.into_bytes().unwrap_or_default(),
        parts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use farref::agent::{Fingerprint, NodeId, RRefId};
    use farref_proto::{ForkId, Share};

    use super::*;
    use crate::rpc::GlobalId;

    /// A pickle with placeholders: what is written there meanwhile is found again by its place.
    fn with_placeholders(replacements: &[Replacement]) -> Body {
        let mut body = Body::default();
        let mut writer = Writer::new(4);
        writer.mark();
        for &replacement in replacements {
            writer.text(b"before");
            let at = writer.written();
            writer.int(-1000).persistent();
            let len = writer.written() - at;
            // What a placeholder is made of is the value's own business: here it is read as it is on the wire.
            let placeholder =
                serde_json::json!({ "at": at, "len": len, "replacement": replacement });
            body.placeholders
                .push(serde_json::from_value(placeholder).expect("a placeholder"));
        }
        writer.tuple();
        body.pickle = writer.finish();
        body
    }

    fn carried(number: u64) -> Carried {
        let me = NodeId::new(1, 0);
        Carried {
            share: Share {
                rref: RRefId::new(me, number),
                fork: ForkId::new(me, number + 1),
            },
            owner: NodeId::new(2, 3),
            fingerprint: Fingerprint::foreign(0),
        }
    }

    fn filled(body: &Body, references: &[Carried], parts: &[Part]) -> Result<Vec<u8>, CodecError> {
        whole(body, references, parts, &Types::default())
    }

    #[test]
    fn placeholders_are_replaced_by_references_and_with_bytes() {
        let body = with_placeholders(&[
            Replacement::Part(1),
            Replacement::Reference(0),
            Replacement::Part(0),
        ]);
        let parts = [Part::from(vec![1, 2, 3]), Part::from_vec(vec![7_u16; 4000])];
        let pickle = filled(&body, &[carried(5)], &parts).unwrap();
        let pickle = Pickle::read(&pickle).unwrap();
        let budget = pickle.budget();
        let items = pickle.view(&budget).tuple().unwrap();
        let [_, long, _, reference, _, short] = items[..] else {
            panic!("{} items", items.len())
        };
        assert!(matches!(long.shape(), Ok(Shape::Bytes(bytes)) if bytes == [7, 0].repeat(4000)));
        assert!(matches!(short.shape(), Ok(Shape::Bytes([1, 2, 3]))));
        let fork = rpc::read_rref(reference).unwrap().unwrap();
        assert_eq!((fork.owner, fork.parent), (2, 1));
        assert_eq!(fork.rref, GlobalId::new(1, 5));
        assert_eq!(fork.fork, GlobalId::new(1, 6));
        assert_eq!(fork.type_name, "PyObject");
    }

    #[test]
    fn a_placeholder_without_a_replacement_is_an_error() {
        for (replacement, references, parts) in [
            (Replacement::Part(0), 1, 0),
            (Replacement::Part(1), 0, 1),
            (Replacement::Reference(0), 0, 1),
            (Replacement::Reference(u32::MAX), 1, 0),
        ] {
            let body = with_placeholders(&[replacement]);
            let references: Vec<_> = (0..references).map(carried).collect();
            let parts = vec![Part::from(vec![0]); parts];
            assert!(
                filled(&body, &references, &parts).is_err(),
                "{replacement:?}"
            );
        }
    }

    /// Placeholders that are where no codec leaves them.
    #[test]
    fn placeholders_that_do_not_fit_the_pickle_are_an_error() {
        let parts = [Part::from(vec![0])];
        let good = with_placeholders(&[Replacement::Part(0), Replacement::Part(0)]);
        assert!(filled(&good, &[], &parts).is_ok());
        let mut beyond = good.clone();
        beyond.placeholders[1].at = 1000;
        let mut swapped = good.clone();
        swapped.placeholders.swap(0, 1);
        let mut long = good.clone();
        long.placeholders[1].len = u32::MAX;
        let mut early = good.clone();
        early.placeholders[0].at = 0;
        let mut empty = good;
        empty.pickle.clear();
        for body in [beyond, swapped, long, early, empty, Body::default()] {
            assert!(filled(&body, &[], &parts).is_err(), "{body:?}");
        }
    }

    /// The arguments of a method that takes one: the one itself, to be put beside others.
    #[test]
    fn a_tuple_of_one_is_taken_apart() {
        let mut writer = Writer::new(4);
        writer.mark().int(5).tuple();
        let body = Body {
            pickle: writer.finish(),
            ..Body::default()
        };
        let inside = opcodes(&body, &[], &[], &Types::default(), true).unwrap();
        let mut outer = Writer::new(4);
        outer.raw(&inside).int(6).tuple_of(2);
        let pickle = outer.finish();
        let pickle = Pickle::read(&pickle).unwrap();
        let budget = pickle.budget();
        let [five, six] = pickle.view(&budget).tuple_of().unwrap();
        assert_eq!((five.int(), six.int()), (Ok(5), Ok(6)));
    }

    fn jit(write: impl FnOnce(&mut Writer)) -> Result<JitValue, RpcError> {
        let mut writer = Writer::new(4);
        write(&mut writer);
        jit_value(&writer.finish())
    }

    fn type_name(value: Result<JitValue, RpcError>) -> String {
        type_of(&value.unwrap())
    }

    #[test]
    fn values_for_torchscript_have_the_types_of_their_parts() {
        assert_eq!(
            jit(|writer| {
                writer.none();
            }),
            Ok(JitValue::None)
        );
        assert_eq!(
            jit(|writer| {
                writer.bool(true);
            }),
            Ok(JitValue::Bool(true))
        );
        let list = jit(|writer| {
            writer.empty_list().mark().int(1).int(2).appends();
        });
        assert_eq!(list, Ok(JitValue::IntList(vec![1, 2])));
        let list = jit(|writer| {
            writer.empty_list().mark().float(1.0).appends();
        });
        assert_eq!(list, Ok(JitValue::FloatList(vec![1.0])));
        let list = jit(|writer| {
            writer.empty_list().mark().bool(true).appends();
        });
        assert_eq!(list, Ok(JitValue::BoolList(vec![true])));
        let list = jit(|writer| {
            writer.empty_list().mark();
            rpc::write_tensor(writer, 3);
            writer.appends();
        });
        assert_eq!(list, Ok(JitValue::TensorList(vec![3])));
        assert_eq!(
            jit(|writer| {
                writer.empty_list();
            }),
            Ok(JitValue::TensorList(vec![]))
        );
        let texts = jit(|writer| {
            writer.empty_list().mark().text(b"a").appends();
        });
        assert_eq!(type_name(texts), "List[str]");
        let dict = jit(|writer| {
            writer.empty_dict().mark().text(b"a");
            writer.empty_list().mark().int(1).appends().set_items();
        });
        assert_eq!(type_name(dict), "Dict[str, List[int]]");
        assert_eq!(
            type_name(jit(|writer| {
                writer.empty_dict();
            })),
            "Dict[str, Tensor]"
        );
        let tuple = jit(|writer| {
            writer.int(1).text(b"a").none().tuple_of(3);
        });
        assert_eq!(type_name(tuple), "Tuple[int, str, NoneType]");
    }

    /// What is said of a list holds for all of it: C++ believes it.
    #[test]
    fn what_is_mixed_is_called_so() {
        let list = jit(|writer| {
            writer.empty_list().mark().int(1).text(b"a").appends();
        });
        assert_eq!(type_name(list), "List[Any]");
        let list = jit(|writer| {
            writer.empty_list().mark().int(1).float(1.0).appends();
        });
        assert_eq!(type_name(list), "List[Any]");
        let dict = jit(|writer| {
            writer.empty_dict().mark().text(b"a").int(1).text(b"b");
            writer.none().set_items();
        });
        assert_eq!(type_name(dict), "Dict[str, Any]");
    }

    #[test]
    fn what_torchscript_has_no_type_for_is_an_error_that_says_so() {
        for write in [
            &(|writer: &mut Writer| {
                writer.byte_string(b"x");
            }) as &dyn Fn(&mut Writer),
            &|writer| {
                writer.empty_set();
            },
            &|writer| {
                writer.global("shop", "Point");
            },
            &|writer| {
                writer.long(&[0; 12]);
            },
            &|writer| {
                writer.empty_list().mark().empty_set().appends();
            },
        ] {
            let error = jit(write).unwrap_err();
            assert!(matches!(error, RpcError::Unsupported(_)), "{error}");
        }
    }

    #[test]
    fn references_and_tensors_are_found_wherever_they_are() {
        let mut writer = Writer::new(4);
        let fork = ids::fork(&carried(7), &Types::default());
        writer.empty_list().mark();
        rpc::write_rref(&mut writer, &fork);
        let number = writer.memoize();
        writer.recall(number).empty_dict().mark().text(b"k");
        rpc::write_tensor(&mut writer, 2);
        let tensor = writer.memoize();
        writer.recall(tensor).tuple_of(2).set_items();
        writer.global("shop", "Box").tuple_of(0).new_object();
        rpc::write_tensor(&mut writer, 0);
        writer.build().appends();
        let pickle = writer.finish();
        let pickle = Pickle::read(&pickle).unwrap();
        let budget = pickle.budget();
        let mut found = Found::default();
        found.look(pickle.view(&budget)).unwrap();
        let forks: Vec<_> = found.references.iter().map(|(_, fork)| fork).collect();
        assert_eq!(forks, [&fork], "the same one is there once");
        assert_eq!(found.tensors, HashMap::from([(2, 2), (0, 1)]));
    }
}

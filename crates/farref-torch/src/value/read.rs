//! Pickle to serde, on PyTorch's wire.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use farref_pickle::value::{
    Beside, Captured, Fields, Pair, Special, Value, ValueError, keywords, read_arguments,
    read_value, unpacked,
};

use super::arrivals::Arrivals;
use super::body::{Body, Form};
use super::tensor;
use crate::pickle::{EMPTY_TUPLE_PICKLE, Pickle, Shape, View};
use crate::rpc::{self, RpcError, Udf};

/// Reads a value: calls `read` with a deserializer over it.
pub(super) fn from_body<E: std::fmt::Display>(
    body: &Body,
    arrivals: &Arrivals,
    parameters: &'static [&'static str],
    read: impl FnOnce(Value<'_, '_, '_>) -> Result<(), E>,
) -> Result<(), ValueError> {
    let context = Context {
        body,
        arrivals,
        references: body
            .references
            .iter()
            .zip(0..)
            .map(|(&node, number)| (node as usize, number))
            .collect(),
        uses: RefCell::default(),
    };
    let pickle = Pickle::read(match &body.pickle[..] {
        [] => EMPTY_TUPLE_PICKLE,
        pickle => pickle,
    })?;
    let budget = pickle.budget();
    let root = pickle.view(&budget);
    let udf = || Udf::read(root).map_err(wrong);
    let (items, named) = match body.form {
        // Arguments as this worker wrote them for itself.
        Form::Whole if !parameters.is_empty() && matches!(root.shape()?, Shape::Tuple(_)) => {
            (root.tuple()?, Vec::new())
        }
        Form::Whole | Form::Only => {
            let view = match body.form {
                Form::Only => root.tuple_of::<1>()?[0],
                _ => root,
            };
            return read_value(view, &context, read);
        }
        Form::Udf => call(&udf()?, 0)?,
        Form::Proxied => call(&udf()?, rpc::PROXY_PARTS)?,
        Form::Method => {
            let udf = udf()?;
            let items = udf.arguments.tuple()?;
            let [_, _, given, named] = items[..] else {
                return Err(ValueError::new("a call of a method has four parts"));
            };
            (unpacked(given)?, keywords(named)?)
        }
        Form::RustMethod => {
            let [_, given] = udf()?.arguments.tuple_of()?;
            (given.tuple()?, Vec::new())
        }
        Form::Head(count) => {
            let mut items = root.tuple()?;
            items.truncate(count as usize);
            (items, Vec::new())
        }
        Form::Nothing => (Vec::new(), Vec::new()),
    };
    read_arguments(&items, &named, parameters, &context, read)
}

fn wrong(error: RpcError) -> ValueError {
    ValueError::new(error)
}

/// Arguments by place, and by name.
type Given<'p, 'a> = (Vec<View<'p, 'a>>, Vec<Pair<'p, 'a>>);

/// The arguments and keywords of a call: what a partial has bound, but for the first so many of it, and what is given.
fn call<'p, 'a>(udf: &Udf<'p, 'a>, skipped: usize) -> Result<Given<'p, 'a>, ValueError> {
    let (given, mut named) = (unpacked(udf.arguments)?, keywords(udf.keywords)?);
    let Some(bound) = &udf.bound else {
        return Ok((given, named));
    };
    let mut items: Vec<_> = bound.arguments.iter().skip(skipped).copied().collect();
    items.extend(given);
    if !matches!(bound.keywords.shape()?, Shape::None) {
        // Those that are given go before.
        let mut known = HashSet::new();
        for (name, _) in &named {
            known.insert(name.text()?);
        }
        for (name, value) in keywords(bound.keywords)? {
            if known.insert(name.text()?) {
                named.push((name, value));
            }
        }
    }
    Ok((items, named))
}

/// What belongs to the message that a value is read from.
struct Context<'b> {
    body: &'b Body,
    arrivals: &'b Arrivals,
    /// Nodes that are references, and their numbers.
    references: HashMap<usize, u32>,
    /// How often each tensor has been read.
    uses: RefCell<HashMap<usize, usize>>,
}

impl Special for Context<'_> {
    fn fields(&self, name: &'static str, view: View<'_, '_>) -> Result<Option<Fields>, ValueError> {
        if name != tensor::TENSOR && name != tensor::RAW_TENSOR {
            return Ok(None);
        }
        match tensor_of(view)? {
            Some(place) => self.tensor_fields(name, place).map(Some),
            None => Err(view.shape()?.is_not("a tensor").into()),
        }
    }

    fn unknown(&self, view: View<'_, '_>) -> Result<Option<Fields>, ValueError> {
        match tensor_of(view)? {
            Some(place) => self.tensor_fields(tensor::TENSOR, place).map(Some),
            None => Ok(None),
        }
    }

    fn variant(&self, view: View<'_, '_>) -> Result<Option<&'static str>, ValueError> {
        if tensor_of(view)?.is_none() {
            return Ok(None);
        }
        let parameter = view.call_of("torch._utils", "_rebuild_parameter")?;
        if parameter.is_some() {
            let what = "a parameter of a module is no plain data: send its `.data`";
            return Err(ValueError::new(what));
        }
        Ok(Some("Tensor"))
    }

    fn beside(&self, view: View<'_, '_>) -> Result<Option<Beside>, ValueError> {
        if let Some(&number) = self.references.get(&view.key()) {
            return Ok(Some(Beside::Reference(number.into())));
        }
        let id = match view.is_persistent()?.then(|| view.shape()).transpose()? {
            Some(Shape::Persistent(id)) => id.int()?,
            _ => return Ok(None),
        };
        // As placeholders are written.
        Ok(Some(match u64::try_from(id) {
            Ok(number) => Beside::Reference(number),
            Err(_) => {
                let part = u64::try_from(-1 - id).map_err(ValueError::new)?;
                Beside::Memory(Captured::variant("Part", Captured::Number(part)))
            }
        }))
    }
}

/// Which tensor of the message it is, if it is one. A parameter of a module is one, too.
fn tensor_of(view: View<'_, '_>) -> Result<Option<usize>, ValueError> {
    if !view.is_call()? {
        return Ok(None);
    }
    if let Some(parts) = view.call_of("torch._utils", "_rebuild_parameter")? {
        return match parts.first() {
            Some(&first) => tensor_of(first),
            None => Ok(None),
        };
    }
    if let Some(parts) = view.call_of("torch.jit._pickle", "build_tensor_from_id")? {
        return match parts[..] {
            [place] => Ok(usize::try_from(place.int()?).ok()),
            _ => Ok(None),
        };
    }
    rpc::read_tensor(view).map_err(wrong)
}

impl Context<'_> {
    /// What a tensor reads of itself.
    fn tensor_fields(&self, name: &'static str, place: usize) -> Result<Fields, ValueError> {
        let Body {
            tensors, received, ..
        } = self.body;
        let entry = tensors.get(place).ok_or_else(|| {
            ValueError::new(format_args!("tensor {place} did not come with the value"))
        })?;
        let use_number = {
            let mut uses = self.uses.borrow_mut();
            let uses = uses.entry(place).or_default();
            *uses += 1;
            *uses - 1
        };
        let records = entry.requires_grad && entry.dtype.is_float();
        let link = match received {
            Some(received) if records => {
                let before = tensors[..place].iter();
                let place = before.filter(|tensor| tensor.requires_grad).count();
                let index = self.arrivals.read(*received, place, tensors);
                index.map(|index| (received.message, index))
            }
            _ => entry.link,
        };
        tensor::fields_of(name, entry, use_number, link)
    }
}

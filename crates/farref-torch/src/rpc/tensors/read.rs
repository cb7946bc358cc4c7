//! Reading the list of a message's tensors.

use super::{COO, CSR, DENSE, Dtype, ListedTensor, PER_TENSOR, QUANTIZED, SPARSE, TensorView};
use crate::pickle::{Pickle, Shape, View};
use crate::rpc::RpcError;
use crate::rpc::reference::{read_index, utf8};

type Named<'p, 'a> = ((&'a [u8], &'a [u8]), Vec<View<'p, 'a>>);

/// Reads payload 3 of a message.
pub(crate) fn read_list(bytes: &[u8]) -> Result<Vec<ListedTensor>, RpcError> {
    let pickle = Pickle::read(bytes)?;
    let budget = pickle.budget();
    let list = pickle.view(&budget);
    let items = match list
        .call_of("torch.jit._pickle", "build_tensorlist")?
        .as_deref()
    {
        Some([items]) => match items.shape()? {
            Shape::List(items) => items,
            other => return Err(other.is_not("a list of tensors").into()),
        },
        _ => {
            return Err(RpcError::wrong(
                "a list of tensors is expected",
                "something else",
            ));
        }
    };
    items.into_iter().map(read_tensor).collect()
}

fn read_tensor(view: View<'_, '_>) -> Result<ListedTensor, RpcError> {
    let (name, arguments) = read_call(view)?;
    let read = match (name, &arguments[..]) {
        (name, _) if is(name, DENSE) => read_dense(&arguments).map(ListedTensor::Dense),
        (name, [layout, sizes, grad, parts @ .., _hooks]) if is(name, SPARSE) => {
            read_sparse(layout.int()?, *sizes, *grad, parts)
        }
        (name, [place @ .., how, grad, _hooks]) if is(name, QUANTIZED) => {
            read_quantized(place, *how, *grad)
        }
        ((module, name), _) => {
            let what = Shape::Global(module, name).to_string();
            Err(RpcError::Unsupported(format!("a tensor made by {what}")))
        }
    };
    match read {
        Err(RpcError::Unsupported(what)) => Ok(ListedTensor::Unsupported(what)),
        other => other,
    }
}

fn is((module, name): (&[u8], &[u8]), expected: (&str, &str)) -> bool {
    (module, name) == (expected.0.as_bytes(), expected.1.as_bytes())
}

/// What is called, and with what.
fn read_call<'p, 'a>(view: View<'p, 'a>) -> Result<Named<'p, 'a>, RpcError> {
    let Shape::Call {
        callee, arguments, ..
    } = view.shape()?
    else {
        return Err(RpcError::wrong("a tensor is expected", "something else"));
    };
    match callee.shape()? {
        Shape::Global(module, name) => Ok(((module, name), arguments.tuple()?)),
        other => Err(other.is_not("a function that makes tensors").into()),
    }
}

/// The arguments of a tensor with all of its elements.
fn read_dense(arguments: &[View<'_, '_>]) -> Result<TensorView, RpcError> {
    let (place, grad, flags) = match arguments {
        [place @ .., grad, _hooks] if place.len() == 4 => (place, grad, None),
        [place @ .., grad, _hooks, flags] if place.len() == 4 => (place, grad, Some(flags)),
        _ => {
            return Err(RpcError::wrong(
                "a tensor has six arguments",
                arguments.len(),
            ));
        }
    };
    let mut view = read_place(place)?;
    view.requires_grad = grad.bool()?;
    if let Some(flags) = flags {
        read_flags(&mut view, *flags)?;
    }
    Ok(view)
}

/// Storage, offset, sizes, strides.
fn read_place(place: &[View<'_, '_>]) -> Result<TensorView, RpcError> {
    let [storage, offset, sizes, strides] = place else {
        return Err(RpcError::wrong(
            "a tensor has a place in a storage",
            place.len(),
        ));
    };
    let Shape::Persistent(storage) = storage.shape()? else {
        return Err(RpcError::wrong("a storage is expected", "something else"));
    };
    let [_, class, key, device, elements] = storage.tuple_of()?;
    let dtype = match class.shape()? {
        Shape::Global(b"torch", class) => Dtype::from_storage_class(class).ok_or_else(|| {
            let class = Shape::Global(b"torch", class);
            RpcError::Unsupported(format!("a tensor with {class}"))
        })?,
        other => return Err(other.is_not("a class of storages").into()),
    };
    let device = utf8(device.text()?)?;
    if device != "cpu" {
        let device: String = device.chars().take(20).collect();
        return Err(RpcError::Unsupported(format!("a tensor on {device}")));
    }
    let key = utf8(key.text()?)?;
    let view = TensorView {
        dtype,
        storage: key
            .parse()
            .map_err(|_| RpcError::wrong("a storage has a number", "something else"))?,
        elements: read_index(elements)?,
        offset: read_index(*offset)?,
        sizes: read_sizes(*sizes)?,
        strides: read_sizes(*strides)?,
        requires_grad: false,
        conjugate: false,
        negative: false,
    };
    match view.sizes.len() == view.strides.len() {
        true => Ok(view),
        false => Err(RpcError::wrong(
            "there is a stride for each size",
            view.strides.len(),
        )),
    }
}

fn read_sizes(view: View<'_, '_>) -> Result<Vec<usize>, RpcError> {
    view.tuple()?.into_iter().map(read_index).collect()
}

fn read_flags(to: &mut TensorView, flags: View<'_, '_>) -> Result<(), RpcError> {
    let flags = flags.call_of("torch.jit._pickle", "restore_type_tag")?;
    let Some([flags, _type]) = flags.as_deref() else {
        return Err(RpcError::wrong(
            "flags of a tensor are expected",
            "something else",
        ));
    };
    let Shape::Dict(flags) = flags.shape()? else {
        return Err(RpcError::wrong(
            "flags of a tensor are a dict",
            "something else",
        ));
    };
    for (name, is_set) in flags {
        match (name.text()?, is_set.bool()?) {
            (b"conj", is_set) => to.conjugate = is_set,
            (b"neg", is_set) => to.negative = is_set,
            (_, false) => {}
            (name, true) => {
                let name: String = String::from_utf8_lossy(name).chars().take(20).collect();
                return Err(RpcError::Unsupported(format!(
                    "a tensor marked as `{name}`"
                )));
            }
        }
    }
    Ok(())
}

fn read_sparse(
    layout: i64,
    sizes: View<'_, '_>,
    grad: View<'_, '_>,
    parts: &[View<'_, '_>],
) -> Result<ListedTensor, RpcError> {
    let (sizes, requires_grad) = (read_sizes(sizes)?, grad.bool()?);
    let part = |view: &View<'_, '_>| match read_call(*view)? {
        (name, arguments) if is(name, DENSE) => read_dense(&arguments),
        _ => Err(RpcError::wrong(
            "a part of a sparse tensor",
            "something else",
        )),
    };
    match (layout, parts) {
        (COO, [indices, values]) => Ok(ListedTensor::SparseCoo {
            sizes,
            requires_grad,
            indices: part(indices)?,
            values: part(values)?,
        }),
        (CSR, [rows, columns, values]) => Ok(ListedTensor::SparseCsr {
            sizes,
            requires_grad,
            rows: part(rows)?,
            columns: part(columns)?,
            values: part(values)?,
        }),
        (layout, _) => Err(RpcError::Unsupported(format!(
            "a sparse tensor of layout {layout}"
        ))),
    }
}

fn read_quantized(
    place: &[View<'_, '_>],
    how: View<'_, '_>,
    grad: View<'_, '_>,
) -> Result<ListedTensor, RpcError> {
    let how = how.tuple()?;
    let scheme = match how.first().map(View::shape).transpose()? {
        Some(Shape::Global(module, name)) => (module, name),
        _ => return Err(RpcError::wrong("a quantization has a name", "nothing")),
    };
    match (&how[1..], is(scheme, PER_TENSOR)) {
        ([scale, zero_point], true) => {
            let scale = match scale.shape()? {
                Shape::Float(scale) => scale,
                other => return Err(other.is_not("a scale").into()),
            };
            let mut view = read_place(place)?;
            view.requires_grad = grad.bool()?;
            Ok(ListedTensor::Quantized {
                view,
                scale,
                zero_point: zero_point.int()?,
            })
        }
        _ => {
            let scheme = Shape::Global(scheme.0, scheme.1);
            Err(RpcError::Unsupported(format!(
                "a tensor quantized by {scheme}"
            )))
        }
    }
}

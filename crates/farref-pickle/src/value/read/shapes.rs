//! What Python and PyTorch's C++ make of plain things in pickles: wrappers that only tell a type, sequences made by
//! calls, named tuples, large numbers.

use super::super::error::{TOO_LARGE, ValueError};
use crate::pickle::{Shape, View};

/// An item of a dict, or an attribute: its name and its value.
pub type Pair<'p, 'a> = (View<'p, 'a>, View<'p, 'a>);

pub(super) fn is_builtin(view: View<'_, '_>, name: &[u8]) -> Result<bool, ValueError> {
    Ok(match view.shape()? {
        Shape::Global(b"builtins" | b"__builtin__", its_name) => its_name == name,
        _ => false,
    })
}

/// The items of what is made of its items and nothing else, by a class of its own.
pub(super) fn named_tuple<'p, 'a>(
    view: View<'p, 'a>,
) -> Result<Option<Vec<View<'p, 'a>>>, ValueError> {
    let Some(called) = view.call()? else {
        return Ok(None);
    };
    if called.state.is_some() || called.items.is_some() {
        return Ok(None);
    }
    // What Python, or PyTorch, makes by a call is something else.
    let first = called.name.0.split(|byte| *byte == b'.').next();
    let is_other = matches!(
        first,
        Some(b"builtins" | b"__builtin__" | b"collections" | b"_codecs" | b"copyreg" | b"torch")
    );
    Ok(match is_other {
        true => None,
        false => Some(called.arguments.tuple()?),
    })
}

/// What is inside, where PyTorch's C++ only tells the type of a list or a dict.
pub(super) fn typed<'p, 'a>(view: View<'p, 'a>) -> Result<Option<View<'p, 'a>>, ValueError> {
    let Some(called) = view.call()? else {
        return Ok(None);
    };
    match called.name {
        (b"torch.jit._pickle", name)
            if name == b"restore_type_tag"
                || (name.starts_with(b"build_") && name.ends_with(b"list")) =>
        {
            Ok(called.arguments.tuple()?.first().copied())
        }
        _ => Ok(None),
    }
}

/// What a sequence is made of that Python makes by a call, such as a set of an old protocol. `Some(None)`: of
/// nothing.
pub(super) fn sequence_of<'p, 'a>(
    shape: &Shape<'p, 'a>,
) -> Result<Option<Option<View<'p, 'a>>>, ValueError> {
    let Shape::Call {
        callee,
        arguments,
        items,
        ..
    } = shape
    else {
        return Ok(None);
    };
    let Shape::Global(module, name) = callee.shape()? else {
        return Ok(None);
    };
    Ok(match (module, name) {
        (b"builtins" | b"__builtin__", b"set" | b"frozenset" | b"list" | b"tuple")
        | (b"torch", b"Size") => Some(arguments.tuple()?.first().copied()),
        // It is filled afterwards.
        (b"collections", b"deque") => Some(*items),
        _ => None,
    })
}

/// What Python would unpack for `f(*given)`: the items of a sequence, the keys of a dict. Callers of `rpc_sync` may
/// give any of them as `args`.
pub fn unpacked<'p, 'a>(given: View<'p, 'a>) -> Result<Vec<View<'p, 'a>>, ValueError> {
    let shape = given.shape()?;
    let inside = match shape {
        Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => return Ok(items),
        Shape::Dict(pairs) => return Ok(pairs.into_iter().map(|(key, _)| key).collect()),
        // A subclass of a list or a dict is filled after it was made.
        Shape::Call {
            items: Some(items), ..
        } => Some(items),
        Shape::Call { .. } => match sequence_of(&shape)? {
            Some(items) => items,
            None => match named_tuple(given)? {
                Some(items) => return Ok(items),
                None => return Err(shape.is_not("a tuple of arguments").into()),
            },
        },
        other => return Err(other.is_not("a tuple of arguments").into()),
    };
    inside.map_or_else(|| Ok(Vec::new()), unpacked)
}

/// What Python would unpack for `f(**named)`.
pub fn keywords<'p, 'a>(named: View<'p, 'a>) -> Result<Vec<Pair<'p, 'a>>, ValueError> {
    match named.shape()? {
        Shape::Dict(pairs) => Ok(pairs),
        Shape::Call {
            items: Some(items), ..
        } => keywords(items),
        // One that was made and never filled.
        Shape::Call {
            callee,
            state: None,
            ..
        } if matches!(callee.shape()?, Shape::Global(b"collections", _)) => Ok(Vec::new()),
        other => Err(other.is_not("a dict of keywords").into()),
    }
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, ValueError> {
    std::str::from_utf8(bytes).map_err(|_| ValueError::new("a text that is not UTF-8"))
}

/// A number of more than eight bytes.
pub(super) fn long(bytes: &[u8]) -> Result<i128, ValueError> {
    if bytes.len() > 16 {
        return Err(ValueError::new(TOO_LARGE));
    }
    let sign = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut all = [if sign { 0xff } else { 0 }; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    Ok(i128::from_le_bytes(all))
}

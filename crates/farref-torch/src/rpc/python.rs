//! The few objects of PyTorch's that Python pickles contain: calls, tensors, references, exceptions, workers.
//!
//! Everything is recognised by the names that Python would look up; nothing is looked up. What is written here
//! need not be what Python itself would write, as long as Python reads it as the same.

use super::error::RpcError;
use super::reference::{Fork, read_index, read_str, read_worker};
use crate::pickle::{Shape, View, Writer};

pub(crate) use farref_pickle::value::Named;

const INTERNAL: &str = "torch.distributed.rpc.internal";
const PICKLER: &str = "_InternalRPCPickler";
const TENSOR: &str = "_tensor_receiver";
const RREF: &str = "_py_rref_receiver";
const UDF: &str = "PythonUDF";
const EXCEPTION: &str = "RemoteException";
const WORKERS: &str = "torch._C._distributed_rpc";
const WORKER: &str = "WorkerInfo";

/// What comes before the arguments of a method in a method of `rref.rpc_sync()`: the reference, `rpc_sync`, the name of
/// the method, the time limit.
pub(crate) const PROXY_PARTS: usize = 4;

/// What `functools.partial` has bound: the arguments that come before those of the call, and keywords, which those of
/// the call go before.
#[derive(Clone)]
pub(crate) struct Bound<'p, 'a> {
    pub(crate) arguments: Vec<View<'p, 'a>>,
    /// A dict, or `None`.
    pub(crate) keywords: View<'p, 'a>,
}

impl<'p, 'a> Bound<'p, 'a> {
    /// The function inside of a `functools.partial`, and what is bound, if the value is one.
    fn read(view: View<'p, 'a>) -> Result<Option<(View<'p, 'a>, Self)>, RpcError> {
        let Shape::Call {
            callee,
            state: Some(state),
            ..
        } = view.shape()?
        else {
            return Ok(None);
        };
        let Shape::Global(b"functools", b"partial") = callee.shape()? else {
            return Ok(None);
        };
        // The last part are attributes that somebody gave it.
        let [function, arguments, keywords, _] = state.tuple_of()?;
        let bound = Self {
            arguments: arguments.tuple()?,
            keywords,
        };
        Ok(Some((function, bound)))
    }
}

/// A call of a Python function.
#[derive(Clone)]
pub(crate) struct Udf<'p, 'a> {
    pub(crate) function: Named<'a>,
    /// Set if a `functools.partial` of the function is called.
    pub(crate) bound: Option<Bound<'p, 'a>>,
    /// A tuple.
    pub(crate) arguments: View<'p, 'a>,
    /// A dict.
    pub(crate) keywords: View<'p, 'a>,
}

impl<'p, 'a> Udf<'p, 'a> {
    /// Reads a call of a function that has a name. A method of an object that travels along has none.
    pub(crate) fn read(view: View<'p, 'a>) -> Result<Self, RpcError> {
        let Some(parts) = view.call_of(INTERNAL, UDF)? else {
            let found = view.shape()?;
            return Err(RpcError::wrong("a call of a function is expected", found));
        };
        let [function, arguments, keywords] = parts[..] else {
            return Err(RpcError::wrong("a call has three parts", parts.len()));
        };
        let (function, bound) = match Bound::read(function)? {
            Some((function, bound)) => (function, Some(bound)),
            None => (function, None),
        };
        let function = Named::read(function)?.ok_or_else(|| {
            let what =
                "a function without a name (such as a method of an object that travels along)";
            RpcError::Unsupported(what.to_owned())
        })?;
        Ok(Self {
            function,
            bound,
            arguments,
            keywords,
        })
    }

    /// Begins a call. Its arguments, a tuple, and its keywords, a dict, are to be written next.
    pub(crate) fn begin(writer: &mut Writer, module: &str, name: &str) {
        writer.global(INTERNAL, UDF).global(module, name);
    }

    /// Ends it.
    pub(crate) fn end(writer: &mut Writer) {
        writer.tuple_of(3).new_object();
    }
}

/// The tensor of the message that the value is, if it is one.
pub(crate) fn read_tensor(view: View<'_, '_>) -> Result<Option<usize>, RpcError> {
    match read_received(view, TENSOR)? {
        Some(place) => Ok(Some(read_index(place)?)),
        None => Ok(None),
    }
}

/// Writes a tensor, by its place in the list of the message.
pub(crate) fn write_tensor(writer: &mut Writer, place: usize) {
    begin_received(writer, TENSOR);
    let place = i64::try_from(place).unwrap_or(i64::MAX);
    writer.int(place).tuple_of(1).reduce();
}

/// The reference that the value is, if it is one.
pub(crate) fn read_rref(view: View<'_, '_>) -> Result<Option<Fork>, RpcError> {
    match read_received(view, RREF)? {
        Some(parts) => Ok(Some(Fork::read(&parts.tuple()?)?)),
        None => Ok(None),
    }
}

/// Writes a reference.
pub(crate) fn write_rref(writer: &mut Writer, fork: &Fork) {
    begin_received(writer, RREF);
    writer.mark();
    for number in fork.numbers() {
        writer.int(number);
    }
    writer.text(fork.type_name.as_bytes()).tuple();
    writer.tuple_of(1).reduce();
}

/// What a function of the pickler would be given, if the value is a call of that function.
fn read_received<'p, 'a>(
    view: View<'p, 'a>,
    function: &str,
) -> Result<Option<View<'p, 'a>>, RpcError> {
    let Shape::Call {
        callee, arguments, ..
    } = view.shape()?
    else {
        return Ok(None);
    };
    // Looking costs less than making the name of it.
    if let Shape::Global(module, _) = callee.shape()?
        && module != INTERNAL.as_bytes()
    {
        return Ok(None);
    }
    let expected = [PICKLER, function].join(".");
    match Named::read(callee)? {
        Some(named) if named.is(INTERNAL, &expected) => {
            let [given] = arguments.tuple_of()?;
            Ok(Some(given))
        }
        _ => Ok(None),
    }
}

fn begin_received(writer: &mut Writer, function: &str) {
    writer.global("builtins", "getattr");
    writer.global(INTERNAL, PICKLER).text(function.as_bytes());
    writer.tuple_of(2).reduce();
}

/// An exception that a function raised, as its caller receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteException<'a> {
    /// What went wrong, and where.
    pub(crate) text: &'a [u8],
    /// The class of the exception, unless that is no class that has a name.
    pub(crate) class: Option<Named<'a>>,
}

impl<'a> RemoteException<'a> {
    /// The exception that the value is, if it is one.
    pub(crate) fn read(view: View<'_, 'a>) -> Result<Option<Self>, RpcError> {
        let Some(parts) = view.call_of(INTERNAL, EXCEPTION)? else {
            return Ok(None);
        };
        let [text, class] = parts[..] else {
            return Err(RpcError::wrong("an exception has two parts", parts.len()));
        };
        Ok(Some(Self {
            text: text.text()?,
            class: Named::read(class)?,
        }))
    }

    /// Writes an exception of that class.
    ///
    /// The receiver decodes the text once more, as Python decodes its literals: so that it arrives as it is,
    /// backslashes are doubled, and what is not ASCII is escaped.
    pub(crate) fn write(writer: &mut Writer, text: &str, module: &str, name: &str) {
        let text = escaped(text);
        writer.global(INTERNAL, EXCEPTION);
        writer.text(text.as_bytes()).global(module, name);
        writer.tuple_of(2).new_object();
    }
}

/// The text as Python would write it in a literal of ASCII characters, but for line breaks.
fn escaped(text: &str) -> String {
    use std::fmt::Write;

    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        let code = u32::from(character);
        let written = match code {
            0x5c => escaped.write_str("\\\\"),
            0..0x80 => escaped.write_char(character),
            0x80..0x1_0000 => write!(escaped, "\\u{code:04x}"),
            _ => write!(escaped, "\\U{code:08x}"),
        };
        debug_assert_eq!(written, Ok(()), "writing to a string");
    }
    escaped
}

/// A worker, as workers tell each other about those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkerInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: u16,
}

impl<'a> WorkerInfo<'a> {
    /// The worker that the value is, if it is one.
    pub(crate) fn read(view: View<'_, 'a>) -> Result<Option<Self>, RpcError> {
        let Shape::Call {
            callee,
            state: Some(state),
            ..
        } = view.shape()?
        else {
            return Ok(None);
        };
        match callee.shape()? {
            Shape::Global(module, name)
                if (module, name) == (WORKERS.as_bytes(), WORKER.as_bytes()) => {}
            _ => return Ok(None),
        }
        let [name, id] = state.tuple_of()?;
        Ok(Some(Self {
            name: read_str(name)?,
            id: read_worker(id)?,
        }))
    }

    /// Writes a worker.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.global(WORKERS, WORKER).tuple_of(0).new_object();
        let state = writer.text(self.name.as_bytes()).int(self.id.into());
        state.tuple_of(2).build();
    }
}

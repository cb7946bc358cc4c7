//! Tensors and arrays in pickles: what Python makes of a Rust tensor, and what Rust sees of Python's.
//!
//! | in the pickle | |
//! | --- | --- |
//! | `farref._tensors.tensor(memory, dtype, shape[, requires_grad])` | a tensor of either language. `None` in the last place: one of Rust's that needs gradients |
//! | `torch._utils._rebuild_parameter(tensor, ..)` | a parameter of a module |
//! | `numpy._core.numeric._frombuffer(memory, dtype, shape, order)` | an array of numpy's |
//! | `numpy._core.multiarray.scalar(dtype, bytes)` | a number of numpy's |

use crate::pickle::{Called, Shape, View, Writer};
use crate::value::{Array, Captured, Element, Fields, ValueError};

/// What makes tensors, in the Python package.
const MODULE: &str = "farref._tensors";
const TENSOR: &str = "tensor";

/// Finds the memory that something is made of.
type Lend<'l> = &'l dyn Fn(View<'_, '_>) -> Result<Option<Captured>, ValueError>;

/// Whether it is a tensor, which is no array of numpy's.
pub(super) fn is_tensor(view: View<'_, '_>) -> Result<bool, ValueError> {
    let name = view.call()?.map(|called| called.name);
    Ok(name.is_some_and(|(module, name)| {
        (module, name) == (MODULE.as_bytes(), TENSOR.as_bytes())
            || (module, name) == (b"torch._utils", b"_rebuild_parameter")
    }))
}

/// The array that a call makes, if it makes one of numbers.
pub(super) fn read(called: &Called<'_, '_>, lend: Lend<'_>) -> Result<Option<Array>, ValueError> {
    let arguments = called.arguments;
    match called.name {
        (b"farref._tensors", b"tensor") => tensor(&arguments.tuple()?, lend).map(Some),
        (b"torch._utils", b"_rebuild_parameter") => {
            let [tensor, requires_grad, ..] = arguments.tuple()?[..] else {
                return Ok(None);
            };
            let Some(inside) = tensor.call()? else {
                return Ok(None);
            };
            let mut array = read(&inside, lend)?;
            if let Some(array) = &mut array {
                array.requires_grad = requires_grad.bool()?;
            }
            Ok(array)
        }
        (b"numpy.core.numeric" | b"numpy._core.numeric", b"_frombuffer") => {
            let [memory, dtype, shape, order] = arguments.tuple_of()?;
            let (Some(element), Some(memory)) = (numpy_element(dtype)?, lend(memory)?) else {
                return Ok(None);
            };
            Ok(Some(Array {
                element,
                shape: sizes(shape)?,
                memory,
                is_fortran: order.text()? == b"F",
                requires_grad: false,
            }))
        }
        (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"scalar") => {
            let [dtype, memory] = arguments.tuple_of()?;
            let (Some(element), Some(memory)) = (numpy_element(dtype)?, lend(memory)?) else {
                return Ok(None);
            };
            Ok(Some(Array {
                element,
                shape: Vec::new(),
                memory,
                is_fortran: false,
                requires_grad: false,
            }))
        }
        _ => Ok(None),
    }
}

fn tensor(parts: &[View<'_, '_>], lend: Lend<'_>) -> Result<Array, ValueError> {
    let (memory, dtype, shape, requires_grad) = match *parts {
        [memory, dtype, shape] => (memory, dtype, shape, false),
        [memory, dtype, shape, requires_grad] => match requires_grad.shape()? {
            Shape::None => (memory, dtype, shape, true),
            _ => (memory, dtype, shape, requires_grad.bool()?),
        },
        _ => return Err(ValueError::new("a tensor of another number of parts")),
    };
    let dtype = dtype.text()?;
    let element = Element::of_torch(dtype).ok_or_else(|| {
        let dtype: String = String::from_utf8_lossy(dtype).chars().take(100).collect();
        ValueError::new(format_args!(
            "a tensor of {dtype} has no counterpart in Rust: send it as another type"
        ))
    })?;
    Ok(Array {
        element,
        shape: sizes(shape)?,
        memory: lend(memory)?.ok_or_else(|| ValueError::new("a tensor without memory"))?,
        is_fortran: false,
        requires_grad,
    })
}

fn sizes(shape: View<'_, '_>) -> Result<Vec<usize>, ValueError> {
    let sizes = shape.tuple()?.into_iter();
    sizes
        .map(|size| usize::try_from(size.int()?).map_err(ValueError::new))
        .collect()
}

/// The type of numbers that a dtype of numpy's is, if it is one, with the lowest byte first.
fn numpy_element(dtype: View<'_, '_>) -> Result<Option<&'static Element>, ValueError> {
    let Some(called) = dtype.call()? else {
        return Ok(None);
    };
    if called.name != (b"numpy", b"dtype") {
        return Ok(None);
    }
    let (Some(code), Some(state)) = (called.arguments.tuple()?.first().copied(), called.state)
    else {
        return Ok(None);
    };
    let order = match state.tuple()?.get(1) {
        Some(order) => order.text()?,
        None => return Ok(None),
    };
    match (code.shape()?, order) {
        (Shape::Text(code), b"<" | b"|" | b"=") => Ok(Element::of_numpy(code)),
        _ => Ok(None),
    }
}

/// Writes what a tensor of candle's wrote of itself. `beside` takes the part that its elements are.
pub(super) fn write(
    writer: &mut Writer,
    fields: &Fields,
    beside: impl FnOnce(u32),
) -> Result<(), ValueError> {
    let field = |wanted: &str| {
        let found = fields.iter().find(|(field, _)| *field == wanted);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| ValueError::new(format_args!("a tensor without {wanted}")))
    };
    let name = field("element")?.text()?;
    let element = Element::of_candle(name)
        .ok_or_else(|| ValueError::new(format_args!("Python has no tensors of {name}")))?;
    writer.global(MODULE, TENSOR).mark();
    match field("data")? {
        Captured::Variant("Part", part) => {
            beside(u32::try_from(part.number()?).map_err(ValueError::new)?);
            writer.next_buffer();
        }
        Captured::Variant(_, here) => match here.list()? {
            [_, Captured::Bytes(bytes)] => drop(writer.byte_string(bytes)),
            _ => return Err(ValueError::new("a tensor without bytes")),
        },
        _ => return Err(ValueError::new("a tensor without bytes")),
    }
    writer.text(element.torch.as_bytes()).mark();
    for size in field("shape")?.list()? {
        writer.int(i64::try_from(size.number()?).map_err(ValueError::new)?);
    }
    writer.tuple();
    // Whether the message is going to be made in a context is not known here: who gets it sees (AR-2).
    if field("requires_grad")?.boolean()? {
        writer.none();
    }
    writer.tuple().reduce();
    Ok(())
}

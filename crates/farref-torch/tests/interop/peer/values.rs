//! Values and errors.

use std::time::Duration;

use farref_autograd::Tensor;
use farref_torch::{Dtype, PyException, PyValue, RawTensor};
use serde::Serialize;

#[farref::remote(python = "peer_api.nothing")]
async fn nothing() {}

#[farref::remote(python = "peer_api.echo")]
async fn echo(value: PyValue) -> PyValue {
    value
}

pub(super) fn number(value: &PyValue) -> Result<i64, PyException> {
    match value {
        PyValue::Int(number) => Ok(*number),
        other => Err(PyException::new(
            "TypeError",
            format!("expected an int, got {other:?}"),
        )),
    }
}

#[farref::remote(python = "peer_api.add")]
async fn add(a: PyValue, b: PyValue) -> Result<i64, PyException> {
    let sum = number(&a)?.checked_add(number(&b)?);
    sum.ok_or_else(|| PyException::new("OverflowError", "an int of more than 64 bits"))
}

#[farref::remote(python = "peer_api.concat")]
async fn concat(parts: Vec<PyValue>) -> Result<String, PyException> {
    let parts = parts.into_iter().map(|part| match part {
        PyValue::Text(text) => Ok(text),
        _ => Err(PyException::new("TypeError", "expected a list of str")),
    });
    parts.collect()
}

#[farref::remote(python = "peer_api.join")]
async fn join(first: String, second: Option<String>, sep: Option<String>) -> String {
    let (second, sep) = (
        second.as_deref().unwrap_or("b"),
        sep.as_deref().unwrap_or("-"),
    );
    format!("{first}{sep}{second}")
}

#[farref::remote(python = "peer_api.describe")]
async fn describe(values: Vec<(PyValue, PyValue)>) -> PyValue {
    let kind = |value: &PyValue| match value {
        PyValue::None => "None",
        PyValue::Bool(_) => "bool",
        PyValue::Int(_) => "int",
        PyValue::Float(_) => "float",
        PyValue::Text(_) => "str",
        PyValue::Bytes(_) => "bytes",
        PyValue::List(_) => "list",
        PyValue::Tuple(_) => "tuple",
        PyValue::Set(_) => "set",
        PyValue::Dict(_) => "dict",
        PyValue::Tensor(_) => "tensor",
        PyValue::Reference(_) => "rref",
        _ => "something else",
    };
    let kinds = values.into_iter().map(|(key, value)| {
        let kind = kind(&value).to_owned();
        (key, PyValue::Text(kind))
    });
    PyValue::Dict(kinds.collect())
}

#[farref::remote(python = "peer_api.scale")]
fn scale(tensor: Tensor, factor: f64) -> Result<Tensor, farref_autograd::Error> {
    Ok(Tensor::from((&*tensor * factor)?))
}

#[derive(Serialize)]
struct Facts {
    dtype: String,
    shape: Vec<usize>,
    sum: Option<f64>,
    requires_grad: bool,
}

#[farref::remote(python = "peer_api.facts")]
fn facts(tensor: RawTensor) -> Result<Facts, String> {
    let text = |error: farref::CodecError| error.to_string();
    let (shape, data) = (tensor.shape.clone(), tensor.data.clone());
    let sum = match tensor.dtype {
        Dtype::Bool | Dtype::Byte => Some(
            data.into_vec::<u8>()
                .map_err(text)?
                .iter()
                .map(|&x| f64::from(x))
                .sum(),
        ),
        Dtype::Int => Some(
            data.into_vec::<i32>()
                .map_err(text)?
                .iter()
                .map(|&x| f64::from(x))
                .sum(),
        ),
        Dtype::Long => Some(
            data.into_vec::<i64>()
                .map_err(text)?
                .iter()
                .map(|&x| x as f64)
                .sum(),
        ),
        Dtype::Float => Some(
            data.into_vec::<f32>()
                .map_err(text)?
                .iter()
                .map(|&x| f64::from(x))
                .sum(),
        ),
        Dtype::Double => Some(data.into_vec::<f64>().map_err(text)?.iter().sum()),
        _ => None,
    };
    Ok(Facts {
        dtype: tensor.dtype.to_string(),
        shape,
        sum,
        requires_grad: tensor.requires_grad,
    })
}

#[farref::remote(python = "peer_api.sleep")]
async fn sleep(seconds: f64) -> f64 {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    seconds
}

#[farref::remote(python = "peer_api.fail")]
async fn fail(text: String, kind: Option<String>) -> Result<(), PyException> {
    let kind = kind.unwrap_or_else(|| "RuntimeError".to_owned());
    Err(PyException::new(kind, text))
}

#[farref::remote(python = "peer_api.panic")]
async fn panic() {
    panic!("a panic in peer_api.panic");
}

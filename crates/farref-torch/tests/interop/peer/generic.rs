//! Functions that do not know what they hand on.

use farref::RRef;
use farref_autograd::Tensor;
use farref_torch::{Keywords, PyCall, PyException, PyObject, PyValue, Rest, py_method};
use serde::{Deserialize, Serialize};

use super::me;

pub(super) struct Scaler(f64);

#[farref::remote(python = "peer_api.Scaler")]
impl Scaler {
    pub(super) fn new(factor: f64) -> Self {
        Self(factor)
    }

    pub(super) fn scale(&self, tensor: Tensor) -> Result<Tensor, farref_autograd::Error> {
        Ok((&*tensor * self.0)?.into())
    }
}

#[farref::remote(python = "peer_api.call_method")]
async fn call_method(
    method: PyValue,
    rref: RRef<PyObject>,
    args: Rest<PyValue>,
) -> Result<PyValue, PyException> {
    let PyValue::Name(method) = method else {
        return Err(PyException::new("TypeError", "a method has a name"));
    };
    Ok(py_method(&rref, &method, args).await?)
}

#[farref::remote(python = "peer_api.count_arguments")]
async fn count_arguments(first: i64, args: Rest<PyValue>, kwargs: Keywords<PyValue>) -> PyValue {
    let names = kwargs.iter().map(|(name, _)| PyValue::Text(name.clone()));
    PyValue::List(vec![
        PyValue::Int(first),
        PyValue::Int(args.len() as i64),
        PyValue::List(names.collect()),
    ])
}

/// Several types in one place, as Python has them.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Any {
    Tensor(Tensor),
    Number(f64),
    Text(String),
    Many(Vec<Self>),
}

#[farref::remote(python = "peer_api.doubled")]
fn doubled(value: Any) -> Result<Any, farref_autograd::Error> {
    Ok(match value {
        Any::Tensor(tensor) => Any::Tensor((&*tensor * 2.0)?.into()),
        Any::Number(number) => Any::Number(2.0 * number),
        Any::Text(text) => Any::Text(text.repeat(2)),
        Any::Many(all) => {
            let all = all.into_iter().map(doubled);
            Any::Many(all.collect::<Result<_, _>>()?)
        }
    })
}

#[farref::remote(python = "peer_api.call_async")]
async fn call_async(
    worker: String,
    function: String,
    args: Vec<PyValue>,
) -> Result<PyValue, PyException> {
    let call = PyCall::new(&function, PyValue::Tuple(args)).async_execution();
    Ok(call.on(&me().peer(&worker)?).await?)
}

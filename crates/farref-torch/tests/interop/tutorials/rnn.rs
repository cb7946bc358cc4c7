//! The parameter server of `rnn.py`: two modules with parameters, between which the trainer has its own.

use farref::RRef;
use farref_autograd::nn::Linear;
use farref_autograd::{Module, Parameter, Tensor};
use farref_torch::{PyException, PyObject, PyValue};
use serde::Serialize;

use super::{Result, linear, parameters, references};

/// From words to vectors.
pub(crate) struct WordTable {
    table: Parameter,
}

#[farref::remote(python = "tutorials.rnn.WordTable")]
impl WordTable {
    pub(crate) fn new(words: usize, width: usize, dropout: f64) -> Result<Self> {
        no_dropout(dropout)?;
        let [table] = parameters([&[words, width]], 1)?;
        Ok(Self { table })
    }

    pub(crate) fn forward(&self, words: Tensor) -> Result<Tensor> {
        let table = self.table.tensor();
        let mut shape = words.dims().to_vec();
        shape.push(table.dim(1)?);
        let rows = table.index_select(&words.flatten_all()?, 0)?;
        Ok(rows.reshape(shape)?.into())
    }
}

/// From what the network remembers to a score for each word.
pub(crate) struct Scores {
    linear: Linear,
    parameters: [Parameter; 2],
}

#[farref::remote(python = "tutorials.rnn.Scores")]
impl Scores {
    pub(crate) fn new(words: usize, hidden: usize, dropout: f64) -> Result<Self> {
        no_dropout(dropout)?;
        let parameters = parameters([&[words, hidden], &[words]], 2)?;
        let linear = linear(&parameters[0], &parameters[1])?;
        Ok(Self { linear, parameters })
    }

    pub(crate) fn forward(&self, output: Tensor) -> Result<Tensor> {
        Ok(self.linear.forward(&output)?)
    }
}

fn no_dropout(dropout: f64) -> Result<()> {
    match dropout {
        0.0 => Ok(()),
        _ => Err(PyException::new("ValueError", "nothing is dropped here").into()),
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Output(Tensor),
    Parameters(Vec<RRef<Parameter>>),
}

/// Runs a method, or a function, that the caller names, on the object that it has a reference to.
#[farref::remote(python = "tutorials.rnn._call_method")]
async fn call_method(
    method: PyValue,
    rref: RRef<PyObject>,
    argument: Option<Tensor>,
) -> Result<Answer> {
    let PyValue::Name(method) = method else {
        return Err(PyException::new("TypeError", "a method is expected").into());
    };
    let (table, scores) = (rref.cast::<WordTable>()?, rref.cast::<Scores>()?);
    let output = match (&method[..], argument) {
        ("tutorials.rnn.WordTable.forward", Some(words)) => table.local().await?.forward(words)?,
        ("tutorials.rnn.Scores.forward", Some(output)) => scores.local().await?.forward(output)?,
        ("tutorials.rnn._parameter_rrefs", None) => {
            // What a reference leads to shows when it is used.
            let parameters = match table.local().await {
                Ok(table) => references(std::slice::from_ref(&table.table)),
                Err(_) => references(&scores.local().await?.parameters),
            };
            return parameters.map(Answer::Parameters);
        }
        (other, _) => {
            let text = format!("{other} with these arguments");
            return Err(PyException::new("TypeError", text).into());
        }
    };
    Ok(Answer::Output(output))
}

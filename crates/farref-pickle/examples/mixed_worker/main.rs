//! The Rust worker of a mixed group: it serves functions and objects to Python workers by their Python names, and calls
//! theirs. `python/tests/test_mixed.py` starts it beside Python workers; `farref launch` would do it so:
//!
//! ```text
//! farref launch -n 1 -- target/debug/examples/mixed_worker : -n 1 -- python worker.py
//! ```

mod tensors;

use std::collections::BTreeMap;

use farref::{Blob, Buffer, Peer, RRef, Worker};
use farref_pickle::{
    PyException, PyObject, PyValue, PythonError, Rest, py_call, py_method, py_remote,
};
use serde::{Deserialize, Serialize};

#[farref::remote(python = "maths.double")]
async fn double(number: i64) -> i64 {
    2 * number
}

#[farref::remote(python = "maths.power")]
async fn power(base: i64, exponent: Option<u32>) -> i64 {
    base.pow(exponent.unwrap_or(2))
}

#[farref::remote(python = "maths.root")]
async fn root(number: f64) -> Result<f64, PyException> {
    match number < 0.0 {
        true => Err(PyException::new("ValueError", "math domain error")),
        false => Ok(number.sqrt()),
    }
}

#[farref::remote(python = "tools.fail")]
async fn fail(text: String) -> Result<(), String> {
    Err(text)
}

#[farref::remote(python = "tools.echo")]
async fn echo(value: PyValue) -> PyValue {
    value
}

#[farref::remote(python = "tools.nothing")]
async fn nothing() {}

#[farref::remote(python = "tools.longest")]
async fn longest(first: String, others: Rest<String>) -> String {
    let longer = |one: String, other: String| if other.len() > one.len() { other } else { one };
    others.into_iter().fold(first, longer)
}

#[derive(Serialize, Deserialize)]
struct Point {
    x: i64,
    y: f64,
}

#[farref::remote(python = "tools.mirrored")]
async fn mirrored(points: Vec<Point>) -> BTreeMap<String, Point> {
    let mirror = |Point { x, y }| (format!("{x}"), Point { x: -x, y });
    points.into_iter().map(mirror).collect()
}

#[farref::remote(python = "tools.sum_bytes")]
async fn sum_bytes(bytes: Blob) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

#[farref::remote(python = "tools.numbers")]
async fn numbers(count: u32) -> Buffer {
    Buffer::from_vec((0..count).map(f64::from).collect::<Vec<_>>())
}

#[farref::remote(python = "tools.name_of")]
async fn name_of(peer: Peer) -> String {
    peer.name().to_owned()
}

#[derive(Serialize, Deserialize)]
struct Counter(i64);

#[farref::remote(python = "shop.Counter")]
impl Counter {
    pub(crate) fn new(start: Option<i64>) -> Self {
        Self(start.unwrap_or_default())
    }

    pub(crate) fn add(&mut self, some: i64, more: Option<i64>) -> i64 {
        self.0 += some + more.unwrap_or_default();
        self.0
    }

    pub(crate) fn get(&self) -> i64 {
        self.0
    }
}

/// A Rust value that Python has handed on is what it was: its methods are called as those of any other.
#[farref::remote(python = "shop.add_twice")]
async fn add_twice(counter: RRef<Counter>, some: i64) -> farref::Result<i64> {
    counter.add(some, None).await?;
    counter.add(some, None).await
}

/// Uses an object that lives in Python, wherever that is.
#[farref::remote(python = "shop.count_words")]
async fn count_words(words: RRef<PyObject>, more: String) -> farref::Result<(i64, PyValue)> {
    py_method::<_, ()>(&words, "update", (more,)).await?;
    let count = py_method(&words, "__getitem__", ("a",)).await?;
    Ok((count, words.cast::<PyValue>()?.to_here().await?))
}

/// What this worker finds when it calls a Python worker.
#[farref::remote(python = "tools.visit")]
async fn visit(python: Peer) -> Result<BTreeMap<String, PyValue>, String> {
    let mut found = BTreeMap::new();
    let text = |error: farref::Error| error.to_string();
    let root: f64 = py_call(&python, "math.sqrt", (2.25,)).await.map_err(text)?;
    found.insert("root".to_owned(), PyValue::Float(root));
    let raised = py_call::<f64>(&python, "math.sqrt", (-1.0,)).await;
    let error = raised.err().ok_or("it has no root")?;
    let raised: &PythonError = error.downcast_ref().ok_or("it is no exception")?;
    found.insert("raised".to_owned(), PyValue::Text(raised.to_string()));
    let traceback = raised.traceback().contains("ValueError");
    found.insert("traceback".to_owned(), PyValue::Bool(traceback));
    let words = py_remote(&python, "collections.Counter", ("abracadabra",));
    let most: PyValue = py_method(&words, "most_common", (1,)).await.map_err(text)?;
    found.insert("most".to_owned(), most);
    let large: Blob = py_call(&python, "bytes", (100_000,)).await.map_err(text)?;
    found.insert("large".to_owned(), PyValue::Int(large.len() as i64));
    Ok(found)
}

#[tokio::main]
async fn main() -> farref::Result<()> {
    let worker = Worker::from_env().join().await?;
    worker.publish("till", &worker.rref(Counter(100))?)?;
    worker.serve().await
}

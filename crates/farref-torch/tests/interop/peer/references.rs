//! References kept under keys, made, handed on and used.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use farref::RRef;
use farref_torch::{PyCall, PyException, PyValue, py_async_method, py_call, py_method};

use super::me;
use super::objects::{Counter, CounterRRef};

static KEPT: Mutex<Option<HashMap<String, Kept>>> = Mutex::new(None);

/// A reference, and what is known of its value.
#[derive(Clone)]
enum Kept {
    Any(RRef<PyValue>),
    Counter(RRef<Counter>),
}

fn with_kept<T>(f: impl FnOnce(&mut HashMap<String, Kept>) -> T) -> T {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    f(kept.get_or_insert_default())
}

pub(super) fn count() -> usize {
    with_kept(|kept| kept.len())
}

/// Lets go of all. Not under the lock, which destructors may need.
pub(super) fn drop_all() {
    let all = with_kept(std::mem::take);
    drop(all);
}

fn keep(key: String, reference: Kept) -> Result<(), PyException> {
    with_kept(|kept| {
        if kept.contains_key(&key) {
            let text = format!("there is something under {key} already");
            return Err(PyException::new("KeyError", text));
        }
        kept.insert(key, reference);
        Ok(())
    })
}

fn find(key: &str) -> Result<Kept, PyException> {
    let found = with_kept(|kept| kept.get(key).cloned());
    let text = || format!("nothing is held under {key}");
    found.ok_or_else(|| PyException::new("KeyError", text()))
}

impl Kept {
    fn is_owner(&self) -> bool {
        match self {
            Self::Any(reference) => reference.is_owner(),
            Self::Counter(reference) => reference.is_owner(),
        }
    }

    fn owner(&self) -> Result<String, PyException> {
        let owner = match self {
            Self::Any(reference) => reference.owner()?,
            Self::Counter(reference) => reference.owner()?,
        };
        Ok(owner.name().to_owned())
    }
}

#[farref::remote(python = "peer_api.hold")]
async fn hold(key: String, rref: RRef<PyValue>) -> Result<bool, PyException> {
    let is_owner = rref.is_owner();
    keep(key, Kept::Any(rref))?;
    Ok(is_owner)
}

#[farref::remote(python = "peer_api.held")]
async fn held(key: String) -> Result<PyValue, PyException> {
    match find(&key)? {
        Kept::Any(reference) => Ok(reference.to_here().await?),
        Kept::Counter(_) => Err(PyException::new("TypeError", "a Counter stays where it is")),
    }
}

#[farref::remote(python = "peer_api.held_call")]
async fn held_call(
    key: String,
    method: String,
    args: Vec<PyValue>,
) -> Result<PyValue, PyException> {
    let counter = match find(&key)? {
        Kept::Counter(counter) => counter,
        Kept::Any(reference) if reference.is_owner() => reference.cast::<Counter>()?,
        Kept::Any(reference) => {
            let args = PyValue::Tuple(args);
            // Python's proxies see the decorator; here it has to be known.
            return Ok(match &method[..] {
                "later" => py_async_method(&reference, &method, args).await?,
                _ => py_method(&reference, &method, args).await?,
            });
        }
    };
    let first = args.first().cloned();
    Ok(match &method[..] {
        "add" => PyValue::Int(counter.add(first).await?),
        "value" => PyValue::Int(counter.value().await?),
        "fail" => {
            let text = match first {
                Some(PyValue::Text(text)) => text,
                _ => String::new(),
            };
            counter.fail(text).await?;
            PyValue::None
        }
        other => {
            return Err(PyException::new(
                "AttributeError",
                format!("a Counter has no {other}"),
            ));
        }
    })
}

#[farref::remote(python = "peer_api.owner_of")]
async fn owner_of(key: String) -> Result<String, PyException> {
    find(&key)?.owner()
}

/// A reference to whatever it is.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Given {
    Any(RRef<PyValue>),
    Counter(RRef<Counter>),
}

fn given(kept: Kept) -> Given {
    match kept {
        Kept::Any(reference) => Given::Any(reference),
        Kept::Counter(reference) => Given::Counter(reference),
    }
}

#[farref::remote(python = "peer_api.give")]
async fn give(key: String) -> Result<Given, PyException> {
    find(&key).map(given)
}

#[farref::remote(python = "peer_api.drop")]
async fn drop_one(key: String) -> Result<(), PyException> {
    find(&key)?;
    let gone = with_kept(|kept| kept.remove(&key));
    drop(gone);
    Ok(())
}

#[farref::remote(python = "peer_api.own")]
async fn own(key: String, value: PyValue) -> Result<(), PyException> {
    keep(key, Kept::Any(me().rref(value)?))
}

#[farref::remote(python = "peer_api.own_counter")]
async fn own_counter(key: String, start: i64) -> Result<(), PyException> {
    let counter = Counter::new_on(&me().me(), Some(PyValue::Int(start))).remote();
    keep(key, Kept::Counter(counter))
}

#[farref::remote(python = "peer_api.make_on")]
async fn make_on(
    key: String,
    worker: String,
    function: String,
    args: Vec<PyValue>,
) -> Result<(), PyException> {
    let worker = me().peer(&worker)?;
    let made = PyCall::new(&function, PyValue::Tuple(args))
        .on::<PyValue>(&worker)
        .remote();
    keep(key, Kept::Any(made))
}

#[farref::remote(python = "peer_api.share")]
async fn share(
    key: String,
    worker: String,
    function: String,
    new_key: String,
) -> Result<PyValue, PyException> {
    let kept = given(find(&key)?);
    Ok(py_call(&me().peer(&worker)?, &function, (new_key, kept)).await?)
}

#[farref::remote(python = "peer_api.pass_on")]
async fn pass_on(
    rref: RRef<PyValue>,
    worker: String,
    function: String,
    new_key: String,
) -> Result<PyValue, PyException> {
    Ok(py_call(&me().peer(&worker)?, &function, (new_key, rref)).await?)
}

#[farref::remote(python = "peer_api.take")]
async fn take(
    new_key: String,
    worker: String,
    function: String,
    key: String,
) -> Result<bool, PyException> {
    let taken: RRef<PyValue> = py_call(&me().peer(&worker)?, &function, (key,)).await?;
    let kept = Kept::Any(taken);
    let is_owner = kept.is_owner();
    keep(new_key, kept)?;
    Ok(is_owner)
}

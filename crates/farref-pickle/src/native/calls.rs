//! Calling functions by their Python names: of Python workers, and of Rust workers that serve such.

use std::fmt;

use farref::functions::{self, ForeignType, Waits};
use farref::{Call, Peer, RRef};
use serde::Serialize;
use serde::ser::{SerializeTuple, Serializer};

use super::codec::CALL;
use crate::value::Tuple;

/// An object that lives in another process and stays there, be it one of Python's or a Rust value.
///
/// There are no values of this type: it says what an [`RRef`] leads to. Whatever the object is, [`py_method`] calls
/// its methods; one that is plain data can be fetched under another type ([`RRef::cast`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PyObject {}

farref::__private::inventory::submit! {
    ForeignType::of::<PyObject>()
}

/// Calls a function by its Python name, on a worker that has it: an importable one of a Python worker, or one that
/// a Rust worker declares with `#[farref::remote(python = "..")]`.
///
/// The name is `module.function`; a Python worker imports the module if it is not yet. Arguments are a tuple. The result
/// is read as `R`; [`PyValue`](crate::PyValue) takes all that is plain data. To leave the result where it is, use
/// [`py_remote`], or `.remote()` on a [`PyCall`] with a type.
///
/// ```
/// use farref_pickle::py_call;
///
/// #[farref::remote(python = "maths.square")]
/// async fn square(number: i64) -> i64 {
///     number * number
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let number: i64 = py_call(&peer, "maths.square", (6,)).await?;
/// assert_eq!(number, 36);
/// # cluster.shutdown().await
/// # }
/// ```
#[track_caller]
pub fn py_call<R: Send + Sync + 'static>(
    on: &Peer,
    function: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> Call<R> {
    PyCall::new(function, arguments).on(on)
}

/// Calls a function, or makes an object of a class, and leaves the result there.
///
/// ```
/// use farref_pickle::{py_method, py_remote};
///
/// struct Purse(u64);
///
/// #[farref::remote(python = "shop.Purse")]
/// impl Purse {
///     pub fn new(coins: u64) -> Self {
///         Purse(coins)
///     }
///
///     pub fn put(&mut self, coins: u64) -> u64 {
///         self.0 += coins;
///         self.0
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let purse = py_remote(&peer, "shop.Purse", (3,));
/// let coins: u64 = py_method(&purse, "put", (4,)).await?;
/// assert_eq!(coins, 7);
/// # drop(purse);
/// # cluster.shutdown().await
/// # }
/// ```
#[track_caller]
pub fn py_remote(
    on: &Peer,
    function: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> RRef<PyObject> {
    PyCall::new(function, arguments).on(on).remote()
}

/// Calls a method of a far object by its name, where it lives: any method of an object of Python's, and those of Rust
/// values that are declared with `#[farref::remote(python = "..")]`.
#[track_caller]
pub fn py_method<T, R: Send + Sync + 'static>(
    object: &RRef<T>,
    method: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> Call<R> {
    PyCall::new(method, arguments).on_value(object)
}

/// A call with arguments that have names.
///
/// ```
/// use farref_pickle::PyCall;
///
/// #[farref::remote(python = "maths.power")]
/// async fn power(base: i64, exponent: Option<u32>) -> i64 {
///     base.pow(exponent.unwrap_or(2))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let cube = PyCall::new("maths.power", (2,)).keyword("exponent", 3);
/// assert_eq!(cube.on::<i64>(&peer).await?, 8);
/// # cluster.shutdown().await
/// # }
/// ```
pub struct PyCall {
    name: String,
    waits: Waits,
    arguments: Box<dyn erased_serde::Serialize + Send + Sync>,
    keywords: Vec<(String, Box<dyn erased_serde::Serialize + Send + Sync>)>,
}

impl PyCall {
    /// Of a function or a method, with arguments that are a tuple.
    pub fn new(name: &str, arguments: impl Serialize + Send + Sync + 'static) -> Self {
        Self {
            name: name.to_owned(),
            waits: Waits::OnThread,
            arguments: Box::new(Tuple(arguments)),
            keywords: Vec::new(),
        }
    }

    /// With an argument of this name.
    pub fn keyword(mut self, name: &str, value: impl Serialize + Send + Sync + 'static) -> Self {
        self.keywords.push((name.to_owned(), Box::new(value)));
        self
    }

    /// Of a coroutine function of Python's: no thread of the worker waits while it does. (It may be left out: a worker
    /// finds out, and a thread waits.)
    pub fn coroutine(mut self) -> Self {
        self.waits = Waits::Without;
        self
    }

    /// On that worker. The result comes back as `R`.
    #[track_caller]
    pub fn on<R: Send + Sync + 'static>(self, worker: &Peer) -> Call<R> {
        let (name, waits) = (self.name.clone(), self.waits);
        functions::call_foreign(worker, &name, waits, &self)
    }

    /// On the object behind a reference: a method.
    #[track_caller]
    pub fn on_value<T, R: Send + Sync + 'static>(self, object: &RRef<T>) -> Call<R> {
        let name = self.name.clone();
        functions::call_foreign_method(object, &name, &self)
    }
}

impl fmt::Debug for PyCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(..)", self.name)
    }
}

/// As Python takes it: what to call, its arguments, and those that have names.
impl Serialize for PyCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Parts<'a>(&'a PyCall);

        impl Serialize for Parts<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self(call) = self;
                let mut parts = serializer.serialize_tuple(3)?;
                parts.serialize_element(&call.name)?;
                parts.serialize_element(&call.arguments)?;
                parts.serialize_element(&Keywords(&call.keywords))?;
                parts.end()
            }
        }

        serializer.serialize_newtype_struct(CALL, &Parts(self))
    }
}

struct Keywords<'a>(&'a [(String, Box<dyn erased_serde::Serialize + Send + Sync>)]);

impl Serialize for Keywords<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

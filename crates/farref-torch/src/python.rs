//! Calling Python: functions by name, references to Python's objects, methods of those.

use std::fmt;

use farref::functions::{self, Functions};
use farref::{Call, Misuse, Peer, RRef};
use farref_pickle::value::Tuple;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::value::{UDF, UDF_ASYNC, UdfCall};

/// An object that lives in a Python process and stays there.
///
/// There are no values of this type: it says what an [`RRef`] leads to. Whatever the object is, [`py_method`] calls
/// its methods; an object that is plain data or a tensor can be fetched under another type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PyObject {}

fn no_python(udf: &UdfCall) -> String {
    format!(
        "`{}` is a function of Python, and this worker has none",
        udf.function
    )
}

/// What a Rust worker does when it is called so.
#[farref::remote(name = "farref_torch::python")]
async fn python(udf: UdfCall) -> Result<(), String> {
    Err(no_python(&udf))
}

/// The same for functions that return a future.
#[farref::remote(name = "farref_torch::python_async")]
async fn python_async(udf: UdfCall) -> Result<(), String> {
    Err(no_python(&udf))
}

/// Calls a function of Python by its name on a worker that is a Python process.
///
/// The name is `module.function`; a module is imported there if it is not yet. Arguments are a tuple. What
/// Rust types are in Python is told at the [crate]'s root. The result is read as `R`; [`PyValue`](crate::PyValue)
/// takes all that is plain data. To leave the result where it is, use [`py_remote`].
///
/// ```no_run
/// # async fn example(worker: &farref::Worker) -> farref::Result<()> {
/// use farref_torch::py_call;
///
/// let python = worker.peer("worker0")?;
/// let root: f64 = py_call(&python, "math.sqrt", (2.0,)).await?;
/// let words: Vec<String> = py_call(&python, "re.split", (r"\W+", "far and wide")).await?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn py_call<R>(
    on: &Peer,
    function: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> Call<R>
where
    R: DeserializeOwned + Send + Sync + 'static,
{
    PyCall::new(function, arguments).on(on)
}

/// The same with arguments that have names.
///
/// ```no_run
/// # async fn example(worker: &farref::Worker) -> farref::Result<()> {
/// use farref_torch::PyCall;
///
/// let python = worker.peer("worker0")?;
/// let rounded: f64 = PyCall::new("builtins.round", (2.675,)).keyword("ndigits", 1).on(&python).await?;
/// # Ok(())
/// # }
/// ```
pub struct PyCall {
    udf: UdfCall,
    /// The function is one of `@rpc.functions.async_execution`.
    future: bool,
}

impl PyCall {
    /// A call of that function with these arguments, a tuple.
    pub fn new(function: &str, arguments: impl Serialize + Send + Sync + 'static) -> Self {
        let udf = UdfCall {
            function: function.to_owned(),
            arguments: Box::new(Tuple(arguments)),
            keywords: Vec::new(),
        };
        let future = false;
        Self { udf, future }
    }

    /// The function is decorated with `@rpc.functions.async_execution`: it returns a `Future`, and the answer is what that
    /// is completed with. Python's own callers see this at the function; a Rust program has to say it. A function that is
    /// not decorated so fails if it is called so.
    ///
    /// ```no_run
    /// # async fn example(worker: &farref::Worker, gradients: Vec<f64>) -> farref::Result<()> {
    /// use farref_torch::PyCall;
    ///
    /// let server = worker.peer("server")?;
    /// let update = PyCall::new("batches.Server.update_and_fetch", (gradients,)).async_execution();
    /// let weights: Vec<f64> = update.on(&server).await?; // when all trainers have called
    /// # Ok(())
    /// # }
    /// ```
    pub fn async_execution(mut self) -> Self {
        self.future = true;
        self
    }

    /// With an argument of this name.
    pub fn keyword(mut self, name: &str, value: impl Serialize + Send + Sync + 'static) -> Self {
        self.udf.keywords.push((name.to_owned(), Box::new(value)));
        self
    }

    /// On that worker. The result comes back as `R`.
    #[track_caller]
    pub fn on<R: Send + Sync + 'static>(self, worker: &Peer) -> Call<R> {
        let name = self.udf.function.clone();
        let functions = match Functions::of_program() {
            Ok(functions) => functions,
            Err(error) => return functions::failed(name, error),
        };
        // What this worker serves under that name it need not ask anybody for.
        if worker.is_me()
            && let Some(own) = functions.by_foreign_name(&name)
            && self.udf.keywords.is_empty()
        {
            return functions.call(worker, &own, &self.udf.arguments);
        }
        let python = if self.future { UDF_ASYNC } else { UDF };
        match functions.by_name(python) {
            Some(python) => functions::named(functions.call(worker, &python, &(self.udf,)), name),
            None => functions::failed(name, Misuse::NotLinked.into()),
        }
    }

    /// On that worker, where the result stays. It is made anew each time.
    #[track_caller]
    pub fn remote(self, worker: &Peer) -> RRef<PyObject> {
        self.on::<PyObject>(worker).remote()
    }
}

impl fmt::Debug for PyCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.udf.fmt(f)
    }
}

/// Calls a function of Python, or makes an object of a class, and leaves the result there.
///
/// ```no_run
/// # async fn example(worker: &farref::Worker) -> farref::Result<()> {
/// use farref_torch::{py_method, py_remote};
///
/// let python = worker.peer("worker0")?;
/// let counter = py_remote(&python, "collections.Counter", ("abracadabra",));
/// let most: Vec<(String, u64)> = py_method(&counter, "most_common", (1,)).await?;
/// assert_eq!(most, [("a".to_owned(), 5)]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn py_remote(
    on: &Peer,
    function: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> RRef<PyObject> {
    PyCall::new(function, arguments).remote(on)
}

/// Calls a method of an object that lives in a Python process, where it lives.
///
/// Of an object of this worker's own, the methods are called that Python may call, by the names that Python finds them
/// under: `module.Class.method`.
#[track_caller]
pub fn py_method<T, R>(
    object: &RRef<T>,
    method: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> Call<R>
where
    T: 'static,
    R: DeserializeOwned + Send + Sync + 'static,
{
    if object.is_owner()
        && let Ok(functions) = Functions::of_program()
        && let Some(own) = functions.by_foreign_name(method).filter(|it| it.is_method)
    {
        return functions.call_method(object, &own, &Tuple(arguments));
    }
    let invoke = "torch.distributed.rpc.rref_proxy._local_invoke";
    invoked(object, method, arguments, invoke)
}

/// The same for a method that is decorated with `@rpc.functions.async_execution`, which returns a future.
#[track_caller]
pub fn py_async_method<T, R>(
    object: &RRef<T>,
    method: &str,
    arguments: impl Serialize + Send + Sync + 'static,
) -> Call<R>
where
    T: 'static,
    R: DeserializeOwned + Send + Sync + 'static,
{
    let invoke = "torch.distributed.rpc.rref_proxy._local_invoke_async_execution";
    invoked(object, method, arguments, invoke)
}

#[track_caller]
fn invoked<T, R>(
    object: &RRef<T>,
    method: &str,
    arguments: impl Serialize + Send + Sync + 'static,
    invoke: &str,
) -> Call<R>
where
    T: 'static,
    R: DeserializeOwned + Send + Sync + 'static,
{
    let keywords: std::collections::BTreeMap<String, ()> = std::collections::BTreeMap::new();
    let all = (
        object.clone(),
        method.to_owned(),
        Tuple(arguments),
        keywords,
    );
    let mut call = PyCall::new(invoke, all);
    call.future = invoke.ends_with("_async_execution");
    match object.owner() {
        Ok(owner) => functions::named(call.on::<R>(&owner), method),
        Err(error) => functions::failed(method, error),
    }
}

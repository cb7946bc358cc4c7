//! Calls of Python functions: building them, waiting for them.

use std::time::Duration;

use farref::functions::{self, Waits};
use farref::{Call, Peer, RRef};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::errors::{alive, to_python, unsendable};
use crate::futures::PyFuture;
use crate::objects::{Object, Pickled};
use crate::runtime::{self, duration};
use crate::scope;

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Limit {
    /// As the worker was told when it joined.
    #[default]
    OfTheWorker,
    Seconds(Duration),
    None,
}

impl Limit {
    pub(crate) fn seconds(seconds: Option<f64>) -> PyResult<Self> {
        match seconds {
            None => Ok(Self::None),
            Some(seconds) => Ok(Self::Seconds(duration(seconds)?)),
        }
    }

    /// If it is one of its own.
    pub(crate) fn duration(self) -> Option<Duration> {
        match self {
            Self::Seconds(limit) => Some(limit),
            Self::OfTheWorker | Self::None => None,
        }
    }

    /// That of a function that has one of its own, unless there is another.
    pub(crate) fn or_of(self, function: &Bound<'_, PyAny>) -> PyResult<Self> {
        static MARKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = function.py();
        let marked = MARKED.get_or_try_init(py, || {
            let class = py.import("farref._remote")?.getattr("RemoteFunction")?;
            Ok::<_, PyErr>(class.unbind())
        })?;
        if !matches!(self, Self::OfTheWorker) || !function.get_type().is(marked.bind(py)) {
            return Ok(self);
        }
        match function
            .getattr("_limit")?
            .extract::<Option<(Option<f64>,)>>()?
        {
            Some((seconds,)) => Self::seconds(seconds),
            None => Ok(self),
        }
    }

    pub(crate) fn apply(self, call: Building) -> Building {
        Building(match self {
            Self::OfTheWorker => call.0,
            Self::Seconds(limit) => call.0.timeout(limit),
            Self::None => call.0.timeout(None),
        })
    }
}

/// A function of Python and its arguments, ready to be sent.
#[derive(Debug)]
pub(crate) struct PythonCall {
    name: String,
    /// Whether it is a coroutine function, which needs no thread while it waits.
    waits: bool,
    arguments: Pickled,
}

impl PythonCall {
    pub(crate) fn new(
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        alive()?;
        let name = name_of(function);
        let arguments = Pickled::of_call(function, args, kwargs)
            .map_err(|error| not_sent(args.py(), error, &name))?;
        Ok(Self {
            name,
            waits: is_coroutine_function(function),
            arguments,
        })
    }

    pub(crate) fn on(self, peer: &Peer) -> Building {
        let waits = match self.waits {
            true => Waits::Without,
            false => Waits::OnThread,
        };
        Building(scope::enter(|| {
            functions::call_foreign(peer, &self.name, waits, &self.arguments)
        }))
    }

    /// The same by a function of this package that takes what is called and the arguments.
    pub(crate) fn by(self, call: impl FnOnce(Pickled) -> Call<Object>) -> Building {
        Building(functions::named(call(self.arguments), self.name))
    }
}

/// A method of a far object and its arguments, ready to be sent.
pub(crate) fn method(
    on: &RRef<Object>,
    name: &str,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Building> {
    alive()?;
    let method = PyString::new(args.py(), name);
    let arguments = Pickled::of_call(method.as_any(), args, kwargs)
        .map_err(|error| not_sent(args.py(), error, name))?;
    Ok(Building(scope::enter(|| {
        functions::call_foreign_method(on, name, &arguments)
    })))
}

/// A call cannot be sent: what of it is the trouble.
fn not_sent(py: Python<'_>, error: PyErr, name: &str) -> PyErr {
    let what = match name.contains("<lambda>") || name.contains("<locals>") {
        true => format!(
            "a call of `{name}`, which has no name that another worker could find it by (define it at the top of a module),"
        ),
        false => format!("a call of `{name}`"),
    };
    unsendable(py, error, &what)
}

/// A call that has been built, and not made yet.
#[derive(Debug)]
pub(crate) struct Building(pub(crate) Call<Object>);

impl Building {
    /// Makes it and waits for what it returns. It is made by the first look at it (RF-2).
    pub(crate) fn wait(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        runtime::may_wait(py)?;
        let outcome = scope::enter(|| runtime::wait(py, self.0))?;
        match outcome {
            Ok(object) => object.into_python(py),
            Err(error) => Err(to_python(py, error)),
        }
    }

    /// Makes it and does not wait (RF-2).
    pub(crate) fn start(self) -> PyFuture {
        PyFuture::new(scope::enter(|| self.0.start()))
    }

    /// The same.
    pub(crate) fn remote(self) -> RRef<Object> {
        scope::enter(|| self.0.remote())
    }
}

/// `module.function`, for errors and traces.
fn name_of(function: &Bound<'_, PyAny>) -> String {
    let part = |name| {
        let part = function.getattr_opt(name).ok().flatten()?;
        part.cast_into::<PyString>().ok()?.extract::<String>().ok()
    };
    match (part("__module__"), part("__qualname__")) {
        (Some(module), Some(name)) => format!("{module}.{name}"),
        (None, Some(name)) => name,
        _ => match function.cast::<PyString>() {
            Ok(name) => name.to_string(),
            Err(_) => "a callable".to_owned(),
        },
    }
}

/// `inspect.CO_COROUTINE`
const CO_COROUTINE: u32 = 0x80;

fn is_coroutine_function(function: &Bound<'_, PyAny>) -> bool {
    let flags = || {
        let code = function.getattr_opt("__code__").ok()??;
        code.getattr("co_flags").ok()?.extract::<u32>().ok()
    };
    flags().is_some_and(|flags| flags & CO_COROUTINE != 0)
}

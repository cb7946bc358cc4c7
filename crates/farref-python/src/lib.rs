//! The Rust part of the Python package `farref`: a driver of the same runtime that Rust programs use, with Python's objects as
//! its values.
//!
//! | module | job |
//! | --- | --- |
//! | `worker`, `contexts`, `testing` | what programs see: workers, and what they open |
//! | `peers`, `references` | other workers, and their values (each gives the other) |
//! | `placeholders` | what stands for those in pickles |
//! | `torch_calls`, `torch_future`, `under_way` | calls of PyTorch's layer, for `farref.torch` |
//! | `serving`, `torch_serving`, `deferred` | carrying out calls |
//! | `calls`, `futures`, `begun` | building calls; results that are not there yet |
//! | `coroutines`, `requests`, `scope` | the event loop; what came of a call; what code runs for |
//! | `torch_layer`, `torch_message` | what PyTorch's layer is asked, and its messages |
//! | `objects`, `buffers`, `ownership` | values on their way: pickles, and memory beside them |
//! | `errors`, `places`, `logging` | exceptions; which lines of the program make references; what the core says |
//! | `runtime`, `errands`, `interpreter`, `thread_state` | threads: those of the wire, one that has the interpreter, the end of it |
//! | `user_code` | running what the program has to run |
//!
//! The Python part is in `python/farref`.

mod begun;
mod buffers;
mod calls;
mod contexts;
mod coroutines;
mod deferred;
mod dlpack;
mod errands;
mod errors;
mod futures;
mod interpreter;
mod logging;
mod objects;
mod ownership;
mod peers;
mod placeholders;
mod places;
mod references;
mod requests;
mod runtime;
mod scope;
mod serving;
mod testing;
mod thread_state;
mod torch_calls;
mod torch_future;
mod torch_layer;
mod torch_message;
mod torch_serving;
mod torch_tensors;
mod under_way;
mod user_code;
mod worker;

use std::time::Duration;

use pyo3::prelude::*;

/// How long the end of the interpreter waits for functions that still run.
const PATIENCE: Duration = Duration::from_secs(2);

/// Called before the interpreter ends.
#[pyfunction]
fn close(py: Python<'_>) {
    py.detach(|| {
        errands::close();
        logging::close();
        interpreter::close(PATIENCE);
    });
}

/// Called in a process that was forked off. One that was forked off before anything began has lost nothing.
#[pyfunction]
fn forked() {
    if runtime::has_begun() {
        interpreter::forked();
    }
}

/// Whether this process was forked off from one with a worker.
#[pyfunction]
fn has_forked() -> bool {
    interpreter::has_forked()
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    runtime::imported(module.py())?;
    logging::begin();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<worker::PyWorker>()?;
    module.add_class::<peers::PyPeer>()?;
    module.add_class::<references::PyRRef>()?;
    module.add_class::<futures::PyFuture>()?;
    module.add_class::<contexts::PyContext>()?;
    module.add_class::<scope::PyScope>()?;
    module.add_class::<testing::PyCluster>()?;
    module.add_function(wrap_pyfunction!(worker::join, module)?)?;
    module.add_function(wrap_pyfunction!(worker::current_worker, module)?)?;
    module.add_function(wrap_pyfunction!(worker::caller, module)?)?;
    module.add_function(wrap_pyfunction!(scope::context_id, module)?)?;
    module.add_function(wrap_pyfunction!(placeholders::_reference, module)?)?;
    module.add_function(wrap_pyfunction!(placeholders::_peer, module)?)?;
    module.add_function(wrap_pyfunction!(placeholders::_came_in_context, module)?)?;
    module.add_class::<worker::StoreHost>()?;
    module.add_function(wrap_pyfunction!(deferred::start_deferred, module)?)?;
    module.add_function(wrap_pyfunction!(deferred::invoke_deferred, module)?)?;
    module.add_function(wrap_pyfunction!(deferred::watch_departures, module)?)?;
    module.add_function(wrap_pyfunction!(runtime::is_event_loop, module)?)?;
    module.add_class::<torch_future::TorchFuture>()?;
    module.add_function(wrap_pyfunction!(torch_calls::torch_start, module)?)?;
    module.add_function(wrap_pyfunction!(torch_calls::torch_remote, module)?)?;
    module.add_function(wrap_pyfunction!(torch_calls::torch_fetch, module)?)?;
    module.add_function(wrap_pyfunction!(torch_calls::torch_gradients, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack::torch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack::torch_elements, module)?)?;
    module.add_function(wrap_pyfunction!(torch_serving::torch_served, module)?)?;
    module.add_function(wrap_pyfunction!(under_way::calls_under_way, module)?)?;
    module.add_function(wrap_pyfunction!(under_way::wait_until_answered, module)?)?;
    module.add_function(wrap_pyfunction!(close, module)?)?;
    module.add_function(wrap_pyfunction!(forked, module)?)?;
    module.add_function(wrap_pyfunction!(has_forked, module)?)?;
    Ok(())
}

//! A thread that has the interpreter when something has to be done with it, and nobody waits.
//!
//! Threads of the wire and tasks of the runtime must not wait for the interpreter: a program may keep it for as long as it
//! likes. They leave an errand here. Many that come together cost the interpreter once.
//!
//! # Invariants
//!
//! - **ER-1** Errands are run in the order in which they were left.
//! - **ER-2** After [`close`] none is run: the interpreter is ending, and what they refer to is given up with the process.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

use crate::interpreter;
use crate::thread_state;

type Errand = Box<dyn FnOnce(Python<'_>) + Send>;

static QUEUE: OnceLock<Mutex<Option<Sender<Errand>>>> = OnceLock::new();

/// Runs `errand` soon, on a thread that has the interpreter. Not after [`close`], and not in a process that was forked off.
pub(crate) fn run(errand: impl FnOnce(Python<'_>) + Send + 'static) {
    let errand: Errand = Box::new(errand);
    if interpreter::is_over() {
        // What it holds belongs to an interpreter that is gone, or to the process that this one was forked from.
        std::mem::forget(errand);
        return;
    }
    let queue = QUEUE.get_or_init(|| {
        let (sender, errands) = mpsc::channel();
        let thread = std::thread::Builder::new().name("farref-python".to_owned());
        match thread.spawn(move || work(&errands)) {
            Ok(_) => Mutex::new(Some(sender)),
            Err(error) => {
                tracing::error!(%error, "no thread could be started for Python");
                Mutex::new(None)
            }
        }
    });
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    match &*queue {
        Some(sender) => {
            if let Err(unsent) = sender.send(errand) {
                std::mem::forget(unsent);
            }
        }
        None => std::mem::forget(errand),
    }
}

/// Lets the thread end when it has done what it has.
pub(crate) fn close() {
    if let Some(queue) = QUEUE.get() {
        drop(queue.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn work(errands: &Receiver<Errand>) {
    while let Ok(first) = errands.recv() {
        let mut first = Some(first);
        let attached = thread_state::attach(|py| {
            for errand in first.take().into_iter().chain(errands.try_iter()) {
                errand(py);
            }
        });
        if attached.is_none() {
            // ER-2
            first
                .into_iter()
                .chain(errands.iter())
                .for_each(std::mem::forget);
        }
    }
}

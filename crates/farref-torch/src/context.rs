//! Contexts by the numbers that PyTorch gives them.

use farref::Worker;
use farref::context::{ContextId, ContextScope, NodeId};
use farref_autograd::Context;

use crate::agent::{context_number, split_number};

/// The context that PyTorch knows by that number (`with dist_autograd.context() as context_id`), if the worker takes
/// part in it.
pub fn torch_context(worker: &Worker, id: i64) -> Option<Context> {
    let (origin, counter) = split_number(id);
    // Contexts end with their workers, so it is the incarnation that is known.
    let incarnations = (0..=worker.node().incarnation.0.max(8)).rev();
    let mut scopes = incarnations.filter_map(|incarnation| {
        let origin = NodeId::new(origin.into(), incarnation);
        ContextScope::find(worker, ContextId::new(origin, counter))
    });
    scopes.next()?.enter(Context::current)
}

/// The number that PyTorch knows a context by.
pub fn torch_context_id(context: &Context) -> i64 {
    context_number(context.id())
}

//! Deadlock detection: the calls that wait for a call, and cycles among them.
//!
//! A call that is awaited says which calls wait for it, as far as they use values. A call that would
//! have to wait for one of these to leave its value is a cycle: it would wait for ever, and is refused.
//! Calls that are only started, or whose results stay, say nothing: whoever made them may go on without
//! them.

use std::sync::Arc;

use farref_proto::RRefId;

use crate::agent::{Caller, MAX_CALLERS};

/// A call that runs, and those that wait for it.
#[derive(Clone, Default)]
pub(crate) struct CallChain {
    /// The outermost first; none if there are none.
    above: Option<Arc<Vec<Caller>>>,
    /// What runs.
    function: Option<CalledFunction>,
    on: Option<RRefId>,
}

/// The function of a call, as the calls that it makes name it.
#[derive(Clone, Copy)]
pub(crate) struct CalledFunction {
    /// A hash of its name.
    pub(crate) id: u64,
    /// Whether it has its value for itself.
    pub(crate) exclusive: bool,
}

impl CallChain {
    /// The call of a function, perhaps on a value.
    pub(crate) fn new(
        mut above: Vec<Caller>,
        function: Option<CalledFunction>,
        on: Option<RRefId>,
    ) -> Self {
        // A peer does not decide how long it gets.
        above.truncate(MAX_CALLERS);
        Self {
            above: (!above.is_empty()).then(|| Arc::new(above)),
            function,
            on,
        }
    }

    /// Who waits for this one.
    pub(crate) fn above(&self) -> &[Caller] {
        self.above.as_ref().map_or(&[], |above| above)
    }

    /// Who waits for a call that this one makes and awaits: the outermost first, from the first one on
    /// that uses a value. If there are too many, the outermost stay: they are the last to end.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let above = self.above();
        if above.is_empty() && self.on.is_none() {
            return Vec::new();
        }
        let mut callers = Vec::with_capacity(above.len() + 1);
        callers.extend_from_slice(above);
        if let Some(function) = self.function
            && callers.len() < MAX_CALLERS
        {
            callers.push(Caller {
                function: function.id,
                value: self.on,
                exclusive: function.exclusive,
            });
        }
        callers
    }
}

/// The values that the callers use.
pub(crate) fn values(callers: &[Caller]) -> Vec<RRefId> {
    let mut values: Vec<RRefId> = callers.iter().filter_map(|caller| caller.value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Whether one of the callers uses a value, and if so, whether exclusively.
pub(crate) fn use_of(callers: &[Caller], value: RRefId) -> Option<bool> {
    let caller = callers.iter().find(|caller| caller.value == Some(value))?;
    Some(caller.exclusive)
}

/// The functions of a cycle: from the one that uses the value to the one that waits for it.
pub(crate) fn cycle(
    callers: &[Caller],
    value: RRefId,
    waits: &str,
    name_of: impl Fn(u64) -> Option<&'static str>,
) -> Vec<String> {
    let callers = callers
        .iter()
        .skip_while(|caller| caller.value != Some(value));
    let name = |caller: &Caller| match name_of(caller.function) {
        Some(name) => name.to_owned(),
        None => format!("function {:#x}", caller.function),
    };
    callers.map(name).chain([waits.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use farref_proto::NodeId;

    use super::*;

    fn value(counter: u64) -> RRefId {
        RRefId::new(NodeId::new(0, 1), counter)
    }

    fn caller(value: Option<RRefId>) -> Caller {
        Caller {
            function: 7,
            value,
            exclusive: true,
        }
    }

    /// However deep calls nest, and whatever a peer says: what a call takes along is bounded, and who is
    /// at the beginning of a chain is not forgotten.
    #[test]
    fn a_chain_has_a_bound_and_keeps_its_beginning() {
        let endless = vec![caller(Some(value(1))); 10 * MAX_CALLERS];
        let function = Some(CalledFunction {
            id: 7,
            exclusive: false,
        });
        let callers = CallChain::new(endless, function, Some(value(2))).callers();
        assert_eq!(callers.len(), MAX_CALLERS);
        assert_eq!(use_of(&callers, value(1)), Some(true));
        assert_eq!(use_of(&callers, value(2)), None);
    }

    /// Calls that use no value, made by calls that use none, have nothing to say.
    #[test]
    fn a_chain_begins_with_the_first_call_on_a_value() {
        assert_eq!(CallChain::new(Vec::new(), None, None).callers(), []);
        let below = CallChain::new(vec![caller(Some(value(1)))], None, None);
        assert_eq!(below.callers().len(), 1);
    }
}

//! Which faults that can be switched on in `farref` whole groups notice.

use crate::{Faults, Mutation};

/// Which faults show under which conditions. Who notices the others: `farref-promises` has a test that nobody is left out.
pub const NOTICED: [(Mutation, Faults); 6] = [
    (Mutation::PartIsAll, Faults::None),
    (Mutation::LoseLastMessage, Faults::None),
    (Mutation::NoRedial, Faults::Links),
    (Mutation::KeepLostCalls, Faults::Crashes),
    (Mutation::KeepDropped, Faults::None),
    (Mutation::KeepTasks, Faults::None),
];

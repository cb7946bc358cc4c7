//! Guarantees D1-D5: calls arrive once, in time, cancellably, and bounded.

mod answers;
mod bounds;
mod cancelling;
mod deadlines;
mod exactly;
mod once;

use crate::Tests;

pub(crate) fn tests() -> Tests {
    let files = [
        once::tests(),
        exactly::tests(),
        deadlines::tests(),
        cancelling::tests(),
        bounds::tests(),
        answers::tests(),
    ];
    files.into_iter().flatten().collect()
}

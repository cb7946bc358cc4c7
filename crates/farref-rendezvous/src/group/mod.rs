//! How a worker enters a group and finds the others in it.
//!
//! For farref's own use: programs join with `farref::Worker`.
//!
//! A *life* of a worker is one process that goes by its name; the lives of a worker are told apart by their
//! incarnation, a number that grows. The *founders* begin a group together; whoever comes later is let in by
//! one of its members, its *sponsor*.
//!
//! | part | job |
//! | --- | --- |
//! | [`Card`] | what a worker publishes about itself |
//! | [`enter`](fn@enter) | takes a worker into a group: its id, its life, its founders |
//! | [`LivenessProbe`] | what the wire brings along: whether an earlier life of a worker is still there |
//! | [`Directory`] | finds the other workers afterwards |
//! | [`latest_group`] | finds a group's workers from outside |

mod card;
mod certificate_tag;
mod directory;
mod enter;
mod failure;
mod founding;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod liveness;
mod records;
mod runs;

#[cfg(test)]
mod tests;

pub use self::card::{Address, Card, TokenTag};
pub use self::certificate_tag::{CertificateConflict, CertificateTag};
pub use self::directory::Directory;
pub use self::enter::{Entry, Plan, enter};
pub use self::liveness::{Liveness, LivenessProbe};
pub use self::runs::{announce_run, key_prefix, latest_group};
pub use crate::identity::{check_name, check_rank};

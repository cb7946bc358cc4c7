//! Which kind of group it is, and how far this worker has come with its end.

use tokio::sync::oneshot;

use crate::group::GroupError;

/// How the group was made, and is unmade.
#[derive(Clone, Debug)]
pub(crate) enum GroupKind {
    /// All end together: they gather for the so manieth time, and then count calls in the store.
    Static { names: Vec<String>, gathering: u64 },
    /// Each leaves alone.
    Dynamic,
}

/// How far this worker has come with its end.
///
/// Nothing of it can be done twice: a leader is told once, and each worker is counted once in a round. So what was begun
/// goes on when the program drops a `shutdown`, and the next one, or another at the same time, goes on from there.
#[derive(Debug)]
pub(crate) struct Progress {
    /// While all gather.
    pub(crate) gathering: Option<oneshot::Receiver<Result<(), String>>>,
    pub(crate) gathered: Option<Result<(), String>>,
    /// The round that this worker is in, or comes to next: odd ones wait for all, even ones count calls.
    pub(crate) round: u64,
    pub(crate) in_round: Option<oneshot::Receiver<Result<u64, GroupError>>>,
    pub(crate) ended: Option<Result<(), String>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            gathering: None,
            gathered: None,
            round: 1,
            in_round: None,
            ended: None,
        }
    }
}

//! How a group ends whose workers do not all speak farref's own protocol.

use std::pin::Pin;

/// What comes back when the others have come as far.
type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// How the workers of a group end together by the rules of its wire.
///
/// [`Worker::shutdown`](crate::Worker::shutdown) goes through it: first [`ready`](Self::ready), then it lets
/// go of what the program still refers to and waits for its calls, then [`done`](Self::done). An error
/// is what the user reads; the worker ends in any case.
pub trait Ending: Send + Sync {
    /// Whether a worker may go while the others stay: then [`Worker::leave`](crate::Worker::leave) takes the same
    /// steps.
    fn may_leave_alone(&self) -> bool;

    /// Who is being waited for.
    fn waiting_for(&self) -> Vec<String>;

    /// This worker begins nothing new. Comes back when the others have said the same.
    fn ready(&self) -> Agreed<'_>;

    /// This worker is done. Comes back when the others are; `open_calls` tells how many calls of this
    /// worker are still open, at any time.
    fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a>;
}

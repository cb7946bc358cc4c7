//! What a worker says of the calls that it has carried out: by function, and one by one; and of its contexts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many classes calls are put into by how long they took.
pub(crate) const CLASSES: usize = 27;

/// The class of a call that took so long: up to 1 µs, up to 2 µs, up to 4 µs, .. up to 33.6 s, longer.
pub(crate) fn class_of(took: Duration) -> usize {
    let microseconds = took.as_nanos().div_ceil(1000);
    let doublings = match microseconds {
        0 | 1 => 0,
        more => (more - 1).ilog2() + 1,
    };
    (doublings as usize).min(CLASSES - 1)
}

/// What a worker has counted of one of its functions.
///
/// ```
/// #[farref::remote(name = "sums::add")]
/// async fn add(a: u64, b: u64) -> u64 {
///     a + b
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// for n in 0..10 {
///     add::on(&peer, n, n).await?;
/// }
///
/// let snapshot = cluster.worker(1).snapshot();
/// let add = &snapshot.served[0];
/// assert_eq!((&*add.function, add.calls(), add.failed), ("sums::add", 10, 0));
/// assert!(add.took_at_most(0.5).is_some());
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FunctionTotals {
    /// The function.
    pub function: String,
    /// Calls of it that failed.
    pub failed: u64,
    /// What all of them took together, from arrival to end.
    pub time: Duration,
    /// How many took up to 1 µs, up to 2 µs, up to 4 µs, and so on; the last of them longer than that.
    pub classes: Vec<u64>,
}

impl FunctionTotals {
    pub(crate) fn new(function: &str, failed: u64, time: Duration, classes: &[u64]) -> Self {
        Self {
            function: function.to_owned(),
            failed,
            time,
            classes: classes.to_vec(),
        }
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        let classes = self.classes.iter();
        classes.fold(0, |sum, class| sum.saturating_add(*class))
    }

    /// The longest that calls of this class took; none for the last one, which has no end.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::FunctionTotals;
    ///
    /// assert_eq!(FunctionTotals::bound(0), Some(Duration::from_micros(1)));
    /// assert_eq!(FunctionTotals::bound(10), Some(Duration::from_micros(1024)));
    /// assert_eq!(FunctionTotals::bound(26), None);
    /// ```
    pub fn bound(class: usize) -> Option<Duration> {
        (class + 1 < CLASSES).then(|| Duration::from_micros(1 << class))
    }

    /// What this share of the calls took at most, as far as the classes tell: `0.5` is the median. None if there were
    /// no calls, or if it is beyond all bounds.
    pub fn took_at_most(&self, share: f64) -> Option<Duration> {
        let wanted = share.clamp(0.0, 1.0) * self.calls() as f64;
        let mut so_far = 0_u64;
        for (class, count) in self.classes.iter().enumerate() {
            so_far = so_far.saturating_add(*count);
            if so_far > 0 && so_far as f64 >= wanted {
                return Self::bound(class);
            }
        }
        None
    }
}

/// Where a call belongs: what ties the calls on several workers together that one call from outside has caused.
///
/// Numbers are as random as needed to be unlike those of other processes. As a trace of W3C's, the first 8 of the 16
/// bytes are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallTrace {
    /// All that one call from outside has caused, on any worker.
    pub trace: u64,
    /// This call.
    pub span: u64,
    /// The call whose function made it; the trace itself, if it came from outside.
    pub parent: u64,
}

impl CallTrace {
    pub(crate) fn new(trace: u64, span: u64, parent: u64) -> Option<Self> {
        (trace != 0).then_some(Self {
            trace,
            span,
            parent,
        })
    }

    /// Whether the call was made outside of any remote function.
    pub fn is_outermost(&self) -> bool {
        self.parent == self.trace || self.parent == 0
    }
}

/// A call that a worker has carried out, as those who [look on](crate::observe::Observer::calls) are told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FinishedCall {
    /// The function.
    pub function: String,
    /// Who called it.
    pub caller: String,
    /// When it was taken up, by the worker's [uptime](crate::Snapshot::uptime).
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// Whether it brought an error.
    pub failed: bool,
    /// Where it belongs.
    pub trace: CallTrace,
}

impl FinishedCall {
    pub(crate) fn new(
        (function, caller): (&str, String),
        (began, took): (Duration, Duration),
        failed: bool,
        trace: CallTrace,
    ) -> Self {
        Self {
            function: function.to_owned(),
            caller,
            began,
            took,
            failed,
            trace,
        }
    }
}

/// A context that a worker takes part in.
///
/// ```
/// use farref::context::ContextScope;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(1).await?;
/// let me = cluster.worker(0);
/// let scope = ContextScope::open(me)?;
/// let snapshot = me.snapshot();
/// assert_eq!(snapshot.open_contexts[0].id, scope.id().to_string());
/// assert_eq!(snapshot.open_contexts[0].opened_by, "worker0");
/// scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextSnapshot {
    /// Its id.
    pub id: String,
    /// The worker that opened it.
    pub opened_by: String,
    /// The workers that this one shares it with, as far as it knows.
    pub workers: Vec<String>,
    /// What [extensions](crate::context::Extension::describe) say of it.
    pub notes: Vec<String>,
}

impl ContextSnapshot {
    pub(crate) fn new(
        id: String,
        opened_by: String,
        workers: Vec<String>,
        notes: Vec<String>,
    ) -> Self {
        Self {
            id,
            opened_by,
            workers,
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_the_first_class_whose_bound_it_does_not_exceed() {
        for class in 0..CLASSES - 1 {
            let bound = FunctionTotals::bound(class).expect("not the last");
            assert_eq!(class_of(bound), class, "{bound:?}");
            assert_eq!(class_of(bound + Duration::from_nanos(1)), class + 1);
        }
        assert_eq!(class_of(Duration::ZERO), 0);
        assert_eq!(class_of(Duration::MAX), CLASSES - 1);
        assert_eq!(FunctionTotals::bound(CLASSES - 1), None);
        assert_eq!(FunctionTotals::bound(usize::MAX - 1), None);
    }

    #[test]
    fn a_share_of_the_calls_is_bounded_by_the_class_that_it_ends_in() {
        let mut classes = vec![0; CLASSES];
        (classes[3], classes[10]) = (99, 1);
        let totals = FunctionTotals::new("f", 0, Duration::ZERO, &classes);
        assert_eq!(totals.took_at_most(0.5), FunctionTotals::bound(3));
        assert_eq!(totals.took_at_most(0.99), FunctionTotals::bound(3));
        assert_eq!(totals.took_at_most(1.0), FunctionTotals::bound(10));
        let nothing = FunctionTotals::new("f", 0, Duration::ZERO, &[]);
        assert_eq!(nothing.took_at_most(0.5), None);
        // What a peer says may be anything.
        let absurd = FunctionTotals::new("f", 0, Duration::ZERO, &[u64::MAX; 40]);
        assert_eq!(absurd.calls(), u64::MAX);
        assert_eq!(absurd.took_at_most(0.5), FunctionTotals::bound(0));
    }
}

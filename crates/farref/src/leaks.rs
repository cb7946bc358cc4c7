//! References that the program of this worker holds, where it got them, and for how long.
//!
//! The protocol counts handles; it does not know types' names, source lines or clocks. This list does.
//! One entry per hold, sharded so that creating and dropping references of different ids does not meet
//! in one lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farref_proto::RRefId;
use serde::{Deserialize, Serialize};

use crate::handle::Made;

const SHARDS: usize = 16;

/// Where the holds of this worker came from.
#[derive(Default)]
pub(crate) struct Holds {
    shards: [Mutex<HashMap<RRefId, Entry, foldhash::fast::RandomState>>; SHARDS],
}

/// The oldest hold on a reference speaks for all: one line of a report is enough.
struct Entry {
    made: Made,
    holds: u32,
}

impl Holds {
    fn shard(
        &self,
        rref: RRefId,
    ) -> MutexGuard<'_, HashMap<RRefId, Entry, foldhash::fast::RandomState>> {
        self.shards[rref.counter as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, rref: RRefId, made: Made) {
        self.shard(rref)
            .entry(rref)
            .or_insert(Entry { made, holds: 0 })
            .holds += 1;
    }

    pub(crate) fn remove(&self, rref: RRefId) {
        let mut shard = self.shard(rref);
        if let Some(entry) = shard.get_mut(&rref) {
            entry.holds -= 1;
            if entry.holds == 0 {
                shard.remove(&rref);
            }
        }
    }

    /// Whoever reads a reference out of a message knows its type and where that happened.
    pub(crate) fn describe(&self, rref: RRefId, type_name: &'static str) {
        if let Some(entry) = self.shard(rref).get_mut(&rref)
            && entry.made.type_name.is_empty()
        {
            entry.made.type_name = type_name;
        }
    }

    pub(crate) fn made(&self, rref: RRefId) -> Option<Made> {
        self.shard(rref).get(&rref).map(|entry| entry.made)
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holds")
    }
}

/// One reference that is still held, or a value that others still hold.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(1).await?;
/// let me = cluster.worker(0);
/// let text = me.rref("kept".to_owned())?;
///
/// let references = me.references();
/// let reference = &references.0[0];
/// assert_eq!(reference.id, text.id()?);
/// assert_eq!((&*reference.owner, &*reference.holders[0]), ("worker0", "worker0"));
/// assert!(reference.type_name.contains("String"));
/// assert!(reference.location.is_some()); // the line that made it, above
/// # drop(text);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeakedReference {
    /// The reference's id.
    pub id: String,
    /// The type of the value, as far as this worker knows it.
    pub type_name: String,
    /// The worker that has the value.
    pub owner: String,
    /// The workers that hold references to it, as far as this worker knows them.
    pub holders: Vec<String>,
    /// The source line that made the reference or received it, if that was on this worker.
    pub location: Option<String>,
    /// How long ago that was.
    pub age: Option<Duration>,
}

impl fmt::Display for LeakedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = if self.type_name.is_empty() {
            "a value"
        } else {
            &self.type_name
        };
        write!(f, "{}: {type_name} on `{}`", self.id, self.owner)?;
        if !self.holders.is_empty() {
            write!(f, ", held by {}", self.holders.join(", "))?;
        }
        if let Some(location) = &self.location {
            write!(f, ", made at {location}")?;
        }
        if let Some(age) = self.age {
            write!(f, ", {:.1} s old", age.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Everything that is still referred to, one line each.
///
/// ```
/// use farref::Error;
/// use farref::testing::Cluster;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = Cluster::start(1).await?;
/// let forgotten = cluster.worker(0).rref("who needs me?".to_owned())?;
///
/// // Clusters for tests take what was never dropped for an error.
/// let Err(Error::Leaked(report)) = cluster.shutdown().await else {
///     panic!("`forgotten` is still held");
/// };
/// assert_eq!(report.0.len(), 1);
/// println!("{report}"); // one line each
/// # drop(forgotten);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeakReport(pub Arc<Vec<LeakedReference>>);

impl LeakReport {
    /// Whether nothing is.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(1).await?;
    /// let me = cluster.worker(0);
    /// let text = me.rref("kept".to_owned())?;
    /// assert!(!me.references().is_empty());
    /// drop(text);
    /// assert!(me.references().is_empty());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, leak) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "  {leak}")?;
        }
        Ok(())
    }
}

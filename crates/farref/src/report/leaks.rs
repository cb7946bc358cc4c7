//! What is said of references that are still held: one by one, and grouped in a report.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
/// assert_eq!(reference.made_by, "worker0");
/// assert!(reference.received.is_none()); // it was made here
/// # drop(text);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeakedReference {
    /// The reference's id.
    pub id: String,
    /// The type of the value, as far as this worker knows it. Of a stream, what made it: ``stream of `f` ``.
    pub type_name: String,
    /// The worker that has the value.
    pub owner: String,
    /// The workers that hold references to it, as far as this worker knows them.
    pub holders: Vec<String>,
    /// The source line that made the reference, on whichever worker that was. None if it did not come
    /// along, as in groups with PyTorch, or if only others hold the reference.
    pub location: Option<String>,
    /// The worker that made the reference.
    #[serde(default)]
    pub made_by: String,
    /// How the reference came to this worker, if it was not made here.
    #[serde(default)]
    pub received: Option<ReceivedReference>,
    /// How long this worker has held it.
    pub age: Option<Duration>,
}

/// How a reference that was made elsewhere came to a worker.
///
/// ```
/// use farref::RRef;
///
/// # use std::sync::Mutex;
/// # static KEPT: Mutex<Vec<RRef<String>>> = Mutex::new(Vec::new());
/// #[farref::remote(name = "keep")]
/// async fn keep(text: RRef<String>) {
///     KEPT.lock().unwrap().push(text);
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let text = cluster.worker(0).rref("kept".to_owned())?;
/// keep::on(&cluster.worker(0).peer("worker1")?, text.clone()).await?;
///
/// let references = cluster.worker(1).references();
/// let reference = &references.0[0];
/// assert_eq!(reference.made_by, "worker0");
/// let received = reference.received.as_ref().expect("it was made elsewhere");
/// assert_eq!((&*received.from, &*received.function), ("worker0", "keep"));
/// # KEPT.lock().unwrap().clear();
/// # drop(text);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReceivedReference {
    /// The worker that handed it on.
    pub from: String,
    /// The function that it was handed to, or that returned it.
    pub function: String,
    /// Whether the function returned it.
    pub returned: bool,
}

impl LeakedReference {
    /// All but which one it is and how old.
    fn group(&self) -> LeakGroup<'_> {
        LeakGroup {
            type_name: &self.type_name,
            owner: &self.owner,
            holders: &self.holders,
            location: self.location.as_deref(),
            made_by: &self.made_by,
            received: self.received.as_ref(),
        }
    }
}

impl fmt::Display for LeakedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.group())?;
        if let Some(age) = self.age {
            write!(f, ", {:.1} s old", age.as_secs_f64())?;
        }
        Ok(())
    }
}

/// What references have in common that are reported together.
#[derive(PartialEq, Eq, Hash)]
struct LeakGroup<'a> {
    type_name: &'a str,
    owner: &'a str,
    holders: &'a [String],
    location: Option<&'a str>,
    made_by: &'a str,
    received: Option<&'a ReceivedReference>,
}

impl fmt::Display for LeakGroup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = if self.type_name.is_empty() {
            "a value"
        } else {
            self.type_name
        };
        write!(f, "{type_name} on `{}`", self.owner)?;
        if !self.holders.is_empty() {
            write!(f, ", held by {}", self.holders.join(", "))?;
        }
        match (self.location, self.made_by) {
            (Some(location), "") => write!(f, ", made at {location}")?,
            (Some(location), maker) => write!(f, ", made at {location} on `{maker}`")?,
            (None, "") => {}
            (None, maker) => write!(f, ", made on `{maker}`")?,
        }
        match self.received {
            Some(ReceivedReference {
                from,
                function,
                returned: false,
            }) => write!(f, ", handed on by `{from}` to `{function}`"),
            Some(ReceivedReference { from, function, .. }) => {
                write!(f, ", handed on by `{from}` as the result of `{function}`")
            }
            None => Ok(()),
        }
    }
}

/// Everything that is still referred to. It is printed with one line for all that are alike.
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
/// println!("{report}");
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

/// So many of those that are alike are named.
const NAMED: usize = 3;

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<(LeakGroup<'_>, Vec<&LeakedReference>)> = Vec::new();
        let mut known: HashMap<LeakGroup<'_>, usize> = HashMap::new();
        for leak in self.0.iter() {
            let index = *known.entry(leak.group()).or_insert_with(|| {
                groups.push((leak.group(), Vec::new()));
                groups.len() - 1
            });
            if let Some((_, alike)) = groups.get_mut(index) {
                alike.push(leak);
            }
        }
        for (index, (group, alike)) in groups.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let [leak] = alike[..] {
                write!(f, "  {leak}")?;
                continue;
            }
            let ids: Vec<&str> = alike.iter().take(NAMED).map(|leak| &*leak.id).collect();
            let more = if alike.len() > NAMED { ", .." } else { "" };
            let (count, ids) = (alike.len(), ids.join(", "));
            write!(f, "  {count} references ({ids}{more}): {group}")?;
            if let Some(age) = alike.iter().filter_map(|leak| leak.age).max() {
                write!(f, ", up to {:.1} s old", age.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S2: a loop that leaks is one line of the report, and says how often.
    #[test]
    fn s2_references_that_are_alike_are_reported_together() {
        let leak = |id: u32, line: &str| LeakedReference {
            id: format!("1.1:{id}"),
            type_name: "Table".to_owned(),
            owner: "ps".to_owned(),
            holders: vec!["trainer".to_owned()],
            location: Some(line.to_owned()),
            made_by: "driver".to_owned(),
            received: Some(ReceivedReference {
                from: "broker".to_owned(),
                function: "keep".to_owned(),
                returned: false,
            }),
            age: Some(Duration::from_secs(id.into())),
        };
        let mut leaks: Vec<_> = (1..=5).map(|id| leak(id, "a.rs:7:1")).collect();
        leaks.insert(2, leak(9, "a.rs:8:1"));
        let text = LeakReport(Arc::new(leaks)).to_string();
        let rest = "Table on `ps`, held by trainer, made at";
        let way = "on `driver`, handed on by `broker` to `keep`";
        assert_eq!(
            text,
            format!(
                "  5 references (1.1:1, 1.1:2, 1.1:3, ..): {rest} a.rs:7:1 {way}, up to 5.0 s old\n\
                 \x20 1.1:9: {rest} a.rs:8:1 {way}, 9.0 s old"
            )
        );
    }
}

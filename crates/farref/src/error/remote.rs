//! What a remote function raised, and what functions are called in errors.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::raised::ErrorValue;

/// An error raised by a remote function.
///
/// ```
/// use farref::Error;
///
/// #[farref::remote]
/// async fn first(list: Vec<u32>) -> u32 {
///     list[0]
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
///
/// let Err(Error::Remote(error)) = first::on(&peer, vec![]).await else {
///     panic!("an empty list has no first element");
/// };
/// assert!(error.panicked);
/// assert_eq!(&*error.worker, "worker1");
/// assert!(error.to_string().contains("first` panicked on worker `worker1`"));
///
/// // The worker lives on.
/// assert_eq!(first::on(&peer, vec![7]).await?, 7);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RemoteError {
    /// Where it was raised.
    pub worker: Arc<str>,
    /// Which function raised it.
    pub function: FunctionName,
    /// Whether it was a panic.
    pub panicked: bool,
    /// The error's message, and those of its sources, the outermost first.
    pub messages: Vec<String>,
    /// The function's own error, if it can be sent and the wire carries it.
    pub(crate) value: Option<Arc<ErrorValue>>,
}

impl RemoteError {
    /// What the error says, without its sources.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// #[farref::remote]
    /// async fn parse(text: String) -> Result<u32, std::num::ParseIntError> {
    ///     text.parse()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let error = parse::on(&peer, "seven".to_owned()).await.unwrap_err();
    /// assert!(matches!(error, Error::Remote(error) if error.message().contains("invalid digit")));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn message(&self) -> &str {
        self.messages.first().map_or("", String::as_str)
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.panicked { "panicked" } else { "failed" };
        write!(
            f,
            "{} {verb} on worker `{}`: {}",
            self.function,
            self.worker,
            self.message()
        )?;
        for source in self.messages.iter().skip(1) {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RemoteError {}

/// Who is named where the whole group was asked for a name, and everybody has answered.
pub(crate) const THE_GROUP: &str = "any of the group";

/// Names a function in errors; the fetch of a value and the lookup of a name count as functions. Of a stream, it names the
/// function that made it, or the line of the program.
///
/// Cheap to clone. Names are equal if they read alike.
///
/// ```
/// use farref::Error;
///
/// #[farref::remote(name = "shop::price")]
/// async fn price(item: String) -> Result<u32, String> {
///     Err(format!("there is no {item}"))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// let Err(Error::Remote(error)) = price::on(&peer, "tea".to_owned()).await else {
///     panic!("there is no tea");
/// };
/// assert_eq!(error.function.as_str(), "shop::price");
/// assert_eq!(error.function.to_string(), "`shop::price`");
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone)]
pub struct FunctionName(Name);

#[derive(Clone)]
enum Name {
    /// A function of this program.
    Ours(&'static str),
    /// One that only another worker may have.
    Theirs(Arc<str>),
    /// What made a stream.
    Stream(Arc<str>),
    /// A lookup, of one worker.
    Lookup(Arc<str>),
    /// A lookup in the whole group.
    GroupLookup(Arc<str>),
}

impl FunctionName {
    /// Stands for a function until whoever knows its name fills it in.
    pub(crate) const UNKNOWN: Self = Self::ours("");

    pub(crate) const fn ours(name: &'static str) -> Self {
        Self(Name::Ours(name))
    }

    pub(crate) fn theirs(name: String) -> Self {
        Self(Name::Theirs(name.into()))
    }

    /// The stream that this made.
    pub(crate) fn stream_of(maker: &str) -> Self {
        Self(Name::Stream(Arc::from(maker)))
    }

    /// The lookup of a name, on one worker or in the whole group.
    pub(crate) fn lookup_of(name: &str, in_group: bool) -> Self {
        let text = Arc::from(format!("lookup of `{name}`"));
        Self(match in_group {
            true => Name::GroupLookup(text),
            false => Name::Lookup(text),
        })
    }

    /// The same in a list, where it is clear what it is.
    pub(crate) fn title(&self) -> String {
        match &self.0 {
            Name::Stream(name) => format!("stream of `{name}`"),
            _ => self.as_str().to_owned(),
        }
    }

    /// What is said when the worker is gone that it was on.
    pub(super) fn lost_with(&self, peer: &str) -> String {
        match &self.0 {
            Name::Ours(_) | Name::Theirs(_) => format!(
                "worker `{peer}` was lost before it answered {self}: \
                 whether it ran is unknown, decide whether to call another worker"
            ),
            Name::Stream(_) => format!(
                "worker `{peer}` was lost, and with it what was to come of {self}: \
                 decide whether to get the rest from another worker"
            ),
            Name::Lookup(_) | Name::GroupLookup(_) => format!(
                "worker `{peer}` was lost before it answered {self}: \
                 look the name up on another worker, or in the group with `Worker::lookup`"
            ),
        }
    }

    /// What is said when its time is up.
    pub(super) fn late_on(&self, peer: &str, limit: Duration) -> String {
        match &self.0 {
            Name::Ours(_) | Name::Theirs(_) => format!(
                "{self} on worker `{peer}` took longer than {limit:?}: \
                 raise it with `.timeout(..)` if that is too short"
            ),
            Name::Stream(_) => format!(
                "no item of {self} came from worker `{peer}` within {limit:?}: \
                 read on, and raise it with `.timeout(..)` if that is too short"
            ),
            Name::Lookup(_) => format!(
                "{self} on worker `{peer}` took longer than {limit:?}: \
                 publish it there, or raise it with `.timeout(..)` if that is too short"
            ),
            Name::GroupLookup(_) if peer == THE_GROUP => format!(
                "{self} in the group took longer than {limit:?}, and nobody is known to have it: \
                 publish it, or raise it with `.timeout(..)` if that is too short"
            ),
            Name::GroupLookup(_) => format!(
                "{self} in the group took longer than {limit:?}, as worker `{peer}` did not say whether it has it: \
                 find out what keeps that worker, or raise it with `.timeout(..)` if that is too short"
            ),
        }
    }

    /// Whether nobody has filled it in yet.
    pub(crate) fn is_unsaid(&self) -> bool {
        self.as_str().is_empty()
    }

    /// The name.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use farref::{Error, FunctionName};
    ///
    /// /// Which functions ran out of time, and how often.
    /// fn count(errors: &[Error]) -> HashMap<&str, usize> {
    ///     let mut counts = HashMap::new();
    ///     for error in errors {
    ///         if let Error::Timeout { function, .. } = error {
    ///             *counts.entry(FunctionName::as_str(function)).or_default() += 1;
    ///         }
    ///     }
    ///     counts
    /// }
    ///
    /// #[farref::remote(name = "hang")]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let error = hang::on(&peer).timeout(std::time::Duration::ZERO).await.unwrap_err();
    /// assert_eq!(count(&[error.clone(), error]), HashMap::from([("hang", 2)]));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Ours(name) => name,
            Name::Theirs(name)
            | Name::Stream(name)
            | Name::Lookup(name)
            | Name::GroupLookup(name) => name,
        }
    }
}

impl PartialEq for FunctionName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for FunctionName {}

impl Hash for FunctionName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.as_str();
        match &self.0 {
            Name::Ours(_) | Name::Theirs(_) => write!(f, "`{name}`"),
            Name::Stream(_) => write!(f, "the stream of `{name}`"),
            Name::Lookup(_) | Name::GroupLookup(_) => write!(f, "the {name}"),
        }
    }
}

impl fmt::Debug for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

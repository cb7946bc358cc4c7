//! The line of a program in another language that makes references, for leak reports.

use std::cell::RefCell;
use std::sync::Arc;

use crate::agent::SourceLine;

/// What is kept of a type's name.
const MAX_WHAT: usize = 200;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Told>>> = const { RefCell::new(None) };
}

/// Where a program in another language makes references, and what to.
///
/// Leak reports name the line of the Rust program that has made a reference. If that is a driver of programs in another
/// language it is always the same line, and says nothing. Such a driver says which one it is of theirs.
///
/// ```
/// use farref::functions::Place;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(1).await?;
/// let me = cluster.worker(0);
/// let place = Place::new("sums.py", 7, "Table");
/// let table = place.enter(|| me.rref(vec![1.5, 2.0]))?;
///
/// let references = me.references();
/// assert_eq!(references.0[0].location.as_deref(), Some("sums.py:7"));
/// assert_eq!(references.0[0].type_name, "Table");
/// # drop(table);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Place(Arc<Told>);

/// What a driver has said of it.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct Told {
    pub(crate) line: SourceLine,
    /// What the value is called there.
    pub(crate) what: Box<str>,
}

impl Place {
    /// This line of this file, which makes a reference to such a value.
    ///
    /// ```
    /// use farref::functions::Place;
    ///
    /// let place = Place::new("sums.py", 7, "Table");
    /// assert_eq!(place.enter(|| 1 + 1), 2);
    /// ```
    pub fn new(file: &str, line: u32, what: &str) -> Self {
        let what: String = what
            .chars()
            .filter(|letter| !letter.is_control())
            .take(MAX_WHAT)
            .collect();
        Self(Arc::new(Told {
            line: SourceLine::told(file, line),
            what: what.into(),
        }))
    }

    /// Runs `f`. The references that it makes on this thread are made there.
    ///
    /// ```
    /// use farref::functions::Place;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let theirs = Place::new("sums.py", 7, "Table").enter(|| me.rref(7))?;
    /// let ours = me.rref(8)?;
    /// let references = me.references().0;
    /// assert!(references.iter().any(|one| one.location.as_deref() == Some("sums.py:7")));
    /// assert!(references.iter().any(|one| one.location.as_deref() != Some("sums.py:7")));
    /// # drop((ours, theirs));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Before(Option<Arc<Told>>);

        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }

        let _before = Before(CURRENT.replace(Some(Arc::clone(&self.0))));
        f()
    }
}

/// Where this thread makes references, if a driver has said so.
pub(crate) fn current() -> Option<Arc<Told>> {
    CURRENT.with_borrow(Option::clone)
}

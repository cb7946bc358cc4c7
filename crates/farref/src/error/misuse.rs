//! What programs do that cannot work.

/// Something was used in a way that cannot work.
///
/// ```
/// use std::future::poll_fn;
/// use std::pin::Pin;
///
/// use farref::{Error, Misuse};
///
/// #[farref::remote]
/// async fn ping() {}
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(1).await?;
/// let mut call = ping::on(&cluster.worker(0).me());
/// poll_fn(|context| Pin::new(&mut call).poll(context)).await?;
/// let again = poll_fn(|context| Pin::new(&mut call).poll(context)).await;
/// assert!(matches!(again, Err(Error::Misuse(Misuse::AwaitedTwice))));
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A call was awaited after it had brought its result.
    #[error("a call was awaited twice")]
    AwaitedTwice,

    /// `to_here().remote()` would leave the value where it is.
    #[error("a value cannot be fetched to where it is: clone the RRef")]
    FetchedInPlace,

    /// [`Worker::leave`](crate::Worker::leave) in a group whose workers end together.
    #[error("the workers of this group end together: use `shutdown` on all of them")]
    CannotLeave,

    /// A function was called by its name, and the program has none of that name.
    #[error("the program has no remote function of that name: link the crate that declares it")]
    NotLinked,

    /// A name for a reference that is empty or too long.
    #[error("a name has 1 to 255 bytes")]
    BadName,

    /// [`Worker::publish`](crate::Worker::publish) of more names than a worker can have.
    #[error("a worker publishes at most 65,536 names at a time: unpublish some")]
    TooManyNames,

    /// References cannot be published and looked up on this wire.
    #[error(
        "there are no names for references on this wire: pass the reference as an argument, or return it from a function"
    )]
    NoNames,

    /// [`Worker::current`](crate::Worker::current) outside of a remote function: there is none.
    #[error("this code does not run in a remote function, so no worker is its own")]
    NoWorker,

    /// A [`Streaming`](crate::Streaming) was read after it had been sent to somebody else.
    #[error("the stream was handed on: whoever has it now reads it")]
    StreamHandedOn,

    /// A [`Streaming`](crate::Streaming) was read that somebody else reads, to whom it was sent as well.
    #[error("somebody else reads the stream: a stream has one reader")]
    StreamTaken,

    /// A [`Streaming`](crate::Streaming) was sent over a wire that has none, such as PyTorch's.
    #[error(
        "this wire carries no streams: send a list, or a reference to a value with a method that brings the next items"
    )]
    NoStreams,
}

/// Where a worker is that is not a member of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemberState {
    /// It has not been let in yet.
    Joining,
    /// It is about to leave.
    Leaving,
    /// The tokio runtime that it ran on has ended.
    WithoutRuntime,
    /// It has been shut down.
    Ended,
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Joining => "it is still joining",
            Self::Leaving => "it is leaving",
            Self::WithoutRuntime => {
                "the tokio runtime that it ran on is gone; to go on, join again on another one"
            }
            Self::Ended => "it has been shut down; to go on, join again as a new worker",
        })
    }
}

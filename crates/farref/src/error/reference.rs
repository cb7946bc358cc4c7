//! What is wrong with a reference.

use farref_proto::{CallError, ContextError, RefError};

use super::Error;

/// Why a reference cannot be used.
///
/// ```
/// use farref::{Error, RRef, ReferenceError};
///
/// #[farref::remote]
/// async fn make() -> u64 {
///     7
/// }
///
/// #[farref::remote]
/// async fn look(at: RRef<u64>) -> farref::Result<u64> {
///     at.to_here().await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(3).await?;
/// let me = cluster.worker(0);
/// let [one, two] = [me.peer("worker1")?, me.peer("worker2")?];
/// cluster.crash(1).await;
/// make::on(&one).await.unwrap_err(); // known by now
///
/// let nothing = make::on(&one).remote(); // could not even be asked for
/// let refused = look::on(&two, nothing).await.unwrap_err();
/// assert!(refused.to_string().contains("leads nowhere"));
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The call that was to make its value could not be made.
    #[error("the reference leads nowhere: {0}")]
    Broken(Box<Error>),

    /// It was made while the shape of a type was traced, and leads nowhere.
    #[error("a hollow reference leads nowhere")]
    Hollow,

    /// The protocol refuses it.
    #[error(transparent)]
    Refused(CallError),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Reference(ReferenceError::Refused(error))
    }
}

impl From<RefError> for Error {
    fn from(error: RefError) -> Self {
        CallError::from(error).into()
    }
}

impl From<ContextError> for Error {
    fn from(error: ContextError) -> Self {
        CallError::from(error).into()
    }
}

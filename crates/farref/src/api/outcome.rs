//! What a function returned, its own error included.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::Call;
use super::pending::{Returned, awaited_before};
use crate::codec::CodecError;
use crate::error::{Error, RemoteError, Result, Unreadable};

/// An error that can come to the caller as what it is: all that implement serde's `Serialize` and
/// `DeserializeOwned`.
///
/// ```
/// fn comes_here<E: farref::ReturnedError>() {}
///
/// comes_here::<String>();
/// ```
#[diagnostic::on_unimplemented(
    message = "`result()` is for functions whose errors can be sent to the caller, and those of type `{Self}` cannot",
    label = "await the call itself: its `farref::Error` has the error's text",
    note = "an error that is to be sent needs `#[derive(serde::Serialize, serde::Deserialize)]`",
    note = "`Infallible` stands for no error: the signature of the function does not say `Result<T, E>`. If it says \
            only `Result<T>`, await the call and ask its error for an `E` with `error.downcast::<E>()`"
)]
pub trait ReturnedError: Serialize + DeserializeOwned + 'static {}

#[diagnostic::do_not_recommend]
impl<E: Serialize + DeserializeOwned + 'static> ReturnedError for E {}

/// What a function returns, its own error included: what [`Call::result`] and [`Pending::result`](crate::Pending::result) make of a
/// call.
///
/// Awaited, it is an outer `Result` that says whether farref could do its part, with the function's in it. Dropping
/// it cancels the call.
///
/// ```
/// use farref::Outcome;
///
/// #[farref::remote]
/// async fn half(n: u32) -> Result<u32, String> {
///     if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let outcome: Outcome<u32, String> = half::on(&peer, 5).result();
/// assert_eq!(outcome.await?, Err("5 is odd".to_owned()));
/// # cluster.shutdown().await
/// # }
/// ```
#[must_use = "a call does nothing until it is awaited"]
pub struct Outcome<T, E> {
    call: Call<T>,
    /// Makes the function's error of what came.
    own_error: fn(RemoteError) -> Result<E>,
}

impl<T, E> Outcome<T, E> {
    pub(super) fn of(call: Call<T>) -> Self
    where
        E: ReturnedError,
    {
        Self {
            call,
            own_error: own_error::<E>,
        }
    }
}

impl<T: Returned, E> Outcome<T, E> {
    /// Makes the call and blocks this thread until what the function returned is here, as [`Call::wait`] does.
    ///
    /// # Panics
    ///
    /// Inside async code, where it would keep other tasks from running. Use `.await` there.
    ///
    /// ```
    /// use farref::Worker;
    ///
    /// #[farref::remote]
    /// async fn half(n: u32) -> Result<u32, String> {
    ///     if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
    /// }
    ///
    /// // A plain function runs on a thread that may block.
    /// #[farref::remote]
    /// fn halves(mut n: u32) -> farref::Result<u32> {
    ///     let caller = Worker::caller().expect("inside of a remote function");
    ///     while let Ok(half) = half::on(&caller, n).result().wait()? {
    ///         n = half;
    ///     }
    ///     Ok(n)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(halves::on(&peer, 40).await?, 5);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn wait(self) -> Result<std::result::Result<T, E>> {
        let own_error = self.own_error;
        self.call.block_on(|call| Self { call, own_error })?
    }
}

// What is asked of `E` is asked where the outcome is made, so that the compiler says it once.
impl<T: Returned, E> Future for Outcome<T, E> {
    type Output = Result<std::result::Result<T, E>>;

    /// Makes the call, the first time.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(pending) = this.call.make() else {
            return Poll::Ready(Err(awaited_before()));
        };
        let outcome = ready!(Pin::new(&mut *pending).poll(context));
        Poll::Ready(match outcome {
            Ok(value) => Ok(Ok(value)),
            // What the constructor of the value raised that the call was on is not this function's.
            Err(Error::Remote(remote)) if pending.raised => (this.own_error)(remote).map(Err),
            Err(error) => Err(error),
        })
    }
}

/// What a function raised, as what it is.
fn own_error<E: ReturnedError>(remote: RemoteError) -> Result<E> {
    // A panic, or a wire that carries only words.
    let Some(value) = remote.value.as_deref().filter(|value| value.is::<E>()) else {
        return Err(Error::Remote(remote));
    };
    value.read().map_err(|unreadable| {
        let (action, reason) = match unreadable {
            Unreadable::Written(reason) => ("written", reason),
            Unreadable::Read(reason) => ("read", reason),
        };
        Error::Codec {
            what: "the error",
            function: remote.function.clone(),
            action,
            reason: CodecError::new(format_args!("{reason} (it says: {})", remote.message())),
        }
    })
}

impl<T, E> fmt::Debug for Outcome<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outcome").field(&self.call).finish()
    }
}

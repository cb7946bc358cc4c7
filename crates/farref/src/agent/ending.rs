//! How a group ends whose workers do not all speak farref's own protocol.

use std::pin::Pin;
use std::time::Duration;

/// What comes back when the others have come as far.
type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// How the workers of a group end together by the rules of its wire.
///
/// [`Worker::shutdown`](crate::Worker::shutdown) goes through it: first [`ready`](Self::ready), then it lets
/// go of what the program still refers to and waits for its own calls and, within
/// [`patience`](Self::patience), for those who refer to its values, then [`done`](Self::done). Calls that others have made
/// are for them to wait for. An error
/// is what the user reads; the worker ends in any case. What follows on `ready` has to be over within the
/// [`shutdown_timeout`](crate::WorkerBuilder::shutdown_timeout); `ready` itself waits for as long as others work.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use farref::agent::{Departure, Group, LinkStatistics, Message, NodeId};
/// # use farref::Codec;
/// use std::pin::Pin;
/// use std::sync::Mutex;
///
/// use farref::agent::{Agent, Ending};
/// use farref::{Error, Worker};
///
/// /// What comes back when the others have come as far.
/// type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
///
/// /// An agent for one that has nobody to wait for, and says what it is asked.
/// #[derive(Debug)]
/// struct Alone {
///     said: Mutex<Vec<String>>,
/// #   codec: Codec,
/// }
///
/// impl Ending for Alone {
///     fn ready(&self) -> Agreed<'_> {
///         Box::pin(async {
///             self.said.lock().unwrap().push("ready".to_owned());
///             Ok(())
///         })
///     }
///
///     fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a> {
///         Box::pin(async {
///             self.said.lock().unwrap().push(format!("done, {} calls", open_calls()));
///             Err("the store is gone".to_owned())
///         })
///     }
/// }
///
/// impl Agent for Alone {
///     fn ending(&self) -> Option<&dyn Ending> {
///         Some(self)
///     }
///     // The others as ever.
/// #   fn codec(&self) -> &Codec { &self.codec }
/// #   fn enqueue(&self, _: NodeId, _: Message) {}
/// #   fn flush(&self, _: NodeId) {}
/// #   fn forget(&self, _: NodeId, _: Departure) {}
/// #   fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
/// #       Box::pin(async {})
/// #   }
/// #   fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let me = NodeId::new(0, 1);
/// # let group = Group { me, members: vec![(me, "alone".to_owned())] };
/// # let agent = Arc::new(Alone { said: Mutex::default(), codec: Codec::Postcard });
/// let worker = Worker::builder("").attach(group, |_| agent.clone()).await?;
/// let error = worker.shutdown().await.unwrap_err();
/// assert!(error.to_string().contains("the store is gone"));
/// assert_eq!(*agent.said.lock().unwrap(), ["ready", "done, 0 calls"]);
/// assert!(matches!(worker.rref(1), Err(Error::NotMember { .. }))); // it has ended all the same
/// # Ok(())
/// # }
/// ```
pub trait Ending: Send + Sync {
    /// Whether a worker may go while the others stay: then [`Worker::leave`](crate::Worker::leave) takes the same
    /// steps, and so does [`Worker::serve`](crate::Worker::serve) when the last of the others has gone.
    fn may_leave_alone(&self) -> bool {
        false
    }

    /// How long is waited, once the program's own references are released, until nobody refers to anything any more, and
    /// no call of this worker is open. Without a limit, unless something else is said.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    /// Who is being waited for, if that is known.
    fn waiting_for(&self) -> Vec<String> {
        Vec::new()
    }

    /// This worker begins nothing new. Comes back when the others have said the same.
    fn ready(&self) -> Agreed<'_>;

    /// This worker is done. Comes back when the others are; `open_calls` tells how many calls of this
    /// worker it still waits for, at any time: those of others do not count, nor do those that it has given up.
    fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a>;
}

//! The setting of who may call what.

use super::WorkerBuilder;
use crate::runtime::{Authorize, CallRequest};

impl WorkerBuilder {
    /// Decides who may call what on this worker: the closure is asked before each call of another worker, and what it
    /// answers with `false` is not run. The caller gets [`Error::NotAuthorized`](crate::Error::NotAuthorized). By default
    /// every member of the group may call everything.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote(name = "kiosk::price")]
    /// async fn price(fruit: String) -> u32 {
    ///     fruit.len() as u32
    /// }
    ///
    /// #[farref::remote(name = "kiosk::refund")]
    /// async fn refund(amount: u32) -> u32 {
    ///     amount
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // Here all workers are set up alike.
    /// let cluster = Cluster::start_with(3, |builder| {
    ///     builder.authorize(|call| match call.function() {
    ///         "kiosk::refund" => call.caller() == "worker0",
    ///         _ => true,
    ///     })
    /// })
    /// .await?;
    /// let [boss, clerk] = [cluster.worker(0), cluster.worker(1)];
    ///
    /// assert_eq!(refund::on(&boss.peer("worker2")?, 5).await?, 5);
    /// let shop = clerk.peer("worker2")?;
    /// assert_eq!(price::on(&shop, "apple".to_owned()).await?, 5);
    /// let refused = refund::on(&shop, 5).await;
    /// assert!(matches!(refused, Err(Error::NotAuthorized { function, .. }) if function.as_str() == "kiosk::refund"));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    ///
    /// It is asked about functions and methods, however they are called: awaited, started or left there
    /// ([`remote`](crate::Call::remote); then each use of the reference fails), by farref's own programs or by PyTorch's; also about
    /// those that farref itself and its libraries have, whose names begin with `farref`: `farref::lookup` (of names that
    /// this worker has published), `farref::snapshot`, and those of `farref_autograd`, without which gradients do not flow. Whoever
    /// lists what is allowed is to list these as well.
    ///
    /// It is not asked about this worker's calls to itself, nor about what is no call of a function: a value that is
    /// fetched ([`to_here`](crate::RRef::to_here)), items of a stream, releases, who joins and who ends the group. Whoever has got a reference or
    /// a stream may have what is behind it, also if somebody else handed it on.
    ///
    /// [`CallRequest::caller`] is who has made this very call: a worker that may not call this one may still ask one
    /// that may. The name is as good as the group's names are; `docs/security.md` says how good.
    ///
    /// The closure runs where the function would, for each call: it must be quick, and must not block. Nothing of the call's
    /// arguments has been read by then. If it panics, the call is refused. What it goes by may change; calls that
    /// have begun are not stopped.
    pub fn authorize(
        mut self,
        is_allowed: impl Fn(&CallRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.authorize = Some(Authorize::new(is_allowed));
        self
    }
}

//! Watching the members of the group.

use super::Worker;
use crate::api::watching::Members;

impl Worker {
    /// The members of the group, and what becomes of them: first all who are there, this worker among them, then
    /// whoever joins, leaves and dies. Any number of watchers may do so; one that is dropped leaves nothing behind.
    ///
    /// What a program may conclude from it is W1 to W5 of `docs/semantics.md`; [`MemberEvent`](crate::MemberEvent) has it
    /// event by event.
    ///
    /// ```
    /// use farref::MemberEvent;
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = Cluster::start(2).await?;
    /// let mut members = cluster.worker(0).watch_members();
    ///
    /// let mut present = Vec::new();
    /// while let Some(MemberEvent::Joined(member)) = members.next().await {
    ///     present.push(member.name().to_owned());
    /// }
    /// assert_eq!(present, ["worker0", "worker1"]); // and then came `MemberEvent::Complete`
    ///
    /// cluster.join("latecomer").await?;
    /// let event = members.next().await;
    /// assert!(matches!(event, Some(MemberEvent::Joined(member)) if member.name() == "latecomer"));
    ///
    /// cluster.crash(1).await;
    /// let event = members.next().await;
    /// assert!(matches!(event, Some(MemberEvent::Died(member)) if member.name() == "worker1"));
    /// # cluster.shutdown().await?;
    /// # assert!(matches!(members.next().await, Some(MemberEvent::Ended(farref::WorkerEnd::ShutDown))));
    /// # assert!(members.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_members(&self) -> Members {
        Members::watch(&self.core)
    }
}

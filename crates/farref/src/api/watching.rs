//! What becomes of the members of the group, as events, and the end of one of them.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farref_proto::{Departure, NodeId};
use futures_core::Stream;

use super::peer::Peer;
use crate::runtime::Core;
use crate::tables::watchers::{MemberNews, Watcher, WorkerEnd};

/// What becomes of the members of a group: a stream of [`MemberEvent`]s, from
/// [`Worker::watch_members`](crate::Worker::watch_members).
///
/// It can be read with [`next`](Self::next), or with whatever works on a [`Stream`].
pub struct Members {
    core: Arc<Core>,
    key: u64,
    watcher: Arc<Watcher>,
}

/// Something that has become of a member.
///
/// However slowly a program reads them, what waits to be read is at most two events per worker: of a life that came and
/// went unread there are both events or none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemberEvent {
    /// It is a member: it was there when the watching began, or has joined since. If it is another life of a worker,
    /// the end of the life before has been told.
    Joined(Member),
    /// All who were there when the watching began have been told, but for those that have gone meanwhile. Comes
    /// once, as soon as the names of all of them are known here.
    Complete,
    /// It has left the group.
    Left(Member),
    /// It has died, or was taken for dead because nothing was heard of it.
    Died(Member),
    /// This worker itself is no member any more. The last event. Of the others nothing is said then, as they may go on
    /// without it.
    Ended(WorkerEnd),
}

/// One life of a member.
#[derive(Clone)]
pub struct Member {
    peer: Peer,
    node: NodeId,
}

impl Members {
    pub(crate) fn watch(core: &Arc<Core>) -> Self {
        let (key, watcher) = core.watch_members();
        Self {
            core: Arc::clone(core),
            key,
            watcher,
        }
    }

    /// The next event; none after [`Ended`](MemberEvent::Ended). Dropping the future loses nothing.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    ///
    /// use farref::{MemberEvent, Worker};
    ///
    /// /// Returns when so many workers are there.
    /// async fn until_there_are(me: &Worker, wanted: usize) {
    ///     let mut members = me.watch_members();
    ///     let mut there = BTreeSet::new();
    ///     while there.len() < wanted {
    ///         match members.next().await {
    ///             Some(MemberEvent::Joined(member)) => drop(there.insert(member.node())),
    ///             Some(MemberEvent::Left(member) | MemberEvent::Died(member)) => {
    ///                 there.remove(&member.node());
    ///             }
    ///             Some(_) => {}
    ///             None => return,
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(1).await?;
    /// let me = cluster.worker(0).clone();
    /// let waiting = tokio::spawn(async move { until_there_are(&me, 3).await });
    /// cluster.join("second").await?;
    /// cluster.join("third").await?;
    /// waiting.await.expect("no panic");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<MemberEvent> {
        poll_fn(|context| self.poll_event(context)).await
    }

    pub(super) fn poll_event(&self, context: &Context<'_>) -> Poll<Option<MemberEvent>> {
        let news = self.watcher.poll_next(context.waker());
        news.map(|news| news.map(|news| self.event(news)))
    }

    fn event(&self, news: MemberNews) -> MemberEvent {
        let member = |node, name| Member {
            peer: Peer::called(&self.core, node, name),
            node,
        };
        match news {
            MemberNews::Joined(node, name) => MemberEvent::Joined(member(node, name)),
            MemberNews::Complete => MemberEvent::Complete,
            MemberNews::Gone(node, name, Departure::Left) => MemberEvent::Left(member(node, name)),
            MemberNews::Gone(node, name, Departure::Died) => MemberEvent::Died(member(node, name)),
            MemberNews::Ended(how) => MemberEvent::Ended(how),
        }
    }
}

impl Stream for Members {
    type Item = MemberEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<MemberEvent>> {
        self.poll_event(context)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.core.watchers.unwatch(self.key);
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members(as {} sees them)", self.core.name)
    }
}

impl Member {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.peer.name()
    }

    /// Its number in the group: the rank, if the group was made with ranks.
    pub fn rank(&self) -> u32 {
        self.peer.rank()
    }

    /// This life of it. Two lives of one name have different ones.
    ///
    /// ```
    /// use farref::MemberEvent;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(2).await?;
    /// let mut members = cluster.worker(0).watch_members();
    /// cluster.crash(1).await;
    /// cluster.restart(1).await?;
    /// let mut lives = Vec::new();
    /// while lives.len() < 2 {
    ///     match members.next().await {
    ///         Some(MemberEvent::Joined(member)) if member.name() == "worker1" => lives.push(member.node()),
    ///         Some(_) => {}
    ///         None => break,
    ///     }
    ///     # if lives.first().is_some_and(|life| life.incarnation == cluster.worker(1).node().incarnation) { break; }
    /// }
    /// // The first is missing if nobody looked in time.
    /// assert_eq!(lives.last(), Some(&cluster.worker(1).node()));
    /// assert!(lives.is_sorted_by(|earlier, later| earlier < later));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether it is the worker that watches.
    pub fn is_me(&self) -> bool {
        self.peer.is_me()
    }

    /// The worker, to be called. As ever, that reaches its next life too.
    ///
    /// ```
    /// use farref::MemberEvent;
    ///
    /// #[farref::remote]
    /// async fn greet(name: String) -> String {
    ///     format!("welcome, {name}")
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let mut members = cluster.worker(0).watch_members();
    /// while let Some(MemberEvent::Joined(member)) = members.next().await {
    ///     let name = member.name().to_owned();
    ///     assert_eq!(greet::on(member.peer(), name.clone()).await?, format!("welcome, {name}"));
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({} {})", self.name(), self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::testing::Cluster;

    #[tokio::test]
    async fn wa_5_dropped_watchers_and_waiters_leave_nothing_behind() -> Result<()> {
        let cluster = Cluster::start(2).await?;
        let me = cluster.worker(0);
        let peer = me.peer("worker1")?;
        let core = Arc::clone(peer.core()?);
        let members = me.watch_members();
        let gone = peer.gone();
        assert!(!core.watchers.is_empty());
        drop(members);
        assert!(!core.watchers.is_empty(), "somebody still waits");
        drop(gone);
        assert!(core.watchers.is_empty());
        drop((core, peer));
        cluster.shutdown().await
    }
}

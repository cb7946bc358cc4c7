//! Publishing references under names, and looking names up in the whole group.

use std::any::type_name;

use super::Worker;
use crate::api::naming::{Lookup, NameVersion};
use crate::api::rref::RRef;
use crate::error::Result;

impl Worker {
    /// Publishes a reference under a name, so that others find it: with [`Peer::lookup`](crate::Peer::lookup), or with
    /// [`lookup`](Self::lookup) wherever it is. It may be any that this worker holds, also to a value elsewhere.
    ///
    /// From now on the name holds the reference, until it is published again, which takes its place,
    /// [unpublished](Self::unpublish), or until this worker or the value's owner is gone. At the end nobody has to take it
    /// back: when all others are done the names go by themselves, and are no leaks.
    ///
    /// A name has 1 to 255 bytes; a worker has at most 65,536 of them.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let first = me.rref("first".to_owned())?;
    /// me.publish("text", &first)?;
    /// drop(first); // the name holds it
    ///
    /// let peer = other.peer("worker0")?;
    /// let found = peer.lookup::<String>("text").await?;
    /// me.publish("text", &me.rref("second".to_owned())?)?;
    /// assert_eq!(found.to_here().await?, "first"); // who has found it has it
    /// assert_eq!(peer.lookup::<String>("text").await?.to_here().await?, "second");
    /// # drop(found);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn publish<T>(&self, name: &str, rref: &RRef<T>) -> Result<NameVersion> {
        let number = self.core.publish(name, &rref.handle, type_name::<T>())?;
        Ok(NameVersion::new(self.core.me, number))
    }

    /// Takes a name back. Who has looked it up still has what it found. Says whether there was such a name.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// me.publish("number", &me.rref(7_u32)?)?;
    /// assert!(me.unpublish("number")); // nothing holds it any more
    /// assert!(!me.unpublish("number"));
    /// assert!(other.peer("worker0")?.lookup::<u32>("number").now().await?.is_none());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn unpublish(&self, name: &str) -> bool {
        let entry = self.core.published.unpublish(name);
        entry.is_some()
    }

    /// Looks a name up that some worker of the group publishes, this one among them: see [`Lookup`].
    ///
    /// All members are asked. If several have such a name, that of the lowest number counts ([`rank`](Self::rank)), so all
    /// of them have to answer first, or be gone. If none has it, the first who publishes it does, whoever joins meanwhile
    /// among them; the death of a publisher is no error then.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(1).await?;
    /// let me = cluster.worker(0).clone();
    /// let waiting = tokio::spawn(async move { me.lookup::<String>("news").await });
    ///
    /// let late = cluster.join("latecomer").await?;
    /// late.publish("news", &late.rref("it is here".to_owned())?)?;
    /// let news = waiting.await.expect("no panic")?;
    /// assert_eq!(news.to_here().await?, "it is here");
    /// assert_eq!(news.owner()?.name(), "latecomer");
    /// # drop(news);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn lookup<T: 'static>(&self, name: &str) -> Lookup<T> {
        Lookup::new(Ok(&self.core), None, name)
    }
}

//! Names for references: [`Lookup`], and how it is answered.
//!
//! Each worker keeps what it has published itself, so there is no table that could be lost. A lookup is a call to the
//! publisher, which answers with the reference; it is handed on as any other is (R1 to R5).

mod group;

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use farref_proto::{Fingerprint, NodeId, WorkerId};
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::peer::Peer;
use super::pending::awaited_before;
use super::rref::{RRef, UntypedRRef};
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::fingerprint;
use crate::runtime::Core;
use crate::runtime::current::{self, Current};
use crate::runtime::handle::Handle;
use crate::support::blocking_pool::BlockedThread;
use crate::support::mutation::mutated;
use crate::support::text::{clean, shorten};
use crate::tables::labels::Labelled;
use crate::tables::published::Entry;

/// Looks a name up that another worker [publishes](crate::Worker::publish) a reference under, from [`Peer::lookup`] or
/// [`Worker::lookup`](crate::Worker::lookup).
///
/// Await it for the reference: it waits until there is one, within its time limit. Or ask only whether there is one
/// [`now`](Self::now). What is looked up is held like any other reference, whatever becomes of the name. Dropped, it is
/// cancelled. Like a call, it is a future of its own, and may go into a task.
///
/// ```
/// use farref::{RRef, Worker};
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
/// let [trainer, ps] = [cluster.worker(0), cluster.worker(1)];
/// let waiting = tokio::spawn(trainer.peer("ps")?.lookup::<Vec<f32>>("weights"));
///
/// let weights: RRef<Vec<f32>> = ps.rref(vec![0.5, 0.25])?;
/// ps.publish("weights", &weights)?;
/// let found = waiting.await.expect("no panic")?;
/// assert_eq!(found.to_here().await?, [0.5, 0.25]);
/// # drop((weights, found));
/// # cluster.shutdown().await
/// # }
/// ```
#[must_use = "a lookup does nothing until it is awaited"]
pub struct Lookup<T> {
    state: LookupState<T>,
}

enum LookupState<T> {
    /// Or why there is nobody to be asked.
    Built(Result<Search<T>>),
    Begun(Pin<Box<dyn Future<Output = Result<Found<T>>> + Send>>),
    Done,
}

/// A lookup by a worker.
struct Search<T> {
    core: Arc<Core>,
    /// Who is asked; none: everybody.
    publisher: Option<Peer>,
    name: Arc<str>,
    newer_than: Option<NameVersion>,
    timeout: Option<Option<Duration>>,
    value: PhantomData<fn() -> T>,
}

/// Which of the references it was that were published under one name, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NameVersion {
    publisher: NodeId,
    number: u64,
}

impl NameVersion {
    pub(crate) fn new(publisher: NodeId, number: u64) -> Self {
        Self { publisher, number }
    }

    /// Grows whenever its publisher publishes something. Numbers of different publishers, and of different lives of one,
    /// have nothing to do with each other.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// What a lookup brings.
type Found<T> = (RRef<T>, NameVersion);

impl<T: 'static> Lookup<T> {
    pub(crate) fn new(core: Result<&Arc<Core>>, publisher: Option<Peer>, name: &str) -> Self {
        let search = core.map(|core| Search {
            core: Arc::clone(core),
            publisher,
            name: Arc::from(name),
            newer_than: None,
            timeout: None,
            value: PhantomData,
        });
        let state = LookupState::Built(search);
        Self { state }
    }

    /// What is to be looked up, unless it has begun.
    fn search(&mut self) -> Option<&mut Search<T>> {
        match &mut self.state {
            LookupState::Built(search) => search.as_mut().ok(),
            LookupState::Begun(_) | LookupState::Done => None,
        }
    }

    fn into_search(self) -> Result<Search<T>> {
        match self.state {
            LookupState::Built(search) => search,
            LookupState::Begun(_) | LookupState::Done => Err(awaited_before()),
        }
    }

    /// Sets the time limit, as for calls ([`Call::timeout`](crate::Call::timeout)): how long it may take until there is
    /// something of that name. `None` is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let never = peer.lookup::<String>("never").timeout(Duration::from_millis(20)).await;
    /// assert!(matches!(never, Err(Error::Timeout { .. })));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        if let Some(search) = self.search() {
            search.timeout = Some(limit.into());
        }
        self
    }

    /// Waits for what takes the place of that version.
    ///
    /// What a later life of the publisher has is newer. If the whole group is asked, so is what the name stands for there
    /// because of another worker: one with a lower number has published it too, or the former publisher has it no more.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let peer = me.peer("worker1")?;
    /// let version = other.publish("best", &other.rref(1_u32)?)?;
    ///
    /// let newer = tokio::spawn(async move {
    ///     let (best, _) = peer.lookup::<u32>("best").newer_than(version).versioned().await?;
    ///     best.to_here().await
    /// });
    /// other.publish("best", &other.rref(2_u32)?)?; // in the place of the other one
    /// assert_eq!(newer.await.expect("no panic")?, 2);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn newer_than(mut self, version: NameVersion) -> Self {
        if let Some(search) = self.search() {
            search.newer_than = Some(version);
        }
        self
    }

    /// The reference, and its version.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let published = other.publish("model", &other.rref(1_u32)?)?;
    /// let (model, version) = me.peer("worker1")?.lookup::<u32>("model").versioned().await?;
    /// assert_eq!(version, published);
    /// # drop(model);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn versioned(self) -> Result<(RRef<T>, NameVersion)> {
        self.into_search()?.versioned().await
    }

    /// The reference, if one is published under that name at present.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let peer = me.peer("worker1")?;
    /// assert!(peer.lookup::<u32>("answer").now().await?.is_none());
    /// other.publish("answer", &other.rref(42_u32)?)?;
    /// assert!(peer.lookup::<u32>("answer").now().await?.is_some());
    /// assert!(me.lookup::<u32>("answer").now().await?.is_some()); // whoever has it
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn now(self) -> Result<Option<RRef<T>>> {
        self.into_search()?.now().await
    }

    /// Waits for the reference and blocks this thread meanwhile. For code that is not async, as
    /// [`Call::wait`](crate::Call::wait) is.
    ///
    /// # Panics
    ///
    /// Inside async code, where it would keep other tasks from running. Use `.await` there.
    ///
    /// ```
    /// use farref::Worker;
    ///
    /// // A plain function runs on a thread that may block.
    /// #[farref::remote]
    /// fn length() -> farref::Result<usize> {
    ///     let caller = Worker::caller().expect("inside of a remote function");
    ///     Ok(caller.lookup::<String>("text").wait()?.to_here().wait()?.len())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// me.publish("text", &me.rref("far away".to_owned())?)?;
    /// assert_eq!(length::on(&me.peer("worker1")?).await?, 8);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn wait(self) -> Result<RRef<T>> {
        let search = self.into_search()?;
        let runtime = search.core.runtime.clone();
        let _waiting = BlockedThread::begin();
        let (rref, _) = runtime.block_on(search.versioned())?;
        Ok(rref)
    }
}

impl<T: 'static> Search<T> {
    async fn versioned(self) -> Result<(RRef<T>, NameVersion)> {
        self.core.check_naming(&self.name)?;
        let asking = Labelled::Asking(self.core.next_number());
        let _label = self.core.labels.put(asking, &self.title());
        match &self.publisher {
            Some(publisher) => {
                let answer = self.answer_of(publisher, Patience::Endless).await?;
                let found = self.found(publisher, answer)?;
                found.ok_or_else(|| self.lost(publisher))
            }
            None => self.in_group().await,
        }
    }

    async fn now(self) -> Result<Option<RRef<T>>> {
        self.core.check_naming(&self.name)?;
        let found = match &self.publisher {
            Some(publisher) => {
                let answer = self.answer_of(publisher, Patience::None).await?;
                self.found(publisher, answer)?
            }
            None => self.in_group_now().await?,
        };
        let found = found.filter(|(_, version)| self.is_newer(*version));
        Ok(found.map(|(rref, _)| rref))
    }

    fn is_newer(&self, version: NameVersion) -> bool {
        self.newer_than
            .is_none_or(|known| version.is_newer_than(known))
    }

    fn limit(&self) -> Option<Duration> {
        self.timeout.unwrap_or(self.core.settings.call_timeout)
    }

    /// What it is called in errors.
    fn title(&self) -> FunctionName {
        FunctionName::lookup_of(&self.name, self.publisher.is_none())
    }

    fn lost(&self, publisher: &Peer) -> Error {
        match self.core.is_member() {
            true => Error::PeerLost {
                peer: Arc::from(publisher.name()),
                function: self.title(),
                cause: self.core.rejections.of_worker(WorkerId(publisher.rank())),
            },
            false => self.core.not_member(),
        }
    }

    /// What one worker answers.
    async fn answer_of(&self, publisher: &Peer, patience: Patience) -> Result<Answer> {
        let answer = self.ask(publisher, patience, self.limit()).await;
        answer.map_err(|error| match error {
            // It may have been gone before anything was asked.
            Error::PeerLost { .. } => self.lost(publisher),
            other => other,
        })
    }

    /// Asks a worker. No part of the context that surrounds it: a context would have to wait for it.
    ///
    /// It is made at once, or when there is a place for it (D5) and somebody polls it.
    fn ask(&self, publisher: &Peer, patience: Patience, limit: Option<Duration>) -> Call<Answer> {
        let question = Question {
            name: String::from(&*self.name),
            fingerprint: fingerprint::of_type::<T>(),
            newer_than: self.newer_than,
            patience,
        };
        current::enter_context(None, || {
            let call = look_up::on(publisher, question).timeout(limit);
            let mut call = call.named(self.title());
            call.make();
            call
        })
    }

    /// What an answer brings. None: there is nothing of that name, nor will there be.
    fn found(&self, publisher: &Peer, answer: Answer) -> Result<Option<Found<T>>> {
        match answer {
            Answer::Found(untyped, version) => {
                // Nobody publishes for others, whatever it says.
                let worker = WorkerId(publisher.rank());
                let version = NameVersion {
                    publisher: NodeId {
                        worker,
                        ..version.publisher
                    },
                    ..version
                };
                let rref = untyped
                    .typed()
                    .map_err(|found| self.other_type(publisher, &found))?;
                Ok(Some((rref, version)))
            }
            Answer::OtherType(mut found) => {
                // A peer's words: they end up in logs.
                shorten(&mut found, 1 << 10);
                Err(self.other_type(publisher, &clean(found, |_| false)))
            }
            Answer::Absent => Ok(None),
        }
    }

    fn other_type(&self, publisher: &Peer, found: &str) -> Error {
        Error::TypeMismatch(format!(
            "`{}` of worker `{}` is a `{found}` and was looked up as a `{}`: look it up as what it is, and build all \
             workers from the same source",
            self.name,
            publisher.name(),
            type_name::<T>()
        ))
    }
}

impl<T: 'static> Future for Lookup<T> {
    type Output = Result<RRef<T>>;

    /// Asks, the first time.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let LookupState::Built(search) = &mut self.state {
            let search = std::mem::replace(search, Err(awaited_before()));
            self.state = LookupState::Begun(Box::pin(async { search?.versioned().await }));
        }
        let LookupState::Begun(begun) = &mut self.state else {
            return Poll::Ready(Err(awaited_before()));
        };
        let found = ready!(begun.as_mut().poll(context));
        self.state = LookupState::Done;
        Poll::Ready(found.map(|(rref, _)| rref))
    }
}

impl<T> fmt::Debug for Lookup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lookup = f.debug_struct("Lookup");
        match &self.state {
            LookupState::Built(Ok(search)) => lookup
                .field("name", &search.name)
                .field("publisher", &search.publisher),
            LookupState::Built(Err(error)) => lookup.field("error", error),
            LookupState::Begun(_) | LookupState::Done => lookup.field("begun", &true),
        };
        lookup.finish_non_exhaustive()
    }
}

/// What a worker is asked.
#[derive(Serialize, Deserialize)]
struct Question {
    name: String,
    /// The type that it is looked up as.
    fingerprint: Fingerprint,
    newer_than: Option<NameVersion>,
    patience: Patience,
}

/// For how long whoever asks would wait for another answer than that there is nothing newer.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Patience {
    /// Not at all. What there is is the answer, newer or not.
    None,
    /// As long as the name stands for something.
    WhileThere,
    Endless,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Found(UntypedRRef, NameVersion),
    /// It is of this type.
    OtherType(String),
    /// There is nothing, or never will be.
    Absent,
}

/// Answers a [`Lookup`]. One that waits takes no thread, and ends with its call.
#[farref_macros::remote(name = "farref::lookup")]
async fn look_up(question: Question) -> Result<Answer> {
    let current = Current::get().ok_or(Misuse::NoWorker)?;
    let core = Arc::clone(&current.core);
    core.check_naming(&question.name)?;
    let now = question.patience == Patience::None;
    // Who waits can be seen.
    let asked = current.request().filter(|_| !now);
    let _label = asked.map(|request| {
        let name = clean(question.name.clone(), |_| false);
        let name = FunctionName::lookup_of(&name, false);
        let asked = Labelled::Asked(current.caller, request);
        core.labels.put(asked, &name)
    });
    drop(current);
    let newer_than = question.newer_than.filter(|_| !now);
    let answer = |entry: Entry<Arc<Handle>>| {
        let version = NameVersion::new(core.me, entry.version);
        if newer_than.is_some_and(|known| !version.is_newer_than(known)) {
            return None;
        }
        Some(match entry.fingerprint.agrees(question.fingerprint) {
            true => Answer::Found(UntypedRRef::new(entry.handle), version),
            false => Answer::OtherType(entry.type_name.to_owned()),
        })
    };
    // Its value is lost: the name will be taken back in a moment.
    let is_there = |entry: &Entry<_>| {
        let is_lost = core.look(|node| node.membership().view().is_gone(entry.owner));
        !is_lost || mutated!(KeepLostNames)
    };
    let found = match question.patience {
        Patience::None => {
            let entry = core.published.find(&question.name).filter(is_there);
            entry.and_then(answer)
        }
        patience => {
            let found = |entry: Option<Entry<_>>| match entry.filter(is_there) {
                Some(entry) => answer(entry),
                None => (patience == Patience::WhileThere).then_some(Answer::Absent),
            };
            core.published.wait_for(&question.name, found).await
        }
    };
    Ok(found.unwrap_or(Answer::Absent))
}

impl NameVersion {
    fn is_newer_than(self, known: Self) -> bool {
        let Self { publisher, number } = known;
        self.publisher.worker != publisher.worker
            || (self.publisher.incarnation, self.number) > (publisher.incarnation, number)
    }
}

impl Peer {
    /// Looks a name up that this worker publishes: see [`Lookup`].
    ///
    /// ```
    /// use farref::Error;
    ///
    /// pub struct Model;
    ///
    /// #[farref::remote]
    /// impl Model {
    ///     pub fn predict(&self, x: f32) -> f32 {
    ///         2.0 * x
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
    /// let [trainer, ps] = [cluster.worker(0), cluster.worker(1)];
    /// ps.publish("model", &ps.rref_to_object(Model)?)?;
    ///
    /// let peer = trainer.peer("ps")?;
    /// let model = peer.lookup::<Model>("model").await?;
    /// assert_eq!(model.predict(1.5).await?, 3.0);
    ///
    /// // Types are checked.
    /// let wrong = peer.lookup::<String>("model").await;
    /// assert!(matches!(wrong, Err(Error::TypeMismatch(_))));
    /// # drop(model);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn lookup<T: 'static>(&self, name: &str) -> Lookup<T> {
        Lookup::new(self.core(), Some(self.clone()), name)
    }
}

//! The producing end of a stream: a value like any other, from which its one reader takes batches of items.
//!
//! A batch is one body: a byte of [flags](flag), then the items. Before each item stands a byte that says whether
//! buffers or references go along with it, or workers are named in it; if so, how many buffers and references follow,
//! in four bytes each.
//!
//! # Invariants
//!
//! - **ST-1** Items are taken out of the program's stream in order, and each goes into exactly one batch.
//! - **ST-2** A batch that is asked for waits until there is an item or the end. What is ready besides goes along,
//!   up to [`MAX_ITEMS`] and [`MAX_BYTES`]. So no more is ahead of the reader than what it asked for, and
//!   [`MAX_CHUNK`] items that did not fit. Many streams that are [busy](BusyStreams) at once make smaller batches, so
//!   that neither calls nor other streams wait for long. One that nobody asks any more is not busy for long.
//! - **ST-3** What was ready before a failure or a panic arrives before it. After either, and after the end, the
//!   program's stream is dropped.
//! - **ST-4** One reader only: whoever asks first. Others are told so. From then on whoever has sent the stream keeps
//!   nothing of it: it goes with its reader.
//! - **ST-5** No scope for values is entered while the program's stream is polled.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};

use farref_proto::NodeId;
use futures_core::Stream;
use serde::Serialize;

use super::busy_streams::LastBusy;
use super::core::Core;
use super::function::returned;
use super::handle::Handle;
use super::value_scope::{Along, Encoded, Unwritten, WritingItems};
use crate::agent::Failure;
use crate::codec::{Part, Payload};
use crate::error::Error;
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::user_code;
use crate::tables::answer_budget::Expected;
use crate::tables::labels::Label;

/// Items of a batch.
pub(crate) const MAX_ITEMS: usize = 1024;

/// Bytes of a batch, unless it is one item: less than what makes a message a large one.
pub(crate) const MAX_BYTES: usize = 56 << 10;

/// Of many busy streams the batches get smaller, down to these.
const LEAST_ITEMS: usize = 64;
const LEAST_BYTES: usize = 4 << 10;

/// Items that are taken out of the program's stream before they are written.
const MAX_CHUNK: usize = 64;

/// Buffers and references of a batch, but for its last item.
const MAX_ALONG: usize = 256;

/// What the first byte of a batch says.
pub(crate) mod flag {
    /// There are no more items.
    pub(crate) const END: u8 = 1;
    /// There is more than fits.
    pub(crate) const MORE: u8 = 2;
    /// Somebody else reads the stream.
    pub(crate) const TAKEN: u8 = 4;
}

/// What the byte before an item says.
pub(crate) mod lead {
    /// Nothing goes along with it.
    pub(crate) const ALONE: u8 = 0;
    /// Buffers and references do, or it names workers, so that who reads it counts.
    pub(crate) const ALONG: u8 = 1;
}

/// Where items come from.
pub(crate) trait Source<T>: Send {
    /// Takes up to `most` items that are ready.
    fn take(&mut self, context: &mut Context<'_>, items: &mut VecDeque<T>, most: usize) -> After;
}

/// What comes after the items that were taken.
pub(crate) enum After {
    /// Perhaps more.
    More,
    /// Nothing for now. Whoever asked is woken.
    Pending,
    /// Nothing.
    End,
    /// This, and nothing more.
    Failed(Error),
}

/// A stream of the program's.
pub(crate) struct Own<S>(pub(crate) Pin<Box<S>>);

impl<S: Stream + Send> Source<S::Item> for Own<S> {
    fn take(
        &mut self,
        context: &mut Context<'_>,
        items: &mut VecDeque<S::Item>,
        most: usize,
    ) -> After {
        for _ in 0..most {
            match self.0.as_mut().poll_next(context) {
                Poll::Ready(Some(item)) => items.push_back(item),
                Poll::Ready(None) => return After::End,
                Poll::Pending => return After::Pending,
            }
        }
        After::More
    }
}

/// A stream of the program's that brings items or an error, which is its end.
pub(crate) struct OwnResults<S>(pub(crate) Pin<Box<S>>);

impl<T, S: Stream<Item = Result<T, Error>> + Send> Source<T> for OwnResults<S> {
    fn take(&mut self, context: &mut Context<'_>, items: &mut VecDeque<T>, most: usize) -> After {
        for _ in 0..most {
            match self.0.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(item))) => items.push_back(item),
                Poll::Ready(Some(Err(error))) => return After::Failed(error),
                Poll::Ready(None) => return After::End,
                Poll::Pending => return After::Pending,
            }
        }
        After::More
    }
}

/// Nothing is left.
pub(crate) struct Ended;

impl<T> Source<T> for Ended {
    fn take(&mut self, _: &mut Context<'_>, _: &mut VecDeque<T>, _: usize) -> After {
        After::End
    }
}

/// The producing end of a stream, for any type of items.
pub(crate) struct Producer {
    /// Locked by nobody: it makes the whole `Sync`.
    items: Mutex<Box<dyn Produce>>,
    /// Who reads it (ST-4).
    reader: Option<(NodeId, u64)>,
    pub(crate) expected: Expected,
    busy: LastBusy,
    /// What whoever has sent it keeps of it.
    kept: Weak<Kept>,
    /// What it is called, as soon as there is a reference to it.
    label: Arc<OnceLock<Label>>,
    /// As long as another worker reads it and it is not over.
    read: Option<Label>,
}

/// A reference to a producer that is kept until somebody reads it, and then is no more (ST-4).
#[derive(Default, Debug)]
pub(crate) struct Kept(Mutex<(Option<Arc<Handle>>, Weak<Handle>)>);

impl Kept {
    pub(crate) fn keep(&self, producer: &Arc<Handle>) {
        *lock(&self.0) = (Some(Arc::clone(producer)), Arc::downgrade(producer));
    }

    /// The producer. None if it went with its reader.
    pub(crate) fn producer(&self) -> Option<Arc<Handle>> {
        let kept = lock(&self.0);
        kept.0.clone().or_else(|| kept.1.upgrade())
    }

    fn let_go(&self) {
        let kept = lock(&self.0).0.take();
        drop(kept);
    }
}

impl Producer {
    pub(crate) fn new<T: Serialize + Send + 'static>(source: Box<dyn Source<T>>) -> Self {
        Self {
            items: Mutex::new(Box::new(Items {
                source: Some(source),
                next: VecDeque::new(),
                failed: None,
                chunk: 1,
                item_bytes: MAX_BYTES,
                batch_bytes: 0,
            })),
            reader: None,
            expected: Expected::default(),
            busy: LastBusy::default(),
            kept: Weak::new(),
            label: Arc::default(),
            read: None,
        }
    }

    /// Where its label belongs.
    pub(crate) fn label(&self) -> Arc<OnceLock<Label>> {
        Arc::clone(&self.label)
    }

    /// What has a reader that is gone: all others are told so.
    pub(crate) fn taken() -> Self {
        Self {
            reader: Some((NodeId::new(u32::MAX, 0), 0)),
            ..Self::new::<()>(Box::new(Ended))
        }
    }

    /// Somebody keeps a reference to it until it is read.
    pub(crate) fn kept_by(self, kept: &Arc<Kept>) -> Self {
        Self {
            kept: Arc::downgrade(kept),
            ..self
        }
    }

    fn items(&mut self) -> &mut dyn Produce {
        let items = self.items.get_mut().unwrap_or_else(PoisonError::into_inner);
        &mut **items
    }

    /// Whether this reader may take items: the first one that asks.
    pub(crate) fn admits(&mut self, core: &Core, reader: (NodeId, u64)) -> bool {
        if self.reader.is_none() {
            if let Some(kept) = self.kept.upgrade() {
                kept.let_go();
            }
            if reader.0 != core.me {
                self.read = self.label.get().and_then(|label| label.read_by(reader.0));
            }
        }
        *self.reader.get_or_insert(reader) == reader || mutated!(AdmitAllReaders)
    }

    /// Waits until there is something to put into a batch: an item, the end, or a failure.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.items().poll_ready(context)
    }

    /// Makes a batch of what is ready.
    pub(crate) fn fill(
        &mut self,
        context: &mut Context<'_>,
        core: &Arc<Core>,
    ) -> Result<Encoded, Failure> {
        let batch = self.items().fill(context, core);
        match batch.as_ref().map(|batch| batch.body.first()) {
            Ok(Some(&flag::MORE)) => core.busy_streams.count(&mut self.busy),
            // It is over.
            Ok(Some(&flag::END)) | Err(_) => self.read = None,
            Ok(_) => {}
        }
        let batch = batch?;
        Ok(Encoded::data(
            Payload {
                body: batch.body.into(),
                parts: batch.parts,
            },
            batch.references,
        ))
    }

    /// What a reader gets that is not the one.
    pub(crate) fn refusal() -> Encoded {
        let payload = Payload {
            body: vec![flag::TAKEN].into(),
            parts: Vec::new(),
        };
        Encoded::data(payload, Vec::new())
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

/// Half of what a message may have, where that is less than a batch: the rest is for what goes along. Other workers may have
/// another limit; where all are alike, a batch arrives if each of its items would.
fn half_of_message(core: &Core) -> usize {
    let half = core.settings.message.bytes / 2;
    usize::try_from(half).unwrap_or(usize::MAX).max(512)
}

/// Makes batches.
trait Produce: Send {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()>;
    fn fill(&mut self, context: &mut Context<'_>, core: &Arc<Core>) -> Result<Batch, Failure>;
}

/// Items of one type on their way into batches.
struct Items<T> {
    /// None when it is over.
    source: Option<Box<dyn Source<T>>>,
    /// Taken out of the source, in no batch yet.
    next: VecDeque<T>,
    /// How it ended.
    failed: Option<Failure>,
    /// How many items are taken out at a time: more and more, as long as they are small.
    chunk: usize,
    /// What the largest item of the last chunk took.
    item_bytes: usize,
    /// What the last batch took.
    batch_bytes: usize,
}

/// A batch that is being made.
struct Batch {
    body: Vec<u8>,
    parts: Vec<Part>,
    references: Vec<Arc<Handle>>,
    items: usize,
    bytes: usize,
    /// Bytes of the body, without an item that is being written.
    whole: usize,
    /// What it may have.
    max_items: usize,
    max_bytes: usize,
    /// Whether the next item did not fit.
    is_closed: bool,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.is_closed
            || self.items >= self.max_items
            || self.bytes >= self.max_bytes
            || self.parts.len() + self.references.len() >= MAX_ALONG
    }

    /// Writes one more item, unless it does not fit. Says how many bytes it takes.
    #[inline]
    fn add<T: Serialize + 'static>(
        &mut self,
        scope: &WritingItems,
        item: &T,
    ) -> Result<usize, Unwritten> {
        self.body.push(lead::ALONE);
        let along = scope.write(item, &mut self.body)?;
        let mut item_bytes = self.body.len() - self.whole;
        if let Some(along) = &along {
            item_bytes += self.place_counts(along);
        }
        if self.items > 0 && self.bytes + item_bytes > self.max_bytes {
            // What can be sent alone might be too much for one message with others.
            self.is_closed = true;
            self.body.truncate(self.whole);
            // It may be a large one, and this batch may wait for long.
            self.body.shrink_to(MAX_BYTES);
            return Ok(item_bytes);
        }
        if let Some(along) = along {
            self.parts.extend(along.parts);
            self.references.extend(along.references);
        }
        self.whole = self.body.len();
        self.bytes += item_bytes;
        self.items += 1;
        Ok(item_bytes)
    }

    /// Says of the item that was written last what goes along with it. Says how many more bytes that takes.
    fn place_counts(&mut self, along: &Along) -> usize {
        if along.is_nothing() {
            return 0;
        }
        let mut counts = [lead::ALONG; 9];
        counts[1..5].copy_from_slice(&(along.parts.len() as u32).to_le_bytes());
        counts[5..].copy_from_slice(&(along.references.len() as u32).to_le_bytes());
        self.body.splice(self.whole..self.whole + 1, counts);
        8 + along.parts.iter().map(Part::len).sum::<usize>()
    }
}

impl<T: Serialize + Send + 'static> Items<T> {
    /// Takes items out of the source. Says whether there may be more right now.
    fn take(&mut self, context: &mut Context<'_>, most: usize) -> bool {
        let Some(source) = &mut self.source else {
            return false;
        };
        let next = &mut self.next;
        let taken = catch_unwind(AssertUnwindSafe(|| source.take(context, next, most)));
        match taken {
            Ok(After::More) => return true,
            Ok(After::Pending) => return false,
            Ok(After::End) => {}
            Ok(After::Failed(error)) => self.failed = Some(returned(error, None)),
            Err(_) if mutated!(PanicIsEnd) => {}
            Err(panic) => self.failed = Some(panicked(&*panic)),
        }
        self.close();
        false
    }

    /// ST-3
    fn close(&mut self) {
        drop_guarded(self.source.take());
    }

    /// Puts what was taken out into the batch, until that is full or there is an item that cannot be written.
    fn write(&mut self, core: &Arc<Core>, batch: &mut Batch) {
        if self.next.is_empty() {
            return;
        }
        let (mut written, mut largest) = (0, 0);
        let next = &self.next;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let scope = WritingItems::begin(core);
            for item in next {
                if batch.is_full() {
                    break;
                }
                let item_bytes = batch.add(&scope, item)?;
                largest = largest.max(item_bytes);
                if !batch.is_closed {
                    written += 1;
                }
            }
            Ok::<_, Unwritten>(())
        }));
        if largest > 0 {
            self.item_bytes = largest;
        }
        let failure = match outcome {
            Ok(Ok(())) => {
                let gone = || drop(self.next.drain(..written));
                match catch_unwind(AssertUnwindSafe(gone)) {
                    Ok(()) => return,
                    Err(panic) => panicked(&*panic),
                }
            }
            Ok(Err(reason)) => Failure::BadResult(reason.to_string()),
            Err(panic) => panicked(&*panic),
        };
        // What was written of the item that failed is of no use.
        batch.body.truncate(batch.whole);
        self.failed = Some(failure);
        drop_guarded(std::mem::take(&mut self.next));
        self.close();
    }
}

impl<T: Serialize + Send + 'static> Produce for Items<T> {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.next.is_empty() && self.source.is_some() {
            self.take(context, 1);
        }
        match self.next.is_empty() && self.source.is_some() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    fn fill(&mut self, context: &mut Context<'_>, core: &Arc<Core>) -> Result<Batch, Failure> {
        // As large as the last one, unless that was an item that is larger than any batch.
        let expected = self.batch_bytes + self.batch_bytes / 8 + 1;
        let mut body = Vec::with_capacity(expected.min(MAX_BYTES));
        body.push(0);
        let mut batch = Batch {
            body,
            parts: Vec::new(),
            references: Vec::new(),
            items: 0,
            bytes: 1,
            whole: 1,
            max_items: core.busy_streams.share(MAX_ITEMS, LEAST_ITEMS),
            max_bytes: core
                .busy_streams
                .share(MAX_BYTES, LEAST_BYTES)
                .min(half_of_message(core)),
            is_closed: false,
        };
        let mut more = true;
        loop {
            self.write(core, &mut batch);
            if batch.is_full() || !more {
                break;
            }
            let fit = batch.max_bytes.saturating_sub(batch.bytes) / self.item_bytes;
            let most = fit.clamp(1, self.chunk).min(batch.max_items - batch.items);
            more = self.take(context, most);
            self.chunk = (self.chunk * 2).min(MAX_CHUNK);
        }
        if more && self.next.is_empty() {
            // Whether there is more, or whether that was all.
            self.take(context, 1);
        }
        self.batch_bytes = batch.body.len();
        let is_over = self.source.is_none() && self.next.is_empty();
        if is_over
            && batch.items == 0
            && let Some(failure) = self.failed.take()
        {
            return Err(failure);
        }
        if is_over && self.failed.is_none() {
            batch.body[0] = flag::END;
        } else if !self.next.is_empty() {
            batch.body[0] = flag::MORE;
        }
        Ok(batch)
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let message = user_code::panic_message(panic).unwrap_or("(a panic without a message)");
    Failure::Panicked(message.to_owned())
}

/// Drops what is the program's.
fn drop_guarded<D>(dropped: D) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(dropped))) {
        tracing::error!(failure = ?panicked(&*panic), "a destructor panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::testing::Cluster;

    struct Each<T>(VecDeque<T>);

    impl<T: Send> Source<T> for Each<T> {
        fn take(&mut self, _: &mut Context<'_>, items: &mut VecDeque<T>, most: usize) -> After {
            let most = most.min(self.0.len());
            items.extend(self.0.drain(..most));
            match self.0.is_empty() {
                true => After::End,
                false => After::More,
            }
        }
    }

    fn items<T: Serialize + Send + 'static>(each: impl IntoIterator<Item = T>) -> Items<T> {
        Items {
            source: Some(Box::new(Each(each.into_iter().collect()))),
            next: VecDeque::new(),
            failed: None,
            chunk: 1,
            item_bytes: MAX_BYTES,
            batch_bytes: 0,
        }
    }

    /// ST-2: what goes along with a batch is bounded, however small its items are.
    #[tokio::test]
    async fn st_2_a_batch_has_so_many_references_and_no_more() -> crate::Result<()> {
        let cluster = Cluster::start(1).await?;
        let worker = cluster.worker(0);
        let mut context = Context::from_waker(Waker::noop());
        let rref = worker.rref(1_u64)?;
        let mut items = items(vec![rref; 1000]);
        let mut left = 1000;
        while left > 0 {
            let batch = items.fill(&mut context, &worker.core).expect("items");
            assert_eq!(batch.references.len(), left.min(MAX_ALONG));
            left -= batch.references.len();
        }
        drop(items);
        cluster.shutdown().await
    }

    /// ST-2: of many busy streams the batches are smaller than of one.
    #[tokio::test]
    async fn st_2_the_batches_of_many_busy_streams_are_small() -> crate::Result<()> {
        let cluster = Cluster::start(1).await?;
        let core = &cluster.worker(0).core;
        let mut context = Context::from_waker(Waker::noop());
        let busy = || Producer::new(Box::new(Each((0..10_000_u64).collect())));
        let mut streams: Vec<_> = (0..64).map(|_| busy()).collect();
        let mut fill = |stream: &mut Producer| {
            let batch = stream.fill(&mut context, core).expect("items");
            batch.payload.body.len()
        };
        let alone = fill(&mut streams[0]);
        for stream in &mut streams {
            fill(stream);
        }
        let among_many = fill(&mut streams[0]);
        assert!(among_many <= alone / 4, "{among_many} of {alone} bytes");
        cluster.shutdown().await
    }

    /// What is kept for the next batch does not grow with the largest item that there ever was.
    #[tokio::test]
    async fn large_items_leave_no_large_buffers() -> crate::Result<()> {
        let cluster = Cluster::start(1).await?;
        let core = &cluster.worker(0).core;
        let mut context = Context::from_waker(Waker::noop());
        let large = || "x".repeat(100 * MAX_BYTES);
        let mut items = items([large(), "small".to_owned(), large(), "small".to_owned()]);
        for round in 0..4 {
            let batch = items.fill(&mut context, core).expect("items");
            let least = if round % 2 == 0 { 100 * MAX_BYTES } else { 0 };
            assert!(batch.body.len() >= least, "{round}");
            assert!(
                batch.body.capacity() <= 2 * batch.body.len().max(MAX_BYTES),
                "{round}"
            );
        }
        cluster.shutdown().await
    }
}

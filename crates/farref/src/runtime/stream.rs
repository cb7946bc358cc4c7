//! The producing end of a stream: a value like any other, from which its one reader takes batches of items.
//!
//! A batch is one body: a byte of [flags](flag), then the items. Before each item stands a byte that says whether
//! buffers or references go along with it; if so, how many follow, in four bytes each.
//!
//! # Invariants
//!
//! - **ST-1** Items are taken out of the program's stream in order, and each goes into exactly one batch.
//! - **ST-2** A batch that is asked for waits until there is an item or the end. What is ready besides goes along,
//!   up to [`MAX_ITEMS`] and [`MAX_BYTES`]. So no more is ahead of the reader than what it asked for, and
//!   [`MAX_CHUNK`] items that did not fit. Many streams that are [busy](BusyStreams) at once make smaller batches, so
//!   that neither calls nor other streams wait for long.
//! - **ST-3** What was ready before a failure or a panic arrives before it. After either, and after the end, the
//!   program's stream is dropped.
//! - **ST-4** One reader only: whoever asks first. Others are told so.
//! - **ST-5** No scope for values is entered while the program's stream is polled.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use farref_proto::NodeId;
use futures_core::Stream;
use serde::Serialize;

use super::core::Core;
use super::handle::Handle;
use super::value_scope::{Encoded, WritingItems};
use crate::agent::Failure;
use crate::codec::{Part, Payload};
use crate::support::user_code;
use crate::tables::answer_budget::Expected;

/// Items of a batch.
pub(crate) const MAX_ITEMS: usize = 1024;

/// Bytes of a batch, unless it is one item: less than what makes a message a large one.
pub(crate) const MAX_BYTES: usize = 56 << 10;

/// Of more busy streams than this the batches get smaller, down to [`LEAST_ITEMS`] and [`LEAST_BYTES`].
const FULL_BATCHES: usize = 4;
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
    /// Buffers and references do.
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
    /// This.
    Failure(Failure),
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

/// The producing end of a stream, for any type of items.
pub(crate) struct Producer {
    /// Locked by nobody: it makes the whole `Sync`.
    items: Mutex<Box<dyn Produce>>,
    /// Who reads it (ST-4).
    reader: Option<(NodeId, u64)>,
    pub(crate) expected: Expected,
    busy: Option<BusyStream>,
}

/// How many streams of a worker's have more items ready than fit into a batch.
#[derive(Clone, Default, Debug)]
pub(crate) struct BusyStreams(Arc<AtomicUsize>);

impl BusyStreams {
    /// One more, until this is dropped.
    fn one_more(&self) -> BusyStream {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyStream(self.clone())
    }

    /// What each may have of a batch.
    fn share(&self, most: usize, least: usize) -> usize {
        let busy = self.0.load(Ordering::Relaxed).max(1);
        (most * FULL_BATCHES / busy).clamp(least, most)
    }
}

/// A stream that is busy.
struct BusyStream(BusyStreams);

impl Drop for BusyStream {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Producer {
    pub(crate) fn new<T: Serialize + Send + 'static>(source: Box<dyn Source<T>>) -> Self {
        Self {
            items: Mutex::new(Box::new(Items {
                source: Some(source),
                next: VecDeque::new(),
                failed: None,
                buffer: Vec::new(),
                chunk: 1,
                item_bytes: MAX_BYTES,
                batch_bytes: 0,
            })),
            reader: None,
            expected: Expected::default(),
            busy: None,
        }
    }

    fn items(&mut self) -> &mut dyn Produce {
        let items = self.items.get_mut().unwrap_or_else(PoisonError::into_inner);
        &mut **items
    }

    /// Whether this reader may take items: the first one that asks.
    pub(crate) fn admits(&mut self, reader: (NodeId, u64)) -> bool {
        *self.reader.get_or_insert(reader) == reader
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
        let batch = self.items().fill(context, core)?;
        if batch.body.first() != Some(&flag::MORE) {
            self.busy = None;
        } else if self.busy.is_none() {
            self.busy = Some(core.busy_streams.one_more());
        }
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
    /// An item is written here.
    buffer: Vec<u8>,
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
            Ok(After::Failure(failure)) => self.failed = Some(failure),
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
        let mut largest = 0;
        let scope = WritingItems::begin(core);
        while !batch.is_full()
            && let Some(item) = self.next.pop_front()
        {
            let buffer = &mut self.buffer;
            let written = catch_unwind(AssertUnwindSafe(|| scope.write(&item, buffer)));
            let along = match written {
                Ok(Ok(along)) => along,
                failed => {
                    drop(scope);
                    self.failed = Some(match failed {
                        Err(panic) => panicked(&*panic),
                        Ok(written) => {
                            let reason = written.err().map(|reason| reason.to_string());
                            Failure::BadResult(reason.unwrap_or_default())
                        }
                    });
                    drop_guarded((item, std::mem::take(&mut self.next)));
                    return self.close();
                }
            };
            let is_alone = along.parts.is_empty() && along.references.is_empty();
            let mut item_bytes = self.buffer.len() + 1;
            if !is_alone {
                item_bytes += 8 + along.parts.iter().map(Part::len).sum::<usize>();
            }
            largest = largest.max(item_bytes);
            if batch.items > 0 && batch.bytes + item_bytes > batch.max_bytes {
                // What can be sent alone might be too much for one message with others.
                batch.is_closed = true;
                self.next.push_front(item);
                break;
            }
            if is_alone {
                batch.body.push(lead::ALONE);
            } else {
                batch.body.push(lead::ALONG);
                for count in [along.parts.len(), along.references.len()] {
                    let count = (count as u32).to_le_bytes();
                    batch.body.extend_from_slice(&count);
                }
                batch.parts.extend(along.parts);
                batch.references.extend(along.references);
            }
            batch.body.extend_from_slice(&self.buffer);
            batch.bytes += item_bytes;
            batch.items += 1;
        }
        if largest > 0 {
            self.item_bytes = largest;
        }
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
        let mut body = Vec::with_capacity(self.batch_bytes + self.batch_bytes / 8 + 1);
        body.push(0);
        let mut batch = Batch {
            body,
            parts: Vec::new(),
            references: Vec::new(),
            items: 0,
            bytes: 1,
            max_items: core.busy_streams.share(MAX_ITEMS, LEAST_ITEMS),
            max_bytes: core.busy_streams.share(MAX_BYTES, LEAST_BYTES),
            is_closed: false,
        };
        let mut more = true;
        loop {
            self.write(core, &mut batch);
            if batch.is_full() || !more {
                break;
            }
            let fit = (batch.max_bytes - batch.bytes) / self.item_bytes;
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

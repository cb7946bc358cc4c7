//! The reading end of a stream that is made elsewhere.
//!
//! # Invariants
//!
//! - **SR-1** Batches are handed out in the order in which they were asked for, and their items in the order in which
//!   they are in them. Nothing is asked for while an older question waits for a place.
//! - **SR-2** Nothing is asked for before the first item is. From then on one batch is asked for, and two as long as
//!   there is more than fits into one: a stream that is idle is one open call.
//! - **SR-3** Whoever reads without a pause lets others have their turn after each batch.
//! - **SR-4** Whatever a producer sends, an item is read, or the stream ends with an error. It ends without one only
//!   if a batch says so.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use serde::de::DeserializeOwned;

use super::pull::{Answer, Pull};
use crate::codec::{CodecError, Part, Payload, items};
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::runtime::handle::Handle;
use crate::runtime::stream::{flag, lead};
use crate::runtime::value_scope::{self, Reading, Unread};
use crate::support::mutation::mutated;
use crate::tables::labels::{Label, Labelled};

/// Batches that are asked for while there is more than fits into one.
const BUSY_PULLS: usize = 2;

/// Reads a stream.
pub(super) struct Reader<T> {
    pub(super) producer: Arc<Handle>,
    /// What makes the stream, for errors.
    pub(super) name: FunctionName,
    /// What it is called for those who look at this worker.
    label: Option<Label>,
    /// What the producer knows this reader by, from the first time that it asks.
    number: Option<u64>,
    /// What was asked for, the oldest first.
    pulls: VecDeque<Pull>,
    /// How many batches to ask for.
    wanted: usize,
    batch: Batch,
    is_over: bool,
    /// Whether batches have come since this last waited: others are to have their turn, however fast they come.
    goes_on: bool,
    items: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + 'static> Reader<T> {
    pub(super) fn new(producer: Arc<Handle>, name: FunctionName) -> Self {
        let held = producer.held().ok();
        let label = held.map(|held| held.core.labels.put(Labelled::Stream(held.rref), &name));
        if mutated!(ReaderStays) {
            std::mem::forget(Arc::clone(&producer));
        }
        Self {
            producer,
            name,
            label,
            number: None,
            pulls: VecDeque::new(),
            wanted: 1,
            batch: Batch::default(),
            is_over: false,
            goes_on: false,
            items: PhantomData,
        }
    }

    /// Whether items may have been taken out.
    pub(super) fn has_begun(&self) -> bool {
        self.number.is_some()
    }

    /// The next item, if it is here and came alone. If not, [`poll`](Self::poll) goes on from there.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        self.batch.next_plain()
    }

    /// The next item if it did not come alone, or sees to it that there is one to take.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Step<T>> {
        if !self.batch.body.is_empty() {
            return Poll::Ready(match self.batch.next_with_company(&self.producer) {
                // To the program at once: those after it are taken first thing (SR-1).
                Ok(item) => Step::Item(item),
                Err(unread) => Step::Failed(self.unread(unread)),
            });
        }
        let polled = self.poll_batch(context);
        let went_on = std::mem::replace(&mut self.goes_on, polled.is_ready());
        match ready!(polled) {
            Ok(true) if went_on => {
                self.goes_on = false;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(true) => Poll::Ready(Step::Take),
            Ok(false) => Poll::Ready(Step::End),
            Err(error) => {
                self.end();
                Poll::Ready(Step::Failed(error))
            }
        }
    }

    /// Waits for a batch. False at the end.
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        if self.batch.is_last {
            self.end();
        }
        if self.is_over {
            return Poll::Ready(Ok(false));
        }
        if self.pulls.is_empty() {
            let pull = self.begin_pull()?;
            self.pulls.push_back(pull);
        }
        let Some(oldest) = self.pulls.front_mut() else {
            return Poll::Ready(Ok(false));
        };
        let answer = ready!(oldest.poll(context, &self.name))?;
        self.pulls.pop_front();
        let flags = match self.batch.refill(answer) {
            Ok(flags) => flags,
            Err(refused) => return Poll::Ready(Err(self.unread(refused.into()))),
        };
        if flags & flag::TAKEN != 0 {
            return Poll::Ready(Err(Misuse::StreamTaken.into()));
        }
        if self.batch.body.is_empty() && !self.batch.is_last {
            let nothing = CodecError::new("a batch of a stream's items has none");
            return Poll::Ready(Err(self.unread(nothing.into())));
        }
        self.wanted = if flags & flag::MORE != 0 {
            match mutated!(AskFarAhead) {
                true => 64,
                false => BUSY_PULLS,
            }
        } else {
            1
        };
        if !self.batch.is_last {
            // While the program has these, the next ones are on their way.
            self.ask_ahead()?;
        }
        Poll::Ready(Ok(true))
    }

    /// Asks for as many batches as are wanted, though nobody waits for them yet. One for which there is no place is left
    /// for later: it would be sent after those that are asked for meanwhile (SR-1), and keep a place from others.
    fn ask_ahead(&mut self) -> Result<()> {
        while self.pulls.len() < self.wanted && self.pulls.back().is_none_or(Pull::is_made) {
            let pull = self.begin_pull()?;
            if !pull.is_made() {
                break;
            }
            match mutated!(LaterBatchFirst) {
                true => self.pulls.push_front(pull),
                false => self.pulls.push_back(pull),
            }
        }
        Ok(())
    }

    fn begin_pull(&mut self) -> Result<Pull> {
        let number = match self.number {
            Some(number) => number,
            None => {
                let number = self.producer.held()?.core.next_number();
                *self.number.insert(number)
            }
        };
        Pull::begin(&self.producer, number, &self.name)
    }

    /// An item could not be read, and so nothing after it.
    #[cold]
    fn unread(&mut self, unread: Unread) -> Error {
        self.end();
        match unread {
            Unread::Mismatch(reason) => Error::TypeMismatch(reason),
            Unread::Codec(reason) => Error::Codec {
                what: "an item",
                function: self.name.clone(),
                action: "read",
                reason,
            },
        }
    }

    /// Nothing comes after this: the producer may go.
    fn end(&mut self) {
        self.is_over = true;
        self.pulls.clear();
        self.batch = Batch::default();
        self.producer = Handle::broken(Misuse::AwaitedTwice.into());
        self.label = None;
    }
}

/// What there is for whoever found no item to take.
pub(super) enum Step<T> {
    /// The next one, which did not come alone.
    Item(T),
    /// There are some to take, or the end in a batch of its own: ask again.
    Take,
    End,
    Failed(Error),
}

/// Items that have come and are not read yet.
#[derive(Default)]
struct Batch {
    body: Bytes,
    parts: std::vec::IntoIter<Part>,
    references: std::vec::IntoIter<Arc<Handle>>,
    is_last: bool,
}

impl Batch {
    /// Takes what came. Says its flags. One that has none did not arrive: that is not the end (SR-4).
    fn refill(&mut self, (payload, references): Answer) -> Result<u8, CodecError> {
        let Payload { body, parts } = payload;
        let Some(&flags) = body.first() else {
            let why = parts.first().and_then(Part::why_refused);
            return Err(CodecError::new(
                why.unwrap_or("a batch of a stream's items is empty"),
            ));
        };
        self.body = body;
        self.parts = parts.into_iter();
        self.references = references.into_iter();
        self.body.advance(1);
        self.is_last = flags & flag::END != 0;
        Ok(flags)
    }

    /// Reads the next item, if there is one and it came alone. It is put together where the program's loop is: to move it
    /// from place to place takes longer than to read it.
    #[inline]
    fn next_plain<T: DeserializeOwned + 'static>(&mut self) -> Option<T> {
        let (&lead::ALONE, item) = self.body.split_first()? else {
            return None;
        };
        let (item, length) = items::read_plain(item)?;
        self.body.advance(1 + length);
        Some(item)
    }

    /// The same for one with buffers, references or peers, or in the described form, or that is not in order.
    #[cold]
    fn next_with_company<T: DeserializeOwned + 'static>(
        &mut self,
        producer: &Handle,
    ) -> Result<T, Unread> {
        let cut_off = |_| CodecError::new("a batch of a stream's items is cut off");
        let (mut parts, mut references) = (Vec::new(), Vec::new());
        let is_along = self.body.try_get_u8().map_err(cut_off)? == lead::ALONG;
        if is_along {
            let [part_count, reference_count] = [
                self.body.try_get_u32_le().map_err(cut_off)? as usize,
                self.body.try_get_u32_le().map_err(cut_off)? as usize,
            ];
            parts.extend(self.parts.by_ref().take(part_count));
            references.extend(self.references.by_ref().take(reference_count));
        }
        let payload = Payload {
            body: self.body.clone(),
            parts,
        };
        // What came alone has no peer in it, whatever it looks like.
        let producer = producer.held().ok().filter(|_| is_along);
        let reading = producer.map(|held| Reading {
            core: Arc::clone(&held.core),
            from: held.owner,
            context: None,
        });
        let (item, length) = value_scope::read_item(payload, references, reading)?;
        self.body.advance(length.min(self.body.len()));
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refill(body: &'static [u8], parts: Vec<Part>) -> std::result::Result<(u8, bool), String> {
        let mut batch = Batch::default();
        let payload = Payload {
            body: Bytes::from_static(body),
            parts,
        };
        let flags = batch.refill((payload, Vec::new()));
        let flags = flags.map_err(|error| error.to_string())?;
        Ok((flags, batch.is_last))
    }

    /// What is refused on its way comes without a body, and says why in its first part.
    #[test]
    fn sr_4_a_batch_that_did_not_arrive_is_an_error_and_not_the_end() {
        assert!(refill(&[], Vec::new()).is_err());
        let refused = Part::refused(7, "it is too large".to_owned());
        let why = refill(&[], vec![refused]).unwrap_err();
        assert!(why.contains("it is too large"), "{why}");
        assert_eq!(refill(&[flag::END], Vec::new()), Ok((flag::END, true)));
        assert_eq!(refill(&[0, 1], Vec::new()), Ok((0, false)));
    }
}

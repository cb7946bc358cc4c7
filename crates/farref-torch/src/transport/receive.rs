//! Messages on their way in.
//!
//! A receiver keeps what has come of a message, so waiting for the next one can be given up at any time.

use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep, sleep};

use super::cma::CmaReceiver;
use super::frame_reader::{Frame, FrameReader};
use super::shared::{TransportShared, count};
use super::storage::Storage;
use super::{Incoming, Limits, PipeError};
use crate::pipe::{Descriptor, PAYLOADS};

/// How long the other connections may still bring something after the peer has closed one of them. Only silence
/// counts.
const CLOSING: Duration = Duration::from_secs(1);

/// How large the elements of each storage are, by the list of tensors and the number of storages. What it leaves
/// out has elements of one byte.
pub(crate) type Widths = fn(&[u8], usize) -> Vec<usize>;

/// The end of a pipe at which messages arrive.
#[derive(Debug)]
pub(crate) struct PipeReceiver {
    descriptor: FrameReader,
    /// Nothing comes here. It shows when the peer closes it.
    reply: FrameReader,
    channel: ChannelReceiver,
    limits: Arc<Limits>,
    widths: Widths,
    assembly: Option<Assembly>,
    closing: Option<Closing>,
    ended: bool,
    shared: Arc<TransportShared>,
}

/// How tensors arrive.
#[derive(Debug)]
pub(super) enum ChannelReceiver {
    /// Over a connection.
    Basic(FrameReader),
    /// Through memory.
    Cma(Box<CmaReceiver>),
}

/// What has come of a message.
#[derive(Debug)]
struct Assembly {
    descriptor: Descriptor,
    /// How many payloads have come.
    payloads: usize,
    kind: i32,
    id: i64,
    payload: Bytes,
    tensor_list: Bytes,
    widths: Vec<usize>,
    storages: Vec<Storage>,
}

/// The peer has closed a connection, but not all.
#[derive(Debug)]
struct Closing {
    timer: Pin<Box<Sleep>>,
    /// How much had come when the timer was set.
    received: u64,
}

impl PipeReceiver {
    pub(super) fn new(
        [descriptor, reply]: [OwnedReadHalf; 2],
        channel: ChannelReceiver,
        limits: Arc<Limits>,
        shared: Arc<TransportShared>,
    ) -> Self {
        Self {
            descriptor: FrameReader::new(descriptor, &shared.traffic),
            reply: FrameReader::silent(reply, &shared.traffic),
            channel,
            limits,
            widths: |_, _| Vec::new(),
            assembly: None,
            closing: None,
            ended: false,
            shared,
        }
    }

    /// From now on, storages are aligned to these widths.
    pub(crate) fn set_widths(&mut self, widths: Widths) {
        self.widths = widths;
    }

    /// From now on, messages keep to these limits. One that has begun is not looked at again.
    pub(crate) fn set_limits(&mut self, limits: Arc<Limits>) {
        self.limits = limits;
    }

    /// Nothing more is read, and nothing more is to be sent: a sender that waits for the peer to read waits no longer.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.assembly = None;
        if let ChannelReceiver::Cma(channel) = &mut self.channel {
            channel.end();
        }
        self.shared.end();
    }

    /// The next message. None if the peer has closed the pipe between messages.
    ///
    /// Nothing is lost if this is given up while it waits. After an error, or the end, there is nothing more.
    pub(crate) async fn next(&mut self) -> Result<Option<Incoming>, PipeError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, PipeError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        if let ChannelReceiver::Cma(channel) = &mut self.channel {
            channel.poll_owed(cx);
        }
        let next = match self.poll_message(cx) {
            Poll::Pending => match self.poll_closing(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {
                    Err(PipeError::Closed("alone, without the others of the pipe"))
                }
                Poll::Ready(Err(error)) => Err(error),
            },
            Poll::Ready(next) => next,
        };
        match next {
            Ok(Some(_)) => count(&self.shared.traffic.messages_received, 1),
            // TR-8
            Ok(None) | Err(_) => self.end(),
        }
        Poll::Ready(next)
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, PipeError>> {
        let Self {
            descriptor: first,
            channel,
            limits,
            assembly: current,
            ..
        } = self;
        loop {
            let Some(assembly) = current else {
                let longest = longest_descriptor(limits);
                let check = |length| within("a descriptor", length, longest);
                let Some(frame) = ready!(first.poll_frame(cx, 1, check))? else {
                    return Poll::Ready(Ok(None));
                };
                *current = Some(Assembly::new(frame.bytes(), limits)?);
                continue;
            };
            if let Some(expected) = assembly.descriptor.payloads.get(assembly.payloads) {
                let check = |length| match length == *expected {
                    true => Ok(()),
                    false => Err(PipeError::Rules("a payload is not as long as announced")),
                };
                match ready!(first.poll_frame(cx, 1, check))? {
                    Some(frame) => assembly.take_payload(frame, self.widths),
                    None => return closed_within(),
                }
                continue;
            }
            let index = assembly.storages.len();
            let Some(slot) = assembly.descriptor.tensors.get(index) else {
                let whole = current.take().map(Assembly::finish);
                return Poll::Ready(Ok(whole));
            };
            let width = assembly.widths.get(index).copied().unwrap_or(1);
            // TR-1
            if slot.bytes == 0 {
                assembly.storages.push(Storage::empty(width, 0));
                continue;
            }
            match ready!(channel.poll_storage(cx, width, slot.bytes))? {
                Some(storage) => assembly.storages.push(storage),
                None => return closed_within(),
            }
        }
    }

    /// Watches the connections on which nothing is expected now. Ready with nothing if the peer has closed one of
    /// them and the others have been silent for a while since.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PipeError>> {
        let (waited_for, other) = match self.assembly.as_ref().is_some_and(Assembly::has_payloads) {
            true => (self.channel.connection(), &mut self.descriptor),
            false => (&mut self.descriptor, self.channel.connection()),
        };
        debug_assert!(!waited_for.is_closed(), "an end is no reason to wait");
        other.poll_ahead(cx)?;
        self.reply.poll_ahead(cx)?;
        if !self.reply.is_idle() {
            return Poll::Ready(Err(PipeError::Rules(
                "there are bytes on the connection for replies",
            )));
        }
        if !other.is_closed() && !self.reply.is_closed() {
            return Poll::Pending;
        }
        // Connections have no order among them: what was sent before may still be on its way.
        let received = self.shared.traffic.bytes_received.load(Ordering::Relaxed);
        let closing = self.closing.get_or_insert_with(|| Closing {
            timer: Box::pin(sleep(CLOSING)),
            received,
        });
        if closing.received != received {
            closing.received = received;
            closing.timer.as_mut().reset(Instant::now() + CLOSING);
        }
        closing.timer.as_mut().poll(cx).map(Ok)
    }
}

impl ChannelReceiver {
    /// The next tensor, of so many bytes and elements of this width. None if the peer has closed the connection.
    fn poll_storage(
        &mut self,
        cx: &mut Context<'_>,
        width: usize,
        length: u64,
    ) -> Poll<Result<Option<Storage>, PipeError>> {
        let channel = match self {
            Self::Basic(channel) => channel,
            Self::Cma(channel) => return channel.poll_storage(cx, width, length),
        };
        let check = |announced| match announced == length {
            true => Ok(()),
            false => Err(PipeError::Rules("a tensor is not as long as announced")),
        };
        let frame = ready!(channel.poll_frame(cx, width, check))?;
        Poll::Ready(Ok(frame.map(|frame| match frame {
            Frame::Here(bytes) => Storage::copied(width, bytes),
            Frame::Own(storage) => storage,
        })))
    }

    /// The connection on which tensors, or their places, are announced.
    fn connection(&mut self) -> &mut FrameReader {
        match self {
            Self::Basic(channel) => channel,
            Self::Cma(channel) => channel.places(),
        }
    }
}

impl Assembly {
    fn new(bytes: &[u8], limits: &Limits) -> Result<Self, PipeError> {
        let descriptor = Descriptor::decode(bytes).map_err(|error| PipeError::Malformed {
            what: "a descriptor",
            error,
        })?;
        let [kind, id, payload, tensor_list] = descriptor.payloads;
        if (kind, id) != (size_of::<i32>() as u64, size_of::<i64>() as u64) {
            return Err(PipeError::Rules(
                "a kind and an id of other lengths than 4 and 8",
            ));
        }
        within("a payload", payload, limits.payload)?;
        within("a list of tensors", tensor_list, limits.payload)?;
        let count = descriptor.tensors.len();
        within("a number of tensors", count as u64, limits.tensors as u64)?;
        if !descriptor.tensors.iter().all(|tensor| tensor.on_cpu) {
            return Err(PipeError::Device);
        }
        let tensors = descriptor.tensors.iter().map(|tensor| tensor.bytes);
        let total = descriptor.payloads.into_iter().chain(tensors);
        let total = total.fold(0, u64::saturating_add);
        within("a message", total, limits.message)?;
        Ok(Self {
            descriptor,
            payloads: 0,
            kind: 0,
            id: 0,
            payload: Bytes::new(),
            tensor_list: Bytes::new(),
            widths: Vec::new(),
            storages: Vec::new(),
        })
    }

    fn has_payloads(&self) -> bool {
        self.payloads == PAYLOADS
    }

    fn take_payload(&mut self, frame: Frame<'_>, widths: Widths) {
        match self.payloads {
            0 => self.kind = i32::from_le_bytes(frame.bytes().try_into().unwrap_or_default()),
            1 => self.id = i64::from_le_bytes(frame.bytes().try_into().unwrap_or_default()),
            2 => self.payload = frame.into_bytes(),
            _ => {
                let count = self.descriptor.tensors.len();
                if count > 0 {
                    self.widths = widths(frame.bytes(), count);
                }
                self.tensor_list = frame.into_bytes();
            }
        }
        self.payloads += 1;
    }

    fn finish(mut self) -> Incoming {
        Incoming {
            kind: self.kind,
            id: self.id,
            payload: take(&mut self.payload),
            tensor_list: take(&mut self.tensor_list),
            storages: take(&mut self.storages),
        }
    }
}

impl Frame<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Own(storage) => storage.bytes(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Here(bytes) => Bytes::copy_from_slice(bytes),
            Self::Own(Storage::One(bytes)) => bytes.into(),
            Self::Own(wider) => Bytes::copy_from_slice(wider.bytes()),
        }
    }
}

fn closed_within<T>() -> Poll<Result<T, PipeError>> {
    Poll::Ready(Err(PipeError::Closed("in the middle of a message")))
}

/// A descriptor has about thirty bytes per tensor.
fn longest_descriptor(limits: &Limits) -> u64 {
    (limits.tensors as u64)
        .saturating_mul(64)
        .saturating_add(256)
}

fn within(what: &'static str, size: u64, limit: u64) -> Result<(), PipeError> {
    match size <= limit {
        true => Ok(()),
        false => Err(PipeError::TooLarge { what, size, limit }),
    }
}

//! Messages on their way out.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::tcp::OwnedWriteHalf;

use super::cma::{CmaSender, MOST_LENT_BYTES};
use super::frame_writer::{FrameWriter, Part};
use super::shared::{Traffic, TransportShared, count};
use super::{Limits, Outgoing, PipeError, StorageBytes};
use crate::pipe::{Descriptor, TensorSlot};

/// The end of a pipe at which messages leave.
///
/// Dropping it alone closes nothing: the pipe is closed when the receiver is dropped as well, or by
/// [`close`](Self::close).
#[derive(Debug)]
pub(crate) struct PipeSender {
    /// There until the end.
    connections: Option<Connections>,
    limits: Arc<Limits>,
    /// Whether a message was begun and not finished (TR-9).
    torn: bool,
    shared: Arc<TransportShared>,
}

#[derive(Debug)]
struct Connections {
    descriptor: FrameWriter,
    /// Nothing is written here.
    reply: OwnedWriteHalf,
    channel: ChannelSender,
}

/// How tensors leave.
#[derive(Debug)]
pub(super) enum ChannelSender {
    /// Over a connection.
    Basic(FrameWriter),
    /// Through memory.
    Cma(CmaSender),
}

impl PipeSender {
    pub(super) fn new(
        [descriptor, reply]: [OwnedWriteHalf; 2],
        channel: ChannelSender,
        limits: Arc<Limits>,
        shared: Arc<TransportShared>,
    ) -> Self {
        let connections = Connections {
            descriptor: FrameWriter::new(descriptor),
            reply,
            channel,
        };
        Self {
            connections: Some(connections),
            limits,
            torn: false,
            shared,
        }
    }

    /// What has gone over the pipe, both ways.
    pub(crate) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.shared.traffic)
    }

    /// Whether messages can still be sent, as far as is known here.
    pub(crate) fn is_open(&self) -> bool {
        !self.torn && !self.shared.is_over()
    }

    /// Sends messages in this order, in as few writes as possible. They have left when this returns.
    ///
    /// If this is given up while it waits, or fails halfway, the pipe is of no use any more, and
    /// [`is_open`](Self::is_open) says so. Nothing was sent, and no harm done, after
    /// [`PipeError::TooLargeToSend`].
    pub(crate) async fn send<S: StorageBytes>(
        &mut self,
        batch: &[Outgoing<S>],
    ) -> Result<(), PipeError> {
        let Self {
            connections: Some(connections),
            limits,
            torn,
            shared,
        } = self
        else {
            return Err(PipeError::Over);
        };
        if *torn {
            return Err(PipeError::Torn);
        }
        if shared.is_over() {
            return Err(PipeError::Over);
        }
        for message in batch {
            limits.judge(&message.size())?;
        }
        let mut rest = batch;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(connections.channel.fitting(rest));
            let sent = connections.send(now, shared, torn).await;
            // Nobody knows how many of them have left.
            *torn |= sent.is_err() && now.len() < batch.len();
            sent?;
            rest = later;
        }
        count(&shared.traffic.messages_sent, batch.len());
        Ok(())
    }

    /// Waits until the peer has read all that it was told to read out of memory, which is kept until then (TR-13). Comes
    /// back at once if nothing is, or nothing can become of it.
    pub(crate) async fn settled(&mut self) {
        // If it fails nothing is lent any more.
        drop(self.read_by_peer(0).await);
    }

    /// Whether the peer has not read all that it was told to read.
    pub(crate) fn has_lent(&self) -> bool {
        let connections = self.connections.as_ref();
        connections.is_some_and(|connections| connections.channel.lent() > 0)
    }

    /// Waits until the peer has read something of that. Nothing is lost if this is given up while it waits.
    pub(crate) async fn some_read(&mut self) -> Result<(), PipeError> {
        let lent = |connections: &Connections| connections.channel.lent();
        let lent = self.connections.as_ref().map_or(0, lent);
        self.read_by_peer(lent.saturating_sub(1)).await
    }

    async fn read_by_peer(&mut self, most: usize) -> Result<(), PipeError> {
        let Some(Connections {
            channel: ChannelSender::Cma(channel),
            ..
        }) = &mut self.connections
        else {
            return Ok(());
        };
        let shared = &self.shared;
        let read = poll_fn(|cx| match channel.poll_lent(cx, most) {
            Poll::Pending => shared.poll_over(cx),
            ready => ready,
        });
        let read = read.await;
        if read.is_err() {
            // It will never be, and the peer cannot be told anything else either.
            channel.give_up();
            self.torn = true;
        }
        read
    }

    /// Lets the peer know that nothing follows. All that was sent arrives before that.
    ///
    /// What the peer has sent can still be received; when it has closed the pipe as well, there is
    /// nothing more to wait for.
    pub(crate) fn close(mut self) {
        // Dropping a half that writes shuts it down.
        drop(self.connections.take());
    }
}

impl Drop for PipeSender {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.take() {
            connections.descriptor.into_half().forget();
            connections.reply.forget();
            match connections.channel {
                ChannelSender::Basic(channel) => channel.into_half().forget(),
                ChannelSender::Cma(channel) => channel.forget(),
            }
        }
    }
}

impl Connections {
    /// Sends messages all at once.
    async fn send<S: StorageBytes>(
        &mut self,
        batch: &[Outgoing<S>],
        shared: &TransportShared,
        torn: &mut bool,
    ) -> Result<(), PipeError> {
        if let ChannelSender::Cma(channel) = &mut self.channel {
            let room = poll_fn(|cx| match channel.poll_room(cx) {
                Poll::Pending => shared.poll_over(cx),
                ready => ready,
            });
            let room = room.await;
            *torn |= room.is_err();
            room?;
        }
        let lent = self.channel.lent();
        for (index, message) in batch.iter().enumerate() {
            if let Err(error) = self.append(index, message) {
                self.descriptor.clear();
                self.channel.clear(lent);
                return Err(error);
            }
        }
        *torn = true;
        let Self {
            descriptor,
            channel,
            ..
        } = self;
        // TR-4: both at once.
        poll_fn(|cx| {
            let first = descriptor.poll_write(cx, batch, &shared.traffic)?;
            let third = channel.poll_write(cx, batch, &shared.traffic)?;
            if first.is_ready() && third.is_ready() {
                return Poll::Ready(Ok(()));
            }
            shared.poll_over(cx)
        })
        .await?;
        *torn = false;
        Ok(())
    }

    /// Appends all frames of a message (TR-1).
    fn append<S: StorageBytes>(
        &mut self,
        index: usize,
        message: &Outgoing<S>,
    ) -> Result<(), PipeError> {
        let slot = |storage: &S| TensorSlot {
            bytes: storage.len() as u64,
            on_cpu: true,
        };
        let payloads = [
            size_of_val(&message.kind),
            size_of_val(&message.id),
            message.payload.len(),
            message.tensor_list.len(),
        ];
        let descriptor = Descriptor {
            payloads: payloads.map(|length| length as u64),
            tensors: message.storages.iter().map(slot).collect(),
        };
        let first = &mut self.descriptor;
        first.frame(|bytes| descriptor.append(bytes));
        first.frame(|bytes| bytes.extend_from_slice(&message.kind.to_le_bytes()));
        first.frame(|bytes| bytes.extend_from_slice(&message.id.to_le_bytes()));
        let [.., payload, tensor_list] = payloads;
        first.share(index, message, Part::Payload, payload)?;
        first.share(index, message, Part::TensorList, tensor_list)?;
        for (number, slot) in descriptor.tensors.iter().enumerate() {
            if slot.bytes > 0 {
                let length = slot.bytes as usize;
                match (&mut self.channel, message.storages.get(number)) {
                    (ChannelSender::Cma(channel), Some(storage)) => {
                        channel.append(storage, length)?;
                    }
                    (ChannelSender::Cma(_), None) => return Err(PipeError::Storage),
                    (ChannelSender::Basic(channel), _) => {
                        channel.share(index, message, Part::Storage(number), length)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl ChannelSender {
    /// How many tensors the peer has not read out of memory.
    fn lent(&self) -> usize {
        match self {
            Self::Basic(_) => 0,
            Self::Cma(channel) => channel.lent(),
        }
    }

    /// How many messages of a batch are sent at once: one at least, and no more than there is room for to lend what they
    /// have.
    fn fitting<S: StorageBytes>(&self, batch: &[Outgoing<S>]) -> usize {
        if let Self::Basic(_) = self {
            return batch.len();
        }
        let mut bytes = 0_u64;
        let fits = |message: &&Outgoing<S>| {
            bytes = bytes.saturating_add(message.size().storage_bytes);
            bytes <= MOST_LENT_BYTES
        };
        batch.iter().take_while(fits).count().clamp(1, batch.len())
    }

    /// Forgets what was appended since so many were lent.
    fn clear(&mut self, lent: usize) {
        match self {
            Self::Basic(channel) => channel.clear(),
            Self::Cma(channel) => channel.clear(lent),
        }
    }

    fn poll_write<S: StorageBytes>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &[Outgoing<S>],
        traffic: &Traffic,
    ) -> Poll<Result<(), PipeError>> {
        match self {
            Self::Basic(channel) => channel.poll_write(cx, batch, traffic),
            Self::Cma(channel) => channel.poll_write(cx, batch, traffic),
        }
    }
}

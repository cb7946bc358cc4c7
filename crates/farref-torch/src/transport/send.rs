//! Messages on their way out.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::net::tcp::OwnedWriteHalf;

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
    channel: FrameWriter,
}

impl PipeSender {
    pub(super) fn new(
        [descriptor, reply, channel]: [OwnedWriteHalf; 3],
        limits: Arc<Limits>,
        shared: Arc<TransportShared>,
    ) -> Self {
        let connections = Connections {
            descriptor: FrameWriter::new(descriptor),
            reply,
            channel: FrameWriter::new(channel),
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
        for (index, message) in batch.iter().enumerate() {
            if let Err(error) = connections.append(index, message) {
                connections.descriptor.clear();
                connections.channel.clear();
                return Err(error);
            }
        }
        *torn = true;
        let Connections {
            descriptor,
            channel,
            ..
        } = connections;
        // TR-4: both at once.
        poll_fn(|cx| {
            let first = descriptor.poll_write(cx, batch, &shared.traffic)?;
            let third = channel.poll_write(cx, batch, &shared.traffic)?;
            if first.is_ready() && third.is_ready() {
                return Poll::Ready(Ok(()));
            }
            shared.park_sender(cx);
            match shared.is_over() {
                true => Poll::Ready(Err(PipeError::Over)),
                false => Poll::Pending,
            }
        })
        .await?;
        *torn = false;
        count(&shared.traffic.messages_sent, batch.len());
        Ok(())
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
            connections.channel.into_half().forget();
        }
    }
}

impl Connections {
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
                let (part, length) = (Part::Storage(number), slot.bytes as usize);
                self.channel.share(index, message, part, length)?;
            }
        }
        Ok(())
    }
}

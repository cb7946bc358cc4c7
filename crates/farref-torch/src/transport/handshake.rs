//! The objects that both sides exchange before messages flow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::PeerProcess;
use super::cma::{CmaReceiver, CmaSender};
use super::error::PipeError;
use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::limits::Limits;
use super::receive::{ChannelReceiver, PipeReceiver};
use super::send::{ChannelSender, PipeSender};
use super::shared::TransportShared;
use crate::nop::NopError;

/// No greeting is longer: it has a name, of which PyTorch allows 128 bytes.
pub(super) const GREETING: u64 = 4 << 10;
/// No brochure and no answer is longer. Those of a worker with many devices have a few thousand bytes.
pub(super) const AGREEMENT: u64 = 64 << 10;
/// How long nothing may come before the system asks whether the other host is there, how often it asks again, and
/// how often in vain. So a host that has lost its power or its network counts as gone after 45 s.
const SILENCE: Duration = Duration::from_secs(15);
const PROBES: Duration = Duration::from_secs(5);
const RETRIES: u32 = 6;
/// With the length before it, for one that is likely.
const LIKELY: usize = 512;

/// Reads an object, and nothing behind it: frames of the pipe may follow.
pub(super) async fn read<T>(
    stream: &mut TcpStream,
    what: &'static str,
    limit: u64,
    decode: impl FnOnce(&[u8]) -> Result<T, NopError>,
) -> Result<T, PipeError> {
    let length = stream.read_u64_le().await.map_err(lost)?;
    if length > limit {
        return Err(PipeError::TooLarge {
            what,
            size: length,
            limit,
        });
    }
    // TR-2: it grows as the bytes come.
    let mut bytes = Vec::new();
    let read = stream.take(length).read_to_end(&mut bytes).await;
    if (read.map_err(lost)? as u64) < length {
        return Err(lost(io::ErrorKind::UnexpectedEof.into()));
    }
    decode(&bytes).map_err(|error| PipeError::Malformed { what, error })
}

/// Writes objects, all at once.
pub(super) async fn write(stream: &mut TcpStream, objects: &[Vec<u8>]) -> Result<(), PipeError> {
    let mut bytes = Vec::with_capacity(LIKELY);
    for object in objects {
        bytes.extend_from_slice(&(object.len() as u64).to_le_bytes());
        bytes.extend_from_slice(object);
    }
    stream.write_all(&bytes).await.map_err(lost)
}

/// Makes a connection what a pipe needs: quick, and over when the other host is (TR-10).
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(SILENCE)
        .with_interval(PROBES)
        .with_retries(RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// The connections of a pipe.
#[derive(Debug)]
pub(super) struct Connections {
    /// For descriptors and payloads.
    pub(super) first: TcpStream,
    pub(super) reply: TcpStream,
    pub(super) channel: Channel,
}

/// Those for tensors.
#[derive(Debug)]
pub(super) enum Channel {
    Basic(TcpStream),
    Cma {
        places: TcpStream,
        completions: TcpStream,
        peer: PeerProcess,
    },
}

/// Makes a pipe of its connections.
pub(super) fn assemble(
    connections: Connections,
    limits: Arc<Limits>,
    place: Option<OwnedSemaphorePermit>,
) -> (PipeSender, PipeReceiver) {
    let shared = TransportShared::new(place);
    let Connections {
        first,
        reply,
        channel,
    } = connections;
    let (first, reply) = (first.into_split(), reply.into_split());
    let (sending, receiving) = match channel {
        Channel::Basic(bytes) => {
            let (reading, writing) = bytes.into_split();
            let receiving = FrameReader::new(reading, &shared.traffic);
            (
                ChannelSender::Basic(FrameWriter::new(writing)),
                ChannelReceiver::Basic(receiving),
            )
        }
        Channel::Cma {
            places,
            completions,
            peer,
        } => {
            let (places, completions) = (places.into_split(), completions.into_split());
            let traffic = &shared.traffic;
            let sending = CmaSender::new(places.1, completions.0, traffic);
            let receiving = CmaReceiver::new(places.0, completions.1, peer, traffic);
            (
                ChannelSender::Cma(sending),
                ChannelReceiver::Cma(Box::new(receiving)),
            )
        }
    };
    let writing = [first.1, reply.1];
    let sender = PipeSender::new(writing, sending, Arc::clone(&limits), Arc::clone(&shared));
    let reading = [first.0, reply.0];
    let receiver = PipeReceiver::new(reading, receiving, limits, shared);
    (sender, receiver)
}

pub(super) fn lost(error: io::Error) -> PipeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => PipeError::Closed("before the pipe was set up"),
        _ => PipeError::Broken {
            doing: "while the pipe was set up",
            error,
        },
    }
}

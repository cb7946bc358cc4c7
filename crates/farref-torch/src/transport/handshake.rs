//! The objects that both sides exchange before messages flow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::error::PipeError;
use super::limits::Limits;
use super::receive::PipeReceiver;
use super::send::PipeSender;
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

/// Makes a pipe of its connections: for descriptors, for replies, for tensors.
pub(super) fn assemble(
    connections: [TcpStream; 3],
    limits: Arc<Limits>,
    place: Option<OwnedSemaphorePermit>,
) -> (PipeSender, PipeReceiver) {
    let shared = TransportShared::new(place);
    let [first, reply, channel] = connections.map(TcpStream::into_split);
    let reading = [first.0, reply.0, channel.0];
    let writing = [first.1, reply.1, channel.1];
    (
        PipeSender::new(writing, Arc::clone(&limits), Arc::clone(&shared)),
        PipeReceiver::new(reading, limits, shared),
    )
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

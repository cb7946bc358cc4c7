//! Reading and writing a socket through a shared reference, so that one task can wait for input and
//! for something else at the same time.

use std::io;

use bytes::BytesMut;
use tokio::net::TcpStream;

/// How much is read at a time: little at first, for the many that say little.
const SMALLEST_CHUNK: usize = 4 << 10;
const LARGEST_CHUNK: usize = 256 << 10;

/// Appends what has arrived to `buffer`, waiting for it if need be. 0 means that the peer is done.
///
/// Dropping the future loses nothing: bytes are taken off the socket only when it returns.
pub(super) async fn read_some(stream: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let before = buffer.len();
    let chunk = before.clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
    loop {
        stream.readable().await?;
        buffer.resize(before + chunk, 0);
        let read = stream.try_read(&mut buffer[before..]);
        buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Writes all of `bytes`.
pub(super) async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(size) => bytes = &bytes[size..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the connection is open and nothing unasked has arrived on it.
pub(super) fn is_quiet(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

//! A bare pipeline of frames: what a stream is held against.
//!
//! The other process sends [`ITEM`] bytes at a time with tokio, as many at once as it has credit for, and never more than
//! [`IN_FLIGHT`] that were not confirmed. This one takes the frames out of what it has read, looks at what is in them, and
//! gives the credit back after each read: all that a program has to do by hand for a stream with back-pressure.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::bare::{Accepted, accept};
use super::functions::Item;
use super::role::Role;
use super::transport::Socket;

/// Bytes of a frame.
pub(super) const ITEM: usize = 64;
/// Frames that are under way at most.
pub(super) const IN_FLIGHT: usize = 256;

/// How many frames arrive in a second.
pub(super) async fn rate(socket: Socket, time: Duration) -> anyhow::Result<f64> {
    let (accepted, _peer) = accept(socket, Role::Frames).await?;
    let read = match accepted {
        Accepted::Tcp(stream) => {
            stream.set_nodelay(true)?;
            tokio::spawn(read(stream, time))
        }
        Accepted::Unix(stream) => tokio::spawn(read(stream, time)),
    };
    read.await?
}

async fn read(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut buffer = vec![0; IN_FLIGHT * ITEM];
    let (mut filled, mut count, mut sum) = (0, 0_u64, 0.0);
    stream.write_all(&(IN_FLIGHT as u32).to_le_bytes()).await?;
    let began = Instant::now();
    while count == 0 || began.elapsed() < time {
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the other process is gone");
        filled += read;
        let frames = filled / ITEM;
        for frame in buffer[..frames * ITEM].chunks_exact(ITEM) {
            sum += Item::from_frame(frame).0[0];
        }
        buffer.copy_within(frames * ITEM..filled, 0);
        filled -= frames * ITEM;
        count += frames as u64;
        if frames > 0 {
            stream.write_all(&(frames as u32).to_le_bytes()).await?;
        }
    }
    let elapsed = began.elapsed();
    ensure!(sum > 0.0, "the frames are empty");
    Ok(count as f64 / elapsed.as_secs_f64())
}

/// The other end: writes frames as long as somebody reads them.
pub(super) async fn write(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<()> {
    let writing = tokio::spawn(async move {
        let mut buffer = Vec::with_capacity(IN_FLIGHT * ITEM);
        let mut credit = [0; 4];
        let mut number = 0.0;
        while stream.read_exact(&mut credit).await.is_ok() {
            buffer.clear();
            for _ in 0..u32::from_le_bytes(credit) {
                number += 1.0;
                Item::number(number).write_frame(&mut buffer);
            }
            if stream.write_all(&buffer).await.is_err() {
                break;
            }
        }
    });
    Ok(writing.await?)
}

//! The other end of every measurement.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::bare::{ASK, Header, PING, place_cpu_time, used_memory};
use super::bare_stream;
use super::group;
use super::role::{Place, Role};

/// How much an echo reads at once.
const CHUNK: usize = 64 << 10;

impl Role {
    pub(super) async fn play(self) -> anyhow::Result<()> {
        // Nothing to do for somebody who is gone.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        match self {
            Self::Worker(seat) => Ok(seat.join().await?.serve().await?),
            #[cfg(feature = "cuda")]
            Self::CopyingWorker(seat) => {
                farref_autograd::cuda::Options::new().exported(0).set()?;
                Ok(seat.join().await?.serve().await?)
            }
            Self::Member(seat, place) => group::be_a_member(&seat, connected(place)?).await,
            Self::Echo(Place::Tcp(port)) => {
                let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                stream.set_nodelay(true)?;
                echo(stream).await
            }
            Self::Echo(Place::Unix(path)) => {
                echo(tokio::net::UnixStream::connect(path).await?).await
            }
            Self::Frames(Place::Tcp(port)) => {
                let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                stream.set_nodelay(true)?;
                bare_stream::write(stream).await
            }
            Self::Frames(Place::Unix(path)) => {
                bare_stream::write(tokio::net::UnixStream::connect(path).await?).await
            }
            Self::BlockingEcho(place) => blocking_echo(connected(place)?),
            Self::Bulk(place) => bulk(connected(place)?),
        }
    }
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

fn connected(place: Place) -> anyhow::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Tcp(port) => {
            let stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Place::Unix(path) => Box::new(UnixStream::connect(path)?),
    })
}

async fn echo(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<()> {
    // On a task, as a program's answers are.
    let echo = tokio::spawn(async move {
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = stream.read(&mut buffer).await?;
            let frames = &mut buffer[..count];
            match frames {
                [] => return anyhow::Ok(()),
                [ASK, ..] if count == PING => place_cpu_time(frames),
                _ => {}
            }
            stream.write_all(frames).await?;
        }
    });
    echo.await?
}

fn blocking_echo(mut stream: impl Read + Write) -> anyhow::Result<()> {
    let mut buffer = [0; PING];
    while stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&buffer)?;
    }
    Ok(())
}

fn bulk(stream: impl Read + Write) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    // A small message and what comes before it are one read; a large one is read past the buffer.
    let mut stream = BufReader::with_capacity(CHUNK, stream);
    while let Some(header) = Header::read(&mut stream) {
        if buffer.len() != header.bytes {
            buffer = used_memory(header.bytes);
        }
        stream.read_exact(&mut buffer)?;
        match header.back {
            true => stream.get_mut().write_all(&buffer)?,
            false => stream.get_mut().write_all(&[1])?,
        }
    }
    Ok(())
}

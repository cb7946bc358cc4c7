//! What bare sockets and memory do: the limits that farref is held against.
//!
//! Frames of [`PING`] bytes go to and fro with tokio at both ends, as an asynchronous program would do it; and with
//! blocking calls over a Unix socket, which is the fastest that two processes can talk through a socket. Large
//! messages are written and read with blocking calls, into memory that has been used before.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;

use super::role::{Guard, PATIENCE, Place, Role};
use super::samples::{Stopwatch, Times};
use super::spent::cpu_time;
use super::transport::Socket;

/// What is sent to and fro: about as much as an empty call.
pub(super) const PING: usize = 64;
/// The first byte of a frame that asks for the CPU time of the other process.
pub(super) const ASK: u8 = 1;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A socket with tokio at both ends, and an echo at the other.
pub(super) struct Echo {
    stream: Box<dyn Stream>,
    /// What is sent, and where what comes back goes.
    sent: Vec<u8>,
    received: Vec<u8>,
    _peer: Guard,
}

/// What many frames at once do.
pub(super) struct Pipelined {
    /// Per second.
    pub(super) rate: f64,
    /// CPU time of one frame there and back, in microseconds.
    pub(super) caller: f64,
    pub(super) callee: f64,
}

impl Echo {
    pub(super) async fn start(socket: Socket) -> anyhow::Result<Self> {
        let (accepted, peer) = accept(socket, Role::Echo).await?;
        let stream: Box<dyn Stream> = match accepted {
            Accepted::Tcp(stream) => {
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Accepted::Unix(stream) => Box::new(stream),
        };
        Ok(Self {
            stream,
            sent: Vec::new(),
            received: Vec::new(),
            _peer: peer,
        })
    }

    pub(super) async fn ping_pong(&mut self, time: Duration) -> anyhow::Result<Times> {
        let mut watch = Stopwatch::start(time, 10).warm_up();
        while watch.goes_on() {
            let began = Instant::now();
            self.round(1).await?;
            watch.record(began.elapsed());
        }
        Ok(watch.finish())
    }

    /// So many frames at once, again and again.
    pub(super) async fn pipelined(
        &mut self,
        frames: usize,
        time: Duration,
    ) -> anyhow::Result<Pipelined> {
        self.round(frames).await?;
        let (cpu, far_cpu) = (cpu_time(), self.cpu_time_there().await?);
        let began = Instant::now();
        let mut count = 0;
        while count == 0 || began.elapsed() < time {
            self.round(frames).await?;
            count += frames;
        }
        let elapsed = began.elapsed();
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / count as f64;
        Ok(Pipelined {
            rate: count as f64 / elapsed.as_secs_f64(),
            caller: each(cpu_time().saturating_sub(cpu)),
            callee: each(self.cpu_time_there().await?.saturating_sub(far_cpu)),
        })
    }

    async fn round(&mut self, frames: usize) -> anyhow::Result<()> {
        let Self {
            stream,
            sent,
            received,
            ..
        } = self;
        sent.resize(frames * PING, 0);
        received.resize(frames * PING, 0);
        if frames == 1 {
            stream.write_all(sent).await?;
            stream.read_exact(received).await?;
            return Ok(());
        }
        // Together: neither end can write on forever while nobody reads.
        let (mut reader, mut writer) = tokio::io::split(stream);
        tokio::try_join!(writer.write_all(sent), async {
            reader.read_exact(received).await.map(drop)
        })?;
        Ok(())
    }

    async fn cpu_time_there(&mut self) -> anyhow::Result<Duration> {
        let mut frame = [0; PING];
        frame[0] = ASK;
        self.stream.write_all(&frame).await?;
        self.stream.read_exact(&mut frame).await?;
        let mut nanoseconds = [0; 8];
        nanoseconds.copy_from_slice(&frame[8..16]);
        Ok(Duration::from_nanos(u64::from_le_bytes(nanoseconds)))
    }
}

/// The other end of asking for CPU time.
pub(super) fn place_cpu_time(frame: &mut [u8]) {
    let nanoseconds = cpu_time().as_nanos() as u64;
    frame[8..16].copy_from_slice(&nanoseconds.to_le_bytes());
}

pub(super) async fn blocking_ping_pong(socket: Socket, time: Duration) -> anyhow::Result<Times> {
    let (accepted, _peer) = accept(socket, Role::BlockingEcho).await?;
    let mut stream = accepted.into_blocking()?;
    let mut buffer = [0; PING];
    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        watch.record(began.elapsed());
    }
    Ok(watch.finish())
}

/// What comes before a large message.
pub(super) struct Header {
    pub(super) bytes: usize,
    /// Whether it is wanted back.
    pub(super) back: bool,
}

impl Header {
    pub(super) fn read(stream: &mut impl Read) -> Option<Self> {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).ok()?;
        let number = u64::from_le_bytes(bytes);
        Some(Self {
            bytes: usize::try_from(number >> 1).ok()?,
            back: number & 1 == 1,
        })
    }

    /// With the message behind it, so that one `write` sends both.
    fn message(&self) -> Vec<u8> {
        let number = (self.bytes as u64) << 1 | u64::from(self.back);
        let mut message = used_memory(size_of_val(&number) + self.bytes);
        message[..size_of_val(&number)].copy_from_slice(&number.to_le_bytes());
        message
    }
}

/// A socket for large messages.
pub(super) struct Bulk {
    stream: Box<dyn ReadWrite>,
    _peer: Guard,
}

trait ReadWrite: Read + Write + Send {}
impl<S: Read + Write + Send> ReadWrite for S {}

impl Bulk {
    pub(super) async fn start(socket: Socket) -> anyhow::Result<Self> {
        let (accepted, peer) = accept(socket, Role::Bulk).await?;
        Ok(Self {
            stream: accepted.into_blocking()?,
            _peer: peer,
        })
    }

    /// Messages of this size, each confirmed by one byte or sent back.
    pub(super) fn messages(
        &mut self,
        bytes: usize,
        back: bool,
        time: Duration,
        least: usize,
    ) -> anyhow::Result<Times> {
        let message = Header { bytes, back }.message();
        let mut answer = used_memory(if back { bytes } else { 1 });
        let mut once = || -> anyhow::Result<Duration> {
            let began = Instant::now();
            self.stream.write_all(&message)?;
            self.stream.read_exact(&mut answer)?;
            Ok(began.elapsed())
        };
        once()?;
        let mut watch = Stopwatch::start(time, least);
        while watch.goes_on() {
            watch.record(once()?);
        }
        Ok(watch.finish())
    }
}

/// Memory as good as there is: used before, and in large pages where the system has them.
pub(super) fn used_memory(bytes: usize) -> Vec<u8> {
    let mut memory = Vec::with_capacity(bytes);
    farref_shm::prefer_huge_pages(memory.spare_capacity_mut());
    memory.resize(bytes, 7);
    memory
}

/// Copies between two places in memory that are in use.
pub(super) fn memcpy(bytes: usize, time: Duration, least: usize) -> anyhow::Result<Times> {
    // One clock read would take longer than a small copy.
    let copies = ((64 << 10) / bytes).max(1);
    let source = used_memory(bytes);
    let mut target = used_memory(bytes);
    target.fill(1);
    let mut watch = Stopwatch::start(time, least);
    while watch.goes_on() {
        let began = Instant::now();
        for _ in 0..copies {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        }
        watch.record(began.elapsed() / u32::try_from(copies)?);
    }
    ensure!(target == source, "memory was not copied");
    Ok(watch.finish())
}

pub(super) enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    fn into_blocking(self) -> anyhow::Result<Box<dyn ReadWrite>> {
        Ok(match self {
            Self::Tcp(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
        })
    }
}

pub(super) async fn accept(
    socket: Socket,
    role: impl FnOnce(Place) -> Role,
) -> anyhow::Result<(Accepted, Guard)> {
    const MISSING: &str = "the other process did not connect";
    match socket {
        Socket::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let peer = role(Place::Tcp(listener.local_addr()?.port())).start()?;
            let accepted = timeout(PATIENCE, listener.accept()).await;
            let (stream, _) = accepted.context(MISSING)??;
            Ok((Accepted::Tcp(stream), peer))
        }
        Socket::Unix => {
            let (process, random) = (std::process::id(), fastrand::u32(..));
            let path = std::env::temp_dir().join(format!("farref-bench-{process}-{random:08x}"));
            let listener = UnixListener::bind(&path)?;
            let accepted = async {
                let peer = role(Place::Unix(path.clone())).start()?;
                let accepted = timeout(PATIENCE, listener.accept()).await;
                let (stream, _) = accepted.context(MISSING)??;
                Ok((Accepted::Unix(stream), peer))
            };
            let accepted = accepted.await;
            let _ = std::fs::remove_file(&path);
            accepted
        }
    }
}

//! One kind of stream over TCP, Unix sockets and pipes within the process.
//!
//! A stream is split at once: one task reads from one half, whoever has something to say writes to
//! the other. Reading goes through the runtime's `poll_read`, which knows that a short read has
//! emptied the socket and saves a system call for each message; writing never waits, unless asked to.
//!
//! A TCP stream may have [TLS](super::tls).
//!
//! A runtime that the program keeps busy learns nothing of its sockets. For that time there are
//! [`ReadHalf::read_now`] and [`WriteHalf::try_write_now`], which ask the system itself.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::AsyncReadExt;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, tcp};
use tokio::runtime::Handle;

#[cfg(target_os = "linux")]
use super::descriptor_reader::DescriptorReader;
use super::descriptors::Descriptors;
use super::memory::MemoryNetwork;
use super::pipe::{PipeReader, PipeWriter};
use super::tls::{self, Bearer, TlsReader, TlsWriter};
#[cfg(unix)]
use super::unix_socket::{self, UnixReader, UnixWriter};
use crate::codec::SharedBytes;
use crate::rendezvous::{Address, Card};

/// Both halves of a fresh stream and what carries it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
    pub(crate) transport: &'static str,
    /// The user whose process is at the other end, if that is known and it is a stranger's.
    pub(crate) stranger: Option<u32>,
    /// Whom the certificate of the other end names, if it has shown one.
    pub(crate) bearer: Option<Bearer>,
}

/// Which addresses of others a worker tries, beside those of Unix sockets on its host.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Those of a network within this process, in which it has this name.
    pub(crate) network: Option<(MemoryNetwork, String)>,
    /// Those of TCP. Whoever lets nobody in by TCP does not go to anybody by TCP either.
    pub(crate) tcp: bool,
}

/// The half that is read from. Dropping both halves closes the stream.
#[derive(Debug)]
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Tls(Box<TlsReader>),
    #[cfg(unix)]
    Unix(UnixReader),
    Memory(PipeReader),
}

/// The half that is written to.
#[derive(Debug)]
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Tls(Box<TlsWriter>),
    #[cfg(unix)]
    Unix(UnixWriter),
    Memory(PipeWriter),
}

impl Stream {
    /// Where the other end of a TCP connection is.
    pub(crate) fn remote_address(&self) -> Option<SocketAddr> {
        match &self.read {
            ReadHalf::Tcp(read) => read.peer_addr().ok(),
            _ => None,
        }
    }

    /// Connects to an address. `network` is the network within this process that the caller is in,
    /// and the caller's name there.
    pub(crate) async fn connect(
        address: &Address,
        network: Option<&(MemoryNetwork, String)>,
    ) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Self::tcp(TcpStream::connect(address).await?),
            Address::Unix(name) => Self::connect_unix(name).await,
            Address::Memory(name) => match network {
                Some((network, from)) => Ok(Self::memory(network.connect(from, name).await?)),
                None => Err(io::ErrorKind::Unsupported.into()),
            },
        }
    }

    #[cfg(unix)]
    async fn connect_unix(name: &str) -> io::Result<Self> {
        Self::unix(UnixStream::connect(unix_path(name)).await?)
    }

    #[cfg(not(unix))]
    async fn connect_unix(_name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self {
            read: ReadHalf::Tcp(read),
            write: WriteHalf::Tcp(write),
            transport: "tcp",
            stranger: None,
            bearer: None,
        })
    }

    #[cfg(unix)]
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Self> {
        let stranger = unix_socket::stranger(stream.peer_cred()?.uid());
        let halves = unix_socket::split(stream.into_std()?)?;
        Ok(Self::of_unix(halves, stranger))
    }

    #[cfg(unix)]
    fn of_unix((read, write): (UnixReader, UnixWriter), stranger: Option<u32>) -> Self {
        Self {
            read: ReadHalf::Unix(read),
            write: WriteHalf::Unix(write),
            transport: "unix",
            stranger,
            bearer: None,
        }
    }

    pub(crate) fn memory((read, write): (PipeReader, PipeWriter)) -> Self {
        Self {
            read: ReadHalf::Memory(read),
            write: WriteHalf::Memory(write),
            transport: "memory",
            stranger: None,
            bearer: None,
        }
    }

    /// The same stream, which from now on tells another runtime that something can be read or written.
    pub(crate) fn move_to(self, runtime: &Handle) -> io::Result<Self> {
        let _runtime = runtime.enter();
        let not_whole = || io::Error::other("halves of different streams");
        match (self.read, self.write) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => {
                let stream = read.reunite(write).map_err(|_| not_whole())?;
                Self::tcp(TcpStream::from_std(stream.into_std()?)?)
            }
            (ReadHalf::Tls(read), WriteHalf::Tls(write)) => {
                let (read, write) = tls::move_halves(*read, *write)?;
                Ok(Self {
                    read: ReadHalf::Tls(Box::new(read)),
                    write: WriteHalf::Tls(Box::new(write)),
                    ..self
                })
            }
            #[cfg(unix)]
            (ReadHalf::Unix(read), WriteHalf::Unix(write)) => {
                Ok(Self::of_unix(write.watch_anew(read)?, self.stranger))
            }
            (ReadHalf::Memory(read), WriteHalf::Memory(write)) => Ok(Self::memory((read, write))),
            _ => Err(not_whole()),
        }
    }
}

/// The addresses of a card that can be tried from a host.
pub(crate) fn reachable<'a>(card: &'a Card, host: &str, reach: &Reach) -> Vec<&'a Address> {
    let same_host = card.host == host;
    let rank = |address: &&Address| match address {
        Address::Memory(_) => reach.network.is_some().then_some(0),
        Address::Unix(_) => (cfg!(unix) && same_host).then_some(1),
        Address::Tcp(_) => reach.tcp.then_some(2),
    };
    let mut addresses: Vec<_> = card
        .addresses
        .iter()
        .filter(|address| rank(address).is_some())
        .collect();
    addresses.sort_by_key(rank);
    addresses
}

/// The path of a socket as tokio wants it: a leading zero byte in place of our `@` makes it abstract.
#[cfg(unix)]
pub(super) fn unix_path(name: &str) -> std::path::PathBuf {
    match name.strip_prefix('@') {
        Some(name) => format!("\0{name}").into(),
        None => name.into(),
    }
}

impl ReadHalf {
    /// Reads what is there, at least one byte, into the spare room of `buffer`, which must have some.
    /// Zero is the end of the stream.
    pub(crate) async fn read_buf(&mut self, buffer: &mut impl BufMut) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read_buf(context, buffer)).await
    }

    /// The same, a step at a time: whoever gets nothing is woken when there is something.
    pub(crate) fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        // Who waits is kept with the socket, not in these futures.
        match self {
            Self::Tcp(read) => pin!(read.read_buf(buffer)).poll(context),
            Self::Tls(read) => read.poll_read_buf(context, buffer),
            #[cfg(unix)]
            Self::Unix(read) => read.poll_read_buf(context, buffer),
            Self::Memory(read) => read.poll_read_buf(context, buffer),
        }
    }

    /// Reads what is there without waiting, whatever the runtime believes of the stream. `scratch` is a
    /// place for what the system gives.
    pub(crate) fn read_now(
        &mut self,
        buffer: &mut impl BufMut,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        match self {
            #[cfg(unix)]
            Self::Tcp(read) => receive(read.as_ref().as_fd(), buffer, scratch),
            #[cfg(unix)]
            Self::Tls(read) => read.read_now(buffer, |socket, room| {
                use rustix::net::{RecvFlags, recv};
                let (come, _) = recv(socket.as_ref().as_fd(), room, RecvFlags::DONTWAIT)?;
                Ok(come)
            }),
            #[cfg(unix)]
            Self::Unix(read) => receive(read.as_fd(), buffer, scratch),
            #[cfg(not(unix))]
            Self::Tcp(_) | Self::Tls(_) => {
                let _ = scratch;
                Err(io::ErrorKind::WouldBlock.into())
            }
            Self::Memory(read) => read.read_now(buffer),
        }
    }

    /// From now on takes descriptors, too, if that is possible. Says whether it is. To be called within the runtime that
    /// watches it.
    pub(crate) fn take_descriptors(&mut self) -> bool {
        #[cfg(target_os = "linux")]
        if let Self::Unix(read) = self
            && let Ok(reader) = DescriptorReader::new(read.as_fd())
        {
            *read = UnixReader::Descriptors(Box::new(reader));
            return true;
        }
        false
    }

    /// The descriptors that came with what was read last, if any are taken.
    pub(crate) fn descriptors(&mut self) -> Option<&mut Descriptors> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(UnixReader::Descriptors(read)) => Some(&mut read.come),
            _ => None,
        }
    }

    /// Reads what is there where a frame may begin: descriptors come along.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(UnixReader::Descriptors(read)) => read.poll_receive(context, buffer),
            other => other.poll_read_buf(context, buffer),
        }
    }

    /// The same without waiting, as [`read_now`](Self::read_now) is.
    pub(crate) fn receive_now(
        &mut self,
        buffer: &mut impl BufMut,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(UnixReader::Descriptors(read)) => read.receive_now(buffer),
            other => other.read_now(buffer, scratch),
        }
    }

    /// Reads until `buffer` has `length` bytes.
    pub(crate) async fn read_until(
        &mut self,
        buffer: &mut Vec<u8>,
        length: usize,
    ) -> io::Result<()> {
        buffer.reserve(length.saturating_sub(buffer.len()));
        while buffer.len() < length {
            let missing = length - buffer.len();
            if self.read_buf(&mut buffer.limit(missing)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn receive(
    from: BorrowedFd<'_>,
    buffer: &mut impl BufMut,
    scratch: &mut [u8],
) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    let room = buffer.chunk_mut().len().min(scratch.len());
    let scratch = scratch.get_mut(..room).unwrap_or_default();
    let (read, _) = recv(from, &mut *scratch, RecvFlags::DONTWAIT)?;
    buffer.put_slice(scratch.get(..read).unwrap_or_default());
    Ok(read)
}

impl WriteHalf {
    /// Writes as much as can be written without waiting.
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            // The plain system call is quicker.
            (Self::Tcp(write), [slice]) => write.try_write(slice),
            (Self::Tcp(write), _) => write.try_write_vectored(slices),
            (Self::Tls(write), _) => write.write(slices, tcp::OwnedWriteHalf::try_write),
            #[cfg(unix)]
            (Self::Unix(write), _) => write.try_write_vectored(slices),
            (Self::Memory(write), _) => write.try_write_vectored(slices),
        }
    }

    /// The same, and hands over regions with the first byte.
    pub(crate) fn try_pass(
        &self,
        slices: &[IoSlice<'_>],
        regions: &[SharedBytes],
    ) -> io::Result<usize> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(write) => write.pass(slices, regions),
            _ => {
                let _ = (slices, regions);
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    /// As [`try_write_vectored`](Self::try_write_vectored), whatever the runtime believes of the stream.
    pub(crate) fn try_write_now(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            #[cfg(unix)]
            Self::Tcp(write) => unix_socket::send(write.as_ref().as_fd(), slices),
            #[cfg(unix)]
            Self::Tls(write) => write.write(slices, |socket, bytes| {
                unix_socket::send(socket.as_ref().as_fd(), &[IoSlice::new(bytes)])
            }),
            #[cfg(unix)]
            Self::Unix(write) => write.try_write_vectored(slices),
            #[cfg(not(unix))]
            Self::Tcp(_) | Self::Tls(_) => self.try_write_vectored(slices),
            Self::Memory(write) => write.try_write_vectored(slices),
        }
    }

    /// Whether something was taken that is not written. It is with the next write, also one of nothing.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Tls(write) => write.has_unsent(),
            _ => false,
        }
    }

    /// Whether a pipe within the process takes something. None if it is no such pipe.
    pub(crate) fn is_writable(&self) -> Option<bool> {
        match self {
            Self::Memory(write) => Some(write.is_writable()),
            _ => None,
        }
    }

    /// The socket, if the system has one for it.
    #[cfg(unix)]
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(write) => Some(write.as_ref().as_fd()),
            Self::Tls(write) => Some(write.socket().as_ref().as_fd()),
            Self::Unix(write) => Some(write.as_ref().as_fd()),
            Self::Memory(_) => None,
        }
    }

    /// The socket, if it is a Unix socket.
    #[cfg(target_os = "linux")]
    pub(super) fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unix(write) => Some(write.as_ref().as_fd()),
            Self::Tcp(_) | Self::Tls(_) | Self::Memory(_) => None,
        }
    }

    /// Whether the memory of the process at the other end may be readable.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            #[cfg(unix)]
            Self::Unix(_) => true,
            Self::Tcp(_) | Self::Tls(_) | Self::Memory(_) => false,
        }
    }

    /// Ends a Unix socket in both directions, though others still have it: what the peer reads of this process' memory
    /// from now on counts no more.
    pub(crate) fn hang_up(&self) {
        #[cfg(unix)]
        if let Self::Unix(write) = self {
            use rustix::net::{Shutdown, shutdown};
            // An error means that it is over already.
            let _ = shutdown(write.as_ref().as_fd(), Shutdown::Both);
        }
    }

    /// Waits until something can be written. May be wrong.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(write) => write.writable().await,
            Self::Tls(write) => write.socket().writable().await,
            #[cfg(unix)]
            Self::Unix(write) => write.writable().await,
            Self::Memory(write) => write.writable().await,
        }
    }

    /// Writes all of `bytes`.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_write_vectored(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while self.has_unsent() {
            self.writable().await?;
            match self.try_write_vectored(&[]) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

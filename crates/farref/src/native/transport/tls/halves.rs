//! Both halves of a TCP stream with TLS (TL-2, TL-3).
//!
//! They share what rustls keeps of the connection, behind a lock that is held while records are made or opened, and never while
//! the socket is read or written.

use std::io::{self, BufRead, IoSlice, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use bytes::BufMut;
use rustls::Connection;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, tcp};

use super::failure::TlsFailure;
use crate::support::lock::lock;

/// What both halves share.
pub(super) type Session = Arc<Mutex<Connection>>;

/// So much is encrypted before the socket has to take it.
pub(super) const AT_ONCE: usize = 128 << 10;
/// So much room is there for what comes, at first. It doubles where that is filled,
const FIRST_ROOM: usize = 8 << 10;
/// up to this.
const MOST_ROOM: usize = 256 << 10;
/// After so many reads that brought nothing, not a whole record or empty ones only, others get their turn.
pub(super) const READS_FOR_NOTHING: u32 = 32;
/// So much room for what leaves is kept.
const KEPT_ROOM: usize = 2 * AT_ONCE;

/// The half that is read from.
#[derive(Debug)]
pub(crate) struct TlsReader {
    read: tcp::OwnedReadHalf,
    session: Session,
    /// What has come and was not opened lies in it from `begin` to `end`.
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    /// Whether there may be something that was opened and not handed on.
    has_opened: bool,
    ended: bool,
    /// Who waits for something to read.
    waiting: Option<Waker>,
}

/// The half that is written to.
#[derive(Debug)]
pub(crate) struct TlsWriter {
    write: tcp::OwnedWriteHalf,
    pub(super) session: Session,
    unsent: Mutex<Unsent>,
}

/// Records on their way, of which so many bytes are gone.
#[derive(Debug, Default)]
struct Unsent {
    records: Vec<u8>,
    sent: usize,
}

/// What the connection has to say to the other end.
pub(super) fn encrypted(connection: &mut Connection) -> io::Result<Vec<u8>> {
    let mut records = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut records)?;
    }
    Ok(records)
}

fn failed(error: rustls::Error) -> io::Error {
    let kind = match error {
        rustls::Error::AlertReceived(_) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, TlsFailure::from(error))
}

/// Registers a socket anew, with the runtime that this is called in.
pub(super) fn watch_anew(
    read: tcp::OwnedReadHalf,
    write: tcp::OwnedWriteHalf,
) -> io::Result<(tcp::OwnedReadHalf, tcp::OwnedWriteHalf)> {
    let socket = read
        .reunite(write)
        .map_err(|_| io::Error::other("halves of different streams"))?;
    Ok(TcpStream::from_std(socket.into_std()?)?.into_split())
}

/// Both halves of a stream, watched by the runtime that this is called in.
pub(crate) fn move_halves(
    reader: TlsReader,
    writer: TlsWriter,
) -> io::Result<(TlsReader, TlsWriter)> {
    let (read, write) = watch_anew(reader.read, writer.write)?;
    let reader = TlsReader {
        read,
        waiting: None,
        ..reader
    };
    Ok((reader, TlsWriter { write, ..writer }))
}

impl TlsReader {
    /// Of a socket from which these bytes have been read behind the handshake.
    pub(super) fn new(read: tcp::OwnedReadHalf, session: &Session, come: Vec<u8>) -> Self {
        let end = come.len();
        let mut buffer = come;
        buffer.resize(end.max(FIRST_ROOM), 0);
        Self {
            read,
            session: Arc::clone(session),
            buffer,
            begin: 0,
            end,
            // Records behind the handshake may have been opened with it.
            has_opened: true,
            ended: false,
            waiting: None,
        }
    }

    /// Reads what is there; whoever gets nothing is woken when there is something.
    pub(crate) fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        out: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        self.poll_by(context, out, |socket, context, room| {
            Pin::new(socket).poll_read(context, room)
        })
    }

    /// The same, by `receive`.
    pub(super) fn poll_by(
        &mut self,
        context: &mut Context<'_>,
        out: &mut impl BufMut,
        receive: impl Fn(
            &mut tcp::OwnedReadHalf,
            &mut Context<'_>,
            &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<usize>> {
        if out.chunk_mut().len() == 0 {
            return Poll::Ready(Ok(0));
        }
        for _ in 0..READS_FOR_NOTHING {
            let taken = self.take(out)?;
            if taken > 0 || self.ended {
                return Poll::Ready(Ok(taken));
            }
            self.make_room();
            let mut room = ReadBuf::new(&mut self.buffer);
            let read = receive(&mut self.read, context, &mut room);
            let come = room.filled().len();
            if read.is_pending() {
                let waker = context.waker();
                if !self.waiting.as_ref().is_some_and(|w| w.will_wake(waker)) {
                    self.waiting = Some(waker.clone());
                }
            }
            ready!(read)?;
            self.came(come);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads what is there without waiting, by `receive`.
    pub(crate) fn read_now(
        &mut self,
        out: &mut impl BufMut,
        receive: impl Fn(&tcp::OwnedReadHalf, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if out.chunk_mut().len() == 0 {
            return Ok(0);
        }
        for _ in 0..READS_FOR_NOTHING {
            let taken = self.take(out)?;
            if taken > 0 || self.ended {
                // TL-3
                if (self.has_more() || self.ended)
                    && let Some(waiting) = &self.waiting
                {
                    waiting.wake_by_ref();
                }
                return Ok(taken);
            }
            self.make_room();
            let come = receive(&self.read, &mut self.buffer)?;
            self.came(come);
        }
        if let Some(waiting) = &self.waiting {
            waiting.wake_by_ref();
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Whether there may be something to hand on that the socket knows nothing of.
    pub(crate) fn has_more(&self) -> bool {
        self.has_opened || self.begin < self.end
    }

    fn came(&mut self, bytes: usize) {
        self.end += bytes;
        self.ended |= bytes == 0;
    }

    /// Makes the buffer ready for what comes next. All that has come is opened, but for a part of a record, which rustls has.
    fn make_room(&mut self) {
        let filled = self.end == self.buffer.len();
        (self.begin, self.end) = (0, 0);
        if filled && self.buffer.len() < MOST_ROOM {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
    }

    /// Hands on what has come, as far as there is room for it.
    fn take(&mut self, out: &mut impl BufMut) -> io::Result<usize> {
        let mut taken = 0;
        if !self.has_more() {
            return Ok(0);
        }
        // Some buffers grow where they are asked again.
        let room = out.chunk_mut().len();
        let mut connection = lock(&self.session);
        loop {
            while let Ok(opened @ [_, ..]) = connection.reader().fill_buf() {
                let count = opened.len().min(room - taken);
                if count == 0 {
                    return Ok(taken);
                }
                out.put_slice(opened.get(..count).unwrap_or_default());
                connection.reader().consume(count);
                taken += count;
            }
            self.has_opened = false;
            let mut rest = self.buffer.get(self.begin..self.end).unwrap_or_default();
            if rest.is_empty() {
                return Ok(taken);
            }
            let before = rest.len();
            let read = connection.read_tls(&mut rest)?;
            self.begin += before - rest.len();
            let state = connection.process_new_packets().map_err(failed)?;
            self.has_opened = true;
            if read == 0 || state.peer_has_closed() {
                // Whatever follows is no part of the conversation.
                self.ended = true;
                self.begin = self.end;
            }
        }
    }
}

impl TlsWriter {
    pub(super) fn new(write: tcp::OwnedWriteHalf, session: Session) -> Self {
        Self {
            write,
            session,
            unsent: Mutex::default(),
        }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &tcp::OwnedWriteHalf {
        &self.write
    }

    /// Encrypts some of this and writes as much as `send` takes (TL-2).
    pub(crate) fn write(
        &self,
        slices: &[IoSlice<'_>],
        send: impl Fn(&tcp::OwnedWriteHalf, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut unsent = lock(&self.unsent);
        let send = |bytes: &[u8]| send(&self.write, bytes);
        unsent.send(send)?;
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        let taken = {
            let mut connection = lock(&self.session);
            let taken = connection.writer().write_vectored(slices)?;
            while connection.wants_write() {
                connection.write_tls(&mut unsent.records)?;
            }
            taken
        };
        match unsent.send(send) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Whether something is encrypted that the socket has not taken.
    pub(crate) fn has_unsent(&self) -> bool {
        !lock(&self.unsent).records.is_empty()
    }
}

impl Unsent {
    /// Sends what there is. An error if that is not all.
    fn send(&mut self, send: impl Fn(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while let Some(rest @ [_, ..]) = self.records.get(self.sent..) {
            match send(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        self.records.clear();
        self.records.shrink_to(KEPT_ROOM);
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use tokio::net::TcpListener;

    use super::*;
    use crate::native::tests::tls::certificates::{Authority, worker_tls};
    use crate::native::transport::stream::{ReadHalf, Stream, WriteHalf};

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Both ends of a stream.
    async fn pair() -> (Stream, Stream) {
        let authority = Authority::new();
        let [one, other] = ["one", "other"].map(|name| worker_tls(&authority, name));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let dialed = TcpStream::connect(address).await.expect("a connection");
        let (accepted, _) = listener.accept().await.expect("a connection");
        let [dialed, accepted] = [dialed, accepted].map(|stream| Stream::tcp(stream).expect("one"));
        tokio::try_join!(dialed.begin_tls(&one), accepted.accept_tls(&other)).expect("TLS")
    }

    /// TL-3: the end, too, is something that is left behind.
    #[tokio::test]
    async fn whoever_reads_the_last_in_place_of_another_wakes_it_for_the_end() {
        let (mut here, there) = pair().await;
        let WriteHalf::Tls(writer) = &there.write else {
            panic!("no TLS")
        };
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut read = Vec::with_capacity(64);
        let polled = here
            .read
            .poll_read_buf(&mut Context::from_waker(&waker), &mut read);
        assert!(polled.is_pending());
        // From here on nothing is awaited: the runtime does not hear of what comes.
        woken.0.store(false, Ordering::SeqCst);
        let records = {
            let mut connection = lock(&writer.session);
            connection.writer().write_all(b"last").expect("room");
            connection.send_close_notify();
            encrypted(&mut connection).expect("records")
        };
        let sent = writer.write.try_write(&records).expect("room");
        assert_eq!(sent, records.len());
        let ReadHalf::Tls(_) = &here.read else {
            panic!("no TLS")
        };
        while here.read.read_now(&mut read, &mut [0; 64]).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(read, b"last");
        assert!(woken.0.load(Ordering::SeqCst), "nobody looks at the end");
    }
}

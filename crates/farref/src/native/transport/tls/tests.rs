//! TL-2 and TL-3, of single streams.

use std::cell::Cell;
use std::io::{self, IoSlice, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::BufMut as _;
use farref_testkit::TEST_TIMEOUT;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, HandshakeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::halves::{AT_ONCE, READS_FOR_NOTHING, encrypted};
use super::*;
use crate::native::tests::tls::certificates::{Authority, worker_tls};
use crate::native::transport::stream::{ReadHalf, Stream, WriteHalf};
use crate::support::lock::lock;

async fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (dialed, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    [dialed.expect("a socket"), accepted.expect("a socket").0]
}

/// Both ends of a stream: the one that has dialed, and the other.
pub(super) async fn streams(dialer: &Tls, acceptor: &Tls) -> [Result<Stream, TlsFailure>; 2] {
    let [dialed, accepted] = sockets()
        .await
        .map(|socket| Stream::tcp(socket).expect("a stream"));
    let handshakes =
        async { tokio::join!(dialed.begin_tls(dialer), accepted.accept_tls(acceptor)) };
    let (dialed, accepted) = timeout(TEST_TIMEOUT, handshakes)
        .await
        .expect("an end of it");
    [dialed, accepted]
}

async fn pair() -> (Authority, [Stream; 2]) {
    let authority = Authority::new();
    let streams = streams(&worker_tls(&authority, "a"), &worker_tls(&authority, "b")).await;
    let streams = streams.map(|stream| stream.expect("a stream"));
    (authority, streams)
}

fn reader(stream: &mut Stream) -> &mut TlsReader {
    match &mut stream.read {
        ReadHalf::Tls(reader) => reader,
        other => panic!("{other:?}"),
    }
}

fn writer(stream: &Stream) -> &TlsWriter {
    match &stream.write {
        WriteHalf::Tls(writer) => writer,
        other => panic!("{other:?}"),
    }
}

/// The records that the other end would send to say this.
fn records(from: &Stream, text: &[u8]) -> Vec<u8> {
    let mut connection = lock(&writer(from).session);
    connection.writer().write_all(text).expect("room");
    encrypted(&mut connection).expect("records")
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The task of a stream waits for something to read.
fn await_something(reader: &mut TlsReader) -> Arc<Woken> {
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let read = reader.poll_read_buf(
        &mut Context::from_waker(&waker),
        &mut Vec::with_capacity(99),
    );
    assert!(read.is_pending());
    woken
}

/// TL-3
#[tokio::test]
async fn what_comes_behind_the_handshake_in_one_piece_with_its_end_is_read() {
    let authority = Authority::new();
    let [dialer, acceptor] = ["a", "b"].map(|name| worker_tls(&authority, name));
    // More than rustls takes at a time, and less.
    for length in [10, 10_000] {
        let [mut raw, accepted] = sockets().await;
        let text: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let dial = async {
            let config = Arc::clone(&dialer.configs().await.client);
            let name = ServerName::try_from("farref").expect("a name");
            let mut connection =
                Connection::from(ClientConnection::new(config, name).expect("one"));
            let mut room = vec![0; 16 << 10];
            while connection.is_handshaking() {
                raw.write_all(&encrypted(&mut connection).expect("records"))
                    .await
                    .expect("said");
                let come = raw.read(&mut room).await.expect("an answer");
                let mut rest = &room[..come];
                while !rest.is_empty() {
                    connection.read_tls(&mut rest).expect("records");
                    connection.process_new_packets().expect("a handshake");
                }
            }
            connection.writer().write_all(&text).expect("room");
            raw.write_all(&encrypted(&mut connection).expect("records"))
                .await
                .expect("said");
        };
        let accept = async {
            let accepted = Stream::tcp(accepted).expect("a stream");
            let mut accepted = accepted.accept_tls(&acceptor).await.expect("a stream");
            let mut read = Vec::new();
            accepted
                .read
                .read_until(&mut read, text.len())
                .await
                .expect("all of it");
            assert!(read == text);
        };
        let both = async { tokio::join!(dial, accept) };
        timeout(TEST_TIMEOUT, both)
            .await
            .expect("all of it is read");
    }
}

/// TL-2
#[tokio::test]
async fn a_writer_takes_little_that_the_socket_does_not_and_leaves_nothing_behind() {
    let (_authority, [dialed, mut accepted]) = pair().await;
    let text = vec![7; 8 << 20];
    let mut taken = 0;
    loop {
        match dialed.write.try_write_vectored(&[IoSlice::new(&text)]) {
            Ok(bytes) => {
                assert!((1..=AT_ONCE).contains(&bytes), "{bytes}");
                taken += bytes;
                // A socket has less room than that.
                assert!(taken < 256 << 20);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(dialed.write.has_unsent());
    let mut read = Vec::new();
    let both = async {
        // To say nothing more is to wait until all is said.
        let said = dialed.write.write_all(&[]);
        let heard = accepted.read.read_until(&mut read, taken);
        tokio::try_join!(said, heard)
    };
    let both = timeout(TEST_TIMEOUT, both)
        .await
        .expect("all of it arrives");
    both.expect("it is in order");
    assert!(!dialed.write.has_unsent());
    assert!(read.iter().all(|byte| *byte == 7));
}

/// TL-3
#[tokio::test]
async fn the_task_of_a_stream_is_woken_for_what_others_who_read_leave_behind() {
    let (_authority, [dialed, mut accepted]) = pair().await;
    let reader = reader(&mut accepted);
    let woken = await_something(reader);
    // As if somebody else had read the socket.
    let come = records(&dialed, &[7; 100]);
    let receive = |_: &_, mut room: &mut [u8]| room.write(&come);
    let mut first = Vec::with_capacity(40).limit(40);
    assert_eq!(reader.read_now(&mut first, receive).expect("some"), 40);
    assert_eq!(woken.times(), 1);
    let nothing = |_: &_, _: &mut [u8]| -> io::Result<usize> { panic!("there is enough") };
    let mut rest = Vec::with_capacity(100).limit(100);
    assert_eq!(reader.read_now(&mut rest, nothing).expect("the rest"), 60);
    assert_eq!(woken.times(), 1, "nothing is left");
}

/// TL-3: part of a record is nothing to hand on, nor is an empty one.
#[tokio::test]
async fn whoever_sends_nothing_in_many_pieces_keeps_nobody_from_a_turn_and_is_heard_in_the_end() {
    let (_authority, [dialed, mut accepted]) = pair().await;
    let reader = reader(&mut accepted);
    let come = records(&dialed, &[7; 100]);
    let sent = Cell::new(0);
    let next = |room: &mut [u8]| {
        room[0] = come[sent.get()];
        sent.set(sent.get() + 1);
        1
    };
    let pieces = READS_FOR_NOTHING as usize;

    let woken = await_something(reader);
    let receive = |_: &_, room: &mut [u8]| Ok(next(room));
    let error = reader.read_now(&mut Vec::with_capacity(99), receive);
    let error = error.expect_err("not a whole record");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert_eq!((sent.get(), woken.times()), (pieces, 1));

    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut out = Vec::with_capacity(100);
    let mut turns = 0;
    let read = loop {
        let before = (sent.get(), woken.times());
        let read = reader.poll_by(&mut context, &mut out, |_, _, room| {
            room.put_slice(&[0]);
            next(room.filled_mut());
            Poll::Ready(Ok(()))
        });
        match read {
            Poll::Ready(read) => break read.expect("a record"),
            Poll::Pending => {
                let after = (sent.get() - before.0, woken.times() - before.1);
                assert_eq!(after, (pieces, 1), "another turn");
                turns += 1;
            }
        }
    };
    assert_eq!((read, sent.get()), (100, come.len()));
    assert_eq!(turns, come.len() / pieces - 1);
    assert_eq!(out, [7; 100]);
}

/// Both ends prove anew who they are, each time.
#[tokio::test]
async fn no_connection_is_a_continuation_of_another() {
    let authority = Authority::new();
    let [dialer, acceptor] = ["a", "b"].map(|name| worker_tls(&authority, name));
    for _ in 0..3 {
        let [dialed, accepted] = streams(&dialer, &acceptor).await;
        let [mut dialed, accepted] = [dialed, accepted].map(|stream| stream.expect("a stream"));
        // Whatever is to be kept for the next time is before it.
        accepted.write.write_all(b"welcome").await.expect("said");
        let mut heard = Vec::new();
        let hearing = dialed.read.read_until(&mut heard, 7);
        timeout(TEST_TIMEOUT, hearing)
            .await
            .expect("an end")
            .expect("heard");
        for stream in [&dialed, &accepted] {
            let kind = lock(&writer(stream).session).handshake_kind();
            assert!(
                !matches!(kind, None | Some(HandshakeKind::Resumed)),
                "{kind:?}"
            );
        }
    }
}

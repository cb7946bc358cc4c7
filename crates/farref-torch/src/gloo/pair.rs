//! One connection between two ranks: sends wait until the peer is ready for them, receives until they came.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::error::GlooError;
use super::message::{HEADER, Header, Kind};

/// How many receives a peer may announce before they are of use (GL-3). In an all-gather it is two.
const MAX_EARLY: u32 = 1024;
/// How much is read at a time.
const CHUNK: usize = 16 << 10;

/// What is to be sent and received on a connection. No I/O.
#[derive(Default, Debug)]
pub(super) struct PairState {
    outgoing: BytesMut,
    /// What the peer is not ready for yet, by slot.
    sends: BTreeMap<u64, VecDeque<Bytes>>,
    /// What the peer is ready for already, and how often.
    ready: BTreeMap<u64, u32>,
    early: u32,
    /// The lengths of what is waited for.
    receives: BTreeMap<u64, VecDeque<usize>>,
    arrived: BTreeMap<u64, VecDeque<Bytes>>,
}

impl PairState {
    /// Announces bytes, and sends them as soon as the peer waits for them (GL-1).
    pub(super) fn send(&mut self, slot: u64, body: Bytes) {
        self.announce(Kind::SendReady, slot, body.len());
        match self.ready.get_mut(&slot) {
            Some(count) => {
                *count -= 1;
                self.early -= 1;
                if *count == 0 {
                    self.ready.remove(&slot);
                }
                self.put(slot, &body);
            }
            None => self.sends.entry(slot).or_default().push_back(body),
        }
    }

    /// Says that bytes are waited for.
    pub(super) fn receive(&mut self, slot: u64, length: usize) {
        self.announce(Kind::ReceiveReady, slot, length);
        self.receives.entry(slot).or_default().push_back(length);
    }

    /// The oldest bytes that came for this slot.
    pub(super) fn arrived(&mut self, slot: u64) -> Option<Bytes> {
        let bodies = self.arrived.get_mut(&slot)?;
        let body = bodies.pop_front();
        if bodies.is_empty() {
            self.arrived.remove(&slot);
        }
        body
    }

    /// How many sends and receives are not done.
    pub(super) fn open(&self, slot: u64) -> usize {
        let sends = self.sends.get(&slot).map_or(0, VecDeque::len);
        let receives = self.receives.get(&slot).map_or(0, VecDeque::len);
        sends.max(receives)
    }

    /// Whether anything at all is not done.
    pub(super) fn is_open(&self) -> bool {
        !(self.sends.is_empty() && self.receives.is_empty() && self.outgoing.is_empty())
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// Takes one message off the front of `incoming`; `false` if it is not all there.
    pub(super) fn take_in(&mut self, incoming: &mut BytesMut) -> Result<bool, String> {
        let Some(header) = incoming.first_chunk::<HEADER>() else {
            return Ok(false);
        };
        let Header { kind, slot, length } = Header::decode(header)?;
        match kind {
            // Only of use to those who do not know whom they will hear from.
            Kind::SendReady => incoming.advance(HEADER),
            Kind::ReceiveReady => {
                incoming.advance(HEADER);
                self.peer_is_ready(slot)?;
            }
            Kind::Data => {
                let queue = self.receives.get_mut(&slot);
                let Some(wanted) = queue.as_ref().and_then(|queue| queue.front()) else {
                    return Err(format!("bytes came for slot {slot:#x} unasked"));
                };
                if *wanted as u64 != length {
                    return Err(format!("{length} bytes came where {wanted} should"));
                }
                let wanted = *wanted;
                if incoming.len() - HEADER < wanted {
                    return Ok(false);
                }
                incoming.advance(HEADER);
                let body = Bytes::copy_from_slice(&incoming[..wanted]);
                incoming.advance(wanted);
                if let Some(queue) = queue {
                    queue.pop_front();
                    if queue.is_empty() {
                        self.receives.remove(&slot);
                    }
                }
                self.arrived.entry(slot).or_default().push_back(body);
            }
        }
        Ok(true)
    }

    fn peer_is_ready(&mut self, slot: u64) -> Result<(), String> {
        if let Some(queue) = self.sends.get_mut(&slot) {
            let body = queue.pop_front();
            if queue.is_empty() {
                self.sends.remove(&slot);
            }
            if let Some(body) = body {
                self.put(slot, &body);
                return Ok(());
            }
        }
        if self.early == MAX_EARLY {
            return Err(format!("it has announced {MAX_EARLY} receives too early"));
        }
        self.early += 1;
        *self.ready.entry(slot).or_default() += 1;
        Ok(())
    }

    fn announce(&mut self, kind: Kind, slot: u64, length: usize) {
        let length = length as u64;
        Header { kind, slot, length }.encode(&mut self.outgoing);
    }

    fn put(&mut self, slot: u64, body: &[u8]) {
        self.announce(Kind::Data, slot, body.len());
        self.outgoing.extend_from_slice(body);
    }
}

/// A connection with another rank.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) peer: u16,
    pub(super) state: PairState,
    stream: TcpStream,
    incoming: BytesMut,
    /// Whether the peer has closed it. Who is done with a collective closes while others are not.
    over: bool,
    /// Everything that was ever written, for tests.
    #[cfg(test)]
    pub(super) written: Vec<u8>,
}

impl Pair {
    pub(super) fn new(peer: u16, stream: TcpStream) -> Self {
        Self {
            peer,
            state: PairState::default(),
            stream,
            incoming: BytesMut::new(),
            over: false,
            #[cfg(test)]
            written: Vec::new(),
        }
    }

    /// Waits until something can be read or written, and does it. Dropping the future loses nothing.
    ///
    /// If the peer has closed the connection, that is an error only if something is still to be sent or received
    /// (GL-5); otherwise nothing will happen any more.
    pub(super) async fn step(&mut self) -> Result<(), GlooError> {
        if self.over && !self.state.is_open() {
            return std::future::pending().await;
        }
        let interest = match self.state.outgoing.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        let ready = self.stream.ready(interest).await;
        let moved = ready.and_then(|ready| {
            if ready.is_writable() {
                self.write()?;
            }
            match ready.is_readable() {
                true => self.read(),
                false => Ok(()),
            }
        });
        let rank = self.peer;
        if let Err(source) = moved {
            self.over = true;
            if self.state.is_open() {
                return Err(GlooError::Lost { rank, source });
            }
        }
        let misbehaved = |reason| GlooError::Misbehaved { rank, reason };
        while self.state.take_in(&mut self.incoming).map_err(misbehaved)? {}
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let outgoing = &mut self.state.outgoing;
        if let Some(size) = unless_blocked(self.stream.try_write(outgoing))? {
            #[cfg(test)]
            self.written.extend_from_slice(&outgoing[..size]);
            outgoing.advance(size);
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let before = self.incoming.len();
        self.incoming.resize(before + CHUNK, 0);
        let read = unless_blocked(self.stream.try_read(&mut self.incoming[before..]));
        let size = read.as_ref().ok().copied().flatten().unwrap_or(0);
        self.incoming.truncate(before + size);
        match read? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Says goodbye, and waits until the peer has done the same.
    pub(super) async fn close(mut self) -> io::Result<()> {
        use tokio::io::AsyncWriteExt;

        self.stream.shutdown().await?;
        loop {
            self.stream.readable().await?;
            self.incoming.clear();
            match self.read() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn unless_blocked(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(size) => Ok(Some(size)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// GL-5
    #[tokio::test]
    async fn a_peer_that_has_closed_is_missed_only_if_something_is_owed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut pair = Pair::new(3, stream.unwrap());
        drop(accepted);
        let quiet = tokio::time::timeout(Duration::from_millis(200), async {
            loop {
                pair.step().await.unwrap();
            }
        });
        assert!(quiet.await.is_err(), "nothing is owed, so nothing happens");
        pair.state.receive(7, 4);
        let lost = loop {
            if let Err(error) = pair.step().await {
                break error;
            }
        };
        assert!(matches!(lost, GlooError::Lost { rank: 3, .. }), "{lost}");
    }
}

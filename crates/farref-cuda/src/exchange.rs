//! Gives pools' descriptors to other processes of the same user, over a Unix socket (CU-5).
//!
//! There is one socket for all pools of a process, in the abstract namespace, under a random name. One thread serves it: it takes a few
//! connections at a time. Whoever connects has a second to say a ticket's secret and the pool's number; then it is sent the
//! pool's descriptor. In all other cases the connection is closed without a word.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farref_shm::{DescriptorQueue, ReceiveError, receive, send};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::{CudaError, Result};
use crate::ledger::{Borrowed, Ledger};
use crate::other_process::OtherProcess;
use crate::sys::peer_of;
use crate::ticket::{Secret, Ticket};

/// How many connections there may be at a time. Others wait.
const MOST: usize = 8;
/// How long somebody may take to say the secret.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an importer waits for the descriptor: others may be before it.
const IMPORTERS_PATIENCE: Duration = Duration::from_secs(10);
/// A secret and a number.
const REQUEST: usize = 40;

/// The socket of a process. Its thread ends when the last pool lets go of this.
#[derive(Debug)]
pub(crate) struct Exchange {
    name: String,
    pools: Arc<Pools>,
    /// Wakes the thread, to end.
    end: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Pools {
    secret: Secret,
    by_number: Mutex<(u64, HashMap<u64, Arc<Offered>>)>,
}

/// What those who may have a pool are given.
#[derive(Debug)]
struct Offered {
    descriptor: OwnedFd,
    ledger: Arc<Ledger>,
}

/// What somebody is given who asks.
#[derive(Debug)]
pub(crate) struct Given {
    /// The pool's.
    pub(crate) descriptor: OwnedFd,
    /// What says that this process uses memory of the pool.
    pub(crate) ledger: Arc<Borrowed>,
    /// Who has given it.
    pub(crate) process: OtherProcess,
}

/// A pool that the exchange gives away. It stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    exchange: Arc<Exchange>,
    number: u64,
}

impl Exchange {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let secret = Secret::random()?;
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let name = format!("farref-cuda-{}", hex(&Secret::random()?.0[..16]));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let pools = Arc::new(Pools {
            secret,
            by_number: Mutex::default(),
        });
        let (served, ended) = (Arc::clone(&pools), Arc::clone(&end));
        std::thread::Builder::new()
            .name("farref-exchange".to_owned())
            .spawn(move || serve(&listener, &served, &ended))?;
        Ok(Arc::new(Self { name, pools, end }))
    }

    /// Gives a pool to whoever has its ticket, from now on.
    pub(crate) fn offer(self: Arc<Self>, descriptor: OwnedFd, ledger: Arc<Ledger>) -> Offer {
        let mut pools = self.pools.lock();
        pools.0 += 1;
        let number = pools.0;
        let offered = Offered { descriptor, ledger };
        pools.1.insert(number, Arc::new(offered));
        drop(pools);
        Offer {
            exchange: self,
            number,
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // It cannot be full: nobody else writes to it.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

impl Offer {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn socket(&self) -> &str {
        &self.exchange.name
    }

    pub(crate) fn secret(&self) -> Secret {
        self.exchange.pools.secret
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.exchange.pools.lock().1.remove(&self.number);
    }
}

impl Pools {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, HashMap<u64, Arc<Offered>>)> {
        (self.by_number.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// What somebody asks for, if that is right.
    fn asked_for(&self, request: &[u8; REQUEST]) -> Option<Arc<Offered>> {
        let (secret, number) = request.split_at(32);
        if !self.secret.is(secret) {
            return None;
        }
        let number = u64::from_le_bytes(number.try_into().ok()?);
        self.lock().1.get(&number).map(Arc::clone)
    }
}

/// Somebody who has not said everything yet.
struct Connection {
    stream: UnixStream,
    request: [u8; REQUEST],
    have: usize,
    until: Instant,
}

impl Connection {
    fn new(stream: UnixStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        is_same_user(&stream).ok()?.then(|| Self {
            stream,
            request: [0; REQUEST],
            have: 0,
            until: Instant::now() + PATIENCE,
        })
    }

    /// Reads what has come, and answers if that is all. Says whether there is more to wait for.
    fn go_on(&mut self, pools: &Pools) -> bool {
        match self.stream.read(&mut self.request[self.have..]) {
            Ok(0) => return false,
            Ok(read) => self.have += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) => return error.kind() == io::ErrorKind::Interrupted,
        }
        if self.have < REQUEST {
            return true;
        }
        if let Some(offered) = pools.asked_for(&self.request) {
            let Offered { descriptor, ledger } = &*offered;
            // It waits for the answer, so it is alive, and the number its own.
            let pid = peer_of(self.stream.as_fd()).ok().and_then(|peer| peer.pid);
            let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            if let Some(line) = ledger.enlist(process) {
                let [low, high] = line.to_le_bytes();
                let descriptors = [descriptor.as_fd(), ledger.as_fd()];
                // Whoever does not take so few bytes gets nothing.
                let _ = send(
                    &self.stream,
                    &[IoSlice::new(&[b'!', low, high])],
                    &descriptors,
                );
            }
        }
        false
    }
}

fn serve(listener: &UnixListener, pools: &Pools, end: &OwnedFd) {
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let now = Instant::now();
        connections.retain(|connection| connection.until > now);
        let is_full = connections.len() >= MOST;
        let mut ends = vec![PollFd::new(end, PollFlags::IN)];
        // Who waits in the backlog is not asked for while there is no room, or this would go round and round.
        let accept = if is_full {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        ends.push(PollFd::new(listener, accept));
        let streams = connections.iter().map(|connection| &connection.stream);
        ends.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
        let next = connections.iter().map(|connection| connection.until).min();
        let timeout = next.map(|next| Timespec {
            tv_sec: next.saturating_duration_since(now).as_secs() as i64,
            tv_nsec: next.saturating_duration_since(now).subsec_nanos().into(),
        });
        match poll(&mut ends, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // The system has no memory for it, say. It is tried again, but not at once.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        let ready: Vec<bool> = ends.iter().map(|end| !end.revents().is_empty()).collect();
        drop(ends);
        if ready[0] {
            return;
        }
        let mut spoke = ready[2..].iter();
        connections.retain_mut(|connection| match spoke.next() {
            Some(true) => connection.go_on(pools),
            _ => true,
        });
        if ready[1] && !is_full {
            match listener.accept() {
                Ok((stream, _)) => connections.extend(Connection::new(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // No descriptors are left, say. It is tried again, but not at once.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Whether the process at the other end belongs to the same user.
fn is_same_user(stream: &UnixStream) -> io::Result<bool> {
    let peer = peer_of(stream.as_fd())?;
    Ok(peer.user == rustix::process::geteuid())
}

/// Asks the process that gave a ticket for the pool's descriptor, and its ledger's. Blocks, at most for some seconds.
pub(crate) fn ask(ticket: &Ticket) -> Result<Given> {
    let address = SocketAddr::from_abstract_name(&ticket.socket)
        .map_err(|_| CudaError::BadTicket("the socket has no possible name"))?;
    let stream = UnixStream::connect_addr(&address).map_err(CudaError::Unreachable)?;
    if !is_same_user(&stream)? {
        return Err(CudaError::OtherUser);
    }
    stream.set_read_timeout(Some(IMPORTERS_PATIENCE))?;
    stream.set_write_timeout(Some(IMPORTERS_PATIENCE))?;
    let mut request = [0; REQUEST];
    request[..32].copy_from_slice(&ticket.secret.0);
    request[32..].copy_from_slice(&ticket.pool.to_le_bytes());
    // So few bytes go whole, or not at all.
    send(&stream, &[IoSlice::new(&request)], &[]).map_err(refused)?;
    let mut queue = DescriptorQueue::new(2);
    let mut answer = [0; 3];
    let received = loop {
        match receive(&stream, &mut answer, &mut queue) {
            Err(ReceiveError::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            received => break received,
        }
    };
    match received {
        Ok(3) => {}
        Ok(_) => return Err(CudaError::Refused),
        Err(ReceiveError::Socket(error)) => return Err(refused(error)),
        Err(_) => return Err(CudaError::Refused),
    }
    let (Some(descriptor), Some(ledger)) = (queue.next(), queue.next()) else {
        return Err(CudaError::Refused);
    };
    let [_, low, high] = answer;
    Ok(Given {
        descriptor,
        ledger: Borrowed::open(&ledger, u16::from_le_bytes([low, high]))?,
        process: OtherProcess::of(peer_of(stream.as_fd())?.pid),
    })
}

/// What it means that the socket fails.
fn refused(error: io::Error) -> CudaError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => CudaError::Refused,
        _ => CudaError::Unreachable(error),
    }
}

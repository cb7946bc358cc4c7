//! A TCP proxy that passes, stalls and cuts the connections through it.
//!
//! It has a thread of its own, so that it works while the test's runtime is busy. A program that
//! is to be reached through it listens at one address and advertises the proxy's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

/// What happens to the bytes of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Pass,
    /// Every connection is cut after a random number of bytes, wherever in a frame that is.
    CutRepeatedly,
    /// Every connection passes this many bytes in each direction, and then waits.
    StallAfter(u64),
    /// Every connection is cut, and so is each new one at once.
    Down,
}

/// The proxy. Dropping it closes all connections and ends its thread.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    listeners: Option<mpsc::UnboundedSender<Listener>>,
    receive_buffer: Option<u32>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    rule: watch::Sender<Rule>,
    /// A connection of an earlier generation is cut.
    generation: watch::Sender<u64>,
    /// Bytes that may still pass, over all connections, before the proxy cuts all of them once.
    fuse: AtomicI64,
    cuts: AtomicU64,
}

/// One address of the proxy.
#[derive(Debug)]
struct Listener {
    socket: std::net::TcpListener,
    target: watch::Receiver<Option<SocketAddr>>,
    receive_buffer: Option<u32>,
}

impl Proxy {
    /// A proxy without addresses, which passes everything.
    pub fn new() -> Result<Self> {
        let shared = Arc::new(Shared {
            rule: watch::Sender::new(Rule::Pass),
            generation: watch::Sender::new(0),
            fuse: AtomicI64::new(i64::MAX),
            cuts: AtomicU64::new(0),
        });
        let (listeners, added) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || runtime.block_on(serve(added, inside)))
            .context("starting the proxy")?;
        Ok(Self {
            shared,
            listeners: Some(listeners),
            receive_buffer: None,
            thread: Some(thread),
        })
    }

    /// Sets the size of the sockets' receive buffers for what the targets send.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Adds an address and forwards its connections to `target`.
    pub fn add(&self, target: SocketAddr) -> Result<SocketAddr> {
        let (address, targets) = self.add_unconnected()?;
        targets.send_replace(Some(target));
        Ok(address)
    }

    /// Adds an address without a target. Its connections wait until the caller sends one.
    pub fn add_unconnected(&self) -> Result<(SocketAddr, watch::Sender<Option<SocketAddr>>)> {
        let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let targets = watch::Sender::new(None);
        let listener = Listener {
            socket,
            target: targets.subscribe(),
            receive_buffer: self.receive_buffer,
        };
        let listeners = self.listeners.as_ref().context("the proxy is dropped")?;
        listeners.send(listener).context("the proxy has ended")?;
        Ok((address, targets))
    }

    /// Everything passes from now on, also what has been stalled.
    pub fn pass(&self) {
        self.shared.rule.send_replace(Rule::Pass);
    }

    /// Every connection is cut from now on, after a random number of bytes.
    pub fn cut_repeatedly(&self) {
        self.shared.rule.send_replace(Rule::CutRepeatedly);
    }

    /// No connection passes more than this many bytes in each direction.
    pub fn stall_after(&self, bytes: u64) {
        self.shared.rule.send_replace(Rule::StallAfter(bytes));
    }

    /// Nothing passes from now on.
    pub fn stall(&self) {
        self.stall_after(0);
    }

    /// Cuts all connections, and every new one, until [`Proxy::pass`].
    pub fn go_down(&self) {
        self.shared.rule.send_replace(Rule::Down);
        self.cut_once();
    }

    /// Cuts all connections that exist.
    pub fn cut_once(&self) {
        self.shared.cut_once();
    }

    /// Cuts all connections once when this many more bytes have passed, in whichever direction.
    pub fn cut_once_after(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.shared.fuse.store(bytes, Ordering::SeqCst);
    }

    /// How many connections have been cut.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn cut_once(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.listeners.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves every address until the proxy is dropped.
async fn serve(mut added: mpsc::UnboundedReceiver<Listener>, shared: Arc<Shared>) {
    while let Some(listener) = added.recv().await {
        tokio::spawn(accept(listener, Arc::clone(&shared)));
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>) {
    let Ok(socket) = TcpListener::from_std(listener.socket) else {
        return;
    };
    while let Ok((near, _)) = socket.accept().await {
        let (target, buffer) = (listener.target.clone(), listener.receive_buffer);
        tokio::spawn(carry(near, target, buffer, Arc::clone(&shared)));
    }
}

/// Carries one connection until either end closes it or it is cut.
async fn carry(
    near: TcpStream,
    mut target: watch::Receiver<Option<SocketAddr>>,
    receive_buffer: Option<u32>,
    shared: Arc<Shared>,
) {
    let mut generation = shared.generation.subscribe();
    if *shared.rule.borrow() == Rule::Down {
        return;
    }
    let Ok(target) = target.wait_for(Option::is_some).await.map(|target| *target) else {
        return;
    };
    let Some(target) = target else { return };
    let Ok(far) = connect(target, receive_buffer).await else {
        return;
    };
    for stream in [&near, &far] {
        let _ = stream.set_nodelay(true);
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let budget = AtomicI64::new(UNDECIDED);
    let ended = tokio::select! {
        ended = pipe(near_read, far_write, &shared, &budget) => ended,
        ended = pipe(far_read, near_write, &shared, &budget) => ended,
        _ = generation.changed() => Ok(End::Cut),
    };
    if matches!(ended, Ok(End::Cut)) {
        shared.cuts.fetch_add(1, Ordering::Relaxed);
    }
}

async fn connect(target: SocketAddr, receive_buffer: Option<u32>) -> io::Result<TcpStream> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.connect(target).await
}

/// How a connection ended.
enum End {
    Closed,
    Cut,
}

/// The budget of a connection for which no random cut is planned yet.
const UNDECIDED: i64 = i64::MIN;

/// Copies one direction of a connection. Both directions share the `budget` until a random cut.
async fn pipe(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    budget: &AtomicI64,
) -> io::Result<End> {
    let mut rule = shared.rule.subscribe();
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    loop {
        let now = *rule.borrow_and_update();
        let allowed = match now {
            Rule::Pass => buffer.len(),
            Rule::Down => return Ok(End::Cut),
            Rule::StallAfter(bytes) => {
                usize::try_from(bytes.saturating_sub(passed)).unwrap_or(usize::MAX)
            }
            Rule::CutRepeatedly => {
                if budget.load(Ordering::Relaxed) == UNDECIDED {
                    budget.store(random_budget(), Ordering::Relaxed);
                }
                usize::try_from(budget.load(Ordering::Relaxed)).unwrap_or(0)
            }
        };
        if allowed == 0 {
            if now == Rule::CutRepeatedly {
                return Ok(End::Cut);
            }
            // The rule's sender outlives all connections.
            let _ = rule.changed().await;
            continue;
        }
        let allowed = allowed.min(buffer.len());
        let read = tokio::select! {
            read = from.read(&mut buffer[..allowed]) => read?,
            _ = rule.changed() => continue,
        };
        if read == 0 {
            return Ok(End::Closed);
        }
        let left = shared.fuse.fetch_sub(read as i64, Ordering::SeqCst);
        let pass = (read as i64).min(left).max(0) as usize;
        to.write_all(&buffer[..pass]).await?;
        if pass < read {
            shared.fuse.store(i64::MAX, Ordering::SeqCst);
            shared.cut_once();
            return Ok(End::Cut);
        }
        passed += read as u64;
        if now == Rule::CutRepeatedly {
            budget.fetch_sub(read as i64, Ordering::Relaxed);
        }
    }
}

/// Mostly enough for a handshake and some frames, sometimes for less or for a bulk message.
fn random_budget() -> i64 {
    match fastrand::u32(0..100) {
        0..10 => fastrand::i64(1..600),
        10..80 => fastrand::i64(600..6_000),
        80..95 => fastrand::i64(6_000..200_000),
        _ => fastrand::i64(200_000..3_000_000),
    }
}

//! A TCP proxy between the workers, which delays, throttles, stalls and cuts what goes by.
//!
//! A worker listens at one port and tells the others to reach it at another, the proxy's. So every connection that somebody makes
//! to it comes by here. Each life of a worker has a [`Door`] of its own. When the life is over the door is shut: nobody listens there
//! any more, as nobody does at the port of a process that has ended (F1).
//!
//! 1. PX-1: bytes come out as they went in, in their order, or the connection breaks: nothing is lost, changed or made up.
//! 2. PX-2: a rule holds from the moment at which it is given, for connections that are there too, and is over when another one is given. What it
//!    has held up passes then.
//! 3. PX-3: no two doors that are open have the same port for their workers: one that has not begun to listen would find the other there.
//!
//! The proxy has a thread of its own, so that it works while the driver is busy.

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::settings::Route;

/// What is done to what goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    Pass,
    /// It arrives so much later.
    Delay(Duration),
    /// So many bytes in a second, in each direction of each connection.
    Throttle(u64),
    /// Nothing passes in this direction.
    HalfOpen(Direction),
    /// Every connection breaks when so many bytes have gone by, in both directions together.
    CutAfter(u64),
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To the worker that the door is of.
    Inward,
    Outward,
}

/// How much is read at once.
const CHUNK: usize = 32 << 10;
/// How many such pieces may be on their way in one direction of a connection.
const PIECES: usize = 32;
/// How long to wait when a connection cannot be taken: for want of descriptors, mostly, and the next try would fail as well.
const OUT_OF_FILES: Duration = Duration::from_millis(100);

/// The thread that all doors are on.
#[derive(Debug)]
pub(super) struct Proxy {
    /// There until it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    ports: Arc<Ports>,
}

impl Proxy {
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .context("cannot start the proxy")?;
        Ok(Self {
            runtime: Some(runtime),
            ports: Arc::default(),
        })
    }

    /// Opens a door for one life of a worker.
    pub(super) fn open(&self) -> anyhow::Result<Door> {
        let listener = StdListener::bind("127.0.0.1:0").context("no port is free for the proxy")?;
        listener.set_nonblocking(true)?;
        let route = Route {
            advertise: listener.local_addr()?.port(),
            listen: self.ports.take()?,
        };
        let (rule, _) = watch::channel(Rule::Pass);
        let (is_open, _) = watch::channel(true);
        let shared = Arc::new(Shared {
            rule,
            is_open,
            cuts: AtomicU64::new(0),
        });
        let accepting = accept(listener, route.listen, Arc::clone(&shared));
        if let Some(runtime) = &self.runtime {
            runtime.spawn(accepting);
        }
        let ports = Arc::clone(&self.ports);
        Ok(Door {
            route,
            shared,
            ports,
        })
    }
}

impl Drop for Proxy {
    /// Ends with all connections, and does not wait for them: whoever drops it may be async code.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where connections to one life of a worker come by. Shut when it is dropped.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) route: Route,
    shared: Arc<Shared>,
    ports: Arc<Ports>,
}

#[derive(Debug)]
struct Shared {
    rule: watch::Sender<Rule>,
    is_open: watch::Sender<bool>,
    /// How many connections were cut.
    cuts: AtomicU64,
}

impl Door {
    /// From now on this is done to what goes by (PX-2).
    pub(super) fn set(&self, rule: Rule) {
        self.shared.rule.send_replace(rule);
    }

    /// How many connections were cut.
    pub(super) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.is_open.send_replace(false);
        self.ports.give_back(self.route.listen);
    }
}

/// The ports that workers were told to listen at, of all doors that are open.
#[derive(Debug, Default)]
struct Ports(Mutex<BTreeSet<u16>>);

impl Ports {
    /// A port that was free a moment ago and nobody else was given (PX-3), and not one that the system gives to the next connection.
    fn take(&self) -> anyhow::Result<u16> {
        self.take_of(|| fastrand::u16(10_000..30_000))
    }

    fn take_of(&self, draw: impl FnMut() -> u16) -> anyhow::Result<u16> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |port: &u16| StdListener::bind(("127.0.0.1", *port)).is_ok();
        let port = std::iter::repeat_with(draw)
            .take(1_000)
            .find(|port| !taken.contains(port) && is_free(port));
        let port = port.context("no port is free for a worker")?;
        taken.insert(port);
        Ok(port)
    }

    fn give_back(&self, port: u16) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&port);
    }
}

async fn shut(is_open: &mut watch::Receiver<bool>) {
    let _ = is_open.wait_for(|is_open| !*is_open).await;
}

async fn accept(listener: StdListener, to: u16, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    let mut is_open = shared.is_open.subscribe();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                match accepted {
                    Ok((near, _)) => {
                        tokio::spawn(carry(near, to, Arc::clone(&shared)));
                    }
                    Err(_) => tokio::time::sleep(OUT_OF_FILES).await,
                }
            }
            () = shut(&mut is_open) => return,
        }
    }
}

/// Carries one connection until either end closes it, it is cut, or the door is shut.
async fn carry(near: TcpStream, to: u16, shared: Arc<Shared>) {
    let mut is_open = shared.is_open.subscribe();
    let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else {
        return;
    };
    for stream in [&near, &far] {
        let _ = stream.set_nodelay(true);
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let budget = Budget::new();
    let inward = pipe(near_read, far_write, Direction::Inward, &shared, &budget);
    let outward = pipe(far_read, near_write, Direction::Outward, &shared, &budget);
    let ended = tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
        () = shut(&mut is_open) => Ok(End::Closed),
    };
    if matches!(ended, Ok(End::Cut)) {
        shared.cuts.fetch_add(1, Ordering::Relaxed);
    }
}

/// How a connection came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Closed,
    Cut,
}

/// How many bytes a connection may still carry.
struct Budget(AtomicI64);

impl Budget {
    const UNLIMITED: i64 = i64::MIN;

    fn new() -> Self {
        Self(AtomicI64::new(Self::UNLIMITED))
    }

    /// What may pass of so many bytes by this rule. Both directions are in one task, so nobody comes in between.
    fn take(&self, rule: Rule, wanted: usize) -> usize {
        let Rule::CutAfter(most) = rule else {
            self.0.store(Self::UNLIMITED, Ordering::Relaxed);
            return wanted;
        };
        let left = match self.0.load(Ordering::Relaxed) {
            Self::UNLIMITED => i64::try_from(most).unwrap_or(i64::MAX),
            left => left,
        };
        let passes = usize::try_from(left).unwrap_or(0).min(wanted);
        self.0.store(left - passes as i64, Ordering::Relaxed);
        passes
    }
}

/// One direction of a connection: what is read waits until it is due, and is written.
async fn pipe(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: Direction,
    shared: &Shared,
    budget: &Budget,
) -> io::Result<End> {
    let (pieces, due) = mpsc::channel(PIECES);
    let reading = read(from, pieces, shared.rule.subscribe());
    let writing = write(to, due, direction, shared.rule.subscribe(), budget);
    // The writer ends when the reader has, and everything is written.
    let (read, written) = tokio::join!(reading, writing);
    let end = written?;
    read?;
    Ok(end)
}

/// A piece of what was sent, and when it may arrive.
type Piece = (Instant, Vec<u8>);

async fn read(
    mut from: OwnedReadHalf,
    pieces: mpsc::Sender<Piece>,
    rule: watch::Receiver<Rule>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        // A writer that is gone takes nothing more, whatever comes.
        let count = tokio::select! {
            count = from.read(&mut buffer) => count?,
            () = pieces.closed() => return Ok(()),
        };
        if count == 0 {
            return Ok(());
        }
        let delay = match *rule.borrow() {
            Rule::Delay(delay) => delay,
            _ => Duration::ZERO,
        };
        let piece = (Instant::now() + delay, buffer[..count].to_vec());
        if pieces.send(piece).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut pieces: mpsc::Receiver<Piece>,
    direction: Direction,
    mut rule: watch::Receiver<Rule>,
    budget: &Budget,
) -> io::Result<End> {
    while let Some((due, piece)) = pieces.recv().await {
        until_due(due, &mut rule).await;
        let mut left = &piece[..];
        while !left.is_empty() {
            let now = *rule.borrow_and_update();
            if now == Rule::HalfOpen(direction) {
                let _ = rule.changed().await;
                continue;
            }
            let most = match now {
                // A twentieth of a second at a time.
                Rule::Throttle(bytes) => usize::try_from(bytes / 20).unwrap_or(CHUNK).max(1),
                _ => left.len(),
            };
            let wanted = most.min(left.len());
            let passes = budget.take(now, wanted);
            to.write_all(&left[..passes]).await?;
            left = &left[passes..];
            if passes < wanted {
                return Ok(End::Cut);
            }
            if let Rule::Throttle(_) = now {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(50)) => {}
                    _ = rule.changed() => {}
                }
            }
        }
    }
    Ok(End::Closed)
}

/// Waits until a piece is due, or nothing is delayed any more (PX-2).
async fn until_due(due: Instant, rule: &mut watch::Receiver<Rule>) {
    while Instant::now() < due && matches!(*rule.borrow_and_update(), Rule::Delay(_)) {
        tokio::select! {
            () = tokio::time::sleep_until(due) => return,
            _ = rule.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as StdStream;

    use super::*;

    /// Long enough for whatever is to come, on any machine.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A connection through a door: its outer end, and its end at the worker.
    fn connected(door: &Door, listener: &StdListener) -> anyhow::Result<(StdStream, StdStream)> {
        let outer = StdStream::connect(("127.0.0.1", door.route.advertise))?;
        let (inner, _) = listener.accept()?;
        for stream in [&outer, &inner] {
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        Ok((outer, inner))
    }

    fn opened() -> anyhow::Result<(Proxy, Door, StdListener)> {
        let proxy = Proxy::start()?;
        let door = proxy.open()?;
        let listener = StdListener::bind(("127.0.0.1", door.route.listen))?;
        Ok((proxy, door, listener))
    }

    fn some_bytes() -> Vec<u8> {
        (0..200_000_u32).map(|n| (n % 251) as u8).collect()
    }

    #[test]
    fn px_1_bytes_come_out_as_they_went_in_by_every_rule_that_lets_them_pass() -> anyhow::Result<()>
    {
        let (proxy, door, listener) = opened()?;
        for rule in [
            Rule::Pass,
            Rule::Delay(Duration::from_millis(20)),
            Rule::Throttle(4_000_000),
            Rule::HalfOpen(Direction::Outward),
            Rule::CutAfter(1 << 30),
        ] {
            door.set(rule);
            let (mut outer, mut inner) = connected(&door, &listener)?;
            let sent = some_bytes();
            let sending = std::thread::spawn(move || outer.write_all(&sent));
            let mut received = Vec::new();
            inner.read_to_end(&mut received)?;
            sending.join().expect("no panic")?;
            assert_eq!(received, some_bytes(), "{rule:?}");
        }
        drop(proxy);
        Ok(())
    }

    #[test]
    fn a_connection_is_cut_after_as_many_bytes_as_were_said() -> anyhow::Result<()> {
        let (proxy, door, listener) = opened()?;
        door.set(Rule::CutAfter(1_234));
        let (mut outer, mut inner) = connected(&door, &listener)?;
        outer.write_all(&some_bytes()[..5_000])?;
        let mut received = Vec::new();
        // Whether it ends or breaks is the system's choice.
        let _ = inner.read_to_end(&mut received);
        assert_eq!(received, some_bytes()[..1_234]);
        while door.cuts() == 0 {
            std::thread::yield_now();
        }
        drop(proxy);
        Ok(())
    }

    #[test]
    fn px_2_what_was_held_up_passes_when_the_rule_is_over() -> anyhow::Result<()> {
        let (proxy, door, listener) = opened()?;
        for rule in [
            Rule::HalfOpen(Direction::Inward),
            Rule::Delay(10 * PATIENCE),
        ] {
            door.set(rule);
            let (mut outer, mut inner) = connected(&door, &listener)?;
            outer.write_all(b"held up")?;
            let mut received = [0; 7];
            inner.set_read_timeout(Some(Duration::from_millis(100)))?;
            assert!(inner.read_exact(&mut received).is_err(), "{rule:?}");
            door.set(Rule::Pass);
            inner.set_read_timeout(Some(PATIENCE))?;
            inner.read_exact(&mut received)?;
            assert_eq!(&received, b"held up", "{rule:?}");
        }
        drop(proxy);
        Ok(())
    }

    #[test]
    fn px_3_a_port_that_was_given_is_not_given_again_until_its_door_is_shut() -> anyhow::Result<()>
    {
        let ports = Ports::default();
        let one = ports.take()?;
        let other = ports.take()?;
        let drawn = [one, one, other];
        // Nobody listens at any of them yet.
        assert!(ports.take_of(|| one).is_err());
        ports.give_back(other);
        let mut drawn = drawn.into_iter();
        assert_eq!(ports.take_of(|| drawn.next().unwrap_or(one))?, other);
        // A door gives its own back.
        let (proxy, door, listener) = opened()?;
        let port = door.route.listen;
        drop(listener);
        assert!(proxy.ports.take_of(|| port).is_err());
        drop(door);
        assert_eq!(proxy.ports.take_of(|| port)?, port);
        Ok(())
    }

    #[test]
    fn nobody_listens_at_a_door_that_is_shut() -> anyhow::Result<()> {
        let (proxy, door, listener) = opened()?;
        let (_outer, mut inner) = connected(&door, &listener)?;
        let advertised = door.route.advertise;
        drop(door);
        let mut received = Vec::new();
        let _ = inner.read_to_end(&mut received);
        let began = std::time::Instant::now();
        while StdStream::connect(("127.0.0.1", advertised)).is_ok() {
            assert!(began.elapsed() < PATIENCE, "it is still open");
        }
        drop(proxy);
        Ok(())
    }
}

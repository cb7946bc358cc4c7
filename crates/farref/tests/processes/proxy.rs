//! A TCP proxy between the workers of a group, which cuts and stalls their connections.
//!
//! Each worker listens at one port and tells the others to reach it at another, the proxy's. Whoever
//! makes a connection, it passes here. The proxy has a thread of its own, so that it works while the
//! driver is busy.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::group::{Options, free_port};

/// Where a worker listens, and where it says that it does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) listen: u16,
    pub(crate) advertise: u16,
}

/// What is done to the bytes that come by.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Pass,
    /// Every connection is cut after some number of bytes, wherever in a frame that is.
    Cut,
    /// Every connection passes so many bytes in each direction, and then no more.
    StallAfter(u64),
}

/// The proxy. Ends when it is dropped.
pub(crate) struct Proxy {
    routes: BTreeMap<String, Route>,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    rule: watch::Sender<Rule>,
    /// Whoever has an older number is cut.
    generation: watch::Sender<u64>,
    cuts: AtomicU64,
}

impl Proxy {
    /// Stands between all workers of these names.
    pub(crate) fn between(names: &[&str]) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            rule: watch::Sender::new(Rule::Pass),
            generation: watch::Sender::new(0),
            cuts: AtomicU64::new(0),
        });
        let mut routes = BTreeMap::new();
        let mut listeners = Vec::new();
        for name in names {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            let route = Route {
                listen: free_port()?,
                advertise: listener.local_addr()?.port(),
            };
            listeners.push((listener, route.listen));
            routes.insert((*name).to_owned(), route);
        }
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    for (listener, to) in listeners {
                        tokio::spawn(accept(listener, to, Arc::clone(&inside)));
                    }
                    // Ends when the proxy is dropped, with or without a word.
                    let _ = stopped.await;
                });
            })
            .context("starting the proxy")?;
        Ok(Self {
            routes,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Options for a group whose links all pass here.
    pub(crate) fn options(&self) -> Options {
        Options {
            unix_sockets: false,
            routes: self.routes.clone(),
            ..Options::default()
        }
    }

    /// From now on everything passes, also what has been stalled.
    pub(crate) fn pass(&self) {
        self.shared.rule.send_replace(Rule::Pass);
    }

    /// From now on every connection is cut sooner or later.
    pub(crate) fn cut_all_the_time(&self) {
        self.shared.rule.send_replace(Rule::Cut);
    }

    /// From now on no connection passes more than so many bytes in each direction.
    pub(crate) fn stall_after(&self, bytes: u64) {
        self.shared.rule.send_replace(Rule::StallAfter(bytes));
    }

    /// From now on nothing passes.
    pub(crate) fn stall(&self) {
        self.stall_after(0);
    }

    /// Cuts all connections there are.
    pub(crate) fn cut_once(&self) {
        self.shared
            .generation
            .send_modify(|generation| *generation += 1);
    }

    /// How many connections have been cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, to: u16, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(carry(near, to, Arc::clone(&shared)));
    }
}

/// Carries one connection until either end closes it or it is cut.
async fn carry(near: TcpStream, to: u16, shared: Arc<Shared>) {
    let mut generation = shared.generation.subscribe();
    generation.mark_unchanged();
    let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else {
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

/// How a connection came to its end.
enum End {
    Closed,
    Cut,
}

/// No cut has been planned for a connection.
const UNDECIDED: i64 = i64::MIN;

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
        let room = match now {
            Rule::Pass => buffer.len(),
            Rule::StallAfter(most) => {
                usize::try_from(most.saturating_sub(passed)).unwrap_or(usize::MAX)
            }
            Rule::Cut => {
                if budget.load(Ordering::Relaxed) == UNDECIDED {
                    budget.store(random_budget(), Ordering::Relaxed);
                }
                usize::try_from(budget.load(Ordering::Relaxed)).unwrap_or(0)
            }
        };
        if room == 0 {
            match now {
                Rule::Cut => return Ok(End::Cut),
                _ => {
                    let _ = rule.changed().await;
                    continue;
                }
            }
        }
        let most = room.min(buffer.len());
        let read = tokio::select! {
            read = from.read(&mut buffer[..most]) => read?,
            _ = rule.changed() => continue,
        };
        if read == 0 {
            return Ok(End::Closed);
        }
        to.write_all(&buffer[..read]).await?;
        passed += read as u64;
        if matches!(now, Rule::Cut) {
            budget.fetch_sub(read as i64, Ordering::Relaxed);
        }
    }
}

/// Mostly enough for a handshake and some frames; sometimes for less, sometimes for a bulk message.
fn random_budget() -> i64 {
    match fastrand::u32(0..100) {
        0..10 => fastrand::i64(1..600),
        10..80 => fastrand::i64(600..6_000),
        80..95 => fastrand::i64(6_000..200_000),
        _ => fastrand::i64(200_000..3_000_000),
    }
}

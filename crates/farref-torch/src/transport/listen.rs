//! Takes connections in and makes pipes of them.
//!
//! One task owns all that is under way: connections that have not greeted yet, pipes that wait for the rest of
//! their connections, and the numbers under which these are to come. So nothing is shared, and nothing of it
//! outlives the listener.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{self, AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::handshake::{self, Channel, Connections, lost};
use super::{Limits, PeerProcess, PipeError, PipeReceiver, PipeSender};
use crate::pipe::{Answer, Brochure, ChannelNumbers, Greeting};

/// How long to wait when the system has no connection to give, though there is one.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// The most connections of a pipe.
const CONNECTIONS: usize = 4;

/// A pipe that a peer has set up, and who the peer says it is.
type Arrival = (String, PipeSender, PipeReceiver);

/// A connection that a peer is to bring, and the number under which it comes.
type Expected = (u64, oneshot::Receiver<TcpStream>);

/// The connections of one that has no place yet.
type HalfOpen = (String, Connections);

/// Where peers connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    arrivals: mpsc::Receiver<Arrival>,
    places: Arc<Semaphore>,
    pipes: usize,
    gauges: Arc<Gauges>,
    desk: JoinHandle<()>,
}

/// What a listener has to do with at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Census {
    /// Connections that have not greeted yet.
    pub(crate) strangers: usize,
    /// Pipes that are being set up.
    pub(crate) half_open: usize,
    /// Connections that are expected.
    pub(crate) expected: usize,
    /// Pipes that are set up.
    pub(crate) pipes: usize,
    /// Connections that were refused so far.
    pub(crate) refused: u64,
}

#[derive(Debug, Default)]
struct Gauges {
    strangers: AtomicUsize,
    half_open: AtomicUsize,
    expected: AtomicUsize,
    refused: AtomicU64,
}

impl Listener {
    /// Listens from now on, until it is dropped. Pipes that were accepted stay.
    pub(crate) async fn bind(address: SocketAddr, limits: Limits) -> Result<Self, PipeError> {
        let failed = |error| PipeError::Bind {
            address: address.to_string(),
            error,
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        // Those that are nobody's yet take no member's place.
        let pipes = limits.pipes.saturating_add(limits.unclaimed);
        let pipes = pipes.clamp(1, Semaphore::MAX_PERMITS / CONNECTIONS);
        let places = Arc::new(Semaphore::new(pipes));
        let gauges = Arc::new(Gauges::default());
        // There is never more in it than there are places.
        let (hand_over, arrivals) = mpsc::channel(pipes);
        let desk = Desk {
            limits: Arc::new(limits),
            pipes,
            places: Arc::clone(&places),
            gauges: Arc::clone(&gauges),
            strangers: JoinSet::new(),
            by_age: VecDeque::new(),
            half_open: JoinSet::new(),
            half_open_by_age: VecDeque::new(),
            numbers: HashMap::new(),
            expected: HashMap::new(),
            next_number: 0,
            hand_over,
        };
        Ok(Self {
            address: local,
            arrivals,
            places,
            pipes,
            gauges,
            desk: tokio::spawn(desk.run(socket)),
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next pipe that a peer has set up, and the name that the peer gave. Nothing vouches for that name.
    ///
    /// Nothing is lost if this is given up while it waits.
    pub(crate) async fn accept(&mut self) -> Result<Arrival, PipeError> {
        self.arrivals.recv().await.ok_or(PipeError::Stopped)
    }

    pub(crate) fn census(&self) -> Census {
        Census {
            strangers: self.gauges.strangers.load(Ordering::Acquire),
            half_open: self.gauges.half_open.load(Ordering::Acquire),
            expected: self.gauges.expected.load(Ordering::Acquire),
            pipes: self.pipes - self.places.available_permits(),
            refused: self.gauges.refused.load(Ordering::Acquire),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.desk.abort();
    }
}

/// The task of a listener.
struct Desk {
    limits: Arc<Limits>,
    pipes: usize,
    places: Arc<Semaphore>,
    gauges: Arc<Gauges>,
    strangers: JoinSet<Result<(TcpStream, Greeting), PipeError>>,
    /// The same, the oldest first. Some of them may be gone.
    by_age: VecDeque<AbortHandle>,
    half_open: JoinSet<Result<HalfOpen, PipeError>>,
    /// The same, the oldest first. Some of them may be gone.
    half_open_by_age: VecDeque<AbortHandle>,
    /// The numbers under which they expect the rest of their connections.
    numbers: HashMap<task::Id, Vec<u64>>,
    /// Who waits for a connection, by the number under which it is to come.
    expected: HashMap<u64, oneshot::Sender<TcpStream>>,
    /// Counts as TensorPipe does: per listener, from zero.
    next_number: u64,
    hand_over: mpsc::Sender<Arrival>,
}

impl Desk {
    async fn run(mut self, socket: TcpListener) {
        loop {
            tokio::select! {
                // What is finished makes room before more is taken.
                biased;
                Some(greeted) = self.strangers.join_next() => {
                    // One that had to go is no error of its own.
                    if let Ok(greeted) = greeted {
                        let greeted = greeted.and_then(|(stream, greeting)| self.greet(stream, greeting));
                        self.note_refusal(greeted);
                    }
                }
                Some(ended) = self.half_open.join_next_with_id() => {
                    let (task, pipe) = match ended {
                        Ok((task, pipe)) => (task, Some(pipe)),
                        // One that had to go is no error of its own.
                        Err(error) => (error.id(), None),
                    };
                    for number in self.numbers.remove(&task).into_iter().flatten() {
                        self.expected.remove(&number);
                    }
                    if let Some(pipe) = pipe {
                        let arrived = pipe.and_then(|pipe| self.arrive(pipe));
                        self.note_refusal(arrived);
                    }
                }
                accepted = socket.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) => {
                        // Too many open files, say. The peer waits meanwhile.
                        debug!(%error, "cannot take a connection");
                        sleep(EXHAUSTED).await;
                    }
                },
            }
            let gauges = &self.gauges;
            gauges
                .strangers
                .store(self.strangers.len(), Ordering::Release);
            gauges
                .half_open
                .store(self.half_open.len(), Ordering::Release);
            gauges
                .expected
                .store(self.expected.len(), Ordering::Release);
        }
    }

    fn note_refusal(&self, result: Result<(), PipeError>) {
        if let Err(error) = result {
            debug!(%error, "a connection was refused");
            self.gauges.refused.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A connection that has not said anything (TR-6).
    fn admit(&mut self, stream: TcpStream) {
        let most = CONNECTIONS * self.pipes;
        if self.strangers.len() >= most && push_out(&mut self.by_age, most) {
            self.note_refusal(Err(PipeError::Full(self.pipes)));
        }
        let deadline = self.limits.handshake;
        let stranger = self.strangers.spawn(async move {
            timeout(deadline, hear(stream))
                .await
                .map_err(|_| PipeError::Deadline(deadline))?
        });
        self.by_age.push_back(stranger);
    }

    /// A connection has said what it is for.
    fn greet(&mut self, stream: TcpStream, greeting: Greeting) -> Result<(), PipeError> {
        let from = match greeting {
            Greeting::Spontaneous { from } => from,
            Greeting::Requested { number } => {
                let waiting = self.expected.remove(&number);
                let waiting = waiting.ok_or(PipeError::Unknown(number))?;
                return waiting.send(stream).map_err(|_| PipeError::Unknown(number));
            }
        };
        // TR-7
        if self.half_open.len() >= self.pipes && push_out(&mut self.half_open_by_age, self.pipes) {
            self.note_refusal(Err(PipeError::Full(self.pipes)));
        }
        let (reply, channel) = (self.expect(), self.expect());
        let cma = self.limits.cma.map(|domain| (domain, self.expect()));
        let mut numbers = vec![reply.0, channel.0];
        numbers.extend(cma.as_ref().map(|(_, (number, _))| *number));
        let deadline = self.limits.handshake;
        let half_open = self.half_open.spawn(async move {
            let set_up = set_up(stream, reply, channel, cma);
            let connections = timeout(deadline, set_up).await;
            let connections = connections.unwrap_or(Err(PipeError::Deadline(deadline)));
            Ok((from, connections?))
        });
        self.numbers.insert(half_open.id(), numbers);
        self.half_open_by_age.push_back(half_open);
        Ok(())
    }

    /// A pipe is set up.
    fn arrive(&self, (from, connections): HalfOpen) -> Result<(), PipeError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| PipeError::Full(self.pipes))?;
        let limits = Arc::clone(&self.limits);
        let (sender, receiver) = handshake::assemble(connections, limits, Some(place));
        // It is bounded by the places.
        drop(self.hand_over.try_send((from, sender, receiver)));
        Ok(())
    }

    fn expect(&mut self) -> Expected {
        let number = self.next_number;
        self.next_number += 1;
        let (bring, wait) = oneshot::channel();
        self.expected.insert(number, bring);
        (number, wait)
    }
}

/// Gives up the oldest that is not done, and says whether there was one. Notes of at most twice so many are kept.
fn push_out(by_age: &mut VecDeque<AbortHandle>, most: usize) -> bool {
    if by_age.len() >= 2 * most {
        by_age.retain(|task| !task.is_finished());
    }
    while let Some(oldest) = by_age.pop_front() {
        if !oldest.is_finished() {
            oldest.abort();
            return true;
        }
    }
    false
}

async fn hear(mut stream: TcpStream) -> Result<(TcpStream, Greeting), PipeError> {
    handshake::prepare(&stream).map_err(lost)?;
    let greeting = handshake::read(
        &mut stream,
        "a greeting",
        handshake::GREETING,
        Greeting::decode,
    )
    .await?;
    Ok((stream, greeting))
}

/// Agrees with the peer on a pipe and waits for the rest of its connections. What the peer sends meanwhile waits
/// in the first one.
async fn set_up(
    mut first: TcpStream,
    reply: Expected,
    channel: Expected,
    cma: Option<(&str, Expected)>,
) -> Result<Connections, PipeError> {
    let brochure = handshake::read(
        &mut first,
        "a brochure",
        handshake::AGREEMENT,
        Brochure::decode,
    )
    .await?;
    if !brochure.has_ours() {
        return Err(PipeError::NothingInCommon);
    }
    let through_memory = match cma.filter(|(domain, _)| brochure.has_cma(domain)) {
        Some(cma) => PeerProcess::is_same_user(&first).await.then_some(cma),
        None => None,
    };
    // The address that the peer has reached, in case this listens on all of them.
    let here = first.local_addr().map_err(lost)?;
    let here = SocketAddr::new(here.ip().to_canonical(), here.port());
    let answer = Answer {
        address: here.to_string(),
        reply: reply.0,
        channel: match &through_memory {
            None => ChannelNumbers::Basic { bytes: channel.0 },
            Some((domain, completions)) => ChannelNumbers::Cma {
                domain: (*domain).to_owned(),
                places: channel.0,
                completions: completions.0,
            },
        },
    };
    handshake::write(&mut first, &[answer.encode()]).await?;
    let rest = async {
        let (reply, channel) = tokio::try_join!(reply.1, channel.1)?;
        let completions = match through_memory {
            None => None,
            Some((_, completions)) => Some(completions.1.await?),
        };
        Ok((reply, channel, completions))
    };
    let stopped = |_: oneshot::error::RecvError| PipeError::Stopped;
    let (reply, channel, completions) = tokio::select! {
        rest = rest => rest.map_err(stopped)?,
        error = closed(&first) => return Err(error),
    };
    let channel = match completions {
        None => Channel::Basic(channel),
        Some(completions) => through_memory_of_peer(channel, completions).await?,
    };
    Ok(Connections {
        first,
        reply,
        channel,
    })
}

/// The channel through memory, if the same user brought its connections, whose numbers anybody can guess (TR-12).
async fn through_memory_of_peer(
    places: TcpStream,
    completions: TcpStream,
) -> Result<Channel, PipeError> {
    let peer = PeerProcess::behind(&places);
    match (PeerProcess::is_same_user(&completions).await, peer) {
        (true, Some(peer)) => Ok(Channel::Cma {
            places,
            completions,
            peer,
        }),
        _ => Err(PipeError::Rules("another user brought a connection of it")),
    }
}

/// Waits until the peer closes the connection, if it does so before it sends anything.
async fn closed(stream: &TcpStream) -> PipeError {
    match stream.peek(&mut [0]).await {
        Ok(0) => PipeError::Closed("before the pipe was set up"),
        Ok(_) => std::future::pending().await,
        Err(error) => lost(error),
    }
}

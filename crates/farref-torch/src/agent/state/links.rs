//! What there is with each peer: a pipe for requests of ours, and what is open on it and on the peer's own.
//!
//! Requests of one worker travel on a pipe that it opens itself, and their answers come back on it. So two
//! workers that call each other have two pipes. Nothing is said twice: a pipe that breaks is never opened
//! again, because PyTorch takes the peer for dead then, and so does this worker.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farref::Part;
use farref::agent::{AnswerMessage, CallMessage, ContextId, Departure, MessageId, NodeId};
use farref_proto::{RRefId, Share};
use tokio::sync::{Notify, mpsc, oneshot};

use super::load::Load;
use crate::rpc::{GlobalId, Kind};
use crate::transport::{Incoming, Outgoing, Traffic};

/// Something to be written to a pipe.
pub(crate) enum ToSend {
    /// A call of this worker.
    Call(i64, CallMessage),
    /// An answer of this worker.
    Answer(Served, AnswerMessage),
    /// What is ready as it is.
    Ready(Outgoing<Part>),
}

/// Where to put what is to be written to a pipe.
pub(crate) type Queue = mpsc::UnboundedSender<ToSend>;

/// A request of this worker that has not been answered.
pub(crate) enum Pending {
    /// A call of the program's.
    Call {
        request: MessageId,
        context: Option<ContextId>,
    },
    /// A call whose result stays with the peer.
    Create {
        share: Share,
        context: Option<ContextId>,
        weight: u64,
    },
    /// The peer is to know of a reference.
    Register(Share),
    /// The peer is to forget a context.
    Cleanup(ContextId),
    /// Nothing follows from the answer.
    Quiet,
    /// A call of this crate's own.
    Own(oneshot::Sender<Incoming>),
}

/// The requests of this worker that have not been answered.
#[derive(Default)]
struct PendingRequests {
    /// With the time since when they are open, unless they are the program's calls.
    requests: HashMap<i64, (Pending, Option<Instant>)>,
    /// The values that the peer is to make, and what is to be deleted when it has (TA-8).
    creations: HashMap<RRefId, Vec<Share>>,
}

/// How many deletes wait for one creation at most. PyTorch's workers hand back a reference that they have not made
/// once or twice.
const DELETES_HELD_BACK: usize = 1024;

/// How a request of the peer's is to be answered.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) id: i64,
    pub(crate) how: AnswerKind,
    /// PyTorch's number of the context that it was made in.
    pub(crate) context: Option<i64>,
    pub(crate) back: Queue,
    /// The method that is called, whatever the value turns out to be.
    pub(crate) method: Option<Box<str>>,
    /// What PyTorch's profiler knows the request by, if it asked for it.
    pub(crate) profile: Option<GlobalId>,
    /// Whose it is.
    pub(crate) from: NodeId,
    /// What its arguments weigh.
    pub(crate) weight: u64,
}

/// What kind of answer is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnswerKind {
    Python,
    Script,
    PythonFetch,
    ScriptFetch,
    RRefBackward,
}

/// A request of the peer's that is answered when the runtime has registered something.
pub(crate) struct Confirming {
    pub(crate) id: i64,
    /// `RemoteRet` or `RRefAck`.
    pub(crate) kind: Kind,
    pub(crate) back: Queue,
    /// What PyTorch's profiler knows the request by, if it asked for it.
    pub(crate) profile: Option<GlobalId>,
}

/// All there is with one peer.
pub(crate) struct Link {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    /// Where it listens.
    pub(crate) address: String,
    /// Towards the peer, once something was to be said and while it is there.
    out: Mutex<Option<Queue>>,
    pub(crate) traffic: Mutex<Vec<Arc<Traffic>>>,
    pending: Mutex<PendingRequests>,
    served: Mutex<HashMap<MessageId, Served>>,
    confirming: Mutex<HashMap<Share, Confirming>>,
    /// Whether the peer has its pipe for requests.
    peer_pipe: AtomicBool,
    /// Who reads it is to hear that the peer is gone.
    reader: Mutex<Option<Arc<Notify>>>,
    /// Whether the peer has said that it leaves.
    leaving: AtomicBool,
    pub(crate) load: Load,
    gone: AtomicBool,
}

/// Takes a lock. Nothing that it guards is left half done by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) fn new(node: NodeId, name: String, address: String) -> Arc<Self> {
        Arc::new(Self {
            node,
            name,
            address,
            out: Mutex::default(),
            traffic: Mutex::default(),
            pending: Mutex::default(),
            served: Mutex::default(),
            confirming: Mutex::default(),
            peer_pipe: AtomicBool::new(false),
            reader: Mutex::default(),
            leaving: AtomicBool::new(false),
            load: Load::default(),
            gone: AtomicBool::new(false),
        })
    }

    /// Notes what a request of ours is for. Not if the peer is gone: then nobody will answer.
    pub(crate) fn expect(&self, id: i64, pending: Pending) -> bool {
        let mut open = lock(&self.pending);
        if self.gone.load(Ordering::Relaxed) {
            return false;
        }
        if let Pending::Create { share, .. } = &pending {
            open.creations.insert(share.rref, Vec::new());
        }
        let since = (!matches!(pending, Pending::Call { .. })).then(Instant::now);
        open.requests.insert(id, (pending, since));
        true
    }

    /// What the request was for that the peer answers.
    pub(crate) fn answered(&self, id: i64) -> Option<Pending> {
        let (pending, _) = lock(&self.pending).requests.remove(&id)?;
        Some(pending)
    }

    /// Says whether a reference is to be deleted when the peer has made its value, which is not yet (TA-8).
    pub(crate) fn delete_later(&self, share: Share) -> bool {
        let mut open = lock(&self.pending);
        match open.creations.get_mut(&share.rref) {
            Some(deletes) if deletes.len() < DELETES_HELD_BACK => {
                deletes.push(share);
                true
            }
            _ => false,
        }
    }

    /// The peer has made a value, or will not: says which references to it are to be deleted now.
    pub(crate) fn created(&self, rref: RRefId) -> Vec<Share> {
        lock(&self.pending)
            .creations
            .remove(&rref)
            .unwrap_or_default()
    }

    /// Notes how a request of the peer's is to be answered, unless it is gone: the note would keep its pipe. Says whether
    /// there was none of that id.
    pub(crate) fn serve(&self, request: MessageId, served: Served) -> bool {
        let mut open = lock(&self.served);
        if self.is_gone() {
            return true;
        }
        self.load.add(served.weight);
        open.insert(request, served).is_none()
    }

    pub(crate) fn served(&self, request: MessageId) -> Option<Served> {
        let served = lock(&self.served).remove(&request)?;
        self.load.remove(1, served.weight);
        Some(served)
    }

    pub(crate) fn confirm_later(&self, share: Share, confirming: Confirming) {
        let mut open = lock(&self.confirming);
        if !self.is_gone() {
            open.insert(share, confirming);
        }
    }

    pub(crate) fn confirming(&self, share: Share) -> Option<Confirming> {
        lock(&self.confirming).remove(&share)
    }

    /// Queues something towards the peer. The first opens the queue.
    pub(crate) fn say(&self, message: ToSend, open: impl FnOnce() -> Queue) {
        let mut out = lock(&self.out);
        if !self.is_gone() {
            drop(out.get_or_insert_with(open).send(message));
        }
    }

    /// Whether there is a pipe for requests of ours, or will be.
    pub(crate) fn has_pipe(&self) -> bool {
        lock(&self.out).is_some()
    }

    /// The peer is gone: whoever waits for it waits no longer. Says whether that is news.
    pub(crate) fn end(&self) -> bool {
        let mut pending = lock(&self.pending);
        let news = !self.gone.swap(true, Ordering::Relaxed);
        let pending = std::mem::take(&mut *pending);
        drop(pending);
        // What is queued is still written, if there is somebody who reads it.
        lock(&self.out).take();
        lock(&self.served).clear();
        lock(&self.confirming).clear();
        self.load.end();
        if let Some(reader) = &*lock(&self.reader) {
            reader.notify_one();
        }
        news
    }

    /// Who reads the peer's pipe for requests, and hears at once if the peer is gone already.
    pub(crate) fn is_read_by(&self, reader: &Arc<Notify>) {
        *lock(&self.reader) = Some(Arc::clone(reader));
        if self.is_gone() {
            reader.notify_one();
        }
    }

    /// Whether the peer has its pipe for requests.
    pub(crate) fn has_peer_pipe(&self) -> bool {
        self.peer_pipe.load(Ordering::Relaxed)
    }

    /// Says whether the peer has no pipe for requests yet, and that it has one from now on.
    pub(crate) fn claim_peer_pipe(&self) -> bool {
        !self.peer_pipe.swap(true, Ordering::Relaxed)
    }

    /// It has none after all.
    pub(crate) fn unclaim_peer_pipe(&self) {
        self.peer_pipe.store(false, Ordering::Relaxed);
    }

    /// The peer leaves: it is gone when it closes its pipes. Until then it waits for answers.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// How the peer goes, if it goes now.
    pub(crate) fn departure(&self) -> Departure {
        match self.is_leaving() {
            true => Departure::Left,
            false => Departure::Died,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// How many requests of ours are open.
    fn open(&self) -> usize {
        lock(&self.pending).requests.len()
    }

    /// How many of them are none of the program's calls, and not older than that. The runtime knows which calls the
    /// program still waits for.
    pub(crate) fn open_besides_calls(&self, longest: Duration) -> usize {
        let pending = lock(&self.pending);
        let since = pending.requests.values().filter_map(|(_, since)| *since);
        since.filter(|since| since.elapsed() < longest).count()
    }

    pub(crate) fn count(&self, traffic: Arc<Traffic>) {
        lock(&self.traffic).push(traffic);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("node", &self.node)
            .field("name", &self.name)
            .field("open", &self.open())
            .finish_non_exhaustive()
    }
}

/// Gives ids to messages.
#[derive(Debug, Default)]
pub(crate) struct MessageIds(AtomicI64);

impl MessageIds {
    pub(crate) fn next(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

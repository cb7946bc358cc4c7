//! Agents with a runtime that only writes down what it is told.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::{
    CallHead, ContextId, Control, Fingerprint, GroupId, Lane, MessageId, PeerMisbehaved, Target,
};

use super::proxy::Proxy;
use super::tls::certificates::{Authority, tls};
use super::*;
use crate::agent::{CallMessage, FunctionRef, Origins, TraceContext};
use crate::codec::{Part, Payload};
use crate::native::endpoint::BoxFuture;
use crate::rendezvous::Address;
use crate::report::snapshot::{Snapshot, Wanted};
use crate::support::lock::lock;

/// Who is where, shared by all agents of a test.
#[derive(Default)]
pub(super) struct Book {
    pub(super) cards: Mutex<HashMap<NodeId, Card>>,
    /// What the agents know by themselves.
    pub(super) names: Mutex<HashMap<NodeId, String>>,
    pub(super) met: Mutex<Vec<(NodeId, u32)>>,
    /// Who is no member, and does not join.
    pub(super) strangers: Mutex<HashSet<NodeId>>,
    /// Whether the workers are joining themselves.
    pub(super) is_joining: AtomicBool,
    /// Whom the agents have been told to forget.
    pub(super) unmet: Mutex<Vec<NodeId>>,
    pub(super) rejected: Mutex<Vec<(NodeId, Rejection)>>,
    pub(super) starving: Mutex<Vec<Duration>>,
    /// Where asking for those who are not listed is counted, and never answered.
    pub(super) hanging: OnceLock<Hanging>,
    /// What observers are shown.
    pub(super) shown: Mutex<Option<Snapshot>>,
}

/// How many wait for an answer, and the most that ever did.
#[derive(Default)]
pub(super) struct Hanging {
    waiting: AtomicUsize,
    pub(super) most: AtomicUsize,
}

impl Hanging {
    async fn wait(&self) {
        struct Waits<'a>(&'a Hanging);

        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }

        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        let _waits = Waits(self);
        self.most.fetch_max(waiting, Ordering::SeqCst);
        std::future::pending().await
    }
}

impl WireCallbacks for Book {
    fn lookup(&self, node: NodeId) -> BoxFuture<'_, Result<Card, String>> {
        let card = lock(&self.cards).get(&node).cloned();
        Box::pin(async move {
            if let (None, Some(hanging)) = (&card, self.hanging.get()) {
                hanging.wait().await;
            }
            card.ok_or_else(|| "unknown".to_owned())
        })
    }

    fn name(&self, node: NodeId) -> Option<Arc<str>> {
        let names = lock(&self.names);
        names.get(&node).map(|name| Arc::from(name.as_str()))
    }

    fn met(&self, card: &Card, max_calls: u32) {
        lock(&self.met).push((card.node, max_calls));
    }

    fn is_live(&self, node: NodeId) -> bool {
        !lock(&self.strangers).contains(&node)
    }

    fn unmet(&self, nodes: &[NodeId], forget: &mut dyn FnMut(NodeId) -> bool) {
        let strangers = lock(&self.strangers);
        let strangers = nodes.iter().filter(|node| strangers.contains(node));
        let forgotten = strangers.copied().filter(|node| forget(*node));
        lock(&self.unmet).extend(forgotten);
    }

    fn is_member(&self) -> bool {
        !self.is_joining.load(Ordering::SeqCst)
    }

    fn rejected(&self, by: NodeId, rejection: Rejection) {
        lock(&self.rejected).push((by, rejection));
    }

    fn is_here(&self) -> bool {
        true
    }

    fn starving(&self, lasted: Duration) {
        lock(&self.starving).push(lasted);
    }

    fn snapshot(&self, _: Wanted) -> Option<Snapshot> {
        lock(&self.shown).clone()
    }
}

type Hook = Box<dyn Fn(&Message) -> Result<(), PeerMisbehaved> + Send + Sync>;

/// What an agent has told its runtime.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) received: Mutex<Vec<(NodeId, Message)>>,
    pub(super) suspected: Mutex<Vec<NodeId>>,
    pub(super) misbehaved: Mutex<Vec<(NodeId, String)>>,
    pub(super) refused: Mutex<Vec<NodeId>>,
    pub(super) gone: Mutex<HashSet<NodeId>>,
    /// Called with each message before it is written down.
    pub(super) hook: Mutex<Option<Arc<Hook>>>,
}

impl Inbound for Recorder {
    fn receive(self: Arc<Self>, from: NodeId, message: Message) -> Result<(), PeerMisbehaved> {
        let hook = lock(&self.hook).clone();
        if let Some(hook) = hook {
            hook(&message)?;
        }
        lock(&self.received).push((from, message));
        Ok(())
    }

    fn suspect(self: Arc<Self>, node: NodeId, _silent_for: Duration) {
        lock(&self.suspected).push(node);
    }

    fn misbehaved(self: Arc<Self>, node: NodeId, _: &'static str, reason: String) {
        lock(&self.misbehaved).push((node, reason));
    }

    fn refused(self: Arc<Self>, by: NodeId) {
        lock(&self.refused).push(by);
    }

    // The native agent's group keeps its own list.
    fn admitted(self: Arc<Self>, node: NodeId, _: &str) {
        unreachable!("{node} is admitted by its peers");
    }

    fn dismissed(self: Arc<Self>, node: NodeId, _: Departure) {
        unreachable!("{node} is dismissed by its peers");
    }

    fn accepts(self: Arc<Self>, node: NodeId, _: u32) {
        unreachable!("{node} says so when it greets");
    }

    fn is_gone(&self, node: NodeId) -> bool {
        lock(&self.gone).contains(&node)
    }
}

/// One agent and what belongs to it.
pub(super) struct Side {
    pub(super) node: NodeId,
    pub(super) agent: Arc<NativeAgent>,
    pub(super) inbound: Arc<Recorder>,
    pub(super) card: Card,
    listens_at: Vec<Address>,
}

/// The settings of tests: impatient, but not with slow machines.
pub(super) fn impatient() -> NativeConfig {
    NativeConfig {
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        ..NativeConfig::default()
    }
}

pub(super) const GROUP: GroupId = GroupId(77);

pub(super) struct Setup {
    pub(super) node: NodeId,
    pub(super) bind: BindOptions,
    pub(super) book: Arc<Book>,
    pub(super) group: GroupId,
    pub(super) token: Option<Vec<u8>>,
    pub(super) tls: Option<Tls>,
    pub(super) config: NativeConfig,
    pub(super) io: Arc<IoThread>,
    /// What it is called, if not by its number.
    pub(super) name: Option<String>,
    /// Where others are to reach it, if not where it listens.
    pub(super) reached_at: Option<Address>,
    /// Whether sockets take little of what it sends.
    pub(super) has_little_room: bool,
}

impl Setup {
    pub(super) fn new(worker: u32, bind: BindOptions, book: &Arc<Book>) -> Self {
        Self {
            node: NodeId::new(worker, 1),
            bind,
            book: Arc::clone(book),
            group: GROUP,
            token: None,
            tls: None,
            config: impatient(),
            io: IoThread::get().expect("a thread"),
            name: None,
            reached_at: None,
            has_little_room: false,
        }
    }

    pub(super) async fn start(self) -> Side {
        let bound = Bound::bind(&self.bind).await.expect("a place to listen at");
        #[cfg(unix)]
        if self.has_little_room {
            bound.leave_little_room();
        }
        let listens_at = bound.addresses();
        let reached_at = self.reached_at.map(|address| vec![address]);
        let card = Card {
            node: self.node,
            name: self.name.unwrap_or_else(|| self.node.to_string()),
            addresses: reached_at.unwrap_or_else(|| listens_at.clone()),
            host: "here".to_owned(),
            wire: WIRE_VERSION,
            token: None,
            certificate: self.tls.as_ref().map(Tls::tag),
        };
        lock(&self.book.cards)
            .entry(self.node)
            .or_insert_with(|| card.clone());
        let inbound = Arc::new(Recorder::default());
        let weak: Weak<dyn Inbound> = Arc::<Recorder>::downgrade(&inbound);
        let identity = Identity {
            card: card.clone(),
            group: self.group,
            token: self.token,
            tls: self.tls,
            max_calls: 100 + self.node.worker.0,
        };
        let agent = NativeAgent::start(bound, identity, self.book, weak, self.config, self.io);
        Side {
            node: self.node,
            agent,
            inbound,
            card,
            listens_at,
        }
    }
}

impl Side {
    /// Two workers in a network within this process, called `w1#1` and `w2#1`.
    pub(super) async fn memory_pair(network: &MemoryNetwork) -> [Self; 2] {
        Self::memory_pair_with(network, impatient()).await
    }

    pub(super) async fn memory_pair_with(
        network: &MemoryNetwork,
        config: NativeConfig,
    ) -> [Self; 2] {
        let book = Arc::default();
        let side = |worker| {
            let bind = BindOptions::memory(network, format!("w{worker}#1"));
            let mut setup = Setup::new(worker, bind, &book);
            setup.config = config.clone();
            setup.start()
        };
        [side(1).await, side(2).await]
    }

    /// Two workers that talk by TCP, or by Unix sockets.
    pub(super) async fn socket_pair(unix: bool) -> [Self; 2] {
        let book = Arc::default();
        let side = |worker| {
            let bind = BindOptions {
                unix,
                ..BindOptions::default()
            };
            Setup::new(worker, bind, &book).start()
        };
        [side(1).await, side(2).await]
    }

    /// The same with TLS.
    pub(super) async fn tls_pair() -> [Self; 2] {
        static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);
        static FILES: AtomicU32 = AtomicU32::new(0);
        let book = Arc::default();
        let side = |worker| {
            let bind = BindOptions {
                unix: false,
                ..BindOptions::default()
            };
            let mut setup = Setup::new(worker, bind, &book);
            // Tests run side by side, and each writes files of its own.
            let file = format!("{worker}-{}", FILES.fetch_add(1, Ordering::Relaxed));
            let uri = format!("farref:worker/{}", setup.node).replace('#', "%23");
            setup.tls = Some(tls(AUTHORITY.issue(&file, &[&uri])));
            setup.start()
        };
        [side(1).await, side(2).await]
    }

    pub(super) fn send(&self, to: &Self, message: Message) {
        self.agent.enqueue(to.node, message);
        self.agent.flush(to.node);
    }

    pub(super) fn received(&self) -> Vec<Message> {
        let received = lock(&self.inbound.received);
        received
            .iter()
            .map(|(_, message)| message.clone())
            .collect()
    }

    pub(super) fn received_count(&self) -> usize {
        lock(&self.inbound.received).len()
    }

    /// The numbers of the messages that came on a lane.
    pub(super) fn received_on(&self, lane: Lane) -> Vec<u64> {
        numbers(&self.received(), lane)
    }

    pub(super) fn link_to(&self, to: &Self) -> Option<LinkStatistics> {
        self.agent
            .links()
            .into_iter()
            .find(|link| link.peer == to.node)
    }

    /// Sends a message each way and waits until both have come.
    pub(super) async fn meet(&self, other: &Self) {
        self.send(other, control(0));
        other.send(self, control(0));
        eventually("both hear each other", || {
            self.received_count() > 0 && other.received_count() > 0
        })
        .await;
    }

    /// Two workers that reach each other through a proxy in front of each.
    pub(super) async fn proxied_pair() -> [(Self, Proxy); 2] {
        let book = Arc::default();
        let side = async |worker| {
            let proxy = Proxy::listen();
            let mut setup = Setup::new(worker, BindOptions::default(), &book);
            setup.reached_at = Some(Address::Tcp(proxy.address));
            let side = setup.start().await;
            proxy.forward_to(side.tcp_address());
            (side, proxy)
        };
        [side(1).await, side(2).await]
    }

    pub(super) async fn close(&self) {
        self.agent.close(Duration::from_secs(10)).await;
    }

    /// Where it listens.
    pub(super) fn tcp_address(&self) -> std::net::SocketAddr {
        self.listens_at
            .iter()
            .find_map(|address| match address {
                Address::Tcp(address) => Some(*address),
                _ => None,
            })
            .expect("a TCP address")
    }
}

/// A numbered control message.
pub(super) fn control(number: u64) -> Message {
    Message::Control(Control::ContextCleaned(vec![ContextId::new(
        NodeId::new(0, 0),
        number,
    )]))
}

/// A numbered call with a payload of this size: on the bulk lane if that is large.
pub(super) fn call(number: u64, size: usize) -> Message {
    answerable(number, Bytes::from(vec![number as u8; size]), Vec::new())
}

pub(super) fn answerable(number: u64, body: Bytes, parts: Vec<Bytes>) -> Message {
    let parts = parts.into_iter().map(Part::from).collect();
    with_parts(number, body, parts)
}

pub(super) fn with_parts(number: u64, body: Bytes, parts: Vec<Part>) -> Message {
    Message::Call(CallMessage {
        head: CallHead {
            target: Target::Answer(MessageId(number)),
            context: None,
            carried: Vec::new(),
        },
        function: Some(FunctionRef {
            id: 0x1234_5678_9abc_def0,
            signature: Fingerprint(0xfedc_ba98_7654_3210),
            on_first_reference: false,
        }),
        remaining: Some(Duration::from_secs(60)),
        trace: TraceContext::default(),
        callers: Vec::new(),
        origins: Origins::default(),
        arguments: Payload { body, parts },
    })
}

/// The numbers of those messages that travelled on a lane.
pub(super) fn numbers(messages: &[Message], lane: Lane) -> Vec<u64> {
    let number = |message: &Message| match message {
        Message::Control(Control::ContextCleaned(contexts)) => (
            Lane::Control,
            contexts.first().map(|context| context.counter),
        ),
        Message::Call(call) => {
            let number = match call.head.target {
                Target::Answer(id) => Some(id.0),
                _ => None,
            };
            let lane = if call.arguments.len() > 64 << 10 {
                Lane::Bulk
            } else {
                Lane::Call
            };
            (lane, number)
        }
        Message::Cancel(id) => (Lane::Call, Some(id.0)),
        _ => (Lane::Call, None),
    };
    messages
        .iter()
        .map(number)
        .filter(|(on, _)| *on == lane)
        .filter_map(|(_, number)| number)
        .collect()
}

/// Waits until `condition` holds, and panics if it never does.
pub(super) async fn eventually(what: &str, condition: impl FnMut() -> bool) {
    if let Err(error) = farref_testkit::eventually(what, condition).await {
        panic!("{error}");
    }
}

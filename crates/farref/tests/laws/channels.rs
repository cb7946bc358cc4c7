//! A wire of channels within this process, whose ends can be told to do things to calls on their way, and to messages what
//! no correct wire does (AG-1): what becomes of which is its [`Fates`].

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anyhow::Context as _;
use farref::agent::{
    Agent, CallHead, CallMessage, Departure, Ending, Group, Inbound, LinkStatistics, Message,
    NodeId,
};
use farref::{Codec, CodecError, Payload, Worker, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One end of the wire.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// How it writes values.
    pub(crate) codec: Codec,
    /// What happens to its calls on their way.
    pub(crate) tamper: fn(&mut CallMessage),
    /// The most bytes of arguments that it takes.
    pub(crate) most: usize,
    /// Whether its worker may publish references under names.
    pub(crate) has_names: bool,
    /// How its worker ends, if not by farref's own protocol.
    pub(crate) ending: Option<EndingOf>,
    /// What becomes of what it sends.
    pub(crate) fates: Fates,
}

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Deliver,
    Lose,
    Twice,
    /// Behind all that are late before it.
    Late(Duration),
}

/// Which messages.
pub(crate) type Which = fn(&Message) -> bool;

/// What becomes of the messages of one end.
#[derive(Clone, Default)]
pub(crate) struct Fates(Arc<Mutex<FateState>>);

#[derive(Default)]
struct FateState {
    /// Each of the next one of its kind.
    next: Vec<(Which, Fate)>,
    /// Of all of a kind.
    all: Option<(Which, Fate)>,
    /// The end's own worker.
    inbound: Option<Weak<dyn Inbound>>,
    is_used: bool,
}

impl Fates {
    /// What becomes of the next message of a kind.
    pub(crate) fn next(&self, which: Which, fate: Fate) {
        let mut state = self.0.lock().unwrap();
        state.is_used = true;
        state.next.push((which, fate));
    }

    /// What becomes of all messages of a kind.
    pub(crate) fn all(&self, which: Which, fate: Fate) {
        let mut state = self.0.lock().unwrap();
        state.is_used = true;
        state.all = Some((which, fate));
    }

    /// Whether all fates have come about that were to come about once.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().next.is_empty()
    }

    /// The wire says to the end's worker that a peer cannot be reached any more.
    pub(crate) fn give_up(&self, peer: NodeId) -> anyhow::Result<()> {
        let inbound = self.0.lock().unwrap().inbound.clone();
        let inbound = inbound.and_then(|inbound| inbound.upgrade());
        inbound.context("a worker")?.suspect(peer, Duration::ZERO);
        Ok(())
    }

    fn of(&self, message: &Message) -> Fate {
        let mut state = self.0.lock().unwrap();
        let place = state.next.iter().position(|(which, _)| which(message));
        if let Some(place) = place {
            return state.next.remove(place).1;
        }
        let fate = state.all.filter(|(which, _)| which(message));
        fate.map_or(Fate::Deliver, |(_, fate)| fate)
    }

    fn are_used(&self) -> bool {
        self.0.lock().unwrap().is_used
    }
}

impl fmt::Debug for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fates")
    }
}

/// How a worker ends.
#[derive(Clone)]
pub(crate) struct EndingOf(pub(crate) Arc<dyn Ending>);

impl fmt::Debug for EndingOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndingOf")
    }
}

impl End {
    /// One that does nothing by itself.
    pub(crate) fn with(fates: &Fates) -> Self {
        Self {
            fates: fates.clone(),
            ..Self::default()
        }
    }
}

impl Default for End {
    fn default() -> Self {
        Self {
            codec: Codec::Postcard,
            tamper: |_| {},
            most: usize::MAX,
            has_names: true,
            ending: None,
            fates: Fates::default(),
        }
    }
}

/// Two workers, `w0` and `w1`, on the ends of one wire.
pub(crate) async fn group(ends: [End; 2]) -> anyhow::Result<[Worker; 2]> {
    group_with(ends, |builder| builder.fail_on_leaks(true)).await
}

/// The same with any number of workers, set up otherwise.
pub(crate) async fn group_with<const N: usize>(
    ends: [End; N],
    set_up: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> anyhow::Result<[Worker; N]> {
    let members = members(N);
    let switchboard = Switchboard::default();
    let mut workers = Vec::new();
    for ((me, _), end) in members.clone().into_iter().zip(ends) {
        let group = Group {
            me,
            members: members.clone(),
        };
        let switchboard = Arc::clone(&switchboard);
        let worker = set_up(Worker::builder(""))
            .attach(group, |inbound| {
                ChannelAgent::start(me, end, switchboard, inbound)
            })
            .await?;
        workers.push(worker);
    }
    let workers: Result<[Worker; N], _> = workers.try_into();
    workers.ok().context("a worker for each end")
}

/// The first of the two on a wire that nobody else ever comes to, and what takes in whatever would be said
/// to it.
pub(crate) async fn alone(
    set_up: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> anyhow::Result<(Worker, Arc<dyn Inbound>)> {
    let members = members(2);
    let me = members[0].0;
    let mut taking_in = None;
    let worker = set_up(Worker::builder(""))
        .attach(Group { me, members }, |inbound| {
            taking_in = inbound.upgrade();
            ChannelAgent::start(me, End::default(), Switchboard::default(), inbound)
        })
        .await?;
    Ok((worker, taking_in.context("the worker lives")?))
}

fn members(count: usize) -> Vec<(NodeId, String)> {
    (0..)
        .take(count)
        .map(|rank| (NodeId::new(rank, 1), format!("w{rank}")))
        .collect()
}

/// Shuts all down. Fails if anything is left behind.
pub(crate) async fn end<const N: usize>(workers: [Worker; N]) -> anyhow::Result<()> {
    let mut ending = JoinSet::new();
    for worker in workers {
        ending.spawn(async move { worker.shutdown().await });
    }
    while let Some(ended) = ending.join_next().await {
        ended??;
    }
    Ok(())
}

/// Workers, and what becomes of what each of them sends: on a wire that loses nothing.
pub(crate) async fn delayed<const N: usize>(fates: [&Fates; N]) -> anyhow::Result<[Worker; N]> {
    group_with(fates.map(End::with), |builder| builder.fail_on_leaks(true)).await
}

/// The same on a wire that loses things, or says them twice. There a shutdown need not succeed, and does not take long.
pub(crate) async fn tampered<const N: usize>(fates: [&Fates; N]) -> anyhow::Result<[Worker; N]> {
    let set_up = |builder: WorkerBuilder| {
        builder
            .fail_on_leaks(true)
            .shutdown_timeout(Duration::from_secs(1))
    };
    group_with(fates.map(End::with), set_up).await
}

/// S1: on a wire that has lost something a shutdown need not succeed, but it ends.
pub(crate) async fn end_in_time([a, b]: [Worker; 2]) -> anyhow::Result<()> {
    let ending = async { tokio::join!(a.shutdown(), b.shutdown()) };
    let _outcome = tokio::time::timeout(TEST_TIMEOUT, ending).await?;
    a.crash().await;
    b.crash().await;
    Ok(())
}

/// Nothing passes between the two any more, and the first is told so.
pub(crate) fn give_up(fates: [&Fates; 2]) -> anyhow::Result<()> {
    for fates in fates {
        fates.all(|_| true, Fate::Lose);
    }
    fates[0].give_up(NodeId::new(1, 1))
}

pub(crate) fn is_call(message: &Message) -> bool {
    matches!(message, Message::Call(_))
}

pub(crate) fn is_answer(message: &Message) -> bool {
    matches!(message, Message::Answer(_))
}

pub(crate) fn is_control(message: &Message) -> bool {
    matches!(message, Message::Control(_))
}

/// All ends of a wire.
type Switchboard = Arc<Mutex<HashMap<NodeId, Socket>>>;

fn send(switchboard: &Switchboard, from: NodeId, to: NodeId, message: Message) {
    if let Some(peer) = switchboard.lock().unwrap().get(&to) {
        let _ = peer.sender.send((from, message));
    }
}

/// Whether an end sends what no correct one does.
fn sent_otherwise(switchboard: &Switchboard, from: NodeId) -> bool {
    let switchboard = switchboard.lock().unwrap();
    switchboard
        .get(&from)
        .is_some_and(|end| end.fates.are_used())
}

/// An end learns that another one talks to it no more, as it does on a wire with connections.
fn refuse(switchboard: &Switchboard, whom: NodeId, by: NodeId) {
    let inbound = switchboard.lock().unwrap().get(&whom).cloned();
    if let Some(inbound) = inbound.and_then(|end| end.inbound.upgrade()) {
        inbound.refused(by);
    }
}

/// Where one end is reached.
#[derive(Clone)]
struct Socket {
    fates: Fates,
    sender: mpsc::UnboundedSender<(NodeId, Message)>,
    inbound: Weak<dyn Inbound>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

#[derive(Debug)]
struct ChannelAgent {
    me: NodeId,
    end: End,
    switchboard: Switchboard,
    /// What is late, in its order.
    late: mpsc::UnboundedSender<(Duration, NodeId, Message)>,
}

impl ChannelAgent {
    fn start(
        me: NodeId,
        end: End,
        switchboard: Switchboard,
        inbound: Weak<dyn Inbound>,
    ) -> Arc<Self> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let socket = Socket {
            fates: end.fates.clone(),
            sender,
            inbound: inbound.clone(),
        };
        switchboard.lock().unwrap().insert(me, socket);
        end.fates.0.lock().unwrap().inbound = Some(inbound.clone());
        let ends = Arc::clone(&switchboard);
        tokio::spawn(async move {
            while let Some((from, message)) = receiver.recv().await {
                let Some(inbound) = inbound.upgrade() else {
                    break;
                };
                let received = inbound.clone().receive(from, message);
                let may_fail = sent_otherwise(&ends, from);
                match received {
                    Err(error) if may_fail => {
                        inbound.misbehaved(from, error.kind(), error.to_string());
                        refuse(&ends, from, me);
                    }
                    received => received.unwrap(),
                }
            }
        });
        let (late, mut all_late) = mpsc::unbounded_channel();
        let later = Arc::clone(&switchboard);
        tokio::spawn(async move {
            while let Some((after, to, message)) = all_late.recv().await {
                tokio::time::sleep(after).await;
                send(&later, me, to, message);
            }
        });
        Arc::new(Self {
            me,
            end,
            switchboard,
            late,
        })
    }
}

impl Agent for ChannelAgent {
    fn codec(&self) -> &Codec {
        &self.end.codec
    }

    fn check_call(&self, _: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
        if arguments.len() <= self.end.most {
            return Ok(());
        }
        Err(CodecError::new("that is too much for a channel"))
    }

    fn enqueue(&self, to: NodeId, mut message: Message) {
        if let Message::Call(call) = &mut message {
            (self.end.tamper)(call);
        }
        match self.end.fates.of(&message) {
            Fate::Deliver => send(&self.switchboard, self.me, to, message),
            Fate::Lose => {}
            Fate::Twice => {
                let again = message.clone();
                send(&self.switchboard, self.me, to, message);
                send(&self.switchboard, self.me, to, again);
            }
            Fate::Late(after) => drop(self.late.send((after, to, message))),
        }
    }

    fn has_names(&self) -> bool {
        self.end.has_names
    }

    fn flush(&self, _: NodeId) {}

    fn forget(&self, _: NodeId, _: Departure) {}

    fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            self.switchboard.lock().unwrap().remove(&self.me);
            // Where each leaves alone, the wire keeps the list of members.
            if self.ending().is_some_and(Ending::may_leave_alone) {
                let others = self.switchboard.lock().unwrap().clone();
                for inbound in others.values().filter_map(|other| other.inbound.upgrade()) {
                    inbound.dismissed(self.me, Departure::Left);
                }
            }
        })
    }

    fn links(&self) -> Vec<LinkStatistics> {
        Vec::new()
    }

    fn ending(&self) -> Option<&dyn Ending> {
        self.end.ending.as_ref().map(|ending| &*ending.0)
    }
}

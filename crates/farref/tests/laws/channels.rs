//! A wire of channels within this process, whose ends can be told to do things to calls on their way.

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
use tokio::sync::mpsc;

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
}

/// How a worker ends.
#[derive(Clone)]
pub(crate) struct EndingOf(pub(crate) Arc<dyn Ending>);

impl fmt::Debug for EndingOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndingOf")
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
        }
    }
}

/// Two workers, `w0` and `w1`, on the ends of one wire.
pub(crate) async fn group(ends: [End; 2]) -> anyhow::Result<[Worker; 2]> {
    group_with(ends, |builder| builder.fail_on_leaks(true)).await
}

/// The same, set up otherwise.
pub(crate) async fn group_with(
    ends: [End; 2],
    set_up: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> anyhow::Result<[Worker; 2]> {
    let members = members();
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
    let workers: Result<[Worker; 2], _> = workers.try_into();
    workers.ok().context("two workers")
}

/// The first of the two on a wire that nobody else ever comes to, and what takes in whatever would be said
/// to it.
pub(crate) async fn alone(
    set_up: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> anyhow::Result<(Worker, Arc<dyn Inbound>)> {
    let members = members();
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

fn members() -> Vec<(NodeId, String)> {
    (0..2)
        .map(|rank| (NodeId::new(rank, 1), format!("w{rank}")))
        .collect()
}

/// Shuts both down. Fails if anything is left behind.
pub(crate) async fn end([a, b]: [Worker; 2]) -> anyhow::Result<()> {
    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    first?;
    second?;
    Ok(())
}

/// All ends of a wire.
type Switchboard = Arc<Mutex<HashMap<NodeId, Socket>>>;

/// Where one end is reached.
#[derive(Clone)]
struct Socket {
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
            sender,
            inbound: inbound.clone(),
        };
        switchboard.lock().unwrap().insert(me, socket);
        tokio::spawn(async move {
            while let Some((from, message)) = receiver.recv().await {
                let Some(inbound) = inbound.upgrade() else {
                    break;
                };
                inbound.receive(from, message).unwrap();
            }
        });
        Arc::new(Self {
            me,
            end,
            switchboard,
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
        if let Some(peer) = self.switchboard.lock().unwrap().get(&to) {
            let _ = peer.sender.send((self.me, message));
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

//! R8: two builds that disagree about a function or a type find out at the first call.
//!
//! One program cannot be two builds. So a wire of channels changes what the caller says it believes,
//! and the callee reacts as it would to another build.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anyhow::Context as _;
use farref::agent::{
    Agent, CallMessage, Departure, Group, Inbound, LinkStatistics, Message, NodeId,
};
use farref::{Codec, Error, RRef, Worker};
use farref_proto::{Fingerprint, Target};
use tokio::sync::mpsc;

struct Counter(u64);

#[farref::remote]
impl Counter {
    pub(crate) fn new(start: u64) -> Self {
        Self(start)
    }

    pub(crate) async fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

#[farref::remote]
async fn read_through(text: RRef<String>, times: u32) -> farref::Result<String> {
    Ok(text.to_here().await?.repeat(times as usize))
}

/// What happens to a call on its way.
type Tamper = fn(&mut CallMessage);

fn another_signature(call: &mut CallMessage) {
    if let Some(function) = &mut call.function {
        function.signature = Fingerprint(function.signature.0 ^ 1);
    }
}

fn another_function(call: &mut CallMessage) {
    if let Some(function) = &mut call.function {
        function.id ^= 1;
    }
}

/// The caller believes that the value is of another type.
fn another_type(call: &mut CallMessage) {
    if let Target::Fetch(.., fingerprint) = &mut call.head.target {
        fingerprint.0 ^= 1;
    }
}

type Switchboard = Arc<Mutex<HashMap<NodeId, mpsc::UnboundedSender<(NodeId, Message)>>>>;

#[derive(Debug)]
struct TamperingAgent {
    me: NodeId,
    codec: Codec,
    tamper: Tamper,
    switchboard: Switchboard,
}

impl TamperingAgent {
    fn start(
        me: NodeId,
        tamper: Tamper,
        switchboard: Switchboard,
        inbound: Weak<dyn Inbound>,
    ) -> Arc<Self> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        switchboard.lock().unwrap().insert(me, sender);
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
            codec: Codec::Postcard,
            tamper,
            switchboard,
        })
    }
}

impl Agent for TamperingAgent {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn enqueue(&self, to: NodeId, mut message: Message) {
        if let Message::Call(call) = &mut message {
            (self.tamper)(call);
        }
        if let Some(peer) = self.switchboard.lock().unwrap().get(&to) {
            let _ = peer.send((self.me, message));
        }
    }

    fn flush(&self, _: NodeId) {}

    fn forget(&self, _: NodeId, _: Departure) {}

    fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async { drop(self.switchboard.lock().unwrap().remove(&self.me)) })
    }

    fn links(&self) -> Vec<LinkStatistics> {
        Vec::new()
    }
}

/// Two workers, the first of which is of another build.
async fn group(tamper: Tamper) -> anyhow::Result<[Worker; 2]> {
    let members: Vec<_> = (0..2)
        .map(|rank| (NodeId::new(rank, 1), format!("w{rank}")))
        .collect();
    let switchboard = Switchboard::default();
    let mut workers = Vec::new();
    for ((me, _), tamper) in members.clone().into_iter().zip([tamper, |_| {}]) {
        let group = Group {
            me,
            members: members.clone(),
        };
        let switchboard = Arc::clone(&switchboard);
        let builder = Worker::builder("").fail_on_leaks(true);
        let worker = builder
            .attach(group, |inbound| {
                TamperingAgent::start(me, tamper, switchboard, inbound)
            })
            .await?;
        workers.push(worker);
    }
    let workers: Result<[Worker; 2], _> = workers.try_into();
    workers.ok().context("two workers")
}

/// Fails if a refused call has left anything behind.
async fn end([a, b]: [Worker; 2]) -> anyhow::Result<()> {
    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    first?;
    second?;
    assert!(a.snapshot().references.is_empty() && b.snapshot().references.is_empty());
    Ok(())
}

/// R8
#[tokio::test]
async fn a_function_with_another_signature_is_an_error_that_names_both() -> anyhow::Result<()> {
    let workers = group(another_signature).await?;
    let peer = workers[0].peer("w1")?;
    let text = workers[0].rref("text".to_owned())?;
    let called = read_through::on(&peer, text.clone(), 2).await;
    let Err(error) = called else {
        panic!("{called:?}");
    };
    let Error::SignatureMismatch {
        peer: who,
        function,
        ours,
        theirs,
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true)
    );
    assert!(ours.contains("u32") && theirs.contains("u32"), "{error}");

    // What stays there says so when it is used.
    let there = read_through::on(&peer, text.clone(), 2).remote();
    let used = there.to_here().await;
    let Err(error) = &used else {
        panic!("{used:?}");
    };
    let Error::SignatureMismatch {
        peer: who,
        function,
        ours: believed,
        theirs: found,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true),
        "{error}"
    );
    assert_eq!((believed, found), (ours, theirs));
    drop((text, there));
    end(workers).await
}

/// R8
#[tokio::test]
async fn a_function_that_the_callee_lacks_is_an_error_that_names_it() -> anyhow::Result<()> {
    let workers = group(another_function).await?;
    let peer = workers[0].peer("w1")?;
    let text = workers[0].rref("text".to_owned())?;
    let called = read_through::on(&peer, text.clone(), 2).await;
    let Err(Error::NoSuchFunction {
        peer: who,
        function,
        ..
    }) = &called
    else {
        panic!("{called:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true)
    );
    // What stays there says so when it is used, and not of the use.
    let there = read_through::on(&peer, text.clone(), 2).remote();
    let used = there.to_here().await;
    let Err(Error::NoSuchFunction {
        peer: who,
        function,
        ..
    }) = &used
    else {
        panic!("{used:?}");
    };
    assert_eq!((&**who, function.as_str() == "to_here"), ("w1", false));
    drop((text, there));
    end(workers).await
}

/// R8
#[tokio::test]
async fn a_value_of_another_type_is_an_error_that_names_both() -> anyhow::Result<()> {
    let workers = group(another_type).await?;
    let peer = workers[0].peer("w1")?;
    let counter = Counter::new_on(&peer, 1).remote();
    for waits_for_the_value in [true, false] {
        let used = counter.add(1).await;
        let Err(Error::TypeMismatch(text)) = &used else {
            panic!("{waits_for_the_value}: {used:?}");
        };
        assert!(text.contains("Counter"), "{text}");
    }
    drop(counter);
    end(workers).await
}

//! Entry points for fuzzers. Each takes any bytes at all and must neither panic nor hang.
//!
//! The targets in `fuzz/` call them, through the feature `fuzzing`; the tests below call each for a
//! moment, with bytes that are more likely than others to mean something.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref_proto::{
    AnswerHead, CallHead, Control, Digest, Fingerprint, MessageId, NodeId, Standing, WorkerId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::{
    Agent, AnswerMessage, CallMessage, Departure, Failure, FunctionRef, Group, Inbound,
    LinkStatistics, Message, Origins, TraceContext,
};
use crate::api::peer::Peer;
use crate::api::rref::RRef;
use crate::codec::vectors::each_in;
use crate::codec::{Blob, Buffer, Codec, Payload};
use crate::report::snapshot::Snapshot;
use crate::runtime::registry::Registry;
use crate::runtime::value_scope;
use crate::worker::Worker;

pub use super::session_fuzzing::session;
pub use crate::native::fuzzing::{frames, handshake, observing};

/// What an argument or a result may be.
pub fn values(data: &[u8]) {
    #[derive(Debug, Serialize, Deserialize)]
    enum Nested {
        Leaf,
        Next(Box<Self>),
        Many(Vec<Self>),
        Named(BTreeMap<String, Self>),
    }

    fn read<T: DeserializeOwned + 'static>(data: &[u8]) {
        let (body, parts) = data.split_at(data.len() / 2);
        let payload = Payload {
            body: body.to_vec().into(),
            parts: vec![parts.to_vec().into(); 3],
        };
        drop(value_scope::read::<T>(
            &Codec::Postcard,
            payload,
            Vec::new(),
            None,
            &[],
            each_in,
        ));
    }

    read::<(String, Option<Vec<u8>>, Vec<char>, u128, f32)>(data);
    read::<Vec<u8>>(data);
    read::<Vec<Vec<f32>>>(data);
    read::<Vec<Blob>>(data);
    read::<Vec<Buffer>>(data);
    read::<Nested>(data);
    read::<BTreeMap<String, Option<RRef<u64>>>>(data);
    read::<Vec<(Peer, u8)>>(data);
    read::<Snapshot>(data);
    read::<(Failure, Control, CallHead)>(data);
}

/// Something that a peer says or the program does.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Step {
    Control(u8, Control),
    Call {
        from: u8,
        head: CallHead,
        function: u8,
        on_first_reference: bool,
        remaining: Option<u16>,
        arguments: Vec<u8>,
    },
    Answer {
        from: u8,
        head: AnswerHead,
        outcome: Result<Vec<u8>, Failure>,
    },
    Cancel(u8, MessageId),
    Credit(u8, u32, u64),
    Suspect(u8),
    Refused(u8),
    /// A call of the program.
    Make(u8),
    /// A value of the program's own.
    Own,
    /// A value left with a peer.
    Leave(u8),
    /// A reference of the program's handed to a peer.
    Hand(u8, u8),
    /// The program lets go of something.
    Drop(u8),
    /// Time for tasks.
    Yield,
    ShutDown,
    /// A peer says something about exactly what this worker knows of the group.
    Word(u8, Word),
}

/// What is said about a view as a whole. Its digest is known only when it is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Word {
    Ask(Vec<(WorkerId, Standing)>),
    Known,
    Unlike(Digest),
    Settled,
}

impl Word {
    fn about(self, digest: Digest) -> Control {
        match self {
            Self::Ask(entries) => Control::View {
                entries,
                ask: Some(digest),
            },
            Self::Known => Control::Known(digest),
            Self::Unlike(mine) => Control::Unlike {
                asked: digest,
                mine,
            },
            Self::Settled => Control::Settled(digest),
        }
    }
}

/// A worker whose peers say what they like.
pub fn runtime(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(Hostile::play(data)),
        Err(error) => panic!("the fuzzer has no runtime: {error}"),
    }
}

/// Who plays: this worker, three peers, a later life of one, and a stranger.
const NODES: [NodeId; 6] = [
    NodeId::new(0, 1),
    NodeId::new(1, 1),
    NodeId::new(2, 1),
    NodeId::new(3, 1),
    NodeId::new(2, 2),
    NodeId::new(9, 1),
];

#[derive(Debug)]
struct Mute(Codec);

impl Agent for Mute {
    fn codec(&self) -> &Codec {
        &self.0
    }

    fn enqueue(&self, _: NodeId, _: Message) {}

    fn flush(&self, _: NodeId) {}

    fn forget(&self, _: NodeId, _: Departure) {}

    fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }

    fn links(&self) -> Vec<LinkStatistics> {
        Vec::new()
    }
}

/// What the program has at hand.
struct Hostile {
    worker: Worker,
    inbound: Arc<dyn Inbound>,
    functions: Vec<FunctionRef>,
    cut_off: BTreeSet<NodeId>,
    references: Vec<RRef<u64>>,
    calls: Vec<Box<dyn std::any::Any>>,
}

impl Hostile {
    async fn play(mut data: &[u8]) {
        let [me, ..] = NODES;
        let members = NODES.iter().take(4);
        let members = members.map(|node| (*node, format!("worker{}", node.worker.0)));
        let group = Group {
            me,
            members: members.collect(),
        };
        let mut kept: Weak<dyn Inbound> = Weak::<crate::runtime::Core>::new();
        let attached = Worker::builder("").attach(group, |inbound| {
            kept = inbound;
            Arc::new(Mute(Codec::Postcard))
        });
        let (Ok(worker), Ok(registry)) = (attached.await, Registry::of_program()) else {
            panic!("the fuzzer has no worker");
        };
        let entries = [
            registry.entry::<echo>(),
            registry.entry::<hand_back>(),
            registry.entry::<number>(),
        ];
        let Some(inbound) = kept.upgrade() else {
            panic!("the fuzzer has no worker");
        };
        let mut play = Self {
            worker,
            inbound,
            functions: entries
                .into_iter()
                .flatten()
                .map(|entry| entry.reference())
                .collect(),
            cut_off: BTreeSet::new(),
            references: Vec::new(),
            calls: Vec::new(),
        };
        while let Ok((step, rest)) = postcard::take_from_bytes::<Step>(data) {
            data = rest;
            play.step(step).await;
        }
        tokio::task::yield_now().await;
        drop(std::mem::take(&mut play.references));
        drop(std::mem::take(&mut play.calls));
        tokio::task::yield_now().await;
        drop(play.worker.snapshot());
        play.worker.crash().await;
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Control(from, control) => self.hear(from, Message::Control(control)),
            Step::Word(from, word) => {
                let core = &self.worker.core;
                let digest = core.look(|node| node.membership().view().digest());
                self.hear(from, Message::Control(word.about(digest)));
            }
            Step::Call {
                from,
                head,
                function,
                on_first_reference,
                remaining,
                arguments,
            } => {
                let function = self.function(function, on_first_reference);
                let call = CallMessage {
                    head,
                    function,
                    remaining: remaining.map(|ms| Duration::from_millis(ms.into())),
                    trace: TraceContext::default(),
                    callers: Vec::new(),
                    origins: Origins::default(),
                    arguments: payload(arguments),
                };
                self.hear(from, Message::Call(call));
            }
            Step::Answer {
                from,
                head,
                outcome,
            } => {
                let outcome = outcome.map(payload);
                self.hear(
                    from,
                    Message::Answer(AnswerMessage {
                        head,
                        origins: Origins::default(),
                        outcome,
                    }),
                );
            }
            Step::Cancel(from, request) => self.hear(from, Message::Cancel(request)),
            Step::Credit(from, calls, bytes) => self.hear(from, Message::Credit { calls, bytes }),
            Step::Suspect(peer) => {
                let inbound = Arc::clone(&self.inbound);
                inbound.suspect(self.node(peer), Duration::ZERO);
            }
            Step::Refused(peer) => {
                let inbound = Arc::clone(&self.inbound);
                inbound.refused(self.node(peer));
            }
            Step::Make(peer) => {
                if let Some(peer) = self.peer(peer) {
                    self.calls.push(Box::new(echo::on(&peer, vec![1]).start()));
                }
            }
            Step::Own => self.references.extend(self.worker.rref(7)),
            Step::Leave(peer) => {
                if let Some(peer) = self.peer(peer) {
                    self.references.push(number::on(&peer, 7).remote());
                }
            }
            Step::Hand(peer, index) => {
                let reference = self.references.get(index as usize).cloned();
                if let (Some(peer), Some(reference)) = (self.peer(peer), reference) {
                    self.calls
                        .push(Box::new(hand_back::on(&peer, reference).start()));
                }
            }
            Step::Drop(index) => {
                let index = index as usize;
                if index < self.references.len() {
                    drop(self.references.swap_remove(index));
                } else if index - self.references.len() < self.calls.len() {
                    drop(self.calls.swap_remove(index - self.references.len()));
                }
            }
            Step::Yield => tokio::task::yield_now().await,
            Step::ShutDown => {
                self.worker.core.input(|node, _| node.shut_down());
                self.worker.core.tick();
            }
        }
    }

    /// What an agent does: a peer that misbehaves is cut off, one that is gone is not listened to.
    fn hear(&mut self, from: u8, message: Message) {
        let from = self.node(from);
        if self.cut_off.contains(&from) || self.inbound.is_gone(from) {
            return;
        }
        let heard = Arc::clone(&self.inbound).receive(from, message);
        if let Err(misbehaved) = heard {
            self.cut_off.insert(from);
            Arc::clone(&self.inbound).misbehaved(from, misbehaved.kind(), misbehaved.to_string());
        }
    }

    fn node(&self, index: u8) -> NodeId {
        // Never this worker itself: no agent brings its own messages back.
        let others = &NODES[1..];
        others[index as usize % others.len()]
    }

    fn peer(&self, index: u8) -> Option<Peer> {
        let peers = self.worker.peers();
        peers.get(index as usize % peers.len().max(1)).cloned()
    }

    fn function(&self, index: u8, on_first_reference: bool) -> Option<FunctionRef> {
        match index {
            0 => None,
            1..=3 => self
                .functions
                .get(index as usize - 1)
                .map(|function| FunctionRef {
                    on_first_reference,
                    ..*function
                }),
            _ => Some(FunctionRef {
                id: index.into(),
                signature: Fingerprint(index.into()),
                on_first_reference,
            }),
        }
    }
}

fn payload(body: Vec<u8>) -> Payload {
    Payload {
        body: body.into(),
        parts: Vec::new(),
    }
}

#[farref_macros::remote(name = "farref::fuzzing::echo")]
async fn echo(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

#[farref_macros::remote(name = "farref::fuzzing::hand_back")]
async fn hand_back(reference: RRef<u64>) -> RRef<u64> {
    tokio::task::yield_now().await;
    reference
}

#[farref_macros::remote(name = "farref::fuzzing::number")]
async fn number(n: u64) -> u64 {
    n
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Once;

    use farref_proto::Status;
    use farref_testkit::{seeds, thorough};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    thread_local! {
        static PANICS: Cell<u32> = const { Cell::new(0) };
    }

    /// A tenth of the random inputs that `FARREF_THOROUGH` asks for.
    fn some_of(cases: u32) -> u32 {
        if thorough() { cases } else { cases / 10 }
    }

    /// Runs an entry point on the seeds of a target, and many times on other bytes. Panics of tasks, which the runtime catches,
    /// count as well.
    fn exercise(entry: fn(&[u8]), target: &str, cases: u32) {
        exercise_with(entry, target, cases, bytes());
    }

    /// The same, with bytes of another kind.
    fn exercise_with(
        entry: fn(&[u8]),
        target: &str,
        cases: u32,
        bytes: impl Strategy<Value = Vec<u8>>,
    ) {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let former = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.set(PANICS.get() + 1);
                former(panic);
            }));
        });
        for seed in seeds(target) {
            let before = PANICS.get();
            entry(seed.bytes);
            assert_eq!(PANICS.get(), before, "something panicked: {seed:?}");
        }
        let mut runner = TestRunner::new(Config {
            cases: some_of(cases),
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(&bytes, |data| {
            let before = PANICS.get();
            entry(&data);
            prop_assert_eq!(PANICS.get(), before, "something panicked");
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }

    /// Small numbers are worth more than large ones: they are tags, lengths and ids that exist.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![6 => 0..4_u8, 3 => 0..20_u8, 1 => any::<u8>()];
        proptest::collection::vec(byte, 0..400)
    }

    #[test]
    fn no_frame_makes_the_decoder_panic() {
        exercise(frames, "frames", 2_000);
    }

    #[test]
    fn no_greeting_makes_a_handshake_panic() {
        exercise(handshake, "handshake", 500);
    }

    #[test]
    fn nothing_that_observers_and_observed_say_makes_the_other_end_panic() {
        exercise(observing, "observing", 500);
    }

    #[test]
    fn a_session_gives_every_frame_once_and_in_order_whatever_its_connections_do() {
        exercise_with(
            session,
            "session",
            3_000,
            proptest::collection::vec(any::<u8>(), 0..400),
        );
    }

    #[test]
    fn no_value_makes_its_reader_panic() {
        exercise(values, "values", 3_000);
    }

    #[test]
    fn nothing_that_peers_say_makes_a_worker_panic() {
        exercise(runtime, "runtime", 3_000);
    }

    /// What may be said of a worker. That this worker is gone ends the play, so it is seldom said.
    fn standing() -> impl Strategy<Value = (WorkerId, Standing)> + Clone {
        let worker = prop_oneof![1 => 0..1_u32, 12 => 1..5_u32, 4 => 9..12_u32];
        let status = prop_oneof![
            Just(Status::Joining),
            Just(Status::Alive),
            Just(Status::Left),
            Just(Status::Dead)
        ];
        (worker, 1..4_u32, status).prop_map(|(worker, life, status)| {
            let node = NodeId::new(worker, life);
            (node.worker, Standing::of(node, status))
        })
    }

    /// The steps that random bytes seldom spell out, by their own grammar.
    #[test]
    fn no_order_of_likely_messages_makes_a_worker_panic() {
        let node = prop_oneof![
            Just(NodeId::new(0, 1)),
            Just(NodeId::new(1, 1)),
            Just(NodeId::new(2, 1))
        ];
        let share = (node.clone(), 0..40_u64, node.clone(), 0..40_u64).prop_map(
            |(origin, rref, parent, fork)| farref_proto::Share {
                rref: farref_proto::RRefId::new(origin, rref),
                fork: farref_proto::ForkId::new(parent, fork),
            },
        );
        let type_ = prop_oneof![
            Just(crate::fingerprint::of_type::<u64>()),
            Just(Fingerprint(1))
        ];
        let carried =
            (share.clone(), node.clone(), type_.clone()).prop_map(|(share, owner, fingerprint)| {
                farref_proto::Carried {
                    share,
                    owner,
                    fingerprint,
                }
            });
        let request = (0..6_u64, 0..3_u64).prop_map(|(low, high)| MessageId(low | high << 32));
        let digest = (0..4_u128).prop_map(Digest);
        let standings = proptest::collection::vec(standing(), 0..4);
        let word = prop_oneof![
            standings.clone().prop_map(Word::Ask),
            Just(Word::Known),
            digest.clone().prop_map(Word::Unlike),
            Just(Word::Settled),
        ];
        let membership = prop_oneof![
            4 => (standings.clone(), proptest::option::of(digest.clone()))
                .prop_map(|(entries, ask)| Control::View { entries, ask }),
            1 => standings.prop_map(Control::Welcome),
            1 => digest.clone().prop_map(Control::Known),
            1 => (digest.clone(), digest.clone())
                .prop_map(|(asked, mine)| Control::Unlike { asked, mine }),
            1 => digest.prop_map(Control::Settled),
            1 => Just(Control::Leaving),
            1 => Just(Control::Farewell),
            1 => node.clone().prop_map(Control::Suspect),
            1 => node.clone().prop_map(Control::Accused),
            2 => Just(Control::Join),
            1 => any::<u32>().prop_map(|limit| Control::NoRoom { limit }),
            1 => (0..3_u64, any::<bool>(), node.clone()).prop_map(|(round, all_willing, node)| {
                let waiting_for = vec![(node, Default::default())];
                Control::Probe { round, all_willing, waiting_for }
            }),
            1 => (0..3_u64, 0..3_u64).prop_map(|(round, activity)| {
                let residue = Default::default();
                Control::Report { round, activity, residue }
            }),
            1 => Just(Control::Finish),
        ];
        let control = prop_oneof![
            (share.clone(), type_.clone()).prop_map(|(share, fingerprint)| Control::Register(
                vec![farref_proto::Registration { share, fingerprint }]
            )),
            share
                .clone()
                .prop_map(|share| Control::Confirm(vec![share])),
            share
                .clone()
                .prop_map(|share| Control::Release(vec![share])),
            share.clone().prop_map(|share| Control::Accept(vec![share])),
            (share.clone(), node, type_.clone()).prop_map(|(share, holder, fingerprint)| {
                Control::Adopt(vec![farref_proto::Adoption {
                    share,
                    holder,
                    fingerprint,
                }])
            }),
        ];
        let target = prop_oneof![
            request.clone().prop_map(farref_proto::Target::Answer),
            (request.clone(), share.clone(), type_.clone()).prop_map(|(request, share, type_)| {
                farref_proto::Target::Fetch(request, share.rref, type_)
            }),
            (share, type_).prop_map(|(share, fingerprint)| farref_proto::Target::Stay(
                farref_proto::Creation { share, fingerprint }
            )),
        ];
        let call = (
            0..4_u8,
            target,
            proptest::collection::vec(carried.clone(), 0..3),
            0..5_u8,
            any::<bool>(),
            proptest::collection::vec(0..3_u8, 0..3),
        )
            .prop_map(
                |(from, target, carried, function, on_first_reference, arguments)| Step::Call {
                    from,
                    head: CallHead {
                        target,
                        context: None,
                        carried,
                    },
                    function,
                    on_first_reference,
                    remaining: None,
                    arguments,
                },
            );
        let answer = (
            0..4_u8,
            request.clone(),
            proptest::collection::vec(carried, 0..2),
        )
            .prop_map(|(from, id, carried)| Step::Answer {
                from,
                head: AnswerHead { id, carried },
                outcome: Ok(vec![0]),
            });
        let step = prop_oneof![
            4 => (0..4_u8, control).prop_map(|(from, control)| Step::Control(from, control)),
            // The later life and the stranger, too.
            2 => (0..5_u8, membership).prop_map(|(from, control)| Step::Control(from, control)),
            2 => (0..5_u8, word).prop_map(|(from, word)| Step::Word(from, word)),
            4 => call,
            2 => answer,
            1 => (0..4_u8, request).prop_map(|(from, request)| Step::Cancel(from, request)),
            1 => (0..4_u8).prop_map(Step::Make),
            1 => Just(Step::Own),
            1 => (0..4_u8).prop_map(Step::Leave),
            2 => (0..4_u8, 0..4_u8).prop_map(|(peer, index)| Step::Hand(peer, index)),
            1 => (0..6_u8).prop_map(Step::Drop),
            2 => Just(Step::Yield),
            1 => (0..4_u8).prop_map(Step::Suspect),
            1 => Just(Step::ShutDown),
        ];
        let mut runner = TestRunner::new(Config {
            cases: some_of(3_000),
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(&proptest::collection::vec(step, 0..40), |steps| {
            let mut data = Vec::new();
            for step in &steps {
                data = postcard::to_extend(step, data)
                    .map_err(|error| TestCaseError::fail(error.to_string()))?;
            }
            let before = PANICS.get();
            runtime(&data);
            prop_assert_eq!(PANICS.get(), before, "something panicked");
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }
}

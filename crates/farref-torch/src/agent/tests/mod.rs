//! A worker of this crate in a group whose other members are played: PyTorch's messages, written and read one by one.
//! For what real PyTorch workers do rarely, or cannot be made to do at a given moment.

mod acknowledged;
mod creations;
mod cut_off;
mod gatherings;
mod limits;
mod refusals;
mod unsent;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use farref::agent::{Group, NodeId};
use farref::functions::Functions;
use farref::{MemoryStore, Part, Worker, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{GroupKind, Parts, TorchAgent};
use crate::group::{GroupStore, Member, Place};
use crate::pickle::Writer;
use crate::rpc::{Fork, GlobalId, Kind, Message, Udf};
use crate::transport::{Incoming, Limits, Listener, Outgoing, PipeReceiver, PipeSender, connect};

/// The worker that is tried.
const RUST: u16 = 1;

/// A worker, and the played ones that it is in a group with.
pub(super) struct Stage {
    pub(super) worker: Worker,
    pub(super) agent: Arc<TorchAgent>,
    address: String,
    limits: Limits,
}

/// A played worker: where it listens, and what has come there.
pub(super) struct Played {
    pub(super) id: u16,
    pub(super) name: String,
    requests: mpsc::UnboundedReceiver<(Incoming, mpsc::UnboundedSender<Outgoing<Part>>)>,
    /// The pipe that its own requests travel on.
    pipe: Option<(PipeSender, PipeReceiver)>,
}

/// A request of the worker's that a played one has got.
pub(super) struct Got {
    pub(super) message: Incoming,
    back: mpsc::UnboundedSender<Outgoing<Part>>,
}

impl Got {
    pub(super) fn kind(&self) -> Kind {
        Kind::from_code(self.message.kind).expect("one of PyTorch's")
    }

    pub(super) fn decoded(&self) -> Message<'_> {
        Message::decode(self.kind(), &self.message.payload).expect("a message")
    }

    pub(super) fn answer(&self, message: &Message<'_>) {
        let (kind, bytes) = message.encode();
        let answer = super::messages::ready(kind, self.message.id, bytes);
        drop(self.back.send(answer));
    }
}

/// Sets a worker going, and plays others of these names, whose ids are 0, 2, 3 ..
pub(super) async fn stage(
    names: &[&str],
    limits: Limits,
    settings: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
) -> (Stage, Vec<Played>) {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Listener::bind(here, limits.clone()).await.unwrap();
    let address = format!("uv://{}", listener.local_addr());
    let me = NodeId::new(RUST.into(), 0);
    let mut members = vec![(me, "rust".to_owned())];
    let (mut others, mut played) = (Vec::new(), Vec::new());
    for (name, id) in names.iter().zip([0, 2, 3, 4]) {
        let listener = Listener::bind(here, Limits::default()).await.unwrap();
        members.push((NodeId::new(id.into(), 0), (*name).to_owned()));
        others.push(Member {
            id,
            name: (*name).to_owned(),
            address: format!("uv://{}", listener.local_addr()),
        });
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(listen(listener, sender));
        played.push(Played {
            id,
            name: (*name).to_owned(),
            requests,
            pipe: None,
        });
    }
    let place = Place {
        name: "rust".to_owned(),
        id: RUST,
        world: None,
        base: String::new(),
        prefix: 0,
        rounds_before: 0,
        patience: TEST_TIMEOUT,
    };
    let store = Arc::new(MemoryStore::default());
    let parts = Parts {
        id: RUST,
        name: "rust".to_owned(),
        members: others,
        limits: limits.clone(),
        group_store: Arc::new(GroupStore::new(store, place).unwrap()),
        group_kind: GroupKind::Dynamic,
        functions: Functions::of_program().unwrap(),
        server: None,
    };
    let mut agent = None;
    let worker = settings(Worker::builder("")).attach(Group { me, members }, |inbound| {
        let started = TorchAgent::start(parts, listener, inbound);
        agent = Some(Arc::clone(&started));
        started
    });
    let worker = worker.await.unwrap();
    let agent = agent.unwrap();
    agent.belongs_to(&worker);
    let stage = Stage {
        worker,
        agent,
        address,
        limits,
    };
    (stage, played)
}

type Requests = mpsc::UnboundedSender<(Incoming, mpsc::UnboundedSender<Outgoing<Part>>)>;

async fn listen(mut listener: Listener, requests: Requests) {
    while let Ok((_, mut sender, mut receiver)) = listener.accept().await {
        let (back, mut answers) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(answer) = answers.recv().await {
                sender.send(&[answer]).await.unwrap();
            }
        });
        let requests = requests.clone();
        tokio::spawn(async move {
            receiver.set_widths(super::tensors::widths);
            while let Ok(Some(message)) = receiver.next().await {
                drop(requests.send((message, back.clone())));
            }
        });
    }
}

impl Played {
    /// Sends requests.
    pub(super) async fn send_all(&mut self, stage: &Stage, messages: &[Outgoing<Part>]) {
        if self.pipe.is_none() {
            let pipe = connect(&stage.address, &self.name, stage.limits.clone()).await;
            self.pipe = Some(pipe.unwrap());
        }
        let (sender, _) = self.pipe.as_mut().unwrap();
        sender.send(messages).await.unwrap();
    }

    /// The next answer to one of its requests. `None`: it was cut off.
    pub(super) async fn answer(&mut self) -> Option<Incoming> {
        let (_, receiver) = self.pipe.as_mut()?;
        let answer = timeout(TEST_TIMEOUT, receiver.next()).await;
        answer.expect("an answer comes").ok().flatten()
    }

    /// The next request of the worker's.
    pub(super) async fn request(&mut self) -> Got {
        let request = timeout(TEST_TIMEOUT, self.requests.recv()).await;
        let (message, back) = request.expect("a request comes").expect("it listens");
        Got { message, back }
    }
}

/// A call of a function with what `arguments` writes as its only argument.
pub(super) fn udf(module: &str, name: &str, argument: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(4);
    Udf::begin(&mut writer, module, name);
    argument(&mut writer);
    writer.tuple_of(1).empty_dict();
    Udf::end(&mut writer);
    writer.finish()
}

/// A reference to a value of `owner`'s that `parent` hands on.
pub(super) fn fork(owner: u16, parent: u16, number: u64) -> Fork {
    Fork {
        owner,
        rref: GlobalId::new(owner, number),
        fork: GlobalId::new(parent, number + 1),
        parent,
        type_name: "PyObject".to_owned(),
    }
}

/// What an answer says went wrong.
pub(super) fn error_of(answer: &Incoming) -> String {
    match super::responses::plain_answer(answer) {
        Ok(value) => panic!("no error: {}", String::from_utf8_lossy(&value)),
        Err(text) => text,
    }
}

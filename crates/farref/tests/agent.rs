//! The seam between runtime and wire: a wire of channels with JSON as its encoding carries calls,
//! references, errors and a shutdown, without anything of the native agent.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farref::agent::{Agent, Departure, Group, Inbound, LinkStatistics, Message, NodeId};
use farref::{Blob, Buffer, Codec, CodecError, Error, RRef, ValueCodec, Worker};
use tokio::sync::mpsc;

#[farref::remote]
async fn join_words(words: Vec<String>, glue: Option<char>) -> String {
    let glue = glue.map(String::from).unwrap_or_default();
    words.join(&glue)
}

#[farref::remote]
async fn divide(a: i64, b: i64) -> Result<i64, String> {
    a.checked_div(b)
        .ok_or_else(|| "division by zero".to_owned())
}

#[farref::remote]
async fn read_through(text: RRef<String>) -> farref::Result<String> {
    text.to_here().await
}

#[farref::remote]
async fn measure(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote]
async fn reverse(buffer: Buffer) -> Result<Buffer, CodecError> {
    let mut values = buffer.into_vec::<f32>()?;
    values.reverse();
    Ok(values.into())
}

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

/// JSON as a foreign encoding.
struct Json;

impl ValueCodec for Json {
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
        serde_json::to_vec(value).map_err(CodecError::new)
    }

    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json)).map_err(CodecError::new)
    }
}

/// All ends of a wire of channels.
type Switchboard = Arc<Mutex<HashMap<NodeId, mpsc::UnboundedSender<(NodeId, Message)>>>>;

#[derive(Debug)]
struct ChannelAgent {
    me: NodeId,
    codec: Codec,
    switchboard: Switchboard,
}

impl ChannelAgent {
    fn start(me: NodeId, switchboard: Switchboard, inbound: Weak<dyn Inbound>) -> Arc<Self> {
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
            codec: Codec::Custom(Arc::new(Json)),
            switchboard,
        })
    }
}

impl Agent for ChannelAgent {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn enqueue(&self, to: NodeId, message: Message) {
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

async fn group() -> anyhow::Result<(Worker, Worker)> {
    let members: Vec<_> = (0..2)
        .map(|rank| (NodeId::new(rank, 1), format!("w{rank}")))
        .collect();
    let switchboard = Switchboard::default();
    let mut workers = Vec::new();
    for (me, _) in members.clone() {
        let group = Group {
            me,
            members: members.clone(),
        };
        let switchboard = Arc::clone(&switchboard);
        let builder = Worker::builder("").fail_on_leaks(true);
        let worker = builder
            .attach(group, |inbound| {
                ChannelAgent::start(me, switchboard, inbound)
            })
            .await?;
        workers.push(worker);
    }
    let second = workers.remove(1);
    Ok((workers.remove(0), second))
}

#[tokio::test]
async fn another_wire_with_another_encoding_carries_everything() -> anyhow::Result<()> {
    let (a, b) = group().await?;
    let peer = a.peer("w1")?;

    let words = vec!["far".to_owned(), "reference".to_owned()];
    assert_eq!(
        join_words::on(&peer, words, Some(' ')).await?,
        "far reference"
    );

    let error = divide::on(&peer, 1, 0).await.unwrap_err();
    assert!(matches!(&error, Error::Remote(remote) if remote.message() == "division by zero"));

    let counter = Counter::new_on(&peer, 40).remote();
    assert_eq!(counter.add(2).await?, 42);
    let sum = counter.add(1).remote();
    assert_eq!(sum.to_here().await?, 43);

    let text = a.rref("here".to_owned())?;
    assert_eq!(read_through::on(&peer, text.clone()).await?, "here");
    assert_eq!(measure::on(&peer, vec![1; 100_000].into()).await?, 100_000);
    for size in [0, 3, 100_000] {
        let values: Vec<f32> = (0..size).map(|n| n as f32).collect();
        let back = reverse::on(&peer, values.clone().into()).await?;
        let back = back.into_vec::<f32>()?.into_iter().rev();
        assert_eq!(back.collect::<Vec<_>>(), values);
    }
    drop((counter, sum, text));

    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    first?;
    second?;
    assert!(a.snapshot().references.is_empty() && b.snapshot().references.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_worker_calls_itself_without_any_wire() -> anyhow::Result<()> {
    let (a, b) = group().await?;
    let me = a.me();
    assert_eq!(divide::on(&me, 6, 3).await?, 2);
    let counter = Counter::new_on(&me, 1).remote();
    assert_eq!(counter.add(1).await?, 2);
    let three = counter.add(1).remote();
    assert_eq!(three.to_here().await?, 3);
    assert_eq!(*three.local().await?, 3);
    drop((counter, three));
    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    first?;
    second?;
    Ok(())
}

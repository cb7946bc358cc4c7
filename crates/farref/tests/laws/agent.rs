//! The interface between runtime and wire: a wire of channels with JSON as its encoding carries calls,
//! references, errors and a shutdown, without anything of the native agent.

use std::sync::Arc;

use farref::{
    Blob, Buffer, Codec, CodecError, Error, Misuse, Peer, RRef, Streaming, ValueCodec, Worker,
};

use crate::channels;
use crate::streams::sources::Each;

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
async fn carry_with(text: RRef<String>, ballast: String) -> u64 {
    drop(text);
    ballast.len() as u64
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

    pub(crate) async fn carry_with(&self, text: RRef<String>, ballast: String) -> u64 {
        drop(text);
        self.0 + ballast.len() as u64
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

/// Two workers on a wire with a foreign encoding.
async fn foreign_group() -> anyhow::Result<[Worker; 2]> {
    let end = channels::End {
        codec: Codec::Custom(Arc::new(Json)),
        ..Default::default()
    };
    channels::group([end.clone(), end]).await
}

#[tokio::test]
async fn another_wire_with_another_encoding_carries_everything() -> anyhow::Result<()> {
    let [a, b] = foreign_group().await?;
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

    let peers = vec![a.me(), peer.clone()];
    assert_eq!(name_peers::on(&peer, peers).await?, ["w0", "w1, me"]);

    channels::end([a, b]).await
}

#[farref::remote]
async fn name_peers(peers: Vec<Peer>) -> Vec<String> {
    let name = |peer: &Peer| format!("{}{}", peer.name(), if peer.is_me() { ", me" } else { "" });
    peers.iter().map(name).collect()
}

#[tokio::test]
async fn a_worker_calls_itself_without_any_wire() -> anyhow::Result<()> {
    let [a, b] = foreign_group().await?;
    let me = a.me();
    assert_eq!(divide::on(&me, 6, 3).await?, 2);
    let counter = Counter::new_on(&me, 1).remote();
    assert_eq!(counter.add(1).await?, 2);
    let three = counter.add(1).remote();
    assert_eq!(three.to_here().await?, 3);
    assert_eq!(*three.local().await?, 3);
    drop((counter, three));
    channels::end([a, b]).await
}

/// R5: it is as if the call had not been made, and whoever made it learns of it at once.
#[tokio::test]
async fn what_the_wire_cannot_carry_is_an_error_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let narrow = channels::End {
        most: 1_000,
        ..Default::default()
    };
    let [a, b] = channels::group([narrow, channels::End::default()]).await?;
    let peer = a.peer("w1")?;
    let text = a.rref("here".to_owned())?;
    let counter = Counter::new_on(&peer, 1).remote();
    let long = "x".repeat(2_000);

    let is_refusal = |error: &Error| {
        matches!(error, Error::Codec { what: "the arguments", action: "sent", function, reason }
            if function.as_str().contains("carry_with")
                && reason.to_string().contains("too much for a channel"))
    };
    for _ in 0..3 {
        let refused = carry_with::on(&peer, text.clone(), long.clone())
            .await
            .unwrap_err();
        assert!(is_refusal(&refused), "{refused:?}");
        let broken = carry_with::on(&peer, text.clone(), long.clone()).remote();
        let refused = broken.to_here().await.unwrap_err();
        assert!(is_refusal(&refused), "{refused:?}");
        let refused = counter
            .carry_with(text.clone(), long.clone())
            .await
            .unwrap_err();
        assert!(is_refusal(&refused), "{refused:?}");
        let broken = counter.carry_with(text.clone(), long.clone()).remote();
        let refused = broken.to_here().await.unwrap_err();
        assert!(is_refusal(&refused), "{refused:?}");
    }
    assert_eq!(a.snapshot().open_calls, 0);
    let references = a.references();
    let is_held_there = references
        .0
        .iter()
        .any(|left| left.holders.contains(&"w1".to_owned()));
    assert!(!is_held_there, "{references:?}");

    // All is well with what fits.
    assert_eq!(
        carry_with::on(&peer, text.clone(), "y".to_owned()).await?,
        1
    );
    assert_eq!(counter.carry_with(text.clone(), "y".to_owned()).await?, 2);
    drop((text, counter));
    channels::end([a, b]).await
}

#[farref::remote]
async fn take_stream(_: Streaming<u64>) {}

#[farref::remote]
async fn give_stream() -> Streaming<u64> {
    Streaming::new(Each(0..3))
}

/// T1 to T6 are about farref's own encoding: another one is not asked to carry what it cannot.
#[tokio::test]
async fn a_wire_without_streams_refuses_them_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let [a, b] = foreign_group().await?;
    let peer = a.peer("w1")?;
    let refused = take_stream::on(&peer, Streaming::new(Each(0..3))).await;
    assert!(
        matches!(refused, Err(Error::Misuse(Misuse::NoStreams))),
        "{refused:?}"
    );
    let refused = give_stream::on(&peer).await.unwrap_err();
    assert!(refused.to_string().contains("no streams"), "{refused}");
    channels::end([a, b]).await
}

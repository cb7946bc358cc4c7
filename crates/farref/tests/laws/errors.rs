//! F5: the error that a function returned arrives as what it is, wherever it is asked for, and is text
//! otherwise.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use farref::testing::Cluster;
use farref::{Blob, Error, RRef, Worker};
use serde::{Deserialize, Serialize};

use crate::cluster::{finish, pair};

/// What can be wrong with an oven.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
enum Fault {
    #[error("the oven is cold")]
    Cold,
    #[error("{name} takes {minutes} minutes")]
    Slow { name: String, minutes: u32 },
    #[error("it is burnt")]
    Burnt(Blob),
}

/// The same as `Fault` to a reader of its bytes.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
enum Twin {
    Cold,
    Slow { name: String, minutes: u32 },
    Burnt(Blob),
}

fn slow() -> Fault {
    Fault::Slow {
        name: "bread".to_owned(),
        minutes: 40,
    }
}

#[farref::remote]
async fn bake(what: u32) -> Result<u32, Fault> {
    match what {
        0 => Err(Fault::Cold),
        1 => Err(slow()),
        2 => Err(Fault::Burnt(vec![7; 20_000].into())),
        3 => Err(Fault::Burnt(vec![7; 80_000].into())),
        4 => panic!("it fell down"),
        5 => std::future::pending().await,
        other => Ok(other),
    }
}

/// Whose errors are called by another name.
type Baked<T> = std::result::Result<T, Fault>;
mod kitchen {
    pub(super) type Result<T> = super::Baked<T>;
}

#[farref::remote]
fn bake_blocking(what: u32) -> kitchen::Result<u32> {
    Err(if what == 0 { Fault::Cold } else { slow() })
}

#[farref::remote]
async fn hand_on(what: u32) -> farref::Result<u32> {
    let caller = Worker::caller().expect("inside of a remote function");
    bake::on(&caller, what).await
}

#[derive(Debug, thiserror::Error)]
#[error("no supper")]
struct NoSupper(#[source] Error);

#[farref::remote]
async fn cook(what: u32) -> Result<u32, NoSupper> {
    let caller = Worker::caller().expect("inside of a remote function");
    bake::on(&caller, what).await.map_err(NoSupper)
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Oven(u32);

#[farref::remote]
impl Oven {
    pub(crate) async fn new(heat: u32) -> Result<Self, Fault> {
        if heat == 0 {
            Err(Fault::Cold)
        } else {
            Ok(Self(heat))
        }
    }

    pub(crate) async fn copy(&self) -> Result<Self, Fault> {
        if self.0 == 1 {
            Err(slow())
        } else {
            Ok(Self(self.0 - 1))
        }
    }

    pub(crate) fn heat(&self) -> Result<u32, Fault> {
        Ok(self.0)
    }

    pub(crate) async fn cool(&mut self) -> Result<(), Fault> {
        self.0 = 0;
        Err(Fault::Cold)
    }
}

/// An error that has a reference in it.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[error("ask the other one")]
struct Elsewhere(RRef<String>);

#[farref::remote]
async fn refer(to: RRef<String>) -> Result<(), Elsewhere> {
    Err(Elsewhere(to))
}

/// One that looks at what came before it knows what it is.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Loose {
    Number(u32),
    Text { text: String },
}

impl std::fmt::Display for Loose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Loose {}

#[farref::remote]
async fn lose(text: Option<String>) -> Result<(), Loose> {
    Err(text.map_or(Loose::Number(7), |text| Loose::Text { text }))
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_a_functions_own_error_arrives_as_what_it_is_however_the_call_is_made() -> Result<()> {
    let (cluster, peer) = pair().await?;
    for peer in [&peer, &cluster.worker(0).me()] {
        assert_eq!(bake::on(peer, 0).result().await?, Err(Fault::Cold));
        assert_eq!(bake::on(peer, 1).result().await?, Err(slow()));
        assert_eq!(bake::on(peer, 9).result().await?, Ok(9));
        let [failed, good] = [1, 9].map(|what| bake::on(peer, what).start());
        assert_eq!(failed.result().await?, Err(slow()));
        assert_eq!(good.result().await?, Ok(9));
        // An alias that does not say what the errors are; on a thread.
        let error = bake_blocking::on(peer, 1).await.unwrap_err();
        assert_eq!(error.downcast::<Fault>().unwrap(), slow());
        // Methods.
        let oven = Oven::new_on(peer, 1).remote();
        assert_eq!(oven.heat().result().await?, Ok(1));
        assert_eq!(oven.cool().result().await?, Err(Fault::Cold));
        // Buffers.
        let Err(Fault::Burnt(black)) = bake::on(peer, 2).result().await? else {
            panic!("it is not burnt");
        };
        assert_eq!(black.len(), 20_000);
        // Forms of values that have names in them.
        let text = "far".to_owned();
        let lost = lose::on(peer, Some(text.clone())).result().await?;
        assert_eq!(lost, Err(Loose::Text { text }));
        assert_eq!(lose::on(peer, None).result().await?, Err(Loose::Number(7)));
    }
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_who_does_not_care_gets_farrefs_error_with_the_text() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let error = bake::on(&peer, 1).await.unwrap_err();
    let Error::Remote(remote) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(remote.messages, ["bread takes 40 minutes"]);
    assert_eq!(remote.function.as_str(), "laws::errors::bake");
    // It is still in there, for its own type and for no other one.
    let error = error.downcast::<Twin>().unwrap_err();
    let error = error.downcast::<String>().unwrap_err();
    assert_eq!(error.clone().downcast::<Fault>().unwrap(), slow());
    let pending = bake::on(&peer, 0).start().untyped();
    let error = pending.await.unwrap_err();
    assert_eq!(error.downcast::<Fault>().unwrap(), Fault::Cold);
    finish(cluster).await
}

/// Bakes something else where an oven is slow, and hands on whatever else is wrong.
#[farref::remote]
async fn bake_quickly(what: u32) -> farref::Result<u32> {
    let caller = Worker::caller().expect("inside of a remote function");
    let Err(error) = bake::on(&caller, what).await else {
        return Ok(what);
    };
    match error.downcast_ref() {
        Some(Fault::Slow { minutes, .. }) => Ok(*minutes),
        _ => Err(error),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_who_handles_some_errors_hands_the_rest_on_as_they_are() -> Result<()> {
    let (cluster, peer) = pair().await?;
    assert_eq!(bake_quickly::on(&peer, 1).await?, 40);
    let error = bake_quickly::on(&peer, 0).await.unwrap_err();
    // As often as one likes, for its own type and for no other one.
    for _ in 0..2 {
        assert_eq!(error.downcast_ref::<Twin>(), None);
        assert_eq!(error.downcast_ref::<Fault>(), Some(&Fault::Cold));
        let again = error.clone();
        assert_eq!(again.downcast_ref::<Fault>(), Some(&Fault::Cold));
        assert_eq!(again.downcast::<Fault>().unwrap(), Fault::Cold);
    }
    // RE-2: it did not travel.
    let error = bake::on(&peer, 3).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Fault>(), None);
    let error = bake::on(&peer, 4).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Fault>(), None, "it panicked");
    finish(cluster).await
}

#[test]
fn f5_a_thread_that_waits_gets_it_too() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let (cluster, peer) = runtime.block_on(pair())?;
    assert_eq!(bake::on(&peer, 1).result().wait()?, Err(slow()));
    assert_eq!(bake::on(&peer, 9).result().wait()?, Ok(9));
    assert_eq!(
        bake::on(&peer, 0).start().result().wait()?,
        Err(Fault::Cold)
    );
    assert!(matches!(
        bake::on(&peer, 4).result().wait(),
        Err(Error::Remote(_))
    ));
    runtime.block_on(finish(cluster))
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_what_is_not_the_functions_own_error_is_farrefs() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let panicked = bake::on(&peer, 4).result().await.unwrap_err();
    assert!(
        matches!(&panicked, Error::Remote(remote) if remote.panicked),
        "{panicked:?}"
    );
    panicked.downcast::<Fault>().unwrap_err();
    let limit = Duration::from_millis(20);
    let late = bake::on(&peer, 5)
        .timeout(limit)
        .result()
        .await
        .unwrap_err();
    assert!(
        matches!(&late, Error::Timeout { limit: given, .. } if *given == limit),
        "{late:?}"
    );
    // The value that the method is on was never made: not the method's error, though of the same type.
    let oven = Oven::new_on(&peer, 0).remote();
    let error = oven.heat().result().await.unwrap_err();
    assert_eq!(error.downcast::<Fault>().unwrap(), Fault::Cold);
    // Nor if the method is what made the value.
    let copy = Oven::new_on(&peer, 1).remote().copy().remote();
    assert!(matches!(copy.copy().result().await, Err(Error::Remote(_))));
    drop((oven, copy));
    cluster.crash(1).await;
    assert!(matches!(
        bake::on(&peer, 9).result().await,
        Err(Error::PeerLost { .. })
    ));
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_a_value_that_was_not_made_says_why_as_what_it_is_to_every_holder() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let oven: RRef<Oven> = Oven::new_on(&peer, 0).remote();
    let bread: RRef<u32> = bake::on(&peer, 1).remote();
    for _ in 0..2 {
        let error = oven.heat().await.unwrap_err();
        assert_eq!(error.downcast::<Fault>().unwrap(), Fault::Cold);
        let error = bread.to_here().await.unwrap_err();
        assert_eq!(error.downcast::<Fault>().unwrap(), slow());
    }
    // It has been handed on, and is used by a worker that did not make it.
    let error = taste::on(&peer, bread.clone()).await.unwrap_err();
    assert_eq!(error.downcast::<Fault>().unwrap(), slow());
    drop((oven, bread));
    finish(cluster).await
}

#[farref::remote]
async fn taste(bread: RRef<u32>) -> farref::Result<u32> {
    bread.to_here().await
}

/// Hands an error on in one of the ways in which programs do.
#[farref::remote]
async fn hand_on_in(way: String) -> Result<u32> {
    let caller = Worker::caller().context("inside of a remote function")?;
    let called = bake::on(&caller, 1).await;
    match way.as_str() {
        "bare" => Ok(called?),
        "context" => called.context("with some more words"),
        "boxed" => Ok(called.map_err(Box::new)?),
        "source" => Ok(called.map_err(|error| Outer(Arc::new(error)))?),
        _ => match called {
            Err(Error::Remote(error)) => Err(error.into()),
            other => Ok(other?),
        },
    }
}

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Outer(#[source] Arc<Error>);

#[farref::remote]
async fn hand_on_remote() -> Result<u32, farref::RemoteError> {
    let caller = Worker::caller().expect("inside of a remote function");
    match bake::on(&caller, 1).await {
        Err(Error::Remote(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

/// What `unwrap()` prints is for people.
#[tokio::test]
async fn an_error_does_not_print_its_bytes() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let error = bake::on(&peer, 1).await.unwrap_err();
    let printed = format!("{error:?}");
    assert!(printed.contains("ErrorValue(10 bytes)"), "{printed}");
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_an_error_that_others_hand_on_stays_what_it_was() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let error = hand_on::on(&peer, 1).await.unwrap_err();
    assert_eq!(error.downcast::<Fault>().unwrap(), slow());
    // In an error that holds any other, with a context and without one; made smaller; and as farref has it.
    for way in ["bare", "context", "boxed", "source", "remote"] {
        let error = hand_on_in::on(&peer, way.to_owned()).await.unwrap_err();
        assert_eq!(error.downcast::<Fault>().unwrap(), slow(), "{way}");
    }
    let error = hand_on_remote::on(&peer).await.unwrap_err();
    assert_eq!(error.downcast::<Fault>().unwrap(), slow());
    // Also inside of another one that cannot be sent itself.
    let error = cook::on(&peer, 0).await.unwrap_err();
    assert!(error.to_string().contains("no supper"), "{error}");
    assert_eq!(error.downcast::<Fault>().unwrap(), Fault::Cold);
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_an_error_that_cannot_be_sent_is_text_and_says_why_where_it_is_asked_for() -> Result<()>
{
    let (cluster, peer) = pair().await?;
    // RE-2
    let error = bake::on(&peer, 3).await.unwrap_err();
    assert!(error.to_string().ends_with("it is burnt"), "{error}");
    error.downcast::<Fault>().unwrap_err();
    let error = bake::on(&peer, 3).result().await.unwrap_err();
    assert!(matches!(
        error,
        Error::Codec {
            what: "the error",
            action: "written",
            ..
        }
    ));
    let text = error.to_string();
    assert!(
        text.contains("65536 at most") && text.contains("it is burnt"),
        "{text}"
    );
    // References.
    let text = cluster.worker(0).rref("text".to_owned())?;
    let error = refer::on(&peer, text.clone()).await.unwrap_err();
    assert!(error.to_string().ends_with("ask the other one"), "{error}");
    let error = refer::on(&peer, text.clone()).result().await.unwrap_err();
    assert!(matches!(
        error,
        Error::Codec {
            what: "the error",
            action: "written",
            ..
        }
    ));
    assert!(error.to_string().contains("not in an error"), "{error}");
    drop(text);
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_an_outcome_that_is_dropped_cancels_its_call() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let pending = bake::on(&peer, 5).start();
    farref_testkit::eventually("it runs", || {
        cluster.worker(1).snapshot().running.len() == 1
    })
    .await?;
    drop(pending.result());
    farref_testkit::eventually("it is cancelled", || {
        cluster.worker(1).snapshot().running.is_empty()
    })
    .await?;
    finish(cluster).await
}

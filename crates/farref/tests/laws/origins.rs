//! S2: what a leak report says of references that went through several hands.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use farref::testing::Cluster;
use farref::{Error, LeakedReference, RRef, Worker};
use farref_testkit::eventually;

use crate::cluster::{finish, pair};

static KEPT: Mutex<Vec<RRef<String>>> = Mutex::new(Vec::new());

fn keep_here(texts: impl IntoIterator<Item = RRef<String>>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(texts);
}

fn let_go_of(ids: &[String]) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let (gone, stay) = std::mem::take(&mut *kept)
        .into_iter()
        .partition(|text| text.id().is_ok_and(|id| ids.contains(&id)));
    *kept = stay;
    drop(kept);
    drop::<Vec<_>>(gone);
}

#[farref::remote(name = "origins::keep")]
async fn keep(texts: Vec<RRef<String>>) {
    keep_here(texts);
}

/// Hands references on.
#[farref::remote(name = "origins::hand_on")]
async fn hand_on(texts: Vec<RRef<String>>, to: String) -> farref::Result<()> {
    let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
    keep::on(&me.peer(&to)?, texts).await
}

#[farref::remote(name = "origins::give_back")]
async fn give_back(text: RRef<String>) -> RRef<String> {
    text
}

fn reported<'a>(references: &'a [LeakedReference], id: &str) -> Result<&'a LeakedReference> {
    let mut references = references.iter();
    references
        .find(|leak| leak.id == id)
        .context("not reported")
}

/// S2: made on A at line L, handed by B to `keep` on C, leaked on C: the report of C says all of that, also
/// when A and B are gone by then.
#[tokio::test]
async fn s2_a_leaked_reference_names_its_maker_its_line_and_who_handed_it_to_which_function()
-> Result<()> {
    let cluster = Cluster::start(3).await?;
    let [maker, _, holder] = [0, 1, 2].map(|rank| cluster.worker(rank));
    let broker = maker.peer("worker1")?;
    let (text, line) = (maker.rref("kept".to_owned())?, line!());
    let more: Vec<_> = (0..4)
        .map(|_| maker.rref("more".to_owned()))
        .collect::<Result<_, _>>()?;
    let all: Vec<_> = more.iter().cloned().chain([text.clone()]).collect();
    let ids: Vec<_> = all.iter().map(RRef::id).collect::<Result<_, _>>()?;
    hand_on::on(&broker, all, "worker2".to_owned()).await?;

    let report = holder.references();
    let leak = reported(&report.0, &text.id()?)?;
    let location = leak.location.clone().context("no line")?;
    assert!(
        location.starts_with(&format!("{}:{line}:", file!())),
        "{location}"
    );
    assert_eq!((&*leak.made_by, &*leak.owner), ("worker0", "worker0"));
    let received = leak.received.as_ref().context("it was not made here")?;
    assert_eq!(
        (&*received.from, &*received.function),
        ("worker1", "origins::keep")
    );
    assert!(!received.returned);

    // Those of one line are one line of the report.
    let printed = report.to_string();
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(printed.contains("4 references"), "{printed}");
    let way = format!("made at {location} on `worker0`, handed on by `worker1` to `origins::keep`");
    assert!(printed.contains(&way), "{printed}");
    // Others see it too.
    let seen = maker.peer("worker2")?.snapshot().await?;
    assert_eq!(
        reported(&seen.references, &text.id()?)?.received,
        leak.received
    );

    let_go_of(&ids);
    drop((text, more));
    eventually("all is let go", || holder.references().is_empty()).await?;
    finish(cluster).await
}

/// S2: what a function returned names that function.
#[tokio::test]
async fn s2_a_leaked_reference_that_was_returned_names_the_function() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let made = made_there::on(&peer).await?;
    let references = cluster.worker(0).references();
    let leak = reported(&references.0, &made.id()?)?;
    let received = leak.received.as_ref().context("it was not made here")?;
    let way = (&*received.from, &*received.function, received.returned);
    assert_eq!(way, ("worker1", "origins::made_there", true));
    assert_eq!(leak.made_by, "worker1");
    let location = leak.location.as_deref().context("no line")?;
    assert!(location.starts_with(file!()), "{location}");
    drop((made, references));
    finish(cluster).await
}

#[farref::remote(name = "origins::made_there")]
async fn made_there() -> farref::Result<RRef<String>> {
    let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
    me.rref("made there".to_owned())
}

/// Who sends a reference back to its maker does not change what the maker knows of it.
#[tokio::test]
async fn s2_a_reference_that_comes_home_is_still_of_its_line() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let (text, line) = (cluster.worker(0).rref("kept".to_owned())?, line!());
    let back = give_back::on(&peer, text.clone()).await?;
    let references = cluster.worker(0).references();
    let leak = reported(&references.0, &text.id()?)?;
    let location = leak.location.clone().context("no line")?;
    assert!(
        location.starts_with(&format!("{}:{line}:", file!())),
        "{location}"
    );
    assert_eq!(leak.received, None);
    drop((text, back));
    finish(cluster).await
}

//! F5, S2: what is late says what it would have said in time.

use anyhow::{Context as _, Result, ensure};
use farref::{Error, WorkerBuilder};
use serde::{Deserialize, Serialize};

use super::{Kept, KeptRRef as _, LATE, fresh};
use crate::channels::{End, Fate, Fates, delayed, end, group_with, is_answer, is_control};

#[derive(PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("number {0} is taken")]
struct Taken(u64);

#[farref::remote(name = "seam::refuse")]
async fn refuse(number: u64) -> Result<u64, Taken> {
    Err(Taken(number))
}

/// F5: answers that overtake each other bring each call its own error.
#[tokio::test]
async fn an_error_that_is_late_is_what_it_was_and_of_its_own_call() -> Result<()> {
    let fates = Fates::default();
    let workers = delayed([&Fates::default(), &fates]).await?;
    let peer = workers[0].peer("w1")?;
    let (late, next) = (fresh(), fresh());
    fates.next(is_answer, Fate::Late(LATE));
    let pending = refuse::on(&peer, late).start();
    for (call, number) in [(refuse::on(&peer, next).start(), next), (pending, late)] {
        let error = call.await.err().context("it fails")?;
        ensure!(matches!(error, Error::Remote(_)), "{error:?}");
        assert_eq!(error.downcast::<Taken>().ok(), Some(Taken(number)));
    }
    end(workers).await
}

/// S2: a reference that is left is reported, with its line, also if all that is said of it is late.
#[tokio::test]
async fn a_leak_is_reported_with_its_line_though_control_messages_are_late() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    for fates in &fates {
        fates.all(is_control, Fate::Late(LATE / 4));
    }
    let ends = [End::with(&fates[0]), End::with(&fates[1])];
    let set_up = |builder: WorkerBuilder| builder.fail_on_leaks(true).leak_grace(LATE);
    let [a, b] = group_with(ends, set_up).await?;
    let (left, line) = (Kept::new_on(&a.peer("w1")?, fresh()).remote(), line!());
    left.number().await?;
    let (of_holder, _) = tokio::join!(a.shutdown(), b.shutdown());
    let Err(Error::Leaked(leaks)) = of_holder else {
        anyhow::bail!("no leak, but {of_holder:?}");
    };
    let [leak] = &leaks.0[..] else {
        anyhow::bail!("one is left, and not {leaks}");
    };
    let location = leak.location.as_deref().context("no line")?;
    let begin = format!("{}:{line}:", file!());
    ensure!(location.starts_with(&begin), "{location}");
    ensure!(&*leak.owner == "w1", "{leak:?}");
    Ok(())
}

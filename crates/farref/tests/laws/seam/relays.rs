//! R4: references that went through a worker which others have given up.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use farref::agent::NodeId;
use farref::{Misuse, RRef, Worker};
use farref_testkit::TEST_TIMEOUT;

use tokio::time::timeout;

use super::{Kept, KeptRRef as _, LATE, fresh, is_freed};
use crate::channels::{Fate, Fates, delayed, is_control};

static HANDED: Mutex<Vec<RRef<Kept>>> = Mutex::new(Vec::new());

#[farref::remote(name = "seam::take_over")]
async fn take_over(kept: RRef<Kept>) {
    HANDED.lock().unwrap().push(kept);
}

/// What the second worker has of the third one's, it gives to the first.
#[farref::remote(name = "seam::relay")]
async fn relay(number: u64) -> farref::Result<()> {
    let me = Worker::current().ok_or(farref::Error::Misuse(Misuse::NoWorker))?;
    let kept = Kept::new_on(&me.peer("w2")?, number).remote();
    kept.number().await?;
    take_over::on(&me.peer("w0")?, kept).await
}

/// R4: the receiver's own word to the owner is all that it takes, however late, and whatever the middle one had still to say.
#[tokio::test]
async fn a_reference_that_was_handed_on_survives_who_is_given_up_with_its_news_unsaid() -> Result<()>
{
    let fates = [Fates::default(), Fates::default(), Fates::default()];
    let [first, middle, owner] = delayed([&fates[0], &fates[1], &fates[2]]).await?;
    fates[0].all(is_control, Fate::Late(LATE));
    // After the first message, which asks for the value.
    fates[1].all(is_control, Fate::Late(10 * TEST_TIMEOUT));
    let number = fresh();
    timeout(TEST_TIMEOUT, relay::on(&first.peer("w1")?, number)).await??;
    let kept = HANDED.lock().unwrap().pop();
    let Some(kept) = kept else {
        anyhow::bail!("nothing was handed over");
    };
    let (first_knew, owner_knew) = (first.peer("w1")?, owner.peer("w1")?);
    fates[1].all(|_| true, Fate::Lose);
    for fates in [&fates[0], &fates[2]] {
        fates.give_up(NodeId::new(1, 1))?;
    }
    middle.crash().await;
    for given_up in [first_knew.gone(), owner_knew.gone()] {
        timeout(TEST_TIMEOUT, given_up).await??;
    }
    ensure!(timeout(TEST_TIMEOUT, kept.number()).await?? == number);
    drop(kept);
    is_freed(number).await?;
    let ending = async { tokio::join!(first.shutdown(), owner.shutdown()) };
    let (one, other) = timeout(TEST_TIMEOUT, ending).await?;
    one?;
    other?;
    Ok(())
}

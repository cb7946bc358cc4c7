//! Faults at the seam between runtime and wire: messages that are lost, come twice or come late, and wires that give a
//! peer up while it still works. A correct wire does the first two to nobody (AG-1), nor does it let small calls overtake
//! each other, as is tried here with calls that nothing but their answers depends on. So what is asked of the runtime then
//! is that it ends what it began in its time, runs no call twice at a time, brings no wrong value and frees what it can.
//!
//! A call that comes again after its answer is not among these: it is run again. That it comes once is the wire's to see to
//! (AG-1), and the native one does, with its sessions. To notice it, the runtime would have to keep something of calls that
//! are over. No number does: calls may overtake each other, and their ids are slots that are used again, each with a
//! generation of its own, so it would be a table of slots for each peer, looked up and written for every call, and as long
//! as the peer likes to make it.

mod bounds;
mod relays;
mod reports;
mod streams;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::agent::Message;
use farref::{Error, RRef};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::channels::{
    self, Fate, Fates, delayed, end_in_time, give_up, is_answer, is_call, is_control,
    tampered as group,
};

/// The time limit of a call whose message is lost. A busy machine carries out a call in less.
const SHORT: Duration = Duration::from_secs(1);

/// The delay of a late message.
const LATE: Duration = Duration::from_millis(100);

static RUNS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// How often a function has run with this number.
fn runs(number: u64) -> usize {
    let runs = RUNS.lock().unwrap();
    runs.iter().filter(|&&run| run == number).count()
}

/// A number for a test of its own.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[farref::remote(name = "seam::run")]
async fn run(number: u64) -> u64 {
    RUNS.lock().unwrap().push(number);
    number + 1
}

#[farref::remote(name = "seam::run_with")]
async fn run_with(number: u64, kept: RRef<Kept>) -> u64 {
    RUNS.lock().unwrap().push(number);
    drop(kept);
    number + 1
}

static BEGUN: Notify = Notify::const_new();
static DROPPED: Notify = Notify::const_new();

#[farref::remote(name = "seam::run_for_ever")]
async fn run_for_ever(number: u64) {
    struct Tell;
    impl Drop for Tell {
        fn drop(&mut self) {
            DROPPED.notify_one();
        }
    }
    let _tell = Tell;
    RUNS.lock().unwrap().push(number);
    BEGUN.notify_one();
    std::future::pending().await
}

static FREED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// A value that says when it is freed.
struct Kept(u64);

impl Drop for Kept {
    fn drop(&mut self) {
        FREED.lock().unwrap().push(self.0);
    }
}

#[farref::remote(name = "seam::Kept")]
impl Kept {
    pub(crate) async fn new(number: u64) -> Self {
        RUNS.lock().unwrap().push(number);
        Self(number)
    }

    pub(crate) async fn number(&self) -> u64 {
        self.0
    }
}

async fn is_freed(number: u64) -> Result<()> {
    eventually("it is freed", || FREED.lock().unwrap().contains(&number)).await
}

/// D1, D3, S1
#[tokio::test]
async fn a_call_whose_request_is_lost_has_not_run_and_ends_in_its_time() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&fates, &Fates::default()]).await?;
    let peer = workers[0].peer("w1")?;
    let (lost, next) = (fresh(), fresh());
    fates.next(is_call, Fate::Lose);
    let answer = run::on(&peer, lost).timeout(SHORT).await;
    ensure!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    ensure!(runs(lost) == 0);
    ensure!(run::on(&peer, next).await? == next + 1);
    end_in_time(workers).await
}

/// D1, D3, S1: nobody knows whether it has run, and it is not run again.
#[tokio::test]
async fn a_call_whose_answer_is_lost_has_run_once_and_ends_in_its_time() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&Fates::default(), &fates]).await?;
    let peer = workers[0].peer("w1")?;
    let (lost, next) = (fresh(), fresh());
    fates.next(is_answer, Fate::Lose);
    let answer = run::on(&peer, lost).timeout(SHORT).await;
    ensure!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    ensure!(run::on(&peer, next).await? == next + 1);
    ensure!((runs(lost), runs(next)) == (1, 1));
    end_in_time(workers).await
}

/// R6, D3: a constructor that is lost makes nothing, and whoever uses the value learns it when its time is up.
#[tokio::test]
async fn a_value_whose_constructor_is_lost_is_a_timeout_to_who_uses_it() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&fates, &Fates::default()]).await?;
    let peer = workers[0].peer("w1")?;
    let (lost, next) = (fresh(), fresh());
    fates.next(is_call, Fate::Lose);
    let never = Kept::new_on(&peer, lost).remote();
    let used = never.number().timeout(SHORT).await;
    ensure!(matches!(used, Err(Error::Timeout { .. })), "{used:?}");
    ensure!(runs(lost) == 0);
    let kept = Kept::new_on(&peer, next).remote();
    ensure!(kept.number().await? == next);
    drop((never, kept));
    is_freed(next).await?;
    end_in_time(workers).await
}

/// D1, F4: a peer that says a thing twice may be cut off, with words, also before what it asked for has begun.
#[tokio::test]
async fn a_call_that_comes_twice_runs_at_most_once() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&fates, &Fates::default()]).await?;
    let peer = workers[0].peer("w1")?;
    let number = fresh();
    fates.next(is_call, Fate::Twice);
    match timeout(TEST_TIMEOUT, run::on(&peer, number)).await? {
        Ok(answer) => ensure!(answer == number + 1),
        Err(Error::PeerLost { .. } | Error::Evicted { .. }) => {}
        Err(other) => ensure!(false, "{other:?}"),
    }
    // Calls keep their order: with the answer to a third one, what came second has been taken in. A
    // worker that is cut off answers nothing.
    let third = timeout(TEST_TIMEOUT, run::on(&peer, fresh())).await?;
    if third.is_err() {
        sleep(LATE).await;
    }
    ensure!(runs(number) <= 1, "it ran {} times", runs(number));
    end_in_time(workers).await
}

/// D1, F4
#[tokio::test]
async fn an_answer_that_comes_twice_is_taken_once_and_for_nothing_else() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&Fates::default(), &fates]).await?;
    let peer = workers[0].peer("w1")?;
    let (first, next) = (fresh(), fresh());
    fates.next(is_answer, Fate::Twice);
    ensure!(run::on(&peer, first).await? == first + 1);
    match timeout(TEST_TIMEOUT, run::on(&peer, next)).await? {
        Ok(answer) => ensure!(answer == next + 1),
        Err(Error::PeerLost { .. } | Error::Evicted { .. }) => {}
        Err(other) => ensure!(false, "{other:?}"),
    }
    ensure!(runs(first) == 1);
    end_in_time(workers).await
}

/// D2, D3: what is late arrives, if its time is not up.
#[tokio::test]
async fn calls_and_answers_that_are_late_arrive_and_others_overtake_them() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    let workers = delayed([&fates[0], &fates[1]]).await?;
    let peer = workers[0].peer("w1")?;
    for (fates, which) in [
        (&fates[0], is_call as fn(&Message) -> bool),
        (&fates[1], is_answer),
    ] {
        let (late, next) = (fresh(), fresh());
        fates.next(which, Fate::Late(LATE));
        let pending = run::on(&peer, late).start();
        ensure!(run::on(&peer, next).await? == next + 1);
        ensure!(pending.await? == late + 1);
        ensure!(runs(late) == 1);
    }
    channels::end(workers).await
}

/// D4: a call whose time is up before it arrives.
#[tokio::test]
async fn a_call_that_arrives_after_its_time_is_not_answered_to_anybody() -> Result<()> {
    let fates = Fates::default();
    let workers = delayed([&fates, &Fates::default()]).await?;
    let peer = workers[0].peer("w1")?;
    let (late, next) = (fresh(), fresh());
    // Calls and their cancellations keep their order (AG-1).
    fates.next(is_call, Fate::Late(2 * SHORT));
    fates.next(
        |message| matches!(message, Message::Cancel(_)),
        Fate::Late(2 * SHORT),
    );
    let answer = run::on(&peer, late).timeout(SHORT).await;
    ensure!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    ensure!(run::on(&peer, next).await? == next + 1);
    eventually("it is under way", || fates.is_empty()).await?;
    channels::end(workers).await
}

/// R1, R3, R7: a reference can be used while all that is said of it is on its way, and is freed in the end.
#[tokio::test]
async fn control_messages_that_are_late_free_nothing_too_early_and_all_in_the_end() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    fates[0].all(is_control, Fate::Late(LATE / 4));
    fates[1].all(is_control, Fate::Late(LATE / 4));
    let workers = delayed([&fates[0], &fates[1]]).await?;
    let peer = workers[0].peer("w1")?;
    let (value, call) = (fresh(), fresh());
    let kept = Kept::new_on(&peer, value).remote();
    ensure!(kept.number().await? == value);
    let here = workers[0].rref_to_object(Kept(call))?;
    ensure!(run_with::on(&peer, call, here.clone()).await? == call + 1);
    ensure!(here.number().await? == call);
    drop((kept, here));
    is_freed(value).await?;
    is_freed(call).await?;
    channels::end(workers).await
}

/// R2, R5, F2: what a lost request carried is free when the peer is given up.
#[tokio::test]
async fn references_in_a_lost_request_are_released_when_the_peer_is_given_up() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    let [a, b] = group([&fates[0], &fates[1]]).await?;
    let peer = a.peer("w1")?;
    let number = fresh();
    let kept = a.rref_to_object(Kept(number))?;
    fates[0].next(is_call, Fate::Lose);
    let pending = run_with::on(&peer, number, kept.clone()).start();
    drop(kept);
    give_up([&fates[0], &fates[1]])?;
    let answer = timeout(TEST_TIMEOUT, pending).await?;
    ensure!(matches!(answer, Err(Error::PeerLost { .. })), "{answer:?}");
    is_freed(number).await?;
    ensure!(runs(number) == 0);
    b.crash().await;
    timeout(TEST_TIMEOUT, a.shutdown()).await??;
    Ok(())
}

/// D1, F2, S3: an error comes back while the callee still runs.
#[tokio::test]
async fn a_call_to_who_is_given_up_fails_though_the_callee_runs_and_is_not_run_again() -> Result<()>
{
    let fates = [Fates::default(), Fates::default()];
    let [a, b] = group([&fates[0], &fates[1]]).await?;
    let peer = a.peer("w1")?;
    let number = fresh();
    let pending = run_for_ever::on(&peer, number).start();
    timeout(TEST_TIMEOUT, BEGUN.notified()).await?;
    give_up([&fates[0], &fates[1]])?;
    let answer = timeout(TEST_TIMEOUT, pending).await?;
    ensure!(matches!(answer, Err(Error::PeerLost { .. })), "{answer:?}");
    ensure!(runs(number) == 1);
    // It does not keep the one who gave it up, nor its own end.
    timeout(TEST_TIMEOUT, a.shutdown()).await??;
    b.crash().await;
    timeout(TEST_TIMEOUT, DROPPED.notified()).await?;
    Ok(())
}

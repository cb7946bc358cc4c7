//! A shutdown by the rules of another wire (`agent::Ending`).

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farref::agent::Ending;
use farref::{Error, Worker, WorkerBuilder};
use tokio::sync::Barrier;

use crate::channels::{self, End, EndingOf};

type Agreed<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// What becomes of a step.
#[derive(Clone, Copy)]
enum Step {
    /// Both workers come as far.
    Together,
    Fails(&'static str),
    Hangs,
}

/// How one worker ends. It keeps what it is asked.
struct Log {
    steps: [Step; 2],
    alone: bool,
    waiting_for: Option<&'static str>,
    meeting: Arc<Barrier>,
    said: Mutex<Vec<String>>,
}

impl Log {
    /// The endings of two workers that take the same steps.
    fn pair(steps: [Step; 2]) -> [Arc<Self>; 2] {
        let meeting = Arc::new(Barrier::new(2));
        [0, 1].map(|_| {
            Arc::new(Self {
                steps,
                alone: false,
                waiting_for: None,
                meeting: Arc::clone(&meeting),
                said: Mutex::default(),
            })
        })
    }

    fn say(&self, what: String) {
        self.said.lock().unwrap().push(what);
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    async fn take(&self, step: usize) -> Result<(), String> {
        match self.steps[step] {
            Step::Together => {
                self.meeting.wait().await;
            }
            Step::Fails(why) => return Err(why.to_owned()),
            Step::Hangs => std::future::pending().await,
        }
        Ok(())
    }
}

impl Ending for Log {
    fn may_leave_alone(&self) -> bool {
        self.alone
    }

    fn waiting_for(&self) -> Vec<String> {
        self.waiting_for.map(str::to_owned).into_iter().collect()
    }

    fn ready(&self) -> Agreed<'_> {
        self.say("ready".to_owned());
        Box::pin(self.take(0))
    }

    fn done<'a>(&'a self, open_calls: &'a (dyn Fn() -> u64 + Send + Sync)) -> Agreed<'a> {
        self.say(format!("done with {} calls open", open_calls()));
        Box::pin(self.take(1))
    }
}

async fn group(
    logs: &[Arc<Log>; 2],
    set_up: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> anyhow::Result<[Worker; 2]> {
    let end = |log: &Arc<Log>| End {
        ending: Some(EndingOf(log.clone())),
        ..End::default()
    };
    channels::group_with([end(&logs[0]), end(&logs[1])], set_up).await
}

fn assert_ended(worker: &Worker) {
    assert!(matches!(worker.rref(1), Err(Error::NotMember { .. })));
}

/// The words of an error that a shutdown gave.
fn words(outcome: farref::Result<()>) -> String {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::ShutdownTimeout { .. }), "{error:?}");
    error.to_string()
}

#[farref::remote]
async fn slow(number: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    number
}

const BOTH: [&str; 2] = ["ready", "done with 0 calls open"];

#[tokio::test]
async fn a_worker_is_ready_and_then_done_and_waits_for_its_calls_between() -> anyhow::Result<()> {
    let logs = Log::pair([Step::Together, Step::Together]);
    let [a, b] = group(&logs, |builder| builder.fail_on_leaks(true)).await?;
    let pending = slow::on(&a.peer("w1")?, 7).start();
    let dropped = a.rref("in time".to_owned())?;
    let (first, second, answer, ()) =
        tokio::join!(a.shutdown(), b.shutdown(), pending, async { drop(dropped) });
    first?;
    second?;
    assert_eq!(answer?, 7);
    for log in &logs {
        assert_eq!(log.said(), BOTH);
    }
    assert_ended(&a);
    assert_ended(&b);
    Ok(())
}

/// Counts its ends.
struct Mortal;

static ENDS: AtomicUsize = AtomicUsize::new(0);

impl Drop for Mortal {
    fn drop(&mut self) {
        ENDS.fetch_add(1, Ordering::SeqCst);
    }
}

#[farref::remote]
async fn mortal() -> Mortal {
    Mortal
}

#[tokio::test]
async fn what_a_program_forgot_to_drop_is_reported_and_released() -> anyhow::Result<()> {
    let grace = Duration::from_millis(50);
    for (round, fails) in [(1, true), (2, false)] {
        let logs = Log::pair([Step::Together, Step::Together]);
        let set_up = |builder: WorkerBuilder| builder.fail_on_leaks(fails).leak_grace(grace);
        let [a, b] = group(&logs, set_up).await?;
        let forgotten = mortal::on(&a.peer("w1")?).remote();
        forgotten.confirmed().await?;
        let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
        if fails {
            let Err(Error::Leaked(leaks)) = first else {
                panic!("{first:?}")
            };
            let text = leaks.to_string();
            assert_eq!(leaks.0.len(), 1, "{text}");
            assert!(text.contains("endings.rs"), "{text}");
        } else {
            first?;
            second?;
        }
        // It went away before all were done, and not with the process.
        assert_eq!(ENDS.load(Ordering::SeqCst), round);
        for log in &logs {
            assert_eq!(log.said(), BOTH);
        }
        assert_ended(&a);
        drop(forgotten);
    }
    Ok(())
}

/// N5. Names go when all are ready, and not after the grace that leaks have.
#[tokio::test]
async fn what_is_published_at_the_end_is_no_leak() -> anyhow::Result<()> {
    let logs = Log::pair([Step::Together, Step::Together]);
    let grace = Duration::from_secs(10);
    let set_up = |builder: WorkerBuilder| builder.fail_on_leaks(true).leak_grace(grace);
    let [a, b] = group(&logs, set_up).await?;
    a.publish("here", &a.rref(1_u64)?)?;
    let far = slow::on(&a.peer("w1")?, 2).remote();
    far.confirmed().await?;
    a.publish("far", &far)?;
    drop(far);
    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    first?;
    second?;
    Ok(())
}

#[tokio::test]
async fn an_error_of_either_step_is_what_the_user_reads() -> anyhow::Result<()> {
    let no = Step::Fails("worker2 did not say that it is ready");
    for (steps, said) in [([no, Step::Together], 1), ([Step::Together, no], 2)] {
        let logs = Log::pair(steps);
        let [a, b] = group(&logs, |builder| builder).await?;
        let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
        for outcome in [first, second] {
            let text = words(outcome);
            assert!(text.contains("worker2 did not say"), "{text}");
        }
        for (log, worker) in logs.iter().zip([a, b]) {
            assert_eq!(log.said(), BOTH[..said]);
            assert_ended(&worker);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_group_that_does_not_come_to_rest_is_given_up_in_time() -> anyhow::Result<()> {
    for who in [None, Some("the worker that hangs")] {
        let [one, other] = Log::pair([Step::Together, Step::Hangs]);
        let logs = [one, other].map(|log| {
            Arc::new(Log {
                waiting_for: who,
                ..Arc::into_inner(log).expect("nobody else has it")
            })
        });
        let limit = Duration::from_millis(200);
        let [a, b] = group(&logs, |builder| builder.shutdown_timeout(limit)).await?;
        let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
        for outcome in [first, second] {
            let text = words(outcome);
            let expected = who.unwrap_or("did not come to rest in time");
            assert!(text.contains(expected), "{text}");
        }
        assert_ended(&a);
        assert_ended(&b);
    }
    Ok(())
}

/// S1a
#[tokio::test]
async fn who_is_not_ready_works_and_is_waited_for_as_long_as_that_takes() -> anyhow::Result<()> {
    let logs = Log::pair([Step::Together, Step::Together]);
    let limit = Duration::from_millis(200);
    let [a, b] = group(&logs, |builder| builder.shutdown_timeout(limit)).await?;
    let serving = tokio::spawn({
        let b = b.clone();
        async move { b.serve().await }
    });
    let server = a.peer("w1")?;
    for number in 0..10 {
        assert_eq!(slow::on(&server, number).await?, number);
    }
    a.shutdown().await?;
    serving.await??;
    assert_ended(&b);
    Ok(())
}

/// S1a: nobody asks such a group to end; one that serves goes last.
#[tokio::test]
async fn where_each_leaves_alone_who_serves_stays_while_others_are_there() -> anyhow::Result<()> {
    let logs = Log::pair([Step::Together, Step::Together]).map(|log| {
        Arc::new(Log {
            alone: true,
            meeting: Arc::new(Barrier::new(1)),
            ..Arc::into_inner(log).expect("nobody else has it")
        })
    });
    let [a, b] = group(&logs, |builder| builder).await?;
    let serving = tokio::spawn({
        let b = b.clone();
        async move { b.serve().await }
    });
    for number in 0..5 {
        assert_eq!(slow::on(&a.peer("w1")?, number).await?, number);
    }
    assert!(logs[1].said().is_empty());
    a.leave().await?;
    serving.await??;
    assert_eq!(logs[1].said(), BOTH);
    assert_ended(&b);
    Ok(())
}

/// A call that is never answered keeps a worker from being done, and the error says so.
#[tokio::test]
async fn a_call_that_stays_open_is_waited_for_until_the_time_is_up() -> anyhow::Result<()> {
    let logs = Log::pair([Step::Together, Step::Together]);
    let limit = Duration::from_millis(300);
    let set_up = |builder: WorkerBuilder| builder.shutdown_timeout(limit);
    let [a, b] = group(&logs, set_up).await?;
    let pending = endless::on(&a.peer("w1")?).start();
    let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
    words(first);
    words(second);
    assert_eq!(logs[0].said(), BOTH[..1]);
    assert!(pending.await.is_err());
    assert_ended(&a);
    Ok(())
}

#[farref::remote]
async fn endless() {
    std::future::pending().await
}

#[tokio::test]
async fn who_may_leave_alone_takes_the_same_steps_and_who_may_not_is_told() -> anyhow::Result<()> {
    let [first, second] = Log::pair([Step::Fails("not asked"); 2]);
    let alone = Arc::new(Log {
        steps: [Step::Fails("it was asked"), Step::Together],
        alone: true,
        waiting_for: None,
        meeting: Arc::clone(&first.meeting),
        said: Mutex::default(),
    });
    let [a, b] = group(&[Arc::clone(&alone), Arc::clone(&second)], |builder| {
        builder
    })
    .await?;
    let text = words(a.leave().await);
    assert!(text.contains("it was asked"), "{text}");
    assert_eq!(alone.said(), ["ready"]);
    assert_ended(&a);
    assert!(matches!(b.leave().await, Err(Error::Misuse(_))));
    assert!(second.said().is_empty());
    b.crash().await;
    Ok(())
}

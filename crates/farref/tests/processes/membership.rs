//! Guarantees S1-S4: joining, leaving, shutting down, starting again.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::{Error, LeakedReference, Worker};
use farref_testkit::{Scratch, TEST_TIMEOUT, eventually, eventually_async, free_port, run_test};

use crate::alone::alone;
use crate::functions::{
    Probe, ProbeRRef, add, add_on, hand_on, hold, open, pid, release, release_later, until_known,
    until_waiting, use_held, wait_at, write_what_comes,
};
use crate::group::{Group, Options, SILENT_MS, run};
use crate::launch::Launch;
use crate::{Tests, amount};

const LEAK_IS_A_WARNING: &str = "s2_a_leak_is_a_warning_unless_it_is_to_be_an_error";
const AGAIN_AND_AGAIN: &str = "s4_a_worker_may_be_started_again_in_one_process";

pub(crate) fn tests() -> Tests {
    vec![
        (
            "s1_a_shutdown_waits_for_calls_between_others",
            waits_for_calls,
        ),
        (
            "s1_a_shutdown_waits_for_references_of_others",
            waits_for_references,
        ),
        (
            "s1_a_shutdown_that_takes_too_long_names_who_is_not_done",
            names_who_is_busy,
        ),
        (
            "s1a_who_serves_waits_as_long_as_others_work",
            waits_for_work,
        ),
        (
            "s1_a_shutdown_does_not_wait_for_the_dead",
            does_not_wait_for_the_dead,
        ),
        (
            "s2_a_leak_is_reported_by_holder_and_owner",
            leak_is_reported,
        ),
        (
            "s2_a_leak_that_was_handed_on_names_its_line_its_maker_and_its_way",
            leak_is_traced,
        ),
        (
            LEAK_IS_A_WARNING,
            // A thread without a subscriber that comes first to a line that logs turns the line off.
            || alone(LEAK_IS_A_WARNING, leak_is_a_warning),
        ),
        (
            "s3_workers_join_and_leave_a_group_without_a_size",
            grows_and_shrinks,
        ),
        (
            "s3_a_worker_may_be_added_to_a_group_of_fixed_size",
            addition,
        ),
        (
            "s3_who_vanishes_while_joining_wedges_nobody",
            vanishes_while_joining,
        ),
        (
            "s3_many_that_are_gone_do_not_keep_a_newcomer_out",
            many_are_gone,
        ),
        (
            AGAIN_AND_AGAIN,
            // The other tests of this program have threads and sockets too.
            || alone(AGAIN_AND_AGAIN, again_and_again),
        ),
        ("s4_workers_of_two_groups_live_in_one_process", two_groups),
    ]
}

/// S1
fn waits_for_calls() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let scratch = Scratch::new()?;
        let done = scratch.file("done");
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        write_what_comes::on(&a, "b".into(), "gate".into(), done.clone()).await?;
        until_waiting::on(&b, "gate".into(), 1).await?;
        // It opens in a while, when this worker has long asked for the shutdown.
        crate::functions::open_later::on(&b, "gate".into(), 1_000).await?;
        group.me.shutdown().await?;
        ensure!(Path::new(&done).exists(), "a was still waiting for b");
        ensure!(std::fs::read_to_string(done)? == "Ok(())");
        Ok(())
    })
}

/// S1
fn waits_for_references() -> anyhow::Result<()> {
    let options = Options {
        leak_grace_ms: 60_000,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let scratch = Scratch::new()?;
        let done = scratch.file("done");
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        hold::on(&a, "k".into(), Probe::new_on(&b, 1).remote()).await?;
        release_later::on(&a, "k".into(), 1_000, done.clone()).await?;
        group.me.shutdown().await?;
        ensure!(Path::new(&done).exists(), "a still held a value of b");
        Ok(())
    })
}

/// S1: the one that loses patience first, and then those who have to do without it.
fn names_who_is_busy() -> anyhow::Result<()> {
    run_test(async {
        let options = Options {
            shutdown_timeout_ms: 16_000,
            leak_grace_ms: 60_000,
            ..Options::default()
        };
        let at = format!("tcp://127.0.0.1:{}", free_port()?);
        let start = |options: &Options, name: &str, rank: u32| -> anyhow::Result<_> {
            Launch::new(options)?
                .env("FARREF_NAME", name)
                .env("FARREF_RENDEZVOUS", &at)
                .env("FARREF_WORLD_SIZE", 3)
                .env("FARREF_RANK", rank)
                .start(name)
        };
        // `b` loses its patience long before `a`: if `a` went first, `b` would have nothing to wait for.
        let patient = Options {
            shutdown_timeout_ms: 32_000,
            ..options.clone()
        };
        let others = [start(&patient, "a", 1)?, start(&options, "b", 2)?];
        // Long enough for the others to say what they have: two processes that have just started.
        let limit = Duration::from_secs(8);
        let me = Worker::builder("driver").rank(0).world_size(3);
        let me = options.apply(me.rendezvous(&at)).shutdown_timeout(limit);
        let me = me.join().await?;
        let b = me.peer("b")?;
        // Held by nobody's program but that of `a`.
        hold::on(&me.peer("a")?, "k".into(), Probe::new_on(&b, 1).remote()).await?;
        let pending = wait_at::on(&b, "gate".into()).timeout(None).start();
        until_waiting::on(&b, "gate".into(), 1).await?;
        match me.shutdown().await {
            Err(Error::ShutdownTimeout {
                waited,
                waiting_for,
                ..
            }) => {
                ensure!(waited == limit);
                let has = |name: &str, what: &str| {
                    let mut lines = waiting_for.iter();
                    lines.any(|line| line.contains(&format!("`{name}`")) && line.contains(what))
                };
                ensure!(has("b", "1 calls, 1 references"), "{waiting_for:?}");
                ensure!(has("driver", "1 calls, 0 references"), "{waiting_for:?}");
                ensure!(has("a", "0 calls, 1 references"), "{waiting_for:?}");
            }
            other => bail!("{other:?}"),
        }
        // It has ended all the same, and whoever waited knows.
        ensure!(!me.is_member());
        let pending = pending.await;
        ensure!(
            matches!(pending, Err(Error::NotMember { .. })),
            "{pending:?}"
        );
        // It is as dead to the others as if it had been killed; what they wait for is each other.
        for (process, name) in others.into_iter().zip(["a", "b"]) {
            let (status, complaints) = process.ended().await?;
            ensure!(!status.success(), "`{name}` found nothing wrong");
            ensure!(!complaints.contains("`driver`"), "{complaints}");
            if name == "b" {
                ensure!(
                    complaints.contains("`a` with 0 calls, 1 references"),
                    "{complaints}"
                );
            }
        }
        Ok(())
    })
}

/// S1a: for much longer than a shutdown may take; one that was called meanwhile is served to its end.
fn waits_for_work() -> anyhow::Result<()> {
    const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(6);
    const LONGER: Duration = Duration::from_secs(8);
    let options = Options {
        shutdown_timeout_ms: SHUTDOWN_TIMEOUT.as_millis() as u64,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let began = std::time::Instant::now();
        while began.elapsed() < LONGER {
            ensure!(add_on::on(&a, "b".into(), 1, 2).await? == 3);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let pending = wait_at::on(&b, "gate".into()).timeout(None).start();
        until_waiting::on(&b, "gate".into(), 1).await?;
        tokio::time::sleep(LONGER).await;
        open::on(&b, "gate".into()).await?;
        Ok(pending.await?)
    })
}

/// S1, F2
fn does_not_wait_for_the_dead() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b", "c"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        hold::on(&a, "k".into(), Probe::new_on(&b, 1).remote()).await?;
        let _pending = wait_at::on(&a, "gate".into()).timeout(None).start();
        until_waiting::on(&a, "gate".into(), 1).await?;
        let me = group.me.clone();
        let ending = tokio::spawn(async move { me.shutdown().await });
        // `c` has never said a word to anyone; `a` holds a value of `b` and has a call open.
        group.kill("c")?;
        group.kill("a")?;
        Ok(ending.await??)
    })
}

/// S2
fn leak_is_reported() -> anyhow::Result<()> {
    run_test(async {
        let group = Group::start(Options::default(), &[]).await?;
        let owner = Launch::addition(&group, "owner")?.start("owner")?;
        let owner_peer = group.me.wait_for_peer("owner", TEST_TIMEOUT).await?;
        let leaked = Probe::new_on(&owner_peer, 1).remote();
        let line = line!() - 1;
        let own = group.me.rref("text".to_owned())?;
        let own_line = line!() - 1;
        let report = match group.me.shutdown().await {
            Err(Error::Leaked(report)) => report,
            other => bail!("no leak but {other:?}"),
        };
        ensure!(report.0.len() == 2, "{report}");
        let far = reference(&report.0, "owner")?;
        ensure!(far.type_name.ends_with("functions::Probe"), "{far:?}");
        ensure!(far.holders == ["driver"], "{far:?}");
        ensure_at(far, line)?;
        let near = reference(&report.0, "driver")?;
        ensure!(near.type_name.ends_with("String"), "{near:?}");
        ensure!(near.holders == ["driver"], "{near:?}");
        ensure_at(near, own_line)?;
        let text = report.to_string();
        ensure!(
            text.contains("Probe on `owner`, held by driver, made at "),
            "{text}"
        );

        let (status, complaints) = owner.ended().await?;
        ensure!(!status.success(), "the owner found nothing wrong");
        ensure!(
            complaints.contains("references were never dropped"),
            "{complaints}"
        );
        ensure!(
            complaints.contains("functions::Probe on `owner`, held by driver"),
            "{complaints}"
        );
        drop((leaked, own));
        Ok(())
    })
}

fn reference<'a>(
    references: &'a [LeakedReference],
    owner: &str,
) -> anyhow::Result<&'a LeakedReference> {
    let mut owned = references.iter().filter(|leak| leak.owner == owner);
    owned
        .next()
        .with_context(|| format!("no leak of {owner}'s"))
}

fn ensure_at(leak: &LeakedReference, line: u32) -> anyhow::Result<()> {
    let location = leak.location.as_deref().context("no source line")?;
    ensure!(
        location.starts_with(&format!("{}:{line}:", file!())),
        "made at {location}, reported for line {line}"
    );
    let age = leak.age.context("no age")?;
    ensure!(age > Duration::ZERO && age < TEST_TIMEOUT, "{age:?}");
    Ok(())
}

/// S2: made by the driver, handed by `broker` to `hold` on `holder`, where it stays.
fn leak_is_traced() -> anyhow::Result<()> {
    run_test(async {
        let group = Group::start(Options::default(), &["owner", "broker"]).await?;
        let holder = Launch::addition(&group, "holder")?.start("holder")?;
        group.me.wait_for_peer("holder", TEST_TIMEOUT).await?;
        let broker = group.peer("broker")?;
        until_known::on(&broker, "holder".into()).await?;
        let (probe, line) = (Probe::new_on(&group.peer("owner")?, 1).remote(), line!());
        hand_on::on(&broker, "holder".into(), "k".into(), probe).await?;
        let ended = group.me.shutdown().await;
        ensure!(ended.is_ok(), "the driver holds nothing: {ended:?}");
        let (status, complaints) = holder.ended().await?;
        ensure!(!status.success(), "the holder found nothing wrong");
        let file = file!();
        for part in [
            format!("functions::Probe on `owner`, held by holder, made at {file}:{line}:"),
            " on `driver`, handed on by `broker` to `".to_owned(),
            "functions::hold`".to_owned(),
        ] {
            ensure!(complaints.contains(&part), "no {part:?} in: {complaints}");
        }
        Ok(())
    })
}

/// S2
fn leak_is_a_warning() -> anyhow::Result<()> {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer({
            let log = log.clone();
            move || log.clone()
        })
        .with_ansi(false)
        .finish();
    // One thread, so that the subscriber of this thread hears everything.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _default = tracing::subscriber::set_default(subscriber);
    runtime.block_on(async {
        let options = Options {
            fail_on_leaks: false,
            ..Options::default()
        };
        let group = Group::start(options, &["a"]).await?;
        let leaked = Probe::new_on(&group.peer("a")?, 1).remote();
        let line = line!() - 1;
        // Fails if this worker's shutdown or that of `a` does.
        group.finish().await?;
        drop(leaked);
        let text = log.text();
        ensure!(
            text.contains("WARN") && text.contains("references were never dropped"),
            "{text}"
        );
        let made = format!("Probe on `a`, held by driver, made at {}:{line}:", file!());
        ensure!(text.contains(&made), "{text}");
        Ok(())
    })
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// S3, E11: in a group without ranks the first worker founds it and hosts its store.
fn grows_and_shrinks() -> anyhow::Result<()> {
    run_test(async {
        let options = Options::default();
        let at = format!("tcp://127.0.0.1:{}", free_port()?);
        let start = |name: &str| -> anyhow::Result<_> {
            Launch::new(&options)?
                .env("FARREF_NAME", name)
                .env("FARREF_RENDEZVOUS", &at)
                .start(name)
        };
        let me = options.apply(Worker::builder("first-of-all").rendezvous(&at));
        let me = me.join().await?;
        ensure!(me.peers().len() == 1);
        let mut running = Vec::new();
        for name in ["worker-1", "ps-eu:west.2", "a_b"] {
            running.push(start(name)?);
            let peer = me.wait_for_peer(name, TEST_TIMEOUT).await?;
            ensure!(add::on(&peer, 1, 2).await? == 3);
            ensure!(add_on::on(&peer, "first-of-all".into(), 1, 2).await? == 3);
        }
        let worker = me.peer("worker-1")?;
        // Those who came later get known to those who came before, each of whom hears of them by itself;
        // the other way round all are known at once.
        until_known::on(&worker, "a_b".into()).await?;
        ensure!(add_on::on(&worker, "a_b".into(), 1, 2).await? == 3);
        ensure!(add_on::on(&me.peer("a_b")?, "worker-1".into(), 1, 2).await? == 3);

        // A worker of this process comes, takes part, leaves, and comes back.
        let mut last_life = 0;
        for _ in 0..3 {
            let guest = options.apply(Worker::builder("guest").rendezvous(&at));
            let guest = guest.join().await?;
            ensure!(guest.peers().len() == 5, "{:?}", guest.peers());
            ensure!(
                add::on(&guest.peer("worker-1")?, 1, 2).await? == 3,
                "known at once"
            );
            let mine = me.wait_for_peer("guest", TEST_TIMEOUT).await?;
            ensure!(add_on::on(&mine, "worker-1".into(), 1, 2).await? == 3);
            let life = guest.snapshot().incarnation;
            ensure!(life > last_life, "a life of its own");
            last_life = life;

            let value = Probe::new_on(&mine, 6).remote();
            hold::on(&worker, "k".into(), value.clone()).await?;
            let held = Probe::new_on(&worker, 7).remote();
            hold::on(&mine, "theirs".into(), held).await?;
            ensure!(release::on(&mine, "theirs".into()).await?);
            guest.leave().await?;
            ensure!(!guest.is_member());
            match value.value().await {
                Err(Error::OwnerLost { owner }) => ensure!(&*owner == "guest"),
                other => bail!("{other:?}"),
            }
            ensure!(release::on(&worker, "k".into()).await?);
            match add::on(&mine, 1, 2).await {
                Err(Error::PeerLost { peer, .. }) => ensure!(&*peer == "guest"),
                other => bail!("{other:?}"),
            }
        }
        ensure!(me.peers().len() == 4);
        me.shutdown().await?;
        for process in running {
            process.ended_well().await?;
        }
        Ok(())
    })
}

/// S3
fn addition() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let extra = Launch::addition(group, "extra-1")?.start("extra-1")?;
        let peer = group.me.wait_for_peer("extra-1", TEST_TIMEOUT).await?;
        ensure!(
            peer.rank() >= group.world_size,
            "it has no rank of the founders"
        );
        for name in ["driver", "a", "b"] {
            ensure!(add_on::on(&peer, name.into(), 1, 2).await? == 3);
        }
        let a = group.peer("a")?;
        hold::on(&peer, "k".into(), Probe::new_on(&a, 8).remote()).await?;
        ensure!(use_held::on(&peer, "k".into()).await? == 8);
        ensure!(release::on(&peer, "k".into()).await?);
        eventually_async("a knows it too", async || {
            Ok(add_on::on(&a, "extra-1".into(), 1, 2).await.is_ok())
        })
        .await?;
        group.me.shutdown().await?;
        extra.ended_well().await
    })
}

/// S3, E13: killed and stopped at any moment of their joining.
fn vanishes_while_joining() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        join_timeout_ms: 40_000,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let mut stopped = Vec::new();
        for n in 0..amount(12, 24) {
            let name = format!("gone-{n}");
            let vanishing = Launch::addition(group, &name)?.start(&name)?;
            // Each a little further on its way than the one before; the last ones may be in.
            tokio::time::sleep(Duration::from_millis(amount(4, 2) * n)).await;
            if n % 4 == 3 {
                vanishing.stop()?;
                stopped.push(vanishing);
            } else {
                vanishing.kill()?;
            }
        }
        // As the same worker that vanished, and as another.
        let next = [
            Launch::addition(group, "gone-8")?.start("gone-8")?,
            Launch::addition(group, "new")?.start("new")?,
        ];
        let again = group.me.wait_for_peer("gone-8", TEST_TIMEOUT).await?;
        let new = group.me.wait_for_peer("new", TEST_TIMEOUT).await?;
        eventually_async("the new ones are reached", async || {
            let reached = (add::on(&again, 1, 2).await, add::on(&new, 1, 2).await);
            Ok(reached.0.is_ok() && reached.1.is_ok())
        })
        .await?;
        ensure!(add_on::on(&new, "a".into(), 1, 2).await? == 3);
        // Those who were only stopped find out what has become of them, and nobody else is bothered.
        for process in &stopped {
            process.resume()?;
        }
        ensure!(add_on::on(&again, "b".into(), 1, 2).await? == 3);
        group.me.shutdown().await?;
        for process in next {
            process.ended_well().await?;
        }
        for process in stopped {
            // Some were evicted, some had not begun and came in now, some came too late.
            process.ended().await?;
        }
        Ok(())
    })
}

/// S3: the store remembers everyone who ever came; a newcomer must not wait for each of them.
fn many_are_gone() -> anyhow::Result<()> {
    run_test(async {
        let scratch = Scratch::new()?;
        let at = format!("file://{}", scratch.file("group"));
        let join = |name: String| {
            let builder = Worker::builder(name).rendezvous(&at);
            builder.join_timeout(TEST_TIMEOUT).join()
        };
        let mut earlier = Vec::new();
        for n in 0..8 {
            earlier.push(join(format!("earlier-{n}")).await?);
        }
        let stays = join("stays".into()).await?;
        // Those who were first are the first to be asked.
        for (n, worker) in earlier.into_iter().enumerate() {
            match n % 2 {
                0 => worker.leave().await?,
                _ => worker.crash().await,
            }
        }
        let late = join("late".into()).await?;
        ensure!(add::on(&late.peer("stays")?, 1, 2).await? == 3);
        let (one, other) = tokio::join!(stays.shutdown(), late.shutdown());
        one?;
        Ok(other?)
    })
}

/// S4, E8
fn again_and_again() -> anyhow::Result<()> {
    let counts = |what: &str| -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/self/{what}"))?.count())
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let port = free_port()?;
        let mut before = None;
        for round in 0..amount(8, 20) {
            let at = format!("tcp://127.0.0.1:{port}");
            let member = |name: &str, rank| {
                let builder = Worker::builder(name)
                    .rank(rank)
                    .world_size(2)
                    .rendezvous(&at);
                builder.fail_on_leaks(true).join()
            };
            let (one, other) = tokio::try_join!(member("one", 0), member("other", 1))?;
            let peer = one.peer("other")?;
            let probe = Probe::new_on(&peer, round).remote();
            ensure!(probe.value().await? == round);
            hold::on(&peer, format!("{round}"), probe).await?;
            ensure!(use_held::on(&peer, format!("{round}")).await? == round);
            // A plain function, so that the pool has a thread.
            ensure!(crate::functions::add_plainly::on(&peer, 1, 2).await? == 3);
            if round % 4 == 3 {
                let pending = wait_at::on(&peer, "gate".into()).timeout(None).start();
                until_waiting::on(&peer, "gate".into(), 1).await?;
                other.crash().await;
                let lost = pending.await;
                ensure!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
                crate::functions::forget(&format!("{round}"));
                one.shutdown().await?;
            } else {
                ensure!(release::on(&peer, format!("{round}")).await?);
                let (first, second) = tokio::join!(one.shutdown(), other.shutdown());
                first.and(second)?;
            }
            drop((peer, one, other));
            // Threads and sockets of the first round may be those of the runtime itself.
            let tasks = || runtime.metrics().num_alive_tasks();
            let now = || anyhow::Ok((counts("task")?, counts("fd")?, tasks()));
            let Some(before) = before else {
                eventually("the tasks end", || tasks() == 0).await?;
                before = Some(now()?);
                continue;
            };
            let settled = eventually_async("what a round has begun ends", async || {
                let (threads, files, tasks) = now()?;
                let (threads_before, files_before, tasks_before) = before;
                Ok(threads <= threads_before && files <= files_before && tasks <= tasks_before)
            });
            settled
                .await
                .with_context(|| format!("round {round}: {:?}, before {before:?}", now()))?;
        }
        Ok(())
    })
}

/// S4: two groups that meet at different places and share a process, a runtime and their names.
fn two_groups() -> anyhow::Result<()> {
    run_test(async {
        let mut groups = Vec::new();
        for _ in 0..2 {
            groups.push(Group::start(Options::default(), &["a"]).await?);
        }
        let (first, second) = (&groups[0], &groups[1]);
        let (a1, a2) = (first.peer("a")?, second.peer("a")?);
        ensure!(pid::on(&a1).await? != pid::on(&a2).await?);
        let (p1, p2) = (
            Probe::new_on(&a1, 1).remote(),
            Probe::new_on(&a2, 2).remote(),
        );
        ensure!(p1.value().await? == 1 && p2.value().await? == 2);
        let waiting = wait_at::on(&a2, "gate".into()).timeout(None).start();
        until_waiting::on(&a2, "gate".into(), 1).await?;
        drop(p1);
        let second = groups.pop().context("two groups")?;
        let first = groups.pop().context("two groups")?;
        first.finish().await?;
        // The other group has not noticed.
        ensure!(p2.value().await? == 2);
        open::on(&a2, "gate".into()).await?;
        waiting.await?;
        drop(p2);
        second.finish().await
    })
}

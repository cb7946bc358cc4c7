//! D4: dropping a call cancels it, wherever it is, and releases what it carries.
//!
//! Each test hands the only reference to a value on `b` to a call on `a`, drops the call, and waits
//! until the value is gone. The calls have no deadline, so that nothing else ends them.

use std::sync::{Condvar, Mutex, PoisonError};

use anyhow::ensure;
use farref::{Blob, Peer, RRef};
use farref_testkit::eventually_async;

use crate::counts::{CountDrop, count, counted, has_counted, never_end_with};
use crate::functions::{Probe, ProbeRRef as _, add, open, probes, until_waiting, wait_at};
use crate::group::{self, Group, proxied};
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_call_cancelled_before_it_is_sent_is_never_sent",
            a_call_cancelled_before_it_is_sent_is_never_sent,
        ),
        (
            "a_call_cancelled_while_it_waits_for_its_turn_never_begins",
            a_call_cancelled_while_it_waits_for_its_turn_never_begins,
        ),
        (
            "a_call_cancelled_while_it_waits_for_its_value_never_begins",
            a_call_cancelled_while_it_waits_for_its_value_never_begins,
        ),
        (
            "a_call_cancelled_while_it_waits_for_a_thread_never_begins",
            a_call_cancelled_while_it_waits_for_a_thread_never_begins,
        ),
        (
            "a_large_call_cancelled_on_its_way_leaves_nothing_behind",
            a_large_call_cancelled_on_its_way_leaves_nothing_behind,
        ),
        (
            "a_running_call_that_is_cancelled_is_dropped_where_it_waits",
            a_running_call_that_is_cancelled_is_dropped_where_it_waits,
        ),
        (
            "a_plain_function_that_is_cancelled_runs_to_its_end",
            a_plain_function_that_is_cancelled_runs_to_its_end,
        ),
        (
            "an_answer_that_nobody_takes_is_let_go",
            an_answer_that_nobody_takes_is_let_go,
        ),
        (
            "a_worker_cancels_calls_to_itself",
            a_worker_cancels_calls_to_itself,
        ),
    ]
}

/// Takes a reference, if it ever runs.
#[farref::remote]
async fn take(probe: RRef<Probe>) {
    count("taken");
    drop(probe);
}

/// The same on a thread.
#[farref::remote]
fn take_on_a_thread(probe: RRef<Probe>) {
    count("taken");
    drop(probe);
}

/// A value that can be occupied.
struct Desk {
    served: u64,
}

#[farref::remote]
impl Desk {
    #[remote(task)]
    pub(crate) fn new() -> Self {
        Self { served: 0 }
    }

    pub(crate) async fn made_at(gate: String) -> Self {
        wait_at(gate).await;
        Self::new()
    }

    pub(crate) async fn occupy(&mut self, gate: String) {
        wait_at(gate).await;
        self.served += 1;
    }

    pub(crate) async fn take(&mut self, probe: RRef<Probe>) {
        take(probe).await;
        self.served += 1;
    }

    pub(crate) fn take_on_a_thread(&mut self, probe: RRef<Probe>) {
        take_on_a_thread(probe);
        self.served += 1;
    }

    pub(crate) async fn served(&self) -> u64 {
        self.served
    }
}

/// Whether the threads of this process may go on.
static MAY_GO_ON: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Blocks its thread until [`go_on`].
#[farref::remote]
fn block(key: String) {
    count(&format!("{key} began"));
    let _done = CountDrop(format!("{key} done"));
    let may = MAY_GO_ON.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(MAY_GO_ON.1.wait_while(may, |may| !*may));
}

#[farref::remote]
async fn go_on() {
    *MAY_GO_ON.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    MAY_GO_ON.1.notify_all();
}

/// Little room and one thread.
fn narrow() -> Options {
    Options {
        max_calls: 64,
        blocking_threads: 1,
        ..Options::default()
    }
}

/// A probe on `b` and the only reference to it.
async fn probe(group: &Group) -> anyhow::Result<RRef<Probe>> {
    let probe = Probe::new_on(&group.peer("b")?, 1).remote();
    ensure!(probe.value().await? == 1);
    Ok(probe)
}

/// The probe on `b` is gone.
async fn released(group: &Group) -> anyhow::Result<()> {
    let b = group.peer("b")?;
    eventually_async("the call's reference is released", async || {
        Ok(probes::on(&b).await? == 0)
    })
    .await
}

/// The call is with `a`, and the probe that it carries lives.
async fn arrived(group: &Group, a: &Peer) -> anyhow::Result<()> {
    // Calls arrive in the order in which they were made.
    add::on(a, 1, 1).await?;
    ensure!(probes::on(&group.peer("b")?).await? == 1);
    Ok(())
}

/// D4: at the sender.
fn a_call_cancelled_before_it_is_sent_is_never_sent() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        add::on(&a, 1, 1).await?;
        let mut full: Vec<_> = (0..64)
            .map(|_| wait_at::on(&a, "room".to_owned()).timeout(None).start())
            .collect();
        let parked = take::on(&a, probe(group).await?).timeout(None).start();
        ensure!(probes::on(&group.peer("b")?).await? == 1);
        drop(parked);
        // While `a` is as busy as before.
        released(group).await?;
        full.pop();
        open::on(&a, "room".to_owned()).await?;
        for call in full {
            call.await?;
        }
        ensure!(counted::on(&a, "taken".to_owned()).await? == 0);
        Ok(())
    })
}

/// D4: behind `&mut self`, as a task and on a thread.
fn a_call_cancelled_while_it_waits_for_its_turn_never_begins() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let desk = Desk::new_on(&a).remote();
        for (turn, on_a_thread) in [(1, false), (2, true)] {
            let gate = format!("turn {turn}");
            let busy = desk.occupy(gate.clone()).start();
            until_waiting::on(&a, gate.clone(), 1).await?;
            let probe = probe(group).await?;
            let queued = if on_a_thread {
                desk.take_on_a_thread(probe).timeout(None).start()
            } else {
                desk.take(probe).timeout(None).start()
            };
            let behind = desk.served().start();
            arrived(group, &a).await?;
            drop(queued);
            // While the value is as busy as before.
            released(group).await?;
            open::on(&a, gate).await?;
            busy.await?;
            ensure!(behind.await? == turn);
        }
        ensure!(counted::on(&a, "taken".to_owned()).await? == 0);
        Ok(())
    })
}

/// D4: behind a constructor.
fn a_call_cancelled_while_it_waits_for_its_value_never_begins() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let desk = Desk::made_at_on(&a, "constructor".to_owned()).remote();
        let queued = desk.take(probe(group).await?).timeout(None).start();
        let behind = desk.served().start();
        arrived(group, &a).await?;
        drop(queued);
        // While the value is not there.
        released(group).await?;
        open::on(&a, "constructor".to_owned()).await?;
        ensure!(behind.await? == 0);
        ensure!(counted::on(&a, "taken".to_owned()).await? == 0);
        Ok(())
    })
}

/// D4: behind the pool of threads.
fn a_call_cancelled_while_it_waits_for_a_thread_never_begins() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let desk = Desk::new_on(&a).remote();
        ensure!(desk.served().await? == 0);
        let busy = block::on(&a, "thread".to_owned()).start();
        eventually_async("the only thread is busy", async || {
            has_counted(&a, "thread began", 1).await
        })
        .await?;
        let queued = take_on_a_thread::on(&a, probe(group).await?)
            .timeout(None)
            .start();
        arrived(group, &a).await?;
        drop(queued);
        // While the thread is as busy as before.
        released(group).await?;

        // A method has its turn already when it waits for a thread: that goes back too.
        let queued = desk
            .take_on_a_thread(probe(group).await?)
            .timeout(None)
            .start();
        arrived(group, &a).await?;
        drop(queued);
        released(group).await?;
        ensure!(desk.served().await? == 0);
        go_on::on(&a).await?;
        busy.await?;
        ensure!(counted::on(&a, "taken".to_owned()).await? == 0);
        Ok(())
    })
}

/// Keeps what it got, if it ever runs.
#[farref::remote]
async fn keep(probe: RRef<Probe>, blob: Blob) {
    let _kept = (probe, blob);
    std::future::pending().await
}

/// D4: half sent.
fn a_large_call_cancelled_on_its_way_leaves_nothing_behind() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a", "b"])?;
    group::run(options, &["a", "b"], async |group| {
        let a = group.peer("a")?;
        add::on(&a, 1, 1).await?;
        let probe = probe(group).await?;
        proxy.stall_after(1 << 20);
        let on_its_way = keep::on(&a, probe, vec![0; 20 << 20].into())
            .timeout(None)
            .start();
        ensure!(probes::on(&group.peer("b")?).await? == 1);
        drop(on_its_way);
        proxy.pass();
        released(group).await
    })
}

/// D4: while it runs.
fn a_running_call_that_is_cancelled_is_dropped_where_it_waits() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let running = never_end_with::on(&a, "runs".to_owned(), probe(group).await?)
            .timeout(None)
            .start();
        eventually_async("it runs", async || has_counted(&a, "runs began", 1).await).await?;
        ensure!(probes::on(&group.peer("b")?).await? == 1);
        drop(running);
        eventually_async("it is dropped", async || {
            has_counted(&a, "runs dropped", 1).await
        })
        .await?;
        released(group).await
    })
}

/// D4: a thread cannot be stopped. What it does is done to its end, and its answer is nobody's.
fn a_plain_function_that_is_cancelled_runs_to_its_end() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let running = block::on(&a, "plain".to_owned()).timeout(None).start();
        eventually_async("it runs", async || has_counted(&a, "plain began", 1).await).await?;
        drop(running);
        ensure!(counted::on(&a, "plain done".to_owned()).await? == 0);
        go_on::on(&a).await?;
        eventually_async("it ends", async || has_counted(&a, "plain done", 1).await).await
    })
}

/// Hands a reference back.
#[farref::remote]
async fn give_back(probe: RRef<Probe>) -> RRef<Probe> {
    probe
}

/// D4: after it was answered.
fn an_answer_that_nobody_takes_is_let_go() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let answered = give_back::on(&a, probe(group).await?).timeout(None).start();
        eventually_async("it is answered", async || {
            Ok(group.me.snapshot().open_calls == 0)
        })
        .await?;
        ensure!(probes::on(&group.peer("b")?).await? == 1);
        drop(answered);
        released(group).await
    })
}

/// D4: without a wire.
fn a_worker_cancels_calls_to_itself() -> anyhow::Result<()> {
    group::run(narrow(), &["b"], async |group| {
        let me = group.me.me();
        let running = never_end_with::on(&me, "itself".to_owned(), probe(group).await?)
            .timeout(None)
            .start();
        eventually_async("it runs", async || {
            has_counted(&me, "itself began", 1).await
        })
        .await?;
        drop(running);
        eventually_async("it is dropped", async || {
            has_counted(&me, "itself dropped", 1).await
        })
        .await?;
        released(group).await
    })
}

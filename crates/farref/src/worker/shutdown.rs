//! How a worker ends: together with all others, alone, or at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{NodeId, Residue};
use tokio::sync::oneshot;

use super::Worker;
use crate::agent::Ending;
use crate::error::{Error, Misuse, Result};
use crate::rendezvous::Directory;
use crate::report::leaks::LeakReport;
use crate::runtime::current::Current;
use crate::runtime::{Core, WorkerStage};
use crate::support::clock::Instant;
use crate::support::mutation::mutated;
use crate::tables::watchers::WorkerEnd;

/// How long the last messages may take to be delivered.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How much later than another a worker may learn that only references are left.
const LAG: Duration = Duration::from_secs(1);

/// How often is looked whether calls are answered, or only forgotten references left.
const LOOK: Duration = Duration::from_millis(20);

/// The same, where a shutdown of all waits for it.
const SHORT_LOOK: Duration = Duration::from_millis(2);

/// The same, while others work: there is nothing to be done but to wait for them.
const LONG_LOOK: Duration = Duration::from_millis(100);

/// How many streams and lookups are named that are still there.
const MAX_NAMED: usize = 8;

/// How long is waited for those who work before they are named in the log.
const LOG_AFTER: Duration = Duration::from_secs(10);

impl Worker {
    /// This worker's own work is done: shuts down together with all others, when each of them has asked for it
    /// or only [`serve`](Self::serve)s, and all calls are done everywhere.
    ///
    /// Meanwhile it serves the calls of others. As long as one of them works, it waits without a limit, and
    /// logs for whom; from when nobody does, for at most `shutdown_timeout`. If the group is not at rest by
    /// then, the error names who was not and what it had left; this worker has ended all the same. Workers
    /// that died are not waited for.
    ///
    /// References that a program still holds at the end can be of no more use to it; they are given a moment
    /// to go (`leak_grace`), logged with the source lines that made them, and a moment later released. With
    /// [`fail_on_leaks`](super::WorkerBuilder::fail_on_leaks) they are an error.
    ///
    /// To wait no longer, drop the future and [`leave`](Self::leave).
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let [me, other] = [cluster.worker(0).clone(), cluster.worker(1).clone()];
    ///
    /// // Each waits for the other.
    /// let (mine, others) = tokio::join!(me.shutdown(), other.shutdown());
    /// mine?;
    /// others?;
    ///
    /// // What is over can be of no more use.
    /// assert!(matches!(me.rref(1), Err(Error::NotMember { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self) -> Result<()> {
        match self.core.agent().ending() {
            Some(ending) => self.shut_down_by(ending, WorkerEnd::ShutDown).await,
            None => self.end_with_the_others(true).await,
        }
    }

    /// This worker has no work of its own: serves the calls of others until they shut down, and ends with
    /// them.
    ///
    /// It is [`shutdown`](Self::shutdown) for one that does not ask for the end by itself. The difference shows
    /// in a group without a fixed size: there it goes on when it is alone, or when all others only serve, too,
    /// because the next worker may come. In a group of fixed size it ends then. It also comes back when the
    /// worker is told to [`leave`](Self::leave) meanwhile. To do something beside serving, spawn it.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let server = cluster.worker(1).clone();
    /// let serving = tokio::spawn(async move { server.serve().await });
    ///
    /// let me = cluster.worker(0);
    /// assert_eq!(add::on(&me.peer("worker1")?, 1, 2).await?, 3);
    ///
    /// me.shutdown().await?;
    /// serving.await.expect("no panic")?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn serve(&self) -> Result<()> {
        let core = &self.core;
        tracing::debug!(worker = %core.name, "serves until the others shut down");
        if let Some(ending) = core.agent().ending() {
            if ending.may_leave_alone() {
                self.until_alone().await;
                if !core.is_member() {
                    // It has been told to leave, and is on its way or gone.
                    return Ok(());
                }
            }
            return self.shut_down_by(ending, WorkerEnd::ShutDown).await;
        }
        self.end_with_the_others(false).await
    }

    /// Waits until the others, who have come and may go one by one, have gone.
    async fn until_alone(&self) {
        let mut met = false;
        loop {
            let others = self.peers().len() > 1;
            met |= others;
            if (met && !others) || !self.core.is_member() {
                return;
            }
            tokio::time::sleep(LONG_LOOK).await;
        }
    }

    /// Ends together with all others. One that has no work of its own does not ask for it where others may
    /// still come, and does not wonder how long they work.
    async fn end_with_the_others(&self, worked: bool) -> Result<()> {
        let core = &self.core;
        let grows = core.names.directory().is_some_and(Directory::grows);
        core.input(|node, _| match worked || !grows {
            true => node.shut_down(),
            false => node.serve(),
        });
        core.wake_clock.notify_one();
        let limit = core.settings.shutdown_timeout;
        let mut stage = core.stage.subscribe();
        let mut others = Others::new(limit);
        // Since when nobody works, and since when, in which view, there are only references.
        let (mut clock, mut idle_since) = (None, None);
        let mut said = false;
        let mut leaks = LeakReport::default();
        let outcome = loop {
            match *stage.borrow_and_update() {
                WorkerStage::ShutDown | WorkerStage::Departed => break Ok(()),
                WorkerStage::Evicted => break Err(core.evicted()),
                WorkerStage::Joining | WorkerStage::Member => {}
            }
            if !core.look(|node| node.quiescence().all_willing()) && !mutated!(HurryWorkers) {
                // S1a
                (clock, idle_since) = (None, None);
                if worked {
                    others.name(core);
                }
                let _ = tokio::time::timeout(LONG_LOOK, stage.changed()).await;
                continue;
            }
            let waited = clock.get_or_insert_with(Instant::now).elapsed();
            if waited >= LOG_AFTER && !std::mem::replace(&mut said, true) {
                let left = waiting_for(core).join("; ");
                tracing::warn!(
                    worker = %core.name,
                    waiting_for = left,
                    "nobody works any more, and the shutdown waits for what is left: calls, and streams and lookups that are \
                     not dropped"
                );
            }
            if waited >= limit {
                break Err(Error::ShutdownTimeout {
                    waited: limit,
                    waiting_for: waiting_for(core),
                    leaks: self.references(),
                });
            }
            if clock.is_some_and(|since| since.elapsed() >= limit / 2) {
                // Destructors that do not end are no reason not to.
                core.input(|node, _| node.forget_work());
            }
            let only_references = only_references_left(core);
            // Who has come may not have been asked.
            let view = core.look(|node| node.membership().view().number());
            idle_since = idle_since.filter(|(_, seen)| *seen == view);
            if only_references == Some(true) {
                let (since, _) = *idle_since.get_or_insert_with(|| (Instant::now(), view));
                let grace = core.settings.leak_grace;
                // What is known of others is of the past, so names do not go at the first look.
                let idle_for = since.elapsed();
                let names_gone = grace.min(LAG);
                if idle_for >= names_gone {
                    // N5
                    core.withdraw_names();
                }
                // The names of others go later than one's own, and what they held is no leak, either.
                if let Some(idle_for) = idle_for.checked_sub(names_gone + LAG) {
                    if idle_for >= grace && leaks.is_empty() {
                        leaks = self.references();
                        if !leaks.is_empty() {
                            tracing::warn!(worker = %core.name, "references were never dropped:\n{leaks}");
                        }
                    }
                    // Not all learn at one moment that only references are left. Whoever released its own
                    // at once would take them out of the owner's report.
                    if idle_for >= grace + grace.min(LAG) {
                        core.input(|node, out| node.release_everything(out));
                    }
                }
            } else if only_references == Some(false) {
                idle_since = None;
            }
            let _ = tokio::time::timeout(LOOK, stage.changed()).await;
        };
        if *stage.borrow() == WorkerStage::ShutDown {
            core.pass_the_end_on();
        }
        self.close(LAST_WORDS).await;
        self.close_store().await;
        outcome?;
        if core.settings.fail_on_leaks && !leaks.is_empty() {
            return Err(Error::Leaked(leaks));
        }
        Ok(())
    }

    /// Shuts down together with all others by the rules of another wire.
    async fn shut_down_by(&self, ending: &dyn Ending, how: WorkerEnd) -> Result<()> {
        let core = &self.core;
        let mut leaks = LeakReport::default();
        // S1a: until all are ready, some of them work.
        let mut clock = Instant::now();
        let mut outcome = ending.ready().await;
        if outcome.is_ok() {
            clock = Instant::now();
            let resting = self.come_to_rest(ending, &mut leaks);
            let limit = core.settings.shutdown_timeout;
            outcome = match tokio::time::timeout_at((clock + limit).into(), resting).await {
                Ok(outcome) => outcome,
                Err(_) => Err(match ending.waiting_for() {
                    known if !known.is_empty() => known.join("; "),
                    _ => "the group, which did not come to rest in time".to_owned(),
                }),
            };
        }
        let waited = clock.elapsed();
        if outcome.is_ok() {
            core.watchers.end(how).wake();
        }
        self.close(LAST_WORDS).await;
        match outcome {
            Ok(()) if core.settings.fail_on_leaks && !leaks.is_empty() => Err(Error::Leaked(leaks)),
            Ok(()) => Ok(()),
            Err(problem) => Err(Error::ShutdownTimeout {
                waited,
                waiting_for: vec![problem],
                leaks,
            }),
        }
    }

    /// All are ready: lets go of what the program still refers to, waits for its calls, for a while also for those
    /// who refer to its values, and then for the others.
    async fn come_to_rest(
        &self,
        ending: &dyn Ending,
        leaks: &mut LeakReport,
    ) -> std::result::Result<(), String> {
        let core = &self.core;
        // N5
        core.withdraw_names();
        // Calls that are being worked on are their callers'. They may have given up long ago.
        let left = || core.look(|node| (node.wanted_calls(), node.residue().references));
        // What the program forgot to drop has no more use once all are ready.
        let forgotten = Instant::now() + core.settings.leak_grace;
        let end = forgotten.checked_add(ending.patience());
        while left() != (0, 0) {
            let now = Instant::now();
            if now >= forgotten {
                if leaks.is_empty() {
                    *leaks = self.leaks_at_the_end(ending);
                }
                // Again and again: the answers of calls that are still open bring others.
                core.input(|node, out| node.release_everything(out));
            }
            if end.is_some_and(|end| now >= end) {
                let (calls, references) = left();
                tracing::debug!(worker = %core.name, calls, references, "goes on to its end all the same");
                break;
            }
            let pause = if now < forgotten { SHORT_LOOK } else { LOOK };
            tokio::time::sleep(pause).await;
        }
        let open_calls = || {
            let (calls, held) = core.look(|node| (node.wanted_calls(), node.ref_counters().users));
            if calls == 0 && held > 0 {
                core.input(|node, out| node.release_everything(out));
            }
            calls as u64
        };
        ending.done(&open_calls).await
    }

    /// What was never dropped. Where a worker goes alone, others may hold what they like.
    fn leaks_at_the_end(&self, ending: &dyn Ending) -> LeakReport {
        let mut leaks = self.references();
        if ending.may_leave_alone() {
            let own = |holder: &String| **holder == *self.core.name;
            let mut held = Vec::clone(&leaks.0);
            held.retain(|leak| leak.holders.iter().any(own));
            leaks = LeakReport(Arc::new(held));
        }
        if !leaks.is_empty() {
            tracing::warn!(worker = %self.core.name, "references were never dropped:\n{leaks}");
        }
        leaks
    }

    /// Leaves the group, which goes on without this worker. What it owns is lost to the others
    /// ([`Error::OwnerLost`]), what it holds is released.
    ///
    /// First the calls that it is serving are answered, and the streams that others read from it come to their end. Others
    /// that come meanwhile are served as well, then new ones are refused ([`Error::PeerLost`]), and when the callers have
    /// their answers this worker goes. It waits for at most `shutdown_timeout`; then it goes all the same, and the
    /// error names those who are left without an answer, or with a stream that is not over.
    ///
    /// Dropping the future before the good-bye is said leaves the worker in the group, as it was.
    ///
    /// A remote function that calls this is not waited for, and gets no answer to its caller. To be
    /// told to leave by a call, let the function spawn a task that does it, or wake one.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// #[farref::remote]
    /// async fn text() -> String {
    ///     "gone with its owner".to_owned()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let text = text::on(&peer).remote();
    /// text.to_here().await?;
    ///
    /// cluster.worker(1).leave().await?;
    /// let lost = text.to_here().await;
    /// assert!(matches!(lost, Err(Error::OwnerLost { owner }) if &*owner == "worker1"));
    /// # drop(text);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn leave(&self) -> Result<()> {
        let core = &self.core;
        if let Some(ending) = core.agent().ending() {
            if !ending.may_leave_alone() {
                return Err(Misuse::CannotLeave.into());
            }
            return self.shut_down_by(ending, WorkerEnd::Left).await;
        }
        // Whoever drops this future before the good-bye has a worker that serves as before.
        let stays = StaysUnlessGone(core);
        let answered = self.answer_all(core.settings.shutdown_timeout).await;
        core.input(|node, out| node.release_everything(out));
        core.input(|node, out| node.leave(out));
        drop(stays);
        let mut stage = core.stage.subscribe();
        let gone = stage.wait_for(|stage| *stage > WorkerStage::Member);
        let outcome = match tokio::time::timeout(core.settings.shutdown_timeout, gone).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::ShutdownTimeout {
                waited: core.settings.shutdown_timeout,
                waiting_for: core.look(|node| {
                    let awaited = node.membership().awaited();
                    awaited
                        .into_iter()
                        .map(|node| core.name_of(node).to_string())
                        .collect()
                }),
                leaks: LeakReport::default(),
            }),
        };
        self.close(LAST_WORDS).await;
        if let Some(life) = &self.life {
            // A store that is hosted here is kept for the others.
            life.hosted.leave().await;
        }
        answered.and(outcome)
    }

    /// Waits until the calls of others are answered and the callers have the answers.
    async fn answer_all(&self, limit: Duration) -> Result<()> {
        let core = &self.core;
        let began = Instant::now();
        // The call that this is part of would wait for itself.
        let current = Current::get().filter(|current| Arc::ptr_eq(&current.core, core));
        let mine = current.and_then(|current| Some((current.caller, current.request()?)));
        // First the calls that are there. Whatever they need of this worker is served, and so is all
        // else. Then what has come meanwhile, and nothing new, so that there is an end.
        for refuses in [false, true] {
            if refuses {
                core.refuse_calls();
            }
            let mut open = core.unanswered();
            open.retain(|call| Some(*call) != mine);
            let mut streams = core.labels.read();
            while !(open.is_empty() && streams.is_empty()) && core.is_member() {
                if began.elapsed() >= limit {
                    let mut calls = BTreeMap::<_, u32>::new();
                    for (caller, _) in open {
                        *calls.entry(caller).or_default() += 1;
                    }
                    let calls = calls.into_iter().map(|(caller, calls)| {
                        let name = core.name_of(caller);
                        format!("`{name}`, {calls} of whose calls are not answered")
                    });
                    let streams = streams.into_iter().map(|((reader, _), stream)| {
                        let name = core.name_of(reader);
                        format!("`{name}`, which has not read {stream} to its end")
                    });
                    return Err(Error::ShutdownTimeout {
                        waited: limit,
                        waiting_for: streams.chain(calls).collect(),
                        leaks: LeakReport::default(),
                    });
                }
                tokio::time::sleep(LOOK).await;
                let (unanswered, read) = (core.unanswered(), core.labels.read());
                if refuses {
                    // What comes now is for the next items of streams.
                    (open, streams) = (unanswered, read);
                    open.retain(|call| Some(*call) != mine);
                } else {
                    open.retain(|call| unanswered.contains(call));
                    streams.retain(|stream, _| read.contains_key(stream));
                }
            }
        }
        // Who hears of the good-bye from somebody else gives its calls up.
        let began = Instant::now();
        while !core.unacknowledged().is_empty() && began.elapsed() < LAST_WORDS {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends this worker at once, as a crash would: nobody is told, nothing is released. The others
    /// find out by themselves. For tests of what survives.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// cluster.worker(1).crash().await;
    /// assert!(matches!(ping::on(&peer).await, Err(Error::PeerLost { .. })));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn crash(&self) {
        self.crash_after(Duration::ZERO).await;
    }

    /// The same, when the calls that others are waiting for have been answered, or after that time:
    /// for programs that end without their group, and yet give the answers that they are at.
    pub async fn crash_after(&self, patience: Duration) {
        if !patience.is_zero() {
            // Whoever drops this future has a worker that serves as before.
            let _stays = StaysUnlessGone(&self.core);
            // Who waits longer learns from the connection that there will be no answer.
            let _ = tokio::time::timeout(patience, self.answer_all(patience)).await;
        }
        self.close(Duration::ZERO).await;
        self.close_store().await;
    }

    async fn close_store(&self) {
        if let Some(life) = &self.life {
            life.hosted.close().await;
        }
    }

    async fn close(&self, limit: Duration) {
        self.core.agent().close(limit).await;
        if let Some(life) = &self.life {
            life.clock.abort();
            life.finish_with_store(limit).await;
        }
        self.core.end();
        // Values of the program that were deferred go before the worker has ended, unless they take too long.
        let (all_done, done) = oneshot::channel::<()>();
        self.core.user_code.defer(move || drop(all_done));
        let _ = tokio::time::timeout(limit, done).await;
    }
}

/// A worker that is about to leave, and may be told not to.
struct StaysUnlessGone<'a>(&'a Core);

impl Drop for StaysUnlessGone<'_> {
    fn drop(&mut self) {
        self.0.accept_calls_again();
    }
}

/// Names those who are waited for in the log, seldom.
struct Others {
    next: Instant,
    pause: Duration,
    named: bool,
}

impl Others {
    fn new(limit: Duration) -> Self {
        Self {
            next: Instant::now() + LOG_AFTER,
            pause: limit.max(LOG_AFTER),
            named: false,
        }
    }

    /// Once for whoever wonders, and then for whoever should.
    fn name(&mut self, core: &Core) {
        if Instant::now() < self.next {
            return;
        }
        let working = waiting_for(core).join("; ");
        self.next = Instant::now() + self.pause;
        if self.named {
            self.pause = self.pause.saturating_mul(2);
            tracing::warn!(worker = %core.name, waiting_for = working, "still waits for others to shut down");
        } else {
            self.named = true;
            tracing::info!(worker = %core.name, waiting_for = working, "waits for others to shut down");
        }
    }
}

/// Whether every worker has asked for the shutdown and is done but for references. None while that is
/// not known.
fn only_references_left(core: &Core) -> Option<bool> {
    core.look(|node| {
        let mine = (node.me(), node.residue());
        let quiescence = node.quiescence();
        only_references(mine, quiescence.waiting_for(), quiescence.names_all())
    })
}

fn only_references(
    mine: (NodeId, Residue),
    known: &[(NodeId, Residue)],
    names_all: bool,
) -> Option<bool> {
    // Who is named and has nothing left has not answered in this round: only the leader sees that, and
    // what it says then is no news.
    let has_more = |residue: &Residue| !residue.only_references() && !residue.is_idle();
    if !mine.1.only_references() || known.iter().any(|(_, residue)| has_more(residue)) {
        return Some(false);
    }
    // The list names this worker once a whole round has been asked for it; before, it says nothing.
    let is_named = !names_all || known.iter().any(|(who, _)| *who == mine.0);
    let all = known.iter().all(|(_, residue)| residue.only_references());
    (is_named && all).then_some(true)
}

/// Who is not done, and what it has left.
fn waiting_for(core: &Core) -> Vec<String> {
    let (known, mine, leader): (Vec<(NodeId, Residue)>, _, _) = core.look(|node| {
        let known = node.quiescence().waiting_for().to_vec();
        let mine = (node.me(), node.residue());
        (known, mine, node.membership().leader())
    });
    if known.is_empty() && mine.1.is_idle() && leader != core.me {
        let leader = core.name_of(leader);
        return vec![format!("`{leader}`, which has not said who is not done")];
    }
    let known = if known.is_empty() { vec![mine] } else { known };
    known
        .into_iter()
        .map(|(node, residue)| {
            let name = core.name_of(node);
            if !residue.wants_shutdown {
                return format!("`{name}`, which has not asked for a shutdown");
            }
            if residue.is_idle() {
                return format!("`{name}`, which has not said what it has left");
            }
            let own = match node == core.me {
                true => among_them(core),
                false => String::new(),
            };
            format!(
                "`{name}` with {} calls, {} references, {} contexts and {} membership changes{own}",
                residue.calls, residue.references, residue.contexts, residue.unsettled
            )
        })
        .collect()
}

/// What of this worker's own that is likely to be: streams and lookups that nobody has dropped.
fn among_them(core: &Core) -> String {
    let (mut named, in_all) = core.labels.own(MAX_NAMED);
    if in_all > named.len() {
        named.push(format!("{} more", in_all - named.len()));
    }
    match named.is_empty() {
        true => String::new(),
        false => format!(", among them {}", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(references: u32, calls: u32) -> Residue {
        let mut residue = Residue::default();
        residue.wants_shutdown = true;
        (residue.references, residue.calls) = (references, calls);
        residue
    }

    /// S2: an answer that is not there yet is no reason to begin anew, and who is not named because there
    /// are too many may release its references as well.
    #[test]
    fn s2_references_are_released_though_a_round_is_not_over_or_does_not_name_all() {
        let [me, other] = [NodeId::new(0, 1), NodeId::new(1, 1)];
        let mine = (me, left(1, 0));
        let judge = |others, names_all| only_references(mine, &[mine, (other, others)], names_all);
        assert_eq!(judge(left(2, 0), true), Some(true));
        assert_eq!(judge(left(0, 0), true), None, "it has not answered");
        assert_eq!(judge(left(2, 1), true), Some(false));
        assert_eq!(judge(Residue::default(), true), Some(false), "it works");
        let named = [(other, left(2, 0))];
        assert_eq!(only_references(mine, &named, true), None);
        assert_eq!(only_references(mine, &named, false), Some(true));
        assert_eq!(only_references(mine, &[], true), None);
        let busy = (me, left(1, 1));
        assert_eq!(only_references(busy, &named, false), Some(false));
    }
}

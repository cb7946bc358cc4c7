//! Reading and writing for tasks that do not get to run.
//!
//! Streams are read and written by tasks on the program's runtime, because that is the quickest way. A
//! program that computes where it should await keeps its runtime, and so these tasks, from running. This
//! task, on a thread that nobody keeps from running, looks every now and then whether a stream has waited
//! for its task all the time since it last looked. If so, it does the work of all such tasks until they
//! run again: heartbeats are answered, references are released, members come and go. Calls are taken
//! in; those of plain functions run, those of async functions begin when the runtime is free.
//!
//! # Invariants
//!
//! - **ST-1** What has come on a stream is taken in, and what is to be written is written as far as the
//!   peer reads, within a small part of the time for which a peer may be silent, whether or not any task
//!   of the program runs.
//! - **ST-2** Whoever operates the program is told once each time: for how long, and what is to blame. Only
//!   a task that does nothing, and did not run, shows that the program is at fault: a stream may wait behind
//!   others on a runtime that is merely busy.

use std::collections::HashMap;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref_proto::NodeId;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::endpoint::Endpoint;
use super::link::{Link, LinkTable, MAIN, RecvStream, SendStream, StreamHalves};
use crate::support::clock::Instant;

/// A stream that waits so long for its task is starved: a part of what a peer may be silent for, within limits.
const STARVED_FRACTION: u32 = 16;
const STARVED_AFTER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// How often streams are looked at while their tasks do not run.
const FALLBACK_INTERVAL: Duration = Duration::from_millis(5);
/// After this time it is no hiccup any more (ST-2).
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// What is read at once.
const SCRATCH: usize = 64 << 10;

/// One stream of one connection.
struct WatchedStream {
    link: Arc<Link>,
    send: Arc<SendStream>,
    recv: Arc<RecvStream>,
    /// None if only the system knows.
    is_readable: Option<bool>,
    readable: bool,
    writable: bool,
}

/// A connection's number, and which of its streams.
type StreamKey = (NodeId, u64, bool);

impl WatchedStream {
    fn key(&self) -> StreamKey {
        let is_main = self.send.lanes == MAIN;
        (self.link.peer, self.send.epoch, is_main)
    }

    /// What changes when one of its tasks runs.
    fn progress(&self) -> (u64, u64) {
        (self.recv.polls(), self.send.turns())
    }

    /// Whether one of its tasks has something to do.
    fn has_work(&self) -> bool {
        self.readable || (self.writable && self.send.is_handed_over())
    }
}

/// The task that does it.
pub(super) async fn run(links: Arc<LinkTable>) {
    let endpoint = &links.endpoint;
    let (least, most) = STARVED_AFTER;
    let starved_after = (endpoint.config.peer_timeout / STARVED_FRACTION).clamp(least, most);
    let mut monitor = Monitor::default();
    let mut scratch = Vec::new();
    loop {
        let any_starved = !monitor.starved.is_empty();
        sleep(if any_starved {
            FALLBACK_INTERVAL
        } else {
            starved_after
        })
        .await;
        let streams = streams(&links);
        monitor.update(endpoint, &streams, starved_after);
        let any_starved = !monitor.starved.is_empty();
        #[cfg(test)]
        endpoint.is_starved.store(any_starved, Ordering::Relaxed);
        if any_starved {
            scratch.resize(SCRATCH, 0);
            for stream in &streams {
                if stream.readable {
                    stream.recv.read_for_task(&stream.link, &mut scratch);
                }
                stream.send.write_for_task(&stream.link);
                // Time is kept on this thread, too.
                yield_now().await;
            }
        } else {
            scratch = Vec::new();
        }
    }
}

/// Which tasks do not run, and since when.
#[derive(Default)]
struct Monitor {
    /// Streams with work for their tasks: since when that is seen, and how far the tasks had got then.
    waiting: HashMap<StreamKey, (Instant, (u64, u64))>,
    /// Of those, the ones whose tasks do not run.
    starved: HashMap<StreamKey, (u64, u64)>,
    /// A task on the program's runtime that only has to run once, and since when it is to. Streams that were
    /// read and written here wake nobody when the runtime runs again, so they cannot show it.
    probe: Option<(Instant, JoinHandle<()>)>,
    /// Whether somebody was told that it did not run.
    reported: bool,
}

impl Monitor {
    fn update(&mut self, endpoint: &Endpoint, streams: &[WatchedStream], starved_after: Duration) {
        let now = Instant::now();
        let probe = self.probe.as_ref();
        let runs = probe.is_some_and(|(_, task)| task.is_finished());
        if runs {
            self.probe = None;
            self.reported = false;
        }
        let mut waiting = HashMap::new();
        let mut starved = HashMap::new();
        for stream in streams {
            let (key, progress) = (stream.key(), stream.progress());
            // Nothing is left to do for a stream that is read and written here, so that says nothing of its tasks.
            let may_run = runs && !stream.has_work();
            if self.starved.get(&key) == Some(&progress) && !may_run {
                starved.insert(key, progress);
                continue;
            }
            if !stream.has_work() {
                continue;
            }
            let since = match self.waiting.get(&key) {
                Some((since, before)) if *before == progress => *since,
                _ => now,
            };
            if now.duration_since(since) >= starved_after {
                starved.insert(key, progress);
            }
            waiting.insert(key, (since, progress));
        }
        self.waiting = waiting;
        self.starved = starved;
        if !self.starved.is_empty() {
            self.report(endpoint, now);
        }
    }

    /// ST-2
    fn report(&mut self, endpoint: &Endpoint, now: Instant) {
        let Some((since, _)) = &self.probe else {
            self.probe = Some((now, endpoint.runtime.spawn(async {})));
            endpoint.callbacks.starving(Duration::ZERO);
            return;
        };
        let lasted = now.duration_since(*since);
        if !self.reported && lasted >= REPORT_AFTER {
            self.reported = true;
            endpoint.metrics.starvations.increment(1);
            endpoint.callbacks.starving(lasted);
        }
    }
}

/// All streams that there are, and what can be done with them.
fn streams(links: &LinkTable) -> Vec<WatchedStream> {
    let mut streams = Vec::new();
    for link in links.links() {
        for StreamHalves { send, recv } in link.streams() {
            let is_readable = recv.is_readable();
            streams.push(WatchedStream {
                is_readable,
                readable: is_readable.unwrap_or(false),
                writable: send.write.is_writable().unwrap_or(false),
                link: Arc::clone(&link),
                send,
                recv,
            });
        }
    }
    poll_sockets(&mut streams);
    streams
}

/// Asks the system what can be done with sockets: once for all of them.
#[cfg(unix)]
fn poll_sockets(streams: &mut [WatchedStream]) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut answers = Vec::with_capacity(streams.len());
    {
        let mut asked = Vec::with_capacity(streams.len());
        let mut sockets = Vec::with_capacity(streams.len());
        for (index, stream) in streams.iter().enumerate() {
            if let Some(socket) = stream.send.write.socket() {
                sockets.push(PollFd::from_borrowed_fd(
                    socket,
                    PollFlags::IN | PollFlags::OUT,
                ));
                asked.push(index);
            }
        }
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Whoever is interrupted looks again soon.
        if sockets.is_empty() || poll(&mut sockets, Some(&at_once)).is_err() {
            return;
        }
        for (index, socket) in asked.iter().zip(&sockets) {
            answers.push((*index, socket.revents()));
        }
    }
    for (index, answer) in answers {
        if let Some(stream) = streams.get_mut(index) {
            let over = PollFlags::HUP | PollFlags::ERR;
            // Whose memory is being read is not waited for here, nor its end: nothing can be done before that was read.
            let readable = answer.intersects(PollFlags::IN | over);
            stream.readable = stream.is_readable.unwrap_or(readable);
            stream.writable = answer.intersects(PollFlags::OUT | over);
        }
    }
}

#[cfg(not(unix))]
fn poll_sockets(_: &mut [WatchedStream]) {}

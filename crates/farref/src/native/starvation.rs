//! Reading and writing for tasks that do not get to run.
//!
//! Streams are read and written by tasks on the program's runtime, because that is the quickest way. A
//! program that computes where it should await keeps its runtime, and so these tasks, from running. This
//! task, on a thread that nobody keeps from running, looks every now and then whether a stream has waited
//! for its task all the time since it last looked. If so, it does the work of all such tasks until they
//! run again: signs of life are answered, references are released, members come and go. Calls are taken
//! in; those of plain functions run, those of async functions begin when the runtime is free.
//!
//! # Invariants
//!
//! - **HE-1** What has come on a stream is taken in, and what is to be written is written as far as the
//!   peer reads, within a small part of the time for which a peer may be silent, whether or not any task
//!   of the program runs.
//! - **HE-2** Whoever operates the program is told once each time: for how long, and what is to blame. Only
//!   a task that does nothing, and did not run, shows that the program is at fault: a stream may wait behind
//!   others on a runtime that is merely busy.

use std::collections::HashMap;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farref_proto::NodeId;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::endpoint::Endpoint;
use super::link::{Link, LinkTable, MAIN, RecvStream, SendStream};

/// How long a stream may wait for its task: a part of what a peer may be silent for, within limits.
const PART: u32 = 16;
const PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// How often streams are looked at while their tasks do not run.
const HELPING: Duration = Duration::from_millis(5);
/// After this time it is no hiccup any more (HE-2).
const WORTH_TELLING: Duration = Duration::from_secs(2);
/// What is read at once.
const SCRATCH: usize = 64 << 10;

/// One stream of one connection.
struct Stream {
    link: Arc<Link>,
    channel: Arc<SendStream>,
    reader: Arc<RecvStream>,
    readable: bool,
    writable: bool,
}

/// A connection's number, and which of its streams.
type Key = (NodeId, u64, bool);

impl Stream {
    fn key(&self) -> Key {
        let is_main = self.channel.lanes == MAIN;
        (self.link.peer, self.channel.epoch, is_main)
    }

    /// What changes when one of its tasks runs.
    fn progress(&self) -> (u64, u64) {
        (self.reader.polls(), self.channel.is_left().1)
    }

    /// Whether one of its tasks has something to do.
    fn has_work(&self) -> bool {
        self.readable || (self.writable && self.channel.is_left().0)
    }
}

/// The task that helps out.
pub(super) async fn run(links: Arc<LinkTable>) {
    let endpoint = &links.endpoint;
    let (least, most) = PATIENCE;
    let patience = (endpoint.config.peer_timeout / PART).clamp(least, most);
    let mut watch = Watch::default();
    let mut scratch = Vec::new();
    loop {
        sleep(if watch.is_needed() { HELPING } else { patience }).await;
        let streams = streams(&links);
        watch.look(endpoint, &streams, patience);
        #[cfg(test)]
        endpoint
            .is_helped
            .store(watch.is_needed(), Ordering::Relaxed);
        if watch.is_needed() {
            scratch.resize(SCRATCH, 0);
            for stream in &streams {
                if stream.readable {
                    let Stream { link, channel, .. } = stream;
                    stream.reader.help_out(link, channel, &mut scratch);
                }
                stream.channel.help_out(&stream.link);
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
struct Watch {
    /// Streams with work for their tasks: since when that is seen, and how far the tasks had got then.
    waiting: HashMap<Key, (Instant, (u64, u64))>,
    /// Of those, the ones whose tasks do not run.
    stuck: HashMap<Key, (u64, u64)>,
    /// A task on the program's runtime that only has to run once, and since when it is to. Streams that were
    /// helped with wake nobody when the runtime runs again, so they cannot show it.
    probe: Option<(Instant, JoinHandle<()>)>,
    /// Whether somebody was told that it did not run.
    told: bool,
}

impl Watch {
    fn is_needed(&self) -> bool {
        !self.stuck.is_empty()
    }

    fn look(&mut self, endpoint: &Endpoint, streams: &[Stream], patience: Duration) {
        let now = Instant::now();
        let probe = self.probe.as_ref();
        let runs = probe.is_some_and(|(_, task)| task.is_finished());
        if runs {
            self.probe = None;
            self.told = false;
        }
        let mut waiting = HashMap::new();
        let mut stuck = HashMap::new();
        for stream in streams {
            let (key, progress) = (stream.key(), stream.progress());
            // Nothing is left to do for a stream that is helped with, so that says nothing of its tasks.
            let may_run = runs && !stream.has_work();
            if self.stuck.get(&key) == Some(&progress) && !may_run {
                stuck.insert(key, progress);
                continue;
            }
            if !stream.has_work() {
                continue;
            }
            let since = match self.waiting.get(&key) {
                Some((since, before)) if *before == progress => *since,
                _ => now,
            };
            if now.duration_since(since) >= patience {
                stuck.insert(key, progress);
            }
            waiting.insert(key, (since, progress));
        }
        self.waiting = waiting;
        self.stuck = stuck;
        if self.is_needed() {
            self.tell(endpoint, now);
        }
    }

    /// HE-2
    fn tell(&mut self, endpoint: &Endpoint, now: Instant) {
        let Some((since, _)) = &self.probe else {
            self.probe = Some((now, endpoint.handle.spawn(async {})));
            endpoint.contacts.starving(Duration::ZERO);
            return;
        };
        let lasted = now.duration_since(*since);
        if !self.told && lasted >= WORTH_TELLING {
            self.told = true;
            endpoint.meters.starvations.increment(1);
            endpoint.contacts.starving(lasted);
        }
    }
}

/// All streams that there are, and what can be done with them.
fn streams(links: &LinkTable) -> Vec<Stream> {
    let mut streams = Vec::new();
    for link in links.links() {
        for (channel, reader) in link.streams() {
            streams.push(Stream {
                readable: reader.is_readable().unwrap_or(false),
                writable: channel.write.is_writable().unwrap_or(false),
                link: Arc::clone(&link),
                channel,
                reader,
            });
        }
    }
    ask_system(&mut streams);
    streams
}

/// Asks the system what can be done with sockets: once for all of them.
#[cfg(unix)]
fn ask_system(streams: &mut [Stream]) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut answers = Vec::with_capacity(streams.len());
    {
        let mut asked = Vec::with_capacity(streams.len());
        let mut sockets = Vec::with_capacity(streams.len());
        for (index, stream) in streams.iter().enumerate() {
            if let Some(socket) = stream.channel.write.socket() {
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
            stream.readable = answer.intersects(PollFlags::IN | over);
            stream.writable = answer.intersects(PollFlags::OUT | over);
        }
    }
}

#[cfg(not(unix))]
fn ask_system(_: &mut [Stream]) {}

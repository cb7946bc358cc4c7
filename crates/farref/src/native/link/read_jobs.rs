//! Threads that read large parts: out of the peer's memory, or of regions that have to be copied.
//!
//! Holds PM-1 to PM-4 of [`peer_reads`](super::peer_reads). Where no thread can be had, or the link's is still at work for
//! an earlier connection, that passes: it is asked for again for [some time](crate::native::NativeConfig::read_patience),
//! and nothing else of the stream is read meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::BufMut;
use farref_proto::Time;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::Link;
use super::memory_talk::READING;
use super::peer_reads::ReadPermit;
use super::recv_stream::{Read, ReadFailure, Reading, RecvStream};
use crate::native::frame::{Filling, FrameError, NamedPiece, PieceSource};
use crate::native::transport::{MemoryError, SealedRegion};
use crate::support::lock::lock;
use crate::support::waiting_threads::NoThread;

/// So much is read before it is looked at the clock and at the socket: enough for a second thread to be worth it.
const TURN: usize = 32 << 20;
/// So much of a region is copied at once.
const COPY: usize = 64 << 10;
/// How often the peer hears that its memory is still being read: it has nothing to write meanwhile, so only this shows
/// it that the connection is not stuck.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// How often a thread is asked for where there was none.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Parts that are to be read, and who waits for them.
struct ReadJob {
    stream: Arc<RecvStream>,
    pieces: Vec<NamedPiece>,
    done: oneshot::Sender<Read>,
}

/// A job, until a thread takes it.
type WaitingJob = Arc<Mutex<Option<ReadJob>>>;

impl RecvStream {
    /// Begins to read parts out of the peer's memory, or of regions, as soon as somebody can. Fails if nobody ever will.
    pub(super) fn read_memory(
        &self,
        link: &Arc<Link>,
        pieces: Vec<NamedPiece>,
    ) -> Result<Reading, &'static str> {
        let stream = self.this.upgrade().ok_or("the stream is closed")?;
        let (done, reading) = oneshot::channel();
        let job = Arc::new(Mutex::new(Some(ReadJob {
            stream: Arc::clone(&stream),
            pieces,
            done,
        })));
        if begin(link, &job).is_err() {
            let asking = ask_again(Arc::downgrade(link), stream, job);
            let spawned = link.endpoint.spawn_io(asking);
            spawned.ok_or("there is nobody to read the peer's memory")?;
        }
        Ok(reading)
    }

    fn read_piece(&self, link: &Weak<Link>, piece: NamedPiece) -> Result<Filling, ReadFailure> {
        let NamedPiece {
            source,
            mut filling,
        } = piece;
        loop {
            let missing = filling.read_with(TURN, |from, count, into| match &source {
                PieceSource::Memory(address) => {
                    let memory = self.memory.get().ok_or(FrameError::Unpermitted)?;
                    let address = address.saturating_add(from as u64);
                    let read = memory.read(&self.send.write, address, count, into);
                    read.map_err(ReadFailure::from)
                }
                PieceSource::Region(region) => copy_region(region, from, count, into),
            })?;
            // PM-2: a region is there, whatever became of the peer.
            let link = link.upgrade().ok_or(ReadFailure::Outdated)?;
            if link.state().epoch != self.epoch {
                return Err(ReadFailure::Outdated);
            }
            self.tell_reading(&link);
            if missing == 0 {
                return Ok(filling);
            }
        }
    }

    /// Shows every now and then that this stream is not stuck: to the peer, and to the session.
    fn tell_reading(&self, link: &Arc<Link>) {
        let now = link.endpoint.now();
        let told = Time(self.told.load(Ordering::Relaxed));
        if now.since(told) < TELL_EVERY {
            return;
        }
        self.told.store(now.0, Ordering::Relaxed);
        {
            let mut state = link.state();
            if state.epoch == self.epoch {
                state.session.handle_bytes_read(now);
            }
        }
        self.send.say(READING, link);
    }
}

/// Has a thread do a job, if there is one and no other reads for the link (PM-1, PM-2).
fn begin(link: &Arc<Link>, job: &WaitingJob) -> Result<(), NoThread> {
    let permit = link.peer_reads.begin().ok_or(NoThread)?;
    let (job, weak) = (Arc::clone(job), Arc::downgrade(link));
    let begun = link.endpoint.run_waiting(move || {
        let job = lock(&job).take();
        if let Some(job) = job {
            job.run(&weak, permit);
        }
    });
    if begun.is_err() {
        // Somebody may have found it busy.
        link.confirm_offered();
    }
    begun
}

/// Asks until there is a thread for a job, or nobody waits for it, or it has been long enough.
async fn ask_again(link: Weak<Link>, stream: Arc<RecvStream>, job: WaitingJob) {
    let began = Instant::now();
    loop {
        sleep(ASK_EVERY).await;
        let Some(link) = link.upgrade() else {
            return;
        };
        if link.state().epoch != stream.epoch || begin(&link, &job).is_ok() {
            return;
        }
        if began.elapsed() >= link.endpoint.config.read_patience {
            // PM-4
            debug!(peer = %link.peer, "there is no thread to read the peer's memory");
            link.peer_reads.rest(&link.endpoint);
            let given_up = lock(&job).take();
            if let Some(job) = given_up {
                let _ = job.done.send(Err(ReadFailure::NoThread));
            }
            return;
        }
        stream.tell_reading(&link);
    }
}

impl ReadJob {
    fn run(self, link: &Weak<Link>, permit: ReadPermit) {
        let Self {
            stream,
            pieces,
            done,
        } = self;
        let is_memory = |piece: &NamedPiece| matches!(piece.source, PieceSource::Memory(_));
        let is_memory = pieces.iter().any(is_memory);
        let read: Read = pieces
            .into_iter()
            .map(|piece| stream.read_piece(link, piece))
            .collect();
        match &read {
            Ok(fillings) if is_memory => {
                let bytes = fillings.iter().map(Filling::length).sum::<usize>() as u64;
                permit.count(bytes);
            }
            // PM-4
            Err(ReadFailure::Memory(MemoryError::Unreadable(_))) => permit.refuse(),
            _ => {}
        }
        // Before the next one is asked for.
        permit.give_back(link);
        // Nobody waits any more if the connection is over.
        let _ = done.send(read);
    }
}

/// Copies some bytes of a region, by way of a few at a time.
fn copy_region(
    region: &SealedRegion,
    from: usize,
    count: usize,
    into: &mut dyn BufMut,
) -> Result<(), ReadFailure> {
    let mut some = vec![0; count.min(COPY)];
    let mut done = 0;
    while done < count {
        let now = some.len().min(count - done);
        let some = some.get_mut(..now).unwrap_or_default();
        region.copy(from + done, some)?;
        into.put_slice(some);
        done += now;
    }
    Ok(())
}

//! Memory that a peer offers: whether it can be read and is the peer's, and telling it so.
//!
//! Holds PM-1, PM-2, PM-4 and PM-6 of [`peer_reads`](super::peer_reads).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref_proto::Lane;
use tokio::time::sleep;
use tracing::debug;

use super::Link;
use super::memory_talk::{DECLINED, MAY_NAME};
use super::peer_reads::ReadPermit;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, SendStream};
use crate::native::frame::MemoryFrame;
use crate::native::transport::{MemoryClaim, PeerMemory};
use crate::support::lock::lock;
use crate::support::user_code;
use crate::support::waiting_threads::NoThread;

/// After so long memory that was offered is looked at that no thread could look at before.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl ReadPermit {
    /// Gives it back, and to whoever waits for it: a connection may be made while a thread still reads for the one before.
    pub(super) fn give_back(self, link: &Weak<Link>) {
        drop(self);
        if let Some(link) = link.upgrade() {
            link.confirm_offered();
        }
    }
}

impl SendStream {
    /// Says something about the peer's memory.
    pub(super) fn say(&self, what: u8, link: &Arc<Link>) {
        self.memory.owe(what);
        self.write_without_user_code(link);
    }

    /// Writes from a thread of ours: what is behind code of the program is not for that.
    fn write_without_user_code(&self, link: &Arc<Link>) {
        user_code::forbid_during(|| self.write_pending(link));
    }

    /// Says that the peer's memory is not read, when the stream's task gets to it.
    fn decline(&self) {
        self.memory.owe(DECLINED);
        self.write_later();
    }

    /// Waits no longer for the peer's answer than is reasonable (PM-6).
    pub(super) async fn await_answer(self: Arc<Self>, link: Weak<Link>, at_most: Duration) {
        sleep(at_most).await;
        if self.memory.stop_awaiting()
            && let Some(link) = link.upgrade()
        {
            self.write_without_user_code(&link);
        }
    }
}

impl RecvStream {
    /// The peer has said something about its memory, or ours. Says whether there may be more to send now. Fails if the
    /// peer could not have said it.
    pub(super) fn handle_memory(
        &self,
        link: &Arc<Link>,
        frame: MemoryFrame,
    ) -> Result<bool, &'static str> {
        let mut may_send = false;
        match frame {
            MemoryFrame::Offer(claim) => {
                if self.lanes != BULK || self.was_offered.swap(true, Ordering::Relaxed) {
                    return Err("peer offers its memory where it does not belong");
                }
                // The socket may be a Unix socket at the peer's end only.
                if self.send.write.is_local() && link.endpoint.own_memory.is_some() {
                    link.peer_reads.offer(Weak::clone(&self.this), claim);
                    link.confirm_offered();
                } else {
                    self.send.decline();
                }
            }
            MemoryFrame::MayName | MemoryFrame::Declined => {
                if !self.send.memory.has_offered.load(Ordering::SeqCst) {
                    return Err("peer answers for memory that it was not offered");
                }
                if frame == MemoryFrame::MayName {
                    self.send.memory.may_name.store(true, Ordering::Relaxed);
                }
                may_send = self.send.memory.stop_awaiting();
            }
            MemoryFrame::Reading => {
                // It may have to copy a region.
                if !self.send.memory.may_name() && !self.send.memory.may_pass() {
                    return Err("peer reads memory that it was not offered");
                }
                let now = link.endpoint.now();
                let mut state = link.state();
                if state.epoch == self.epoch {
                    state.session.handle_bytes_written(now, Lane::Bulk);
                }
            }
            MemoryFrame::TakesRegions => {
                if self.lanes != BULK {
                    return Err("peer takes regions where they do not belong");
                }
                let may_pass = self.send.write.is_local() && link.endpoint.own_memory.is_some();
                self.send.memory.may_pass.store(may_pass, Ordering::Relaxed);
            }
        }
        Ok(may_send)
    }

    /// Looks whether the peer's memory can be read and is the peer's, and tells it so.
    fn confirm(&self, link: &Arc<Link>, claim: MemoryClaim, permit: ReadPermit) {
        let Some(stream) = self.this.upgrade() else {
            return;
        };
        let peer = link.peer;
        let weak = Arc::downgrade(link);
        let offered = claim.clone();
        // PM-1
        let begun = self.spawn(&weak, move |link| {
            let confirmed = PeerMemory::confirm(&stream.send.write, &claim);
            permit.give_back(link);
            match confirmed {
                Ok(memory) => {
                    // Before the peer hears of it.
                    let _ = stream.memory.set(memory);
                    if let Some(link) = link.upgrade() {
                        stream.send.say(MAY_NAME, &link);
                    }
                }
                Err(error) => {
                    debug!(%peer, %error, "the peer's memory is not read: large values go through the socket");
                    if let Some(link) = link.upgrade() {
                        stream.send.say(DECLINED, &link);
                    }
                }
            }
        });
        if let Err(error) = begun {
            debug!(%peer, %error, "the peer's memory is not read yet: large values go through the socket");
            self.send.decline();
            link.peer_reads
                .offer_again(Weak::clone(&self.this), offered);
            link.confirm_later();
        }
    }

    /// Has a thread do something that may take long (PM-1), if there is one. It does not keep the link.
    fn spawn(
        &self,
        link: &Weak<Link>,
        job: impl FnOnce(&Weak<Link>) + Send + 'static,
    ) -> Result<(), NoThread> {
        let link = Weak::clone(link);
        let alive = link.upgrade().ok_or(NoThread)?;
        alive.endpoint.run_waiting(move || job(&link))
    }
}

impl Link {
    /// Has a thread look at the memory that the peer has offered. Where one is at it (PM-2), it sees to that when it is done;
    /// until then the connection makes do with the socket.
    pub(super) fn confirm_offered(self: &Arc<Self>) {
        let reads = &self.peer_reads;
        let may_read = || {
            let is_refused = reads.is_refused.load(Ordering::SeqCst);
            !is_refused && reads.has_threads(self.endpoint.now())
        };
        while let Some(permit) = reads.begin() {
            let offered = lock(&reads.offered).take();
            match offered {
                Some((stream, claim)) => match stream.upgrade() {
                    Some(stream) if may_read() => return stream.confirm(self, claim, permit),
                    Some(stream) => {
                        stream.send.decline();
                        drop(permit);
                    }
                    None => drop(permit),
                },
                None => drop(permit),
            }
            // Somebody may have come meanwhile, and found it busy.
            if lock(&reads.offered).is_none() {
                return;
            }
        }
    }

    /// The same when there may be a thread again (PM-4).
    fn confirm_later(self: &Arc<Self>) {
        if self.peer_reads.looks_again.swap(true, Ordering::SeqCst) {
            return;
        }
        let link = Arc::downgrade(self);
        self.endpoint.spawn_io(async move {
            sleep(LOOK_AGAIN).await;
            if let Some(link) = link.upgrade() {
                link.peer_reads.looks_again.store(false, Ordering::SeqCst);
                link.confirm_offered();
            }
        });
    }

    /// Has the next write with descriptors fail, as if too many were on their way.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn fail_passing(&self) {
        self.peer_reads.passing_fails.store(true, Ordering::SeqCst);
    }

    /// So many bytes came that are read in place: they count as received.
    pub(super) fn count_in_place(&self, bytes: u64) {
        self.peer_reads.count_in_place(bytes);
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.endpoint.metrics.bytes_received.add(bytes);
    }
}

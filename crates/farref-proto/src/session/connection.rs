//! The life of a connection under a session: opened, greeted on, lost, refused.
//!
//! Holds SE-9, and the sender's part of SE-1: after the greeting each lane goes on exactly where the
//! peer says it left off.

use crate::time::Time;

use super::error::HandshakeError;
use super::wire::{Hello, Lane, SESSION_VERSION};
use super::{Connection, Session};

impl<F> Session<F> {
    /// A connection to the peer stands, whoever made it. Returns what to say on it first.
    ///
    /// An earlier connection is given up thereby; nothing more may be read from it, nor written
    /// to it.
    pub fn connection_opened(&mut self, now: Time) -> Hello {
        self.forget_connection();
        self.connection = Connection::Handshaking { since: now };
        Hello {
            version: SESSION_VERSION,
            group: self.group,
            from: self.local,
            to: self.remote,
            expected: self.inbox.acks().0,
        }
    }

    /// The peer's greeting came on the present connection. After it has been accepted, frames flow.
    pub fn handle_hello(&mut self, now: Time, hello: &Hello) -> Result<(), HandshakeError> {
        self.handle_hello_with(now, hello, drop)
    }

    /// Like [`handle_hello`](Self::handle_hello), and gives each frame that the greeting
    /// acknowledges to `acknowledged`.
    pub fn handle_hello_with(
        &mut self,
        now: Time,
        hello: &Hello,
        mut acknowledged: impl FnMut(F),
    ) -> Result<(), HandshakeError> {
        self.check_hello(hello)?;
        let mut progress = false;
        for lane in Lane::ALL {
            let outbox = &mut self.outboxes[lane.index()];
            progress |= outbox.resume(hello.expected[lane.index()], &mut acknowledged);
            #[cfg(feature = "mutations")]
            if self.replay_broken {
                outbox.forget_sent();
            }
        }
        if progress {
            self.fruitless_resets = 0;
        }
        self.connection = Connection::Established;
        self.liveness.connected(now, &self.config);
        self.tally.0.connections += 1;
        Ok(())
    }

    fn check_hello(&self, hello: &Hello) -> Result<(), HandshakeError> {
        // The version first: of a stranger's greeting, nothing else can be trusted.
        if hello.version != SESSION_VERSION {
            return Err(HandshakeError::Version {
                theirs: hello.version,
            });
        }
        if hello.group != self.group {
            return Err(HandshakeError::Group {
                ours: self.group,
                theirs: hello.group,
            });
        }
        let (from, remote) = (hello.from, self.remote);
        if hello.to != self.local || from.worker != remote.worker {
            return Err(HandshakeError::WrongPeer {
                from,
                to: hello.to,
                local: self.local,
                remote,
            });
        }
        if from.incarnation < remote.incarnation {
            return Err(HandshakeError::StaleIncarnation { from, remote });
        }
        if from.incarnation > remote.incarnation {
            return Err(HandshakeError::NewerIncarnation { from, remote });
        }
        if !matches!(self.connection, Connection::Handshaking { .. }) {
            return Err(HandshakeError::Unexpected);
        }
        for lane in Lane::ALL {
            let expected = hello.expected[lane.index()];
            let outbox = &self.outboxes[lane.index()];
            if expected < outbox.first() || expected > outbox.sent() {
                return Err(HandshakeError::ResumeImpossible {
                    lane,
                    expected,
                    stored_from: outbox.first(),
                    sent: outbox.sent(),
                });
            }
        }
        Ok(())
    }

    /// The present connection is gone. What it carried and was not acknowledged stays stored.
    pub fn connection_lost(&mut self, now: Time) {
        self.forget_connection();
        // The owner is about to decide whether to reconnect, and may be late with its timers.
        self.liveness.judge_silence(now, &self.config);
    }

    /// Nothing listens at the peer's address: a peer that lived would. It is suspected at once.
    ///
    /// Without effect while connected, for then an attempt that is no longer needed has failed.
    pub fn connection_refused(&mut self, now: Time) {
        if !self.is_connected() {
            self.liveness.suspect(now);
        }
    }

    /// Clears all that belongs to one connection only.
    fn forget_connection(&mut self) {
        self.connection = Connection::Disconnected;
        self.liveness.disconnected();
        self.inbox.settle();
        self.unacked_since = [None; Lane::COUNT];
        self.reset_asked = false;
        self.reset = None;
    }
}

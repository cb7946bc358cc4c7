//! The settings that a running worker needs: time limits, threads, how much may be under way. Those of farref's own
//! wire are in `native/endpoint/config`; both are set, and have their defaults, in `worker/builder`.

use std::time::Duration;

use super::authorization::Authorize;
use crate::codec::{CodecError, Payload};

/// The settings of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The time limit of calls that do not say. None: unlimited.
    pub(crate) call_timeout: Option<Duration>,
    /// How long a graceful shutdown may take.
    pub(crate) shutdown_timeout: Duration,
    /// How long references that nothing but the program holds may outlive everything else.
    pub(crate) leak_grace: Duration,
    /// Whether such references make the shutdown fail.
    pub(crate) fail_on_leaks: bool,
    /// Whether the worker gives its group up when it no longer sees more than half of it.
    pub(crate) require_majority: bool,
    /// How many workers the group has before this one lets nobody in any more.
    pub(crate) max_members: usize,
    /// Threads for plain functions that are not waiting for calls of their own.
    pub(crate) blocking_threads: usize,
    /// Calls of one peer that are accepted at once.
    pub(crate) max_calls: u32,
    /// Calls to one peer that may be parked because it has enough to do.
    pub(crate) max_parked_calls: usize,
    /// Bytes of answers to one peer that may be under way.
    pub(crate) max_answer_bytes: u64,
    /// Who may call what. None: everybody everything.
    pub(crate) authorize: Option<Authorize>,
    /// What the wire takes in one message.
    pub(crate) message: MessageLimits,
}

impl Settings {
    /// After how many calls whose results stay their caller is told that there is room again.
    pub(crate) fn credit_lot(&self) -> u32 {
        (self.max_calls / 4).clamp(1, 16)
    }
}

/// What one message may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageLimits {
    pub(crate) bytes: u64,
    pub(crate) parts: usize,
    pub(crate) references: usize,
}

impl MessageLimits {
    /// What a reference takes in the head of a message, at most.
    pub(crate) const REFERENCE: u64 = 96;
    /// What everything else takes in it.
    pub(crate) const HEAD: u64 = 1024;

    pub(crate) const NONE: Self = Self {
        bytes: u64::MAX,
        parts: usize::MAX,
        references: usize::MAX,
    };

    /// Whether a message with these contents can be sent for sure.
    pub(crate) fn check(&self, payload: &Payload, references: usize) -> Result<(), CodecError> {
        let parts = payload.parts.len();
        for (what, count, most) in [
            ("large buffers", parts, self.parts),
            ("references", references, self.references),
        ] {
            if count > most {
                return Err(CodecError::too_large(format_args!(
                    "it has {count} {what}, and a message takes {most} at most: send fewer at once"
                )));
            }
        }
        let bytes = payload.len() as u64;
        let beside = Self::HEAD + Self::REFERENCE * references as u64 + 8 * parts as u64;
        if bytes.saturating_add(beside) > self.bytes {
            return Err(CodecError::too_large(format_args!(
                "{bytes} bytes are too many for a message of {}: raise `max_message_bytes` on all \
                 workers, or send less at once",
                self.bytes
            )));
        }
        Ok(())
    }
}

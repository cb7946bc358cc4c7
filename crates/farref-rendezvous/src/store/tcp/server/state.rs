//! What the sessions of a server share, and what each request does to it. No I/O.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};

use super::budget::Budget;
use super::limits::StoreLimits;
use crate::store::limits::MAX_VALUE;
use crate::store::table::{Pending, Refusal, Table};
use crate::store::tcp::dialect::MAGIC;
use crate::store::tcp::error::ProtocolError;
use crate::store::tcp::protocol::{
    HAD_OLD_CLIENTS, IS_FARREF, NOT_READY, READY, Request, STOP_WAITING, WAIT_CANCELLED, put_bytes,
};

/// What the sessions of a server share.
pub(super) struct ServerState {
    table: Mutex<Table>,
    pub(super) budget: Budget,
    pub(super) had_old_clients: AtomicBool,
    /// How many there are at present.
    pub(super) connections: AtomicUsize,
    pub(super) limits: StoreLimits,
}

impl ServerState {
    pub(super) fn new(limits: StoreLimits) -> Self {
        Self {
            table: Mutex::new(Table::new(limits.memory)),
            budget: Budget::new(limits.memory),
            had_old_clients: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            limits,
        }
    }

    /// Every operation on the table leaves it whole, so a panic elsewhere does not spoil it.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a client was disconnected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Disconnect {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("no memory is left for its request or answer")]
    Memory,
    #[error("the answer would be larger than allowed")]
    Answer,
    #[error("it was silent for too long")]
    Silent,
}

/// What became of a request.
pub(super) enum Outcome {
    /// It has no answer.
    Done,
    Answer(BytesMut),
    /// The answer has to wait; the request is taken up again then.
    Blocked(Pending, Request),
}

impl ServerState {
    /// Carries out a request, or finds that it has to wait.
    pub(super) fn execute(&self, request: Request) -> Result<Outcome, Disconnect> {
        let mut table = self.table();
        let mut out = BytesMut::new();
        match request {
            Request::Validate(MAGIC) => return Ok(Outcome::Done),
            Request::Validate(_) => return Err(ProtocolError::NoGreeting.into()),
            Request::Set(key, value) => {
                table.set(key, value)?;
                return Ok(Outcome::Done);
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    table.set(key, value)?;
                }
                return Ok(Outcome::Done);
            }
            Request::Append(key, value) => {
                // Checked after the fact would be too late: nobody could read the value any more.
                let size = table.value(&key).map_or(0, Bytes::len) + value.len();
                if size > MAX_VALUE {
                    return Err(Disconnect::Answer);
                }
                table.append(key, &value)?;
                return Ok(Outcome::Done);
            }
            Request::QueuePush(key, value) => {
                table.push(key, value)?;
                return Ok(Outcome::Done);
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => put_bytes(&mut out, &table.compare_set(key, expected, desired)?),
            Request::Get(key) => {
                let Some(value) = table.value(&key) else {
                    return Ok(block(&mut table, vec![key], |mut keys| {
                        Request::Get(keys.pop().unwrap_or_default())
                    }));
                };
                put_bytes(&mut out, value);
            }
            Request::MultiGet(keys) => {
                let size: usize = keys
                    .iter()
                    .map(|key| 8 + table.value(key).map_or(0, Bytes::len))
                    .sum();
                if size > self.limits.message {
                    return Err(Disconnect::Answer);
                }
                if keys.iter().any(|key| table.value(key).is_none()) {
                    return Ok(block(&mut table, keys, Request::MultiGet));
                }
                for key in &keys {
                    put_bytes(&mut out, table.value(key).map_or(&[][..], |value| value));
                }
            }
            Request::Add(key, delta) => out.put_i64_le(table.add(key, delta)?),
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| match &key[..] {
                    IS_FARREF => true,
                    HAD_OLD_CLIENTS => self.had_old_clients.load(Ordering::Acquire),
                    key => table.has(key),
                });
                out.put_u8(if ready { READY } else { NOT_READY });
            }
            Request::Wait(keys) => match table.wait(&keys) {
                Some(pending) => return Ok(Outcome::Blocked(pending, Request::Wait(Vec::new()))),
                None => out.put_u8(STOP_WAITING),
            },
            Request::Barrier(key, world) => match table.barrier(key, world)? {
                Some(pending) => {
                    let rest = Request::Barrier(Bytes::new(), world);
                    return Ok(Outcome::Blocked(pending, rest));
                }
                None => out.put_u8(STOP_WAITING),
            },
            Request::CancelWait => out.put_u8(WAIT_CANCELLED),
            Request::KeyCount => out.put_i64_le(as_i64(table.len())),
            Request::Delete(key) => out.put_i64_le(i64::from(table.delete(&key))),
            Request::Ping(nonce) => out.put_u32_le(nonce),
            Request::QueuePop(key) => {
                let (length, item) = table.pop(&key);
                out.put_i64_le(as_i64(length));
                if let Some(item) = item {
                    put_bytes(&mut out, &item);
                }
            }
            Request::QueueLen(key) => out.put_i64_le(as_i64(table.queue_len(&key))),
            Request::ListKeys => {
                let size: usize = table.keys().map(|key| 8 + key.len()).sum();
                if size > self.limits.message {
                    return Err(Disconnect::Answer);
                }
                out.put_i64_le(as_i64(table.len()));
                table.keys().for_each(|key| put_bytes(&mut out, key));
            }
        }
        Ok(Outcome::Answer(out))
    }
}

/// Blocks a request for values until its keys have been there. A key may have a queue but no value:
/// waiting for it ends at once then, so only those with neither are waited for.
fn block(
    table: &mut Table,
    keys: Vec<Bytes>,
    again: impl FnOnce(Vec<Bytes>) -> Request,
) -> Outcome {
    let missing: Vec<Bytes> = keys
        .iter()
        .filter(|key| table.value(key).is_none())
        .cloned()
        .collect();
    Outcome::Blocked(table.wait_for_values(missing), again(keys))
}

fn as_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

//! A watch: an answer of etcd's that goes on, and tells of changes.

use std::io;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::gateway::{ANSWER, Gateway, QUICK, Refusal, Way};
use super::http::{Answer, MAX_BODY};
use super::transaction::{decoded, encoded, end_of_prefix, number};
use crate::store::error::StoreError;

/// Which keys are watched.
pub(super) enum Range {
    Key(String),
    Prefix(String),
}

/// What a watch tells.
pub(super) enum WatchEvent {
    Set(String),
    Deleted,
    /// Some of what was to be told is not: it is found by looking.
    Missed,
}

/// A watch that goes on.
pub(super) struct Watch<'a> {
    gateway: &'a Gateway,
    way: Way,
    answer: Answer,
    read: Vec<u8>,
    /// How much of that has no end of a line in it.
    searched: usize,
    events: Vec<WatchEvent>,
}

impl<'a> Watch<'a> {
    /// Watches keys from a count of changes on.
    pub(super) async fn open(
        gateway: &'a Gateway,
        range: &Range,
        from: i64,
    ) -> Result<Self, StoreError> {
        let end = Instant::now() + QUICK;
        let from = from.to_string();
        let create = match range {
            Range::Key(key) => json!({ "key": encoded(key), "start_revision": from }),
            Range::Prefix(prefix) => json!({
                "key": encoded(prefix), "range_end": encoded(&end_of_prefix(prefix)),
                "start_revision": from,
            }),
        };
        let token = gateway.token(end).await?;
        let mut way = gateway.connect(end).await?;
        let body = json!({ "create_request": create }).to_string();
        let opening = async {
            let (path, token) = ("/v3/watch", token.as_deref());
            let answer = way.connection.post(path, token, body.as_bytes()).await?;
            let refused = match answer.status {
                200 => None,
                _ => Some(way.connection.body(&answer).await?),
            };
            Ok((answer, refused))
        };
        let refusal = match timeout(ANSWER, opening).await {
            Ok(Ok((answer, None))) => {
                return Ok(Watch {
                    gateway,
                    way,
                    answer,
                    read: Vec::new(),
                    searched: 0,
                    events: Vec::new(),
                });
            }
            Ok(Ok((_, Some(body)))) => Refusal::read(&body),
            Ok(Err(error)) => Refusal::Network(error),
            Err(_) => Refusal::Silence(ANSWER),
        };
        if refusal.is_of_old_token() {
            gateway.forget(token.as_deref());
        }
        if refusal.is_passing() {
            gateway.turn_away(way.member);
        }
        Err(gateway.refused(refusal))
    }

    pub(super) async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(event);
            }
            let unsearched = self.read.get(self.searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=self.searched + end).collect();
                self.searched = 0;
                self.take(&line)?;
                continue;
            }
            self.searched = self.read.len();
            if self.searched > MAX_BODY {
                return Ok(WatchEvent::Missed);
            }
            let piece = match self.way.connection.next_piece(&self.answer).await {
                Ok(Some(piece)) => Ok(piece),
                Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            };
            let lost = |error| self.gateway.refused(Refusal::Network(error));
            self.read.extend_from_slice(&piece.map_err(lost)?);
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), StoreError> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let told: Value = serde_json::from_slice(line)
            .map_err(|error| self.gateway.strange(&error.to_string()))?;
        if told.get("error").is_some() {
            return Err(self.gateway.refused(Refusal::read(line)));
        }
        let told = &told["result"];
        if told["canceled"].as_bool().unwrap_or(false) {
            if number(&told["compact_revision"]) != 0 {
                self.events.insert(0, WatchEvent::Missed);
                return Ok(());
            }
            let words = told["cancel_reason"].as_str();
            let refusal = Refusal::of_watch(words.unwrap_or("the watch was ended"));
            return Err(self.gateway.refused(refusal));
        }
        // The first is taken last.
        for event in told["events"].as_array().into_iter().flatten().rev() {
            let key = decoded(&event["kv"]["key"]).and_then(|key| String::from_utf8(key).ok());
            let event = match key {
                _ if event["type"].as_str() == Some("DELETE") => WatchEvent::Deleted,
                Some(key) => WatchEvent::Set(key),
                None => WatchEvent::Missed,
            };
            self.events.push(event);
        }
        Ok(())
    }
}

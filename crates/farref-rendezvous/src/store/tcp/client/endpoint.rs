//! Connecting to a TCPStore, and finding out which dialect its server speaks.
//!
//! A server of PyTorch 1.13 takes a greeting for the beginning of a long request and waits for the rest
//! of it, which holds all its clients up. So what a server understands is found out by a request that is
//! one byte long in both dialects: an old server answers it, a newer one expects more and stays silent.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connection::{Connection, ExchangeError};
use crate::store::error::StoreError;
use crate::store::tcp::dialect::{MAGIC, StoreDialect};
use crate::store::tcp::protocol::{IS_FARREF, READY, Request, take_flag, take_i64};

/// How long one attempt to connect may take before the next one is made.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a server has to stay silent to be taken for one that wants a greeting. Should it only have
/// been slow, the greeting will not be answered either, and the next attempt listens longer.
const FIRST_SILENCE: Duration = Duration::from_millis(150);
const LONGEST_SILENCE: Duration = Duration::from_secs(2);
/// How much longer a greeting may take while it is not certain that it is understood.
const GREETING_SILENCES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Where a store listens.
#[derive(Clone)]
pub(super) struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    pub(super) fn new(host: &str, port: u16) -> Self {
        let host = host.to_owned();
        Self { host, port }
    }

    /// A connection that is ready for requests, in the dialect given, or else in the server's.
    pub(super) async fn connect(
        &self,
        dialect: Option<StoreDialect>,
        end: Instant,
    ) -> Result<Connection, StoreError> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut silence = FIRST_SILENCE;
        loop {
            let open = async {
                match dialect {
                    Some(dialect) => self.open(dialect).await,
                    None => self.detect(silence).await,
                }
            };
            let time = match dialect {
                Some(_) => ATTEMPT,
                None => ATTEMPT + silence * (1 + GREETING_SILENCES),
            };
            let attempt_end = end.min(Instant::now() + time);
            let failure = match timeout_at(attempt_end, open).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(ExchangeError::Io(error))) => error,
                Ok(Err(failure)) => return Err(self.failed(failure)),
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            if Instant::now() + pause >= end {
                return Err(StoreError::Unreachable {
                    address: self.to_string(),
                    waited: began.elapsed(),
                    source: failure,
                });
            }
            // A refused connection tells nothing about how fast the server is.
            if failure.kind() == io::ErrorKind::TimedOut {
                silence = (silence * 2).min(LONGEST_SILENCE);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What an exchange with the store has failed of.
    pub(super) fn failed(&self, failure: ExchangeError) -> StoreError {
        let address = self.to_string();
        match failure {
            ExchangeError::Io(source) => StoreError::Lost { address, source },
            ExchangeError::Protocol(error) => StoreError::Misbehaved {
                address,
                reason: error.to_string(),
            },
        }
    }

    /// The store has not answered since then.
    pub(super) fn no_answer(&self, began: Instant) -> StoreError {
        StoreError::NoAnswer {
            address: self.to_string(),
            waited: began.elapsed(),
        }
    }

    /// Connects, and says nothing.
    async fn dial(&self, dialect: StoreDialect) -> Result<Connection, ExchangeError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        Ok(Connection::new(stream, dialect)?)
    }

    /// Connects to a server that speaks this dialect.
    async fn open(&self, dialect: StoreDialect) -> Result<Connection, ExchangeError> {
        let mut connection = self.dial(dialect).await?;
        // No ping: PyTorch of 2024 does not know it and hangs up. The number of keys does as well
        // to learn that a store is there, since the greeting alone has no answer.
        let greeting = [Request::Validate(MAGIC), Request::KeyCount];
        let greeting = match dialect {
            StoreDialect::Greeted => &greeting[..],
            StoreDialect::Old => &greeting[1..],
        };
        connection.exchange(greeting, take_i64).await?;
        Ok(connection)
    }

    /// Finds out how the server speaks. An error of the kind `TimedOut` means that it may be slow.
    async fn detect(&self, silence: Duration) -> Result<Connection, ExchangeError> {
        let mut probe = self.dial(StoreDialect::Old).await?;
        let count = probe.exchange(&[Request::KeyCount], take_i64);
        match timeout(silence, count).await {
            Ok(Ok(_)) => return self.settle(probe).await,
            Ok(Err(ExchangeError::Protocol(error))) => return Err(ExchangeError::Protocol(error)),
            // Some hang up on those who do not greet.
            Ok(Err(ExchangeError::Io(_))) => return self.open(StoreDialect::Greeted).await,
            Err(_) => {}
        }
        let greeting = self.open(StoreDialect::Greeted);
        let greeted = timeout(silence * GREETING_SILENCES, greeting);
        tokio::select! {
            greeted = greeted => match greeted {
                Ok(greeted) => greeted,
                Err(_) => Err(ExchangeError::Io(io::ErrorKind::TimedOut.into())),
            },
            // An old one after all, and slow. The greeting is dropped, which frees it.
            Ok(_) = probe.answer(take_i64) => self.settle(probe).await,
        }
    }

    /// Goes on with a server that has answered in the old dialect: farref's knows both.
    async fn settle(&self, mut probe: Connection) -> Result<Connection, ExchangeError> {
        let is_farref = Request::Check(vec![Bytes::from_static(IS_FARREF)]);
        match probe.exchange(&[is_farref], take_flag).await? {
            READY => self.open(StoreDialect::Greeted).await,
            _ => Ok(probe),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

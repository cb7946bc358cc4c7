//! One connection to a TCPStore: requests out, answers in.
//!
//! As a server of PyTorch 1.13 reads a request to its end before it does anything else, requests are sent in
//! one piece.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::store::tcp::dialect::StoreDialect;
use crate::store::tcp::error::ProtocolError;
use crate::store::tcp::protocol::{Request, STOP_WAITING, WAIT_CANCELLED, take_flag};
use crate::store::tcp::socket::{is_quiet, read_some, write_all};

/// A connection. Every answer asked for on it has been read.
pub(super) struct Connection {
    dialect: StoreDialect,
    stream: TcpStream,
    buffer: BytesMut,
}

/// Why an exchange failed; becomes a [`StoreError`](crate::StoreError) where the address is known.
pub(super) enum ExchangeError {
    Io(io::Error),
    Protocol(ProtocolError),
}

impl Connection {
    /// On a stream on which nothing has been said.
    pub(super) fn new(stream: TcpStream, dialect: StoreDialect) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            dialect,
            stream,
            buffer: BytesMut::new(),
        })
    }

    pub(super) fn dialect(&self) -> StoreDialect {
        self.dialect
    }

    /// Whether it is open and nothing unasked has arrived on it.
    pub(super) fn is_quiet(&self) -> bool {
        is_quiet(&self.stream)
    }

    /// Waits until it may not be quiet any more.
    pub(super) async fn readable(&self) {
        // An error shows when it is looked at.
        let _ = self.stream.readable().await;
    }

    /// Sends requests and takes what answers them.
    pub(super) async fn exchange<T>(
        &mut self,
        requests: &[Request],
        take: impl FnMut(&mut BytesMut) -> Result<Option<T>, ProtocolError>,
    ) -> Result<T, ExchangeError> {
        self.send(requests).await?;
        let answer = self.answer(take).await?;
        if self.buffer.is_empty() {
            Ok(answer)
        } else {
            Err(ExchangeError::Protocol(ProtocolError::Unasked))
        }
    }

    /// Takes the answer to what has been sent.
    pub(super) async fn answer<T>(
        &mut self,
        mut take: impl FnMut(&mut BytesMut) -> Result<Option<T>, ProtocolError>,
    ) -> Result<T, ExchangeError> {
        loop {
            if let Some(answer) = take(&mut self.buffer).map_err(ExchangeError::Protocol)? {
                return Ok(answer);
            }
            if read_some(&self.stream, &mut self.buffer).await? == 0 {
                return Err(ExchangeError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Waits for so long; says whether it is over. If not, and the server is an old one, this connection
    /// cannot be used any more.
    pub(super) async fn wait(
        &mut self,
        wait: &[Request],
        time: Duration,
    ) -> Result<bool, ExchangeError> {
        self.send(wait).await?;
        match tokio::time::timeout(time, self.answer(take_flag)).await {
            Ok(flag) => return Ok(flag? == STOP_WAITING),
            Err(_) if self.dialect == StoreDialect::Old => return Ok(false),
            Err(_) => {}
        }
        self.send(&[Request::CancelWait]).await?;
        // The wait may have ended before the server saw the cancellation.
        while self.answer(take_flag).await? != WAIT_CANCELLED {}
        Ok(false)
    }

    async fn send(&self, requests: &[Request]) -> Result<(), ExchangeError> {
        let mut bytes = BytesMut::new();
        for request in requests {
            let encoded = request.encode(self.dialect, &mut bytes);
            encoded.map_err(ExchangeError::Protocol)?;
        }
        Ok(write_all(&self.stream, &bytes).await?)
    }
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

//! One client's connection: its greeting, its requests one after the other, and its waits.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;

use super::budget::Share;
use super::state::{Disconnect, Outcome, ServerState};
use crate::store::table::WaiterId;
use crate::store::tcp::dialect::StoreDialect;
use crate::store::tcp::error::ProtocolError;
use crate::store::tcp::protocol::{Request, STOP_WAITING, WAIT_CANCELLED};
use crate::store::tcp::socket::{read_some, write_all};

/// A client that begins to greet must be done within this time.
const GREETING: Duration = Duration::from_secs(30);
/// A client must take its answers: one that does not for this long is disconnected.
const WRITE: Duration = Duration::from_secs(60);
/// A receive buffer above this is given back as soon as it is empty.
const KEPT_BUFFER: usize = 64 << 10;

/// The server's end of one client's connection.
pub(super) struct ClientSession {
    stream: TcpStream,
    state: Arc<ServerState>,
    buffer: BytesMut,
    share: Share,
    dialect: StoreDialect,
}

impl ClientSession {
    /// Serves a client until it hangs up, or has to be disconnected.
    pub(super) async fn serve(
        stream: TcpStream,
        state: Arc<ServerState>,
    ) -> Result<(), Disconnect> {
        stream.set_nodelay(true)?;
        let mut session = Self {
            share: state.budget.share(),
            buffer: BytesMut::new(),
            dialect: StoreDialect::Greeted,
            stream,
            state,
        };
        // Whoever says nothing may stay. PyTorch 1.13 opens a second connection that it does not use, and
        // keeps a core busy if it is closed.
        if !session.read().await? {
            return Ok(());
        }
        let mut next = within(GREETING, session.first_request()).await?;
        while let Some(request) = next {
            if session.dialect == StoreDialect::Old && !request.is_probe() {
                let had_old_clients = &session.state.had_old_clients;
                had_old_clients.store(true, Ordering::Release);
            }
            if !session.handle(request).await? {
                break;
            }
            next = session.request().await?;
        }
        Ok(())
    }

    /// Finds out how the client speaks.
    async fn first_request(&mut self) -> Result<Option<Request>, Disconnect> {
        self.dialect = loop {
            if let Some(dialect) = StoreDialect::of(&self.buffer)? {
                break dialect;
            }
            if !self.read().await? {
                return Ok(None);
            }
        };
        self.request().await
    }

    /// The next request; `None` if the client has hung up.
    async fn request(&mut self) -> Result<Option<Request>, Disconnect> {
        loop {
            let limit = self.state.limits.message;
            if let Some(request) = Request::parse(self.dialect, &mut self.buffer, limit)? {
                if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BUFFER {
                    self.buffer = BytesMut::new();
                    self.account()?;
                }
                return Ok(Some(request));
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// Takes in what has come; `false` if the client has hung up.
    async fn read(&mut self) -> Result<bool, Disconnect> {
        let size = read_some(&self.stream, &mut self.buffer).await?;
        self.account()?;
        Ok(size > 0)
    }

    fn account(&mut self) -> Result<(), Disconnect> {
        if self.share.resize(self.buffer.capacity()) {
            Ok(())
        } else {
            Err(Disconnect::Memory)
        }
    }

    /// `false` if the client hung up meanwhile.
    async fn handle(&mut self, mut request: Request) -> Result<bool, Disconnect> {
        // The keys somebody waits for stay in memory as long as the wait lasts.
        let mut kept = self.state.budget.share();
        if !kept.resize(request.weight()) {
            return Err(Disconnect::Memory);
        }
        loop {
            let room = self.room_for_answer(&request).await?;
            let (pending, blocked) = match self.state.execute(request)? {
                Outcome::Done => return Ok(true),
                Outcome::Answer(answer) => {
                    self.answer(&answer, room).await?;
                    return Ok(true);
                }
                Outcome::Blocked(pending, blocked) => (pending, blocked),
            };
            let _registered = RegisteredWait {
                state: self.state.clone(),
                id: pending.id,
            };
            tokio::select! {
                // A client gone or cancelled in the same moment must not take what it waited for.
                biased;
                next = self.request() => match next? {
                    None => return Ok(false),
                    Some(Request::CancelWait) => {
                        self.answer(&[WAIT_CANCELLED], room).await?;
                        return Ok(true);
                    }
                    // Its time is up, and it has no words to say so.
                    Some(next) if self.dialect == StoreDialect::Old => {
                        if !kept.resize(next.weight()) {
                            return Err(Disconnect::Memory);
                        }
                        request = next;
                        continue;
                    }
                    Some(_) => return Err(ProtocolError::OutOfTurn.into()),
                },
                _ = pending.done => {}
            }
            match blocked {
                // What was waited for has been there, which is all that these two ask.
                Request::Wait(_) | Request::Barrier(..) => {
                    self.answer(&[STOP_WAITING], room).await?;
                    return Ok(true);
                }
                other => request = other,
            }
        }
    }

    /// Waits for the memory that the answer will take, if it is a value. Many may ask for one large
    /// value at once: they are answered one after the other, and not turned away.
    async fn room_for_answer(&self, request: &Request) -> Result<Share, Disconnect> {
        let size = match request {
            Request::Get(key) | Request::CompareSet { key, .. } => {
                self.state.table().value(key).map_or(0, Bytes::len)
            }
            _ => 0,
        };
        within(WRITE, async {
            let room = self.state.budget.reserve(size).await;
            room.ok_or(Disconnect::Memory)
        })
        .await
    }

    async fn answer(&self, bytes: &[u8], mut room: Share) -> Result<(), Disconnect> {
        if !room.resize(bytes.len()) {
            return Err(Disconnect::Memory);
        }
        within(WRITE, async { Ok(write_all(&self.stream, bytes).await?) }).await
    }
}

async fn within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Disconnect>>,
) -> Result<T, Disconnect> {
    tokio::time::timeout(time, work)
        .await
        .unwrap_or(Err(Disconnect::Silent))
}

/// Takes a client off the table's lists when it is answered, cancels or goes.
struct RegisteredWait {
    state: Arc<ServerState>,
    id: WaiterId,
}

impl Drop for RegisteredWait {
    fn drop(&mut self) {
        self.state.table().cancel(self.id);
    }
}

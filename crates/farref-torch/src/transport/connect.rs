//! Makes a pipe to a listener.
//!
//! PyTorch's listener stops for good when a connection to it ends before its greeting has come (seen with 1.13 and 2.15). So
//! each connection is greeted by the task that makes it, which nobody ends in between (TR-11).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tracing::debug;

use super::handshake::{self, Channel, Connections};
use super::{Limits, PeerProcess, PipeError, PipeReceiver, PipeSender};
use crate::pipe::{Answer, Brochure, ChannelNumbers, Greeting};

/// It cannot be: the other side may choose only what was offered to it.
const NOT_OFFERED: &str = "it chooses a channel that was not offered";

/// What PyTorch puts before addresses.
const SCHEME: &str = "uv://";

/// Makes a pipe to the worker that listens at `address`: `uv://ip:port`, with or without what is before the
/// address itself. The peer is told `my_name`.
pub(crate) async fn connect(
    address: &str,
    my_name: &str,
    limits: Limits,
) -> Result<(PipeSender, PipeReceiver), PipeError> {
    let deadline = limits.handshake;
    timeout(deadline, set_up(address, my_name, limits))
        .await
        .map_err(|_| PipeError::Deadline(deadline))?
}

async fn set_up(
    address: &str,
    my_name: &str,
    limits: Limits,
) -> Result<(PipeSender, PipeReceiver), PipeError> {
    let address = resolve(address).await?;
    let (mut first, mut answer) = agree(address, my_name, limits.cma).await?;
    if let ChannelNumbers::Cma { domain, .. } = &answer.channel {
        if limits.cma != Some(domain) {
            return Err(PipeError::Rules(NOT_OFFERED));
        }
        // Only now has it taken the connection for sure.
        if !PeerProcess::is_same_user(&first).await {
            debug!(%address, "another user's: nothing goes through memory");
            (first, answer) = agree(address, my_name, None).await?;
        }
    }
    let further = resolve(&answer.address).await?;
    let reply = register(further, answer.reply);
    let (reply, channel) = match answer.channel {
        ChannelNumbers::Basic { bytes } => {
            let (reply, bytes) = tokio::try_join!(reply, register(further, bytes))?;
            (reply, Channel::Basic(bytes))
        }
        ChannelNumbers::Cma {
            places,
            completions,
            ..
        } => {
            let (reply, places, completions) = tokio::try_join!(
                reply,
                register(further, places),
                register(further, completions)
            )?;
            // Who has taken it shows when something comes on it.
            let peer = PeerProcess::behind(&places).ok_or(PipeError::Rules(NOT_OFFERED))?;
            let channel = Channel::Cma {
                places,
                completions,
                peer,
            };
            (reply, channel)
        }
    };
    let connections = Connections {
        first,
        reply,
        channel,
    };
    Ok(handshake::assemble(connections, Arc::new(limits), None))
}

/// Makes the first connection and agrees on the others. `cma` is offered to those on this host only.
async fn agree(
    address: SocketAddr,
    my_name: &str,
    cma: Option<&str>,
) -> Result<(TcpStream, Answer), PipeError> {
    let from = my_name.to_owned();
    let greeting = Greeting::Spontaneous { from }.encode();
    let mut first = greet(address, vec![greeting]).await?;
    let here = first.local_addr().map_err(handshake::lost)?.ip();
    let cma = cma.filter(|_| here.to_canonical() == address.ip().to_canonical());
    handshake::write(&mut first, &[Brochure::ours(cma).encode()]).await?;
    let what = "an answer";
    let answer = handshake::read(&mut first, what, handshake::AGREEMENT, Answer::decode).await?;
    Ok((first, answer))
}

async fn register(address: SocketAddr, number: u64) -> Result<TcpStream, PipeError> {
    let greeting = Greeting::Requested { number };
    greet(address, vec![greeting.encode()]).await
}

/// Looks whether somebody listens at `address`: a pipe that ends after its first word.
pub(crate) async fn probe(address: &str, my_name: &str) -> Result<(), PipeError> {
    let from = my_name.to_owned();
    let greeting = Greeting::Spontaneous { from };
    let greeted = greet(resolve(address).await?, vec![greeting.encode()]).await;
    greeted.map(drop)
}

/// Makes a connection and says the first words on it, also if whoever wanted it does not wait for it (TR-11).
async fn greet(address: SocketAddr, words: Vec<Vec<u8>>) -> Result<TcpStream, PipeError> {
    let unreachable = move |error| PipeError::Unreachable {
        address: address.to_string(),
        error,
    };
    let greeting = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.map_err(unreachable)?;
        handshake::prepare(&stream).map_err(unreachable)?;
        handshake::write(&mut stream, &words).await?;
        Ok(stream)
    });
    greeting
        .await
        .map_err(|error| unreachable(io::Error::other(error)))?
}

async fn resolve(address: &str) -> Result<SocketAddr, PipeError> {
    let bare = address.strip_prefix(SCHEME).unwrap_or(address);
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    let none = || PipeError::Address {
        address: address.to_owned(),
    };
    let found = lookup_host(bare).await.map_err(|_| none())?.next();
    found.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// TR-11: also on connections whose makers have stopped waiting.
    #[tokio::test]
    async fn tr_11_every_connection_is_greeted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("uv://{}", listener.local_addr().expect("an address"));
        let expected = Greeting::Spontaneous {
            from: "a".to_owned(),
        };
        let expected = expected.encode();
        for given_up in [false, true] {
            match given_up {
                // Dropped when it has begun: the connection is on its way, as far as this task knows.
                true => drop(timeout(Duration::ZERO, probe(&address, "a")).await),
                false => probe(&address, "a").await.expect("somebody listens"),
            }
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut words = Vec::new();
            stream.read_to_end(&mut words).await.expect("all of it");
            assert_eq!(words[8..], expected, "given up: {given_up}");
        }
    }

    #[tokio::test]
    async fn addresses_are_taken_as_pytorch_writes_them() {
        for (text, expected) in [
            ("uv://127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("uv://[::1]:80", "[::1]:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            let address = resolve(text).await.expect("an address");
            assert_eq!(address.to_string(), expected);
        }
        for text in ["", "uv://", "127.0.0.1", "shm://abc", "127.0.0.1:port"] {
            let error = resolve(text).await.expect_err("no address");
            assert!(matches!(error, PipeError::Address { address } if address == text));
        }
    }
}

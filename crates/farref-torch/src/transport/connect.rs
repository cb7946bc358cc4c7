//! Makes a pipe to a listener.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::{Limits, PipeError, PipeReceiver, PipeSender, handshake};
use crate::pipe::{Answer, Brochure, Greeting};

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
    let mut first = open(resolve(address).await?).await?;
    let from = my_name.to_owned();
    let greeting = Greeting::Spontaneous { from }.encode();
    handshake::write(&mut first, &[greeting, Brochure::ours().encode()]).await?;
    let answer = handshake::read(
        &mut first,
        "an answer",
        handshake::AGREEMENT,
        Answer::decode,
    )
    .await?;
    let further = resolve(&answer.address).await?;
    let (reply, channel) = tokio::try_join!(
        register(further, answer.reply),
        register(further, answer.channel)
    )?;
    let connections = [first, reply, channel];
    Ok(handshake::assemble(connections, Arc::new(limits), None))
}

async fn register(address: SocketAddr, number: u64) -> Result<TcpStream, PipeError> {
    let mut stream = open(address).await?;
    let greeting = Greeting::Requested { number };
    handshake::write(&mut stream, &[greeting.encode()]).await?;
    Ok(stream)
}

async fn open(address: SocketAddr) -> Result<TcpStream, PipeError> {
    let unreachable = |error| PipeError::Unreachable {
        address: address.to_string(),
        error,
    };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    handshake::prepare(&stream).map_err(unreachable)?;
    Ok(stream)
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
    use super::*;

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

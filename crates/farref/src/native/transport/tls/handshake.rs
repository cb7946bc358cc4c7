//! Either end's handshake of TLS, up to a stream whose other end has shown its certificate (TL-1).

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp;
use tokio::time::timeout;

use super::bearer::Bearer;
use super::failure::TlsFailure;
use super::halves::{AT_ONCE, Session, TlsReader, TlsWriter, encrypted};
use super::settings::Tls;
use crate::native::transport::stream::{ReadHalf, Stream, WriteHalf};

/// What is read at once. The whole of a handshake has some 2 KiB each way.
const ROOM: usize = 16 << 10;
/// How long an end that was told what is wrong may take to hang up.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(1);
/// What farref's own greeting begins with, and no record of TLS.
const PLAIN: u8 = b'f';

impl Stream {
    /// The same stream with TLS, if it goes over TCP, from the end that has connected.
    pub(crate) async fn begin_tls(self, tls: &Tls) -> Result<Self, TlsFailure> {
        self.with_tls(async || {
            let config = Arc::clone(&tls.configs().await.client);
            // Certificates are for workers, wherever they are.
            let name = ServerName::try_from("farref").map_err(io::Error::other)?;
            Ok(ClientConnection::new(config, name)?.into())
        })
        .await
    }

    /// The same from the end that was connected to.
    pub(crate) async fn accept_tls(self, tls: &Tls) -> Result<Self, TlsFailure> {
        self.with_tls(async || {
            let config = Arc::clone(&tls.configs().await.server);
            Ok(ServerConnection::new(config)?.into())
        })
        .await
    }

    /// Whether the other end has begun to speak without TLS. Waits until it has begun.
    pub(crate) async fn is_plain(&mut self) -> io::Result<bool> {
        match &mut self.read {
            ReadHalf::Tcp(read) => {
                let mut first = [0];
                Ok(read.peek(&mut first).await? == 1 && first == [PLAIN])
            }
            _ => Ok(true),
        }
    }

    async fn with_tls(
        self,
        connection: impl AsyncFnOnce() -> Result<Connection, TlsFailure>,
    ) -> Result<Self, TlsFailure> {
        let (mut read, mut write) = match (self.read, self.write) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => (read, write),
            (read, write) => {
                return Ok(Self {
                    read,
                    write,
                    ..self
                });
            }
        };
        let mut connection = connection().await?;
        connection.set_buffer_limit(Some(AT_ONCE));
        let come = complete(&mut read, &mut write, &mut connection).await?;
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let bearer = certificate.and_then(Bearer::of);
        let bearer = bearer.ok_or(TlsFailure::Nameless)?;
        let session: Session = Arc::new(Mutex::new(connection));
        Ok(Self {
            read: ReadHalf::Tls(Box::new(TlsReader::new(read, &session, come))),
            write: WriteHalf::Tls(Box::new(TlsWriter::new(write, session))),
            transport: "tls",
            bearer: Some(bearer),
            ..self
        })
    }
}

/// Makes the handshake. Returns what has come behind it.
async fn complete(
    read: &mut tcp::OwnedReadHalf,
    write: &mut tcp::OwnedWriteHalf,
    connection: &mut Connection,
) -> Result<Vec<u8>, TlsFailure> {
    let mut buffer = vec![0; ROOM];
    let mut is_first = true;
    loop {
        write.write_all(&encrypted(connection)?).await?;
        if !connection.is_handshaking() {
            return Ok(Vec::new());
        }
        let come = read.read(&mut buffer).await?;
        let mut rest = buffer.get(..come).unwrap_or_default();
        match rest.first() {
            None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some(&PLAIN) if is_first => return Err(TlsFailure::Plain),
            Some(_) => is_first = false,
        }
        while !rest.is_empty() && connection.is_handshaking() {
            connection.read_tls(&mut rest)?;
            if let Err(error) = connection.process_new_packets() {
                explain(read, write, connection).await;
                return Err(error.into());
            }
        }
        if !connection.is_handshaking() {
            let behind = rest.to_vec();
            write.write_all(&encrypted(connection)?).await?;
            return Ok(behind);
        }
    }
}

/// Tells the other end what is wrong, and waits until it has hung up: whoever closes a socket with something unread in it takes back
/// what was said.
async fn explain(
    read: &mut tcp::OwnedReadHalf,
    write: &mut tcp::OwnedWriteHalf,
    connection: &mut Connection,
) {
    let Ok(alert) = encrypted(connection) else {
        return;
    };
    if write.write_all(&alert).await.is_err() || write.shutdown().await.is_err() {
        return;
    }
    let mut nowhere = [0; 512];
    let hearing_out = async { while matches!(read.read(&mut nowhere).await, Ok(1..)) {} };
    // What is wrong is to be said here, too, and not only that it took long.
    let _ = timeout(HANGS_UP_WITHIN, hearing_out).await;
}

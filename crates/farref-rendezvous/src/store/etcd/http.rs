//! One connection to etcd: HTTP/1.1, in the clear or with TLS. As much of it as etcd's gateway needs, and no more.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// The longest head of an answer, and the longest line between its chunks.
const MAX_HEAD: usize = 16 << 10;
/// The longest answer, the longest chunk, and the longest piece of one that goes on: no value has more than 1 MiB, and of
/// many keys only their number is asked for.
pub(super) const MAX_BODY: usize = 4 << 20;

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

/// A connection, on which one request is made after the other.
pub(super) struct Connection {
    stream: Box<dyn Io>,
    buffer: BytesMut,
    host: String,
}

/// How an answer is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framing {
    Length(usize),
    Chunked,
}

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) status: u16,
    framing: Framing,
}

impl Connection {
    pub(super) async fn open(
        host: &str,
        port: u16,
        tls: Option<&Arc<tokio_rustls::rustls::ClientConfig>>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Io> = match tls {
            None => Box::new(stream),
            Some(config) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidInput, "no name for a certificate")
                })?;
                let connector = TlsConnector::from(Arc::clone(config));
                Box::new(connector.connect(name, stream).await?)
            }
        };
        Ok(Self {
            stream,
            buffer: BytesMut::new(),
            host: format!("{host}:{port}"),
        })
    }

    /// One that is made already.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn over(stream: impl Io + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            buffer: BytesMut::new(),
            host: "h:1".to_owned(),
        }
    }

    /// Whether it is open and nothing unasked has arrived on it.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        let read = Pin::new(&mut self.stream).poll_read(&mut context, &mut byte);
        self.buffer.is_empty() && matches!(read, Poll::Pending)
    }

    /// Sends a request, and reads the head of its answer.
    pub(super) async fn post(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: &[u8],
    ) -> io::Result<Answer> {
        let (host, length) = (&self.host, body.len());
        let authorization = token.map_or_else(String::new, |token| {
            // What etcd gave us; a line break in it would be the beginning of a header.
            let token: String = token.chars().filter(|c| !c.is_control()).collect();
            format!("Authorization: {token}\r\n")
        });
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{authorization}\r\n"
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request).await?;
        self.stream.flush().await?;
        self.head().await
    }

    /// The head of an answer.
    pub(super) async fn head(&mut self) -> io::Result<Answer> {
        let status = self.line().await?;
        let status = status
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| strange("it does not answer in HTTP/1.1"))?;
        let mut framing = Framing::Length(0);
        let mut size = 0;
        loop {
            let line = self.line().await?;
            size += line.len();
            if size > MAX_HEAD {
                return Err(strange("the head of its answer is too long"));
            }
            if line.is_empty() {
                return Ok(Answer { status, framing });
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(strange("a header has no value"));
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let length = value.parse().ok().filter(|length| *length <= MAX_BODY);
                framing = Framing::Length(length.ok_or_else(|| strange("no length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(strange("its answer has an unknown encoding"));
                }
                framing = Framing::Chunked;
            }
        }
    }

    /// The whole body of an answer.
    pub(super) async fn body(&mut self, answer: &Answer) -> io::Result<Vec<u8>> {
        match answer.framing {
            Framing::Length(length) => Ok(self.take(length).await?.to_vec()),
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk().await? {
                    if body.len() + chunk.len() > MAX_BODY {
                        return Err(strange("its answer is too long"));
                    }
                    body.extend_from_slice(&chunk);
                }
                Ok(body)
            }
        }
    }

    /// The next piece of an answer that goes on, `None` at its end.
    pub(super) async fn next_piece(&mut self, answer: &Answer) -> io::Result<Option<BytesMut>> {
        match answer.framing {
            Framing::Chunked => self.chunk().await,
            Framing::Length(_) => Err(strange("its answer does not go on")),
        }
    }

    async fn chunk(&mut self) -> io::Result<Option<BytesMut>> {
        let line = self.line().await?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16)
            .ok()
            .filter(|size| *size <= MAX_BODY);
        match size.ok_or_else(|| strange("no length of a chunk"))? {
            0 => {
                // What etcd says after the end.
                while !self.line().await?.is_empty() {}
                Ok(None)
            }
            size => {
                let chunk = self.take(size).await?;
                match self.line().await?.is_empty() {
                    true => Ok(Some(chunk)),
                    false => Err(strange("a chunk is longer than it says")),
                }
            }
        }
    }

    async fn take(&mut self, size: usize) -> io::Result<BytesMut> {
        while self.buffer.len() < size {
            self.fill().await?;
        }
        Ok(self.buffer.split_to(size))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut searched = 0;
        loop {
            let found = self.buffer[searched..]
                .windows(2)
                .position(|w| w == b"\r\n");
            if let Some(at) = found {
                let line = self.buffer.split_to(searched + at);
                self.buffer.advance(2);
                return String::from_utf8(line.to_vec()).map_err(|_| strange("no text"));
            }
            searched = self.buffer.len().saturating_sub(1);
            if searched > MAX_HEAD {
                return Err(strange("a line of its answer is too long"));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answering(bytes: &[u8]) -> Connection {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            // In small pieces: nothing may depend on where they end.
            for piece in bytes.chunks(3) {
                theirs.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        Connection::over(ours)
    }

    #[tokio::test]
    async fn both_framings_are_read_to_their_end() {
        let two = b"HTTP/1.1 200 OK\r\nContent-length: 3\r\n\r\nabcHTTP/1.1 404 Not Found\r\nTrailer: x\r\n\
            Transfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\nGrpc: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        let mut connection = answering(two);
        for (status, body) in [(200, &b"abc"[..]), (404, b"def"), (200, b"")] {
            let answer = connection.head().await.unwrap();
            assert_eq!(answer.status, status);
            assert_eq!(connection.body(&answer).await.unwrap(), body);
        }
    }

    #[tokio::test]
    async fn what_is_not_http_or_is_too_long_is_refused() {
        let long = format!("HTTP/1.1 200 OK\r\n{}: x\r\n\r\n", "h".repeat(MAX_HEAD));
        for bytes in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
            long.as_bytes(),
        ] {
            let mut connection = answering(bytes);
            let read = async {
                let answer = connection.head().await?;
                connection.body(&answer).await
            };
            assert!(read.await.is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}

//! As much of HTTP/1.1 as a page on the same machine needs: `GET` and `HEAD` without a body, answers of known length,
//! one request after the other on a connection.
//!
//! # Invariants
//!
//! - **HT-1** What a client can make this take is bounded: [`MAX_HEAD`] bytes of a request, [`MAX_HEADERS`] headers, and
//!   so much time for asking ([`READ`]) and for reading the answer ([`WRITE`]).
//! - **HT-2** Whatever is not understood is answered with what is wrong with it, and the connection closed: nothing that
//!   follows could be taken for another request.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// How long a request may take to come, from the end of the one before it.
const READ: Duration = Duration::from_secs(30);
/// How long an answer may take to be read.
const WRITE: Duration = Duration::from_secs(30);

/// What cannot be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this is no request of HTTP/1.1")]
    Malformed,
    #[error("that page is not for this address: open the one that `farref dashboard` printed")]
    Forbidden,
    #[error("there is no such page: open the address that `farref dashboard` printed")]
    NotFound,
    #[error("only GET and HEAD are understood")]
    Method,
    #[error("the request did not come in time")]
    Late,
    #[error("requests have no body here")]
    Body,
    #[error("the request is too long")]
    TooLong,
    #[error("too many connections: close a page")]
    Crowded,
    #[error("only HTTP/1.0 and HTTP/1.1 are understood")]
    Version,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::Late => "408 Request Timeout",
            Self::Body => "413 Content Too Large",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Crowded => "503 Service Unavailable",
            Self::Version => "505 HTTP Version Not Supported",
        }
    }
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Request {
    /// Without the part after a question mark.
    pub(super) path: String,
    /// That part.
    pub(super) query: String,
    pub(super) host: Option<String>,
    pub(super) origin: Option<String>,
    /// How the page that asks is related to this one, as browsers say it.
    pub(super) fetch_site: Option<String>,
    pub(super) head_only: bool,
    /// Whether another may follow.
    pub(super) keep: bool,
}

impl Request {
    /// What a parameter of the query says, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(key, _)| *key == name);
        values.next().map(|(_, value)| decoded(value))
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// What to keep it as, if it is for keeping.
    pub(super) file_name: Option<&'static str>,
}

impl Response {
    pub(super) fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            content_type,
            body: body.into(),
            file_name: None,
        }
    }
}

/// Requests and answers on one connection.
pub(super) struct Connection<S> {
    stream: S,
    /// What has come of the next request.
    read: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            read: Vec::new(),
        }
    }

    /// Answers requests until the client has enough, or does what is not understood.
    pub(super) async fn serve(
        mut self,
        mut answer: impl FnMut(&Request) -> Result<Response, Refusal>,
    ) {
        loop {
            let request = match timeout(READ, self.request()).await {
                Ok(Ok(Some(request))) => request,
                Ok(Ok(None)) => return,
                Ok(Err(refusal)) => return self.refuse(refusal).await,
                // Who has begun is told, who keeps a connection is not.
                Err(_) if self.read.is_empty() => return,
                Err(_) => return self.refuse(Refusal::Late).await,
            };
            let written = match answer(&request) {
                Ok(response) => self.write("200 OK", &response, &request).await,
                Err(refusal) => {
                    let text = format!("{refusal}\n");
                    let response = Response::new("text/plain; charset=utf-8", text);
                    self.write(refusal.status(), &response, &request).await
                }
            };
            if !written || !request.keep {
                return;
            }
        }
    }

    /// HT-2
    pub(super) async fn refuse(mut self, refusal: Refusal) {
        let text = format!("{refusal}\n");
        let response = Response::new("text/plain; charset=utf-8", text);
        let nothing = Request::default();
        self.write(refusal.status(), &response, &nothing).await;
    }

    /// The next request; none if the client is gone.
    async fn request(&mut self) -> Result<Option<Request>, Refusal> {
        loop {
            if let Some(end) = find(&self.read, b"\r\n\r\n") {
                let head: Vec<u8> = self.read.drain(..end + 4).collect();
                return parse(head.get(..end).unwrap_or_default()).map(Some);
            }
            if self.read.len() >= MAX_HEAD {
                return Err(Refusal::TooLong);
            }
            let mut chunk = [0; 2048];
            let room = chunk.len().min(MAX_HEAD - self.read.len());
            match self.stream.read(&mut chunk[..room]).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(count) => self.read.extend_from_slice(&chunk[..count]),
            }
        }
    }

    async fn write(&mut self, status: &str, response: &Response, request: &Request) -> bool {
        let mut head = format!(
            "HTTP/1.1 {status}\r\n\
             Content-Type: {}\r\n\
             Content-Length: {}\r\n\
             Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
             Connection: {}\r\n",
            response.content_type,
            response.body.len(),
            if request.keep { "keep-alive" } else { "close" },
        );
        if let Some(name) = response.file_name {
            head += &format!("Content-Disposition: attachment; filename=\"{name}\"\r\n");
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        if !request.head_only {
            bytes.extend_from_slice(&response.body);
        }
        let writing = async {
            self.stream.write_all(&bytes).await?;
            self.stream.flush().await
        };
        matches!(timeout(WRITE, writing).await, Ok(Ok(())))
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Reads a request's head, without the empty line.
fn parse(head: &[u8]) -> Result<Request, Refusal> {
    let head = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    let keep = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        other if other.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::Malformed),
    };
    let head_only = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Err(Refusal::Method),
    };
    if !target.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        path: path.to_owned(),
        query: query.to_owned(),
        head_only,
        keep,
        ..Request::default()
    };
    for (index, line) in lines.enumerate() {
        if index >= MAX_HEADERS {
            return Err(Refusal::TooLong);
        }
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        let value = value.trim().to_owned();
        if name.is_empty() || name.contains([' ', '\t']) {
            return Err(Refusal::Malformed);
        }
        match &*name.to_ascii_lowercase() {
            // Two of them may be read differently by others.
            "host" if request.host.is_some() => return Err(Refusal::Malformed),
            "host" => request.host = Some(value),
            "origin" => request.origin = Some(value),
            "sec-fetch-site" => request.fetch_site = Some(value),
            "connection" if value.eq_ignore_ascii_case("close") => request.keep = false,
            "content-length" if value != "0" => return Err(Refusal::Body),
            "transfer-encoding" => return Err(Refusal::Body),
            _ => {}
        }
    }
    Ok(request)
}

/// Text out of a query, where spaces and the like are written as `+` and `%20`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()].map(|digit| {
                    let digit = char::from(digit.unwrap_or_default()).to_digit(16);
                    digit.unwrap_or_default() as u8
                });
                digits[0] << 4 | digits[1]
            }
            other => other,
        };
        bytes.push(decoded);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Result<Request, Refusal> {
        parse(head.as_bytes())
    }

    #[test]
    fn a_request_is_read() {
        let request = read(
            "GET /key/data?view=calls&q=a%20b+c%3C HTTP/1.1\r\nHost: here:1\r\nOrigin: http://here:1",
        );
        let request = request.expect("a request");
        assert_eq!(request.path, "/key/data");
        assert_eq!(request.parameter("view").as_deref(), Some("calls"));
        assert_eq!(request.parameter("q").as_deref(), Some("a b c<"));
        assert_eq!(request.parameter("nothing"), None);
        assert_eq!(request.host.as_deref(), Some("here:1"));
        assert!(request.keep && !request.head_only);
    }

    #[test]
    fn what_is_no_request_is_refused_for_what_it_is() {
        for (head, refusal) in [
            ("", Refusal::Malformed),
            ("GET /", Refusal::Malformed),
            ("GET / HTTP/1.1 x", Refusal::Malformed),
            ("GET http://other/ HTTP/1.1", Refusal::Malformed),
            ("GET / FTP/1.1", Refusal::Malformed),
            ("GET / HTTP/2.0", Refusal::Version),
            ("POST / HTTP/1.1", Refusal::Method),
            ("GET / HTTP/1.1\r\nno colon", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost : a", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nContent-Length: 5", Refusal::Body),
            (
                "GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
                Refusal::Body,
            ),
        ] {
            assert_eq!(read(head), Err(refusal), "{head:?}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{}", many.trim_end());
        assert_eq!(read(&many), Err(Refusal::TooLong));
        assert_eq!(parse(b"GET /\xff HTTP/1.1"), Err(Refusal::Malformed));
    }

    async fn conversation(said: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let serving = tokio::spawn(
            Connection::new(server).serve(|request| match &*request.path {
                "/there" => Ok(Response::new("text/plain", "hello")),
                _ => Err(Refusal::NotFound),
            }),
        );
        client.write_all(said).await.expect("it listens");
        client.shutdown().await.expect("it listens");
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.expect("it answers");
        serving.await.expect("no panic");
        String::from_utf8(heard).expect("text")
    }

    #[tokio::test]
    async fn requests_on_one_connection_are_answered_one_after_the_other() {
        let heard = conversation(
            b"GET /there HTTP/1.1\r\n\r\nHEAD /there HTTP/1.1\r\n\r\nGET /elsewhere HTTP/1.0\r\n\r\nGET /there HTTP/1.1\r\n\r\n",
        )
        .await;
        let statuses: Vec<&str> = heard
            .lines()
            .filter(|line| line.contains("HTTP/1.1 "))
            .map(|line| {
                line.split_once("HTTP/1.1 ")
                    .map_or("", |(_, status)| status)
            })
            .collect();
        assert_eq!(statuses, ["200 OK", "200 OK", "404 Not Found"], "{heard}");
        assert_eq!(heard.matches("hello").count(), 1, "{heard}");
        assert!(heard.contains("Content-Security-Policy: default-src 'none'"));
    }

    /// HT-1
    #[tokio::test]
    async fn a_request_without_end_is_refused_after_so_many_bytes() {
        let endless = [b"GET /".to_vec(), vec![b'a'; 2 * MAX_HEAD]].concat();
        let heard = conversation(&endless).await;
        assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
    }
}

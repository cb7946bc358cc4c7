//! Something between a store and its etcd that meddles: it keeps answers back, closes connections, answers by itself.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::store::etcd::http::Connection;

/// What becomes of a request.
pub(super) enum Deed {
    /// etcd does it and answers.
    Pass,
    /// etcd does it, and the connection is closed in the place of the answer.
    PassAndClose,
    /// etcd does it, and answers when this says so.
    PassWhenTold(Arc<Notify>),
    /// This is the answer.
    Say(u16, Value),
    /// So many bytes are the beginning of an answer, of which nothing else comes.
    Begin(Vec<u8>),
}

/// A request: its path, its token, what is asked.
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) token: Option<String>,
    pub(super) body: Value,
}

impl Asked {
    /// Whether it sets something.
    pub(super) fn writes(&self) -> bool {
        let put = |operation: &Value| operation.get("request_put").is_some();
        let done = self.body["success"].as_array();
        done.is_some_and(|done| done.iter().any(put))
    }

    /// Whether it takes something away.
    pub(super) fn deletes(&self) -> bool {
        let delete = |operation: &Value| operation.get("request_delete_range").is_some();
        let done = self.body["success"].as_array();
        done.is_some_and(|done| done.iter().any(delete))
    }

    pub(super) fn is_for(&self, path: &str) -> bool {
        self.path == path
    }
}

type Rule = dyn Fn(&Asked) -> Deed + Send + Sync;

/// It ends when it is dropped.
pub(super) struct Meddler {
    pub(super) port: u16,
    task: JoinHandle<()>,
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Meddler {
    /// Stands before the etcd at this port.
    pub(super) async fn before(
        etcd: u16,
        rule: impl Fn(&Asked) -> Deed + Send + Sync + 'static,
    ) -> Self {
        let rule: Arc<Rule> = Arc::new(rule);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, etcd, Arc::clone(&rule)));
            }
        });
        Self { port, task }
    }

    /// Stands alone.
    pub(super) async fn alone(rule: impl Fn(&Asked) -> Deed + Send + Sync + 'static) -> Self {
        Self::before(0, rule).await
    }
}

async fn serve(mut stream: TcpStream, etcd: u16, rule: Arc<Rule>) -> io::Result<()> {
    loop {
        let asked = read(&mut stream).await?;
        let closes = match rule(&asked) {
            Deed::Pass => false,
            Deed::PassAndClose => true,
            Deed::PassWhenTold(told) => {
                told.notified().await;
                false
            }
            Deed::Say(status, body) => {
                write(&mut stream, status, body.to_string().as_bytes()).await?;
                continue;
            }
            Deed::Begin(bytes) => {
                stream.write_all(&bytes).await?;
                std::future::pending().await
            }
        };
        let mut etcd = Connection::open("127.0.0.1", etcd, None).await?;
        let body = asked.body.to_string();
        // An etcd without users takes no token, either.
        let answer = etcd.post(&asked.path, None, body.as_bytes()).await?;
        if asked.is_for("/v3/watch") && answer.status == 200 {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).await?;
            while let Some(piece) = etcd.next_piece(&answer).await? {
                let length = format!("{:x}\r\n", piece.len());
                for bytes in [length.as_bytes(), &piece, b"\r\n"] {
                    stream.write_all(bytes).await?;
                }
            }
            return Ok(());
        }
        let body = etcd.body(&answer).await?;
        if closes {
            return Ok(());
        }
        write(&mut stream, answer.status, &body).await?;
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(str::to_owned)
    };
    let length = header("Content-Length: ").unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Asked {
        path: head.split(' ').nth(1).unwrap().to_owned(),
        token: header("Authorization: "),
        body: serde_json::from_slice(&body).unwrap(),
    })
}

async fn write(stream: &mut TcpStream, status: u16, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} So\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await
}

/// Says the same of every request, until it is told something else.
#[derive(Clone, Default)]
pub(super) struct Said(Arc<Mutex<Option<Value>>>);

impl Said {
    pub(super) fn say(&self, answer: impl Into<Option<Value>>) {
        *self.0.lock().unwrap() = answer.into();
    }

    /// This, or what etcd says.
    pub(super) fn deed(&self) -> Deed {
        match self.0.lock().unwrap().clone() {
            Some(answer) => Deed::Say(200, answer),
            None => Deed::Pass,
        }
    }
}

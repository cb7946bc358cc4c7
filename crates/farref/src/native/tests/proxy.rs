//! A TCP proxy that breaks what goes through it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Forwards connections to one address.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    fuse: Arc<AtomicI64>,
    target: Arc<OnceLock<SocketAddr>>,
    cut: Arc<watch::Sender<u64>>,
    is_down: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) async fn start(target: SocketAddr) -> Self {
        let proxy = Self::listen().await;
        proxy.forward_to(target);
        proxy
    }

    /// One that forwards nothing until it is told where to.
    pub(super) async fn listen() -> Self {
        Self::with_room(None).await
    }

    /// The same, with a socket that has so much room for what comes from there.
    pub(super) async fn with_room(room: Option<u32>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let fuse = Arc::new(AtomicI64::new(i64::MAX));
        let (cut, _) = watch::channel(0_u64);
        let cut = Arc::new(cut);
        let to_cut = Arc::clone(&cut);
        let is_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&is_down);
        let bytes = Arc::clone(&fuse);
        let target = Arc::new(OnceLock::new());
        let known = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(target) = known.get().copied() else {
                    continue;
                };
                if down.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = connect(target, room).await else {
                    continue;
                };
                let (client_read, client_write) = client.into_split();
                let (server_read, server_write) = server.into_split();
                for (read, write) in [(client_read, server_write), (server_read, client_write)] {
                    let (bytes, cut) = (Arc::clone(&bytes), Arc::clone(&cut));
                    tokio::spawn(forward(read, write, bytes, cut));
                }
            }
        });
        Self {
            address,
            fuse,
            target,
            cut: to_cut,
            is_down,
        }
    }

    pub(super) fn forward_to(&self, target: SocketAddr) {
        let _ = self.target.set(target);
    }

    /// All connections break, and no other gets through until it is said so.
    pub(super) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
        if is_down {
            self.cut.send_modify(|cuts| *cuts += 1);
        }
    }

    /// All connections break when so many more bytes have passed, whichever way.
    pub(super) fn cut_after(&self, bytes: usize) {
        self.fuse.store(bytes as i64, Ordering::SeqCst);
    }
}

async fn connect(target: SocketAddr, room: Option<u32>) -> io::Result<TcpStream> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if let Some(room) = room {
        socket.set_recv_buffer_size(room)?;
    }
    socket.connect(target).await
}

async fn forward(
    mut read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
    fuse: Arc<AtomicI64>,
    cut: Arc<watch::Sender<u64>>,
) {
    let mut cuts = cut.subscribe();
    let mut buffer = vec![0; 4096];
    loop {
        let read = tokio::select! {
            _ = cuts.changed() => return,
            read = read.read(&mut buffer) => read,
        };
        let Ok(read @ 1..) = read else { return };
        let left = fuse.fetch_sub(read as i64, Ordering::SeqCst);
        let pass = (read as i64).min(left).max(0) as usize;
        if write.write_all(&buffer[..pass]).await.is_err() {
            return;
        }
        if pass < read {
            fuse.store(i64::MAX, Ordering::SeqCst);
            cut.send_modify(|cuts| *cuts += 1);
            return;
        }
    }
}

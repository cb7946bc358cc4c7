//! A TCP proxy in front of one worker.

use std::net::SocketAddr;

use tokio::sync::watch;

/// Forwards connections to one address until it is dropped.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
    inner: farref_testkit::Proxy,
}

impl Proxy {
    pub(super) fn start(target: SocketAddr) -> Self {
        let proxy = Self::listen();
        proxy.forward_to(target);
        proxy
    }

    /// Connections wait until the proxy is told where to forward them.
    pub(super) fn listen() -> Self {
        Self::on(farref_testkit::Proxy::new().expect("a proxy"))
    }

    /// Like [`Proxy::listen`], with a small buffer for what the target sends.
    pub(super) fn with_receive_buffer(bytes: u32) -> Self {
        let proxy = farref_testkit::Proxy::new().expect("a proxy");
        Self::on(proxy.receive_buffer(bytes))
    }

    fn on(inner: farref_testkit::Proxy) -> Self {
        let (address, target) = inner.add_unconnected().expect("an address");
        Self {
            address,
            target,
            inner,
        }
    }

    pub(super) fn forward_to(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    /// Cuts all connections, and every new one until it is up again.
    pub(super) fn set_down(&self, is_down: bool) {
        match is_down {
            true => self.inner.go_down(),
            false => self.inner.pass(),
        }
    }

    /// Cuts all connections once, after this many more bytes in either direction.
    pub(super) fn cut_after(&self, bytes: usize) {
        self.inner.cut_once_after(bytes);
    }
}

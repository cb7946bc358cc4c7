//! Settings of farref's own wire: addresses, who may connect, when a peer is taken for dead, how large messages are.

use std::net::IpAddr;
use std::time::Duration;

use super::{NEVER, WorkerBuilder};
use crate::native::Tls;

impl WorkerBuilder {
    /// The address that the others are told to reach this worker at. By default that of the interface
    /// that reaches the rendezvous host.
    ///
    /// ```no_run
    /// use std::net::IpAddr;
    ///
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // A host with two networks: talk over the fast one.
    /// let fast: IpAddr = [10, 1, 0, 7].into();
    /// let me = Worker::from_env().advertise(fast).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// The address to listen at, if not the advertised one.
    ///
    /// ```no_run
    /// use std::net::Ipv4Addr;
    ///
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // In a container, the address that others use is not one of its own.
    /// let me = Worker::from_env()
    ///     .advertise([10, 1, 0, 7].into())
    ///     .bind(Ipv4Addr::UNSPECIFIED.into())
    ///     .join()
    ///     .await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// The port to listen at. By default the system chooses one.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // The one that the firewall lets through.
    /// let me = farref::Worker::from_env().port(7000).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The port that the others are told to reach this worker at, if not the one it listens at: a
    /// forwarded one, of a container or a proxy.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // $ docker run --publish 17000:7000 ..
    /// let me = farref::Worker::from_env().port(7000).advertise_port(17_000).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn advertise_port(mut self, port: u16) -> Self {
        self.advertise_port = Some(port);
        self
    }

    /// Whether workers on the same host use Unix sockets. They do by default, where there are any. Without them there has to
    /// be a [token](Self::token) or a [certificate](Self::tls): of a TCP port nobody knows who connects to it.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// let worker = |name, rank| {
    ///     let builder = Worker::builder(name).rank(rank).world_size(2).rendezvous(&place);
    ///     builder.store_is_hosted_elsewhere().unix_sockets(false).token("only we know").join()
    /// };
    /// let (me, other) = tokio::try_join!(worker("me", 0), worker("other", 1))?;
    /// ping::on(&me.peer("other")?).await?;
    /// assert_eq!(me.snapshot().peers[1].transport.as_deref(), Some("tcp"));
    /// # tokio::try_join!(me.shutdown(), other.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unix_sockets(mut self, wanted: bool) -> Self {
        self.unix_sockets = wanted && cfg!(unix);
        self
    }

    /// Whether workers on the same host read large values straight out of each other's memory. They do by default,
    /// where they talk over Unix sockets, are the same user's, and the system permits it (Linux).
    ///
    /// Of a buffer of 128 KiB or more only the address is sent then, and the receiver copies it from there: half of the
    /// work of a socket. Nothing else changes. Where it cannot be done, because only one side wants it, or the
    /// processes are in containers of their own, or the system restricts who may look at a process (Yama's
    /// `ptrace_scope`), values go through the socket. `snapshot().peers[i].bytes_from_memory` says how many bytes came that
    /// way. What is kept in [shared memory](crate::Blob::shared) is not even copied, if both sides want it.
    ///
    /// ```
    /// use farref::{Blob, StoreServer, Worker};
    ///
    /// #[farref::remote]
    /// async fn size(data: Blob) -> usize {
    ///     data.len()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// let worker = |name, rank| {
    ///     let builder = Worker::builder(name).rank(rank).world_size(2).rendezvous(&place);
    ///     builder.store_is_hosted_elsewhere().shared_memory(false).join()
    /// };
    /// let (me, other) = tokio::try_join!(worker("me", 0), worker("other", 1))?;
    /// assert_eq!(size::on(&me.peer("other")?, vec![0; 1 << 20].into()).await?, 1 << 20);
    /// assert_eq!(other.snapshot().peers[0].bytes_from_memory, 0);
    /// # tokio::try_join!(me.shutdown(), other.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_memory(mut self, wanted: bool) -> Self {
        self.native.shared_memory = wanted;
        self
    }

    /// How many bytes of memory that large values came in are kept to receive the next ones into, for five seconds after the program has let go
    /// of what was in them. 128 MiB by default; zero keeps none.
    ///
    /// Fresh memory costs more than the copy into it: a value that is larger than this comes at about a third of the rate. Whoever gets
    /// large values again and again, and has the memory, says how large they are.
    ///
    /// ```
    /// let builder = farref::Worker::builder("learner").kept_receive_buffers(1 << 30);
    /// # drop(builder);
    /// ```
    pub fn kept_receive_buffers(mut self, bytes: usize) -> Self {
        self.native.recycle_bytes = bytes;
        self
    }

    /// For how long at most a connection is polled for the next message before its thread goes to sleep, where the last
    /// ones followed each other as closely: 50 µs by default, and twice as long with [TLS](Self::tls).
    ///
    /// Going to sleep and being woken takes a thread longer than all that is done for a short call. So calls one after the
    /// other take half the time with this, and less of the processor's. Messages that come less often do not make anybody
    /// poll, nor do calls that take longer; other tasks of the runtime have their turn in between. `Duration::ZERO`
    /// switches it off, for hosts with more busy processes than cores, say. More than a millisecond counts as one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = farref::Worker::builder("frugal").busy_poll(Duration::ZERO);
    /// # drop(builder);
    /// ```
    pub fn busy_poll(mut self, at_most: Duration) -> Self {
        self.native.busy_poll = at_most.min(Duration::from_millis(1));
        self
    }

    /// A secret that all workers of the group share. Whoever does not know it is refused. It is never
    /// sent; both sides prove that they know it.
    ///
    /// `farref launch` makes one for each group. Without a token, workers on one host use Unix sockets only, and take nobody's
    /// connections but those of their own user's processes.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.token("only we know")).await?;
    /// ping::on(&cluster.worker(0).peer("worker1")?).await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The worker's certificate: TCP connections are encrypted, and made only between workers that have certificates of one
    /// authority, with their names in them. All workers of a group have one, or none has. Connections over Unix sockets stay
    /// as they are: the system says whose process is at their other end.
    ///
    /// With a certificate workers may be on several hosts without a word of [`insecure`](Self::insecure); a
    /// [token](Self::token) is not needed, and asked for where there is one.
    ///
    /// ```no_run
    /// use farref::{Tls, Worker};
    ///
    /// # fn main() -> Result<(), farref::TlsError> {
    /// let tls = Tls::from_files("certs/trainer.pem", "certs/trainer.key", "certs/ca.pem")?;
    /// let builder = Worker::builder("trainer").tls(tls);
    /// # drop(builder);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Ok(Some(tls));
        self
    }

    /// Allows connections that leave this host without being encrypted, and, on this host, TCP without a
    /// [token](Self::token). Say this only on a network where nobody listens who should not.
    ///
    /// ```
    /// use farref::{ConfigError, Error, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // An address that other hosts reach, and nothing said about who may listen.
    /// let builder = Worker::builder("naive").rendezvous("tcp://127.0.0.1:29500");
    /// let refused = builder.advertise([10, 1, 0, 7].into()).join().await;
    /// assert!(matches!(refused, Err(Error::Config(ConfigError::Unencrypted { .. }))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// How long a peer may be silent before it is taken for dead. 10 s by default; the same on all
    /// workers, or the most impatient one decides.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let impatient = Duration::from_secs(1);
    /// let cluster = Cluster::start_with(2, |builder| builder.peer_timeout(impatient)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // Not a word from there any more, and no refusal either.
    /// cluster.partition(0, 1);
    /// assert!(matches!(ping::on(&peer).await, Err(Error::PeerLost { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        let timeout = timeout.min(NEVER);
        self.native.peer_timeout = timeout;
        self.native.heartbeat_interval = timeout / 4;
        self.native.ack_timeout = (timeout / 5).min(Duration::from_secs(2));
        self
    }

    /// The largest message that is sent or taken in. 4 GiB by default.
    ///
    /// Workers need not have the same limit: what is too large for the one that gets it is passed over as it comes, and its
    /// call is an [`Error::Codec`](crate::Error::Codec) that says so.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn size(data: Vec<u8>) -> usize {
    ///     data.len()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.max_message_bytes(1 << 20)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let refused = size::on(&peer, vec![0; 2 << 20]).await;
    /// assert!(matches!(refused, Err(Error::Codec { what: "the arguments", .. })));
    ///
    /// // Nothing was sent, and nothing else suffers.
    /// assert_eq!(size::on(&peer, vec![0; 1 << 10]).await?, 1 << 10);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.native.max_message_bytes = bytes;
        self
    }
}

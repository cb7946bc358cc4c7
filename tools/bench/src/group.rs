//! Groups of workers, each in a process of its own: this one has rank 0.

use std::io::{Read, Write};
use std::iter::Empty;

use farref::{Peer, StoreServer, Tls, Worker, WorkerBuilder};

use super::role::{Guard, PATIENCE, Role, Seat, token};
use super::transport::Transport;
use farref_cli::tools::GroupTls;

/// A group that has come together.
pub(super) struct Group {
    pub(super) me: Worker,
    /// The others, by rank.
    pub(super) peers: Vec<Peer>,
    others: Vec<Guard>,
    store: StoreServer,
    /// Held for its destructor.
    _certificates: Option<GroupTls>,
}

impl Seat {
    fn name(rank: u32) -> String {
        format!("worker{rank}")
    }

    /// Joins, with a certificate out of the environment if one is needed.
    pub(super) async fn join(&self) -> anyhow::Result<Worker> {
        let tls = match self.transport {
            Transport::Tls => Tls::from_env()?,
            _ => None,
        };
        self.join_with(tls, |worker| worker).await
    }

    async fn join_with(
        &self,
        tls: Option<Tls>,
        set_up: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> anyhow::Result<Worker> {
        let worker = Worker::builder(Self::name(self.rank))
            .rank(self.rank)
            .world_size(self.workers)
            .rendezvous(&format!("tcp://127.0.0.1:{}", self.port))
            .store_is_hosted_elsewhere()
            .token(token())
            .join_timeout(PATIENCE);
        let worker = self.transport.choose(worker);
        let worker = match tls {
            Some(tls) => worker.tls(tls),
            None => worker,
        };
        Ok(set_up(worker).join().await?)
    }
}

impl Group {
    pub(super) async fn start(transport: Transport, workers: u32) -> anyhow::Result<Self> {
        Self::start_as(transport, workers, Role::Worker).await
    }

    /// The other processes play this role, which is that of a worker.
    pub(super) async fn start_as(
        transport: Transport,
        workers: u32,
        role: impl Fn(Seat) -> Role,
    ) -> anyhow::Result<Self> {
        Self::start_with(transport, workers, role, |worker| worker).await
    }

    /// And this process is set up in a way of its own.
    pub(super) async fn start_with(
        transport: Transport,
        workers: u32,
        role: impl Fn(Seat) -> Role,
        set_up: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let port = store.local_addr().port();
        let seat = |rank| Seat {
            transport,
            port,
            rank,
            workers,
        };
        let certificates = match transport {
            Transport::Tls => Some(GroupTls::make("127.0.0.1", port, None::<Empty<String>>)?),
            _ => None,
        };
        let start = |rank| role(seat(rank)).start_with(certificates.as_ref());
        let others = (1..workers).map(start).collect::<anyhow::Result<_>>()?;
        let tls = certificates.as_ref().map(|made| {
            let [certificate, key, authorities] = made.variables(0).map(|(_, file)| file);
            Tls::from_files(certificate, key, authorities)
        });
        let tls = tls.transpose()?;
        let me = seat(0).join_with(tls, set_up).await?;
        let peers = (1..workers).map(|rank| me.peer(&Seat::name(rank)));
        let peers = peers.collect::<farref::Result<_>>()?;
        Ok(Self {
            me,
            peers,
            others,
            store,
            _certificates: certificates,
        })
    }

    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.me.shutdown().await?;
        drop(self.others);
        self.store.close().await;
        Ok(())
    }
}

/// The other end of measuring how long a group takes to come together and to end: every byte is a signal.
pub(super) async fn be_a_member(seat: &Seat, mut line: impl Read + Write) -> anyhow::Result<()> {
    let mut signal = [0];
    // Once to see how long nothing takes, then to join.
    line.read_exact(&mut signal)?;
    line.write_all(&signal)?;
    line.read_exact(&mut signal)?;
    let me = seat.join().await?;
    line.write_all(&signal)?;
    me.serve().await?;
    line.write_all(&signal)?;
    Ok(())
}

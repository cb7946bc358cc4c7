//! Groups of processes that meet in etcd: a real one, Debian's, which is killed and started again. Without one the
//! tests say so and pass, unless `FARREF_REQUIRE_ETCD` is set.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::{Error, RendezvousError, StoreError, Worker};

use crate::functions::add;
use crate::group::{Options, free_port};
use crate::launch::{self, Launch, Launched};
use crate::rendezvous::work_and_end;
use crate::worker::PATIENCE;
use crate::{Scratch, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "processes_meet_in_etcd_and_the_next_group_meets_there_at_once",
            one_after_the_other,
        ),
        (
            "whoever_dies_rank_0_too_others_still_join_through_etcd",
            rank_0_dies,
        ),
        (
            "what_a_killed_group_left_in_etcd_is_in_nobodys_way",
            all_are_killed,
        ),
        (
            "a_group_goes_on_without_etcd_and_newcomers_wait_for_it",
            etcd_dies,
        ),
        ("who_may_not_use_etcd_is_told", wrong_password),
        (
            "who_meets_in_etcd_where_another_group_does_is_told",
            another_group_is_there,
        ),
    ]
}

/// An etcd of a test's own. Killed when dropped.
struct Etcd {
    child: Child,
    port: u16,
    peer_port: u16,
    scratch: Scratch,
}

impl Etcd {
    /// None where none is installed, and need not be.
    fn start() -> anyhow::Result<Option<Self>> {
        let (port, peer_port) = (free_port()?, free_port()?);
        let scratch = Scratch::new()?;
        match start_etcd(&scratch, port, peer_port) {
            Ok(child) => Ok(Some(Self {
                child,
                port,
                peer_port,
                scratch,
            })),
            Err(error) if std::env::var_os("FARREF_REQUIRE_ETCD").is_none() => {
                eprintln!("left out, there is no etcd (Debian: etcd-server): {error}");
                Ok(None)
            }
            Err(error) => Err(error).context("FARREF_REQUIRE_ETCD is set, and etcd does not start"),
        }
    }

    /// A place where a lease runs out soon.
    fn place(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}?ttl=2", self.port)
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = start_etcd(&self.scratch, self.port, self.peer_port)?;
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_etcd(scratch: &Scratch, port: u16, peer_port: u16) -> std::io::Result<Child> {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Command::new("etcd")
        .args(["--data-dir", &scratch.file("etcd")])
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--log-level", "error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Runs a test with an etcd, if there is one.
fn with_etcd(test: impl AsyncFnOnce(&mut Etcd) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let Some(mut etcd) = Etcd::start()? else {
        return Ok(());
    };
    launch::run(async || test(&mut etcd).await)
}

fn start(at: &str, name: &str, rank: Option<u32>, world_size: u32) -> anyhow::Result<Launched> {
    let launch = Launch::new(&Options::default())?
        .env("FARREF_NAME", name)
        .env("FARREF_RENDEZVOUS", at);
    let launch = match rank {
        Some(rank) => launch
            .env("FARREF_RANK", rank)
            .env("FARREF_WORLD_SIZE", world_size),
        None => launch,
    };
    launch.start(name)
}

async fn join(at: &str, rank: u32, world_size: u32) -> farref::Result<Worker> {
    let me = Worker::builder("driver").rank(rank).world_size(world_size);
    Options::default().apply(me.rendezvous(at)).join().await
}

fn one_after_the_other() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("jobs/1");
        for _ in 0..2 {
            let others = [start(&at, "a", Some(0), 3)?, start(&at, "b", Some(2), 3)?];
            let me = join(&at, 1, 3).await?;
            work_and_end(&me, "a", "b").await?;
            for other in others {
                other.ended_well().await?;
            }
        }
        Ok(())
    })
}

fn rank_0_dies() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let (a, b) = (start(&at, "a", Some(0), 3)?, start(&at, "b", Some(2), 3)?);
        let me = join(&at, 1, 3).await?;
        let first = me.peer("a")?;
        a.kill()?;
        tokio::time::timeout(PATIENCE, first.gone()).await??;
        let newcomer = start(&at, "newcomer", None, 0)?;
        me.wait_for_peer("newcomer", PATIENCE).await?;
        // The next life of the one that died, too.
        let again = start(&at, "a", Some(0), 3)?;
        let first = me.wait_for_peer("a", PATIENCE).await?;
        ensure!(add::on(&first, 1, 2).await? == 3);
        work_and_end(&me, "newcomer", "b").await?;
        for other in [b, newcomer, again] {
            other.ended_well().await?;
        }
        Ok(())
    })
}

fn all_are_killed() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let me = {
            let first = [start(&at, "a", Some(0), 3)?, start(&at, "b", Some(2), 3)?];
            // The group is there once the driver is in it, and the driver leaves it.
            let me = join(&at, 1, 3).await?;
            for killed in first {
                killed.kill()?;
            }
            me
        };
        // What the driver had is as gone as what the others had.
        me.crash().await;
        let others = [start(&at, "a", Some(0), 3)?, start(&at, "b", Some(2), 3)?];
        let me = join(&at, 1, 3).await?;
        work_and_end(&me, "a", "b").await?;
        for other in others {
            other.ended_well().await?;
        }
        Ok(())
    })
}

fn etcd_dies() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let (a, b) = (start(&at, "a", Some(0), 3)?, start(&at, "b", Some(2), 3)?);
        let me = join(&at, 1, 3).await?;
        // Who answers has done with etcd, for now.
        for name in ["a", "b"] {
            ensure!(add::on(&me.peer(name)?, 1, 2).await? == 3);
        }
        etcd.kill()?;
        ensure!(add::on(&me.peer("a")?, 1, 2).await? == 3);
        let hurried = Worker::builder("hurried").rendezvous(&at);
        match hurried
            .join_timeout(Duration::from_millis(300))
            .join()
            .await
        {
            Err(Error::Rendezvous(error)) => match &*error {
                RendezvousError::Store {
                    source: StoreError::NoEtcd { .. },
                    ..
                } => {}
                other => bail!("{other}"),
            },
            other => bail!("{other:?}"),
        }
        let newcomer = start(&at, "newcomer", None, 0)?;
        ensure!(add::on(&me.peer("b")?, 1, 2).await? == 3);
        etcd.start_again()?;
        me.wait_for_peer("newcomer", PATIENCE).await?;
        work_and_end(&me, "a", "newcomer").await?;
        for other in [a, b, newcomer] {
            other.ended_well().await?;
        }
        Ok(())
    })
}

fn wrong_password() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let endpoint = format!("http://127.0.0.1:{}", etcd.port);
        // As the manual says; etcdctl comes in another package, so the same is asked for here.
        for (path, request) in [
            ("user/add", r#"{"name":"root","password":"r"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            post(etcd.port, &format!("/v3/auth/{path}"), request)
                .await
                .with_context(|| format!("{endpoint}: {path}"))?;
        }
        let password = etcd.scratch.file("password");
        std::fs::write(&password, "wrong")?;
        let port = etcd.port;
        let at = format!("etcd://root@127.0.0.1:{port}/group?password-file={password}");
        match Worker::builder("w").rendezvous(&at).join().await {
            Err(Error::Rendezvous(error)) => {
                let words = error.to_string();
                let is_denied = matches!(
                    &*error,
                    RendezvousError::Store {
                        source: StoreError::Denied { .. },
                        ..
                    }
                );
                ensure!(is_denied, "{words}");
                ensure!(words.contains("FARREF_ETCD_PASSWORD"), "{words}");
            }
            other => bail!("{other:?}"),
        }
        std::fs::write(&password, "r")?;
        let me = Worker::builder("w").rendezvous(&at).join().await?;
        Ok(me.shutdown().await?)
    })
}

/// Asks etcd for something, until it is there to answer.
async fn post(port: u16, path: &str, body: &str) -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = loop {
        match tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

fn another_group_is_there() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let me = join(&at, 0, 1).await?;
        let other = Worker::builder("other").rank(0).world_size(2);
        match other.rendezvous(&at).join().await {
            Err(Error::Rendezvous(error)) => {
                let is_mismatch = matches!(*error, RendezvousError::Mismatch { .. });
                ensure!(is_mismatch, "{error}");
            }
            other => bail!("{other:?}"),
        }
        // Who only looks finds the one that is there.
        let token = Options::default().token.unwrap_or_default();
        let observer = farref::observe::Observer::new().token(token);
        let mut seen = observer.group(&at).await?;
        let seen = seen.look().await;
        ensure!(seen.len() == 1 && seen[0].snapshot.is_ok(), "{seen:?}");
        // Another prefix is another place.
        let elsewhere = join(&etcd.place("group2"), 0, 1).await?;
        elsewhere.shutdown().await?;
        Ok(me.shutdown().await?)
    })
}

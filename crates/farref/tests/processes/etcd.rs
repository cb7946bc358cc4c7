//! Groups of processes that meet in etcd: a real one, Debian's, which is killed and started again.
//! Without one the tests are left out, unless `FARREF_REQUIRE_ETCD` is set.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::{Error, RendezvousError, Store as _, StoreError, Worker, WorkerBuilder};
use farref_rendezvous::EtcdStore;
use farref_testkit::{
    Process, Requirement, Scratch, TEST_TIMEOUT, eventually_async, free_port, run_test, within,
};

use crate::Tests;
use crate::functions::add;
use crate::group::Options;
use crate::launch::{Launch, Launched};
use crate::rendezvous::work_and_end;

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
        (
            "a_group_goes_on_and_is_joined_though_a_member_of_etcd_hangs",
            a_member_hangs,
        ),
        (
            "who_has_left_or_was_dropped_keeps_no_place_in_etcd",
            one_leaves_and_goes_on,
        ),
        (
            "who_could_not_join_may_use_its_store_again_and_who_has_left_may_not",
            a_store_is_used_again,
        ),
        ("who_may_not_use_etcd_is_told", wrong_password),
        (
            "who_meets_in_etcd_where_another_group_does_is_told",
            another_group_is_there,
        ),
    ]
}

const ETCD: Requirement = Requirement {
    needed: "etcd (Debian: etcd-server)",
    variable: "FARREF_REQUIRE_ETCD",
};

/// An etcd of a test, a cluster of one member or more. Killed when dropped.
struct Etcd {
    members: Vec<Member>,
    scratch: Scratch,
}

struct Member {
    process: Process,
    port: u16,
    peer_port: u16,
}

impl Etcd {
    /// None if etcd is not installed.
    fn start(size: usize) -> anyhow::Result<Option<Self>> {
        let missing = Command::new("etcd").arg("--version").output().err();
        if !ETCD.is_met(missing.map(|error| error.to_string()).as_deref())? {
            return Ok(None);
        }
        let scratch = Scratch::new()?;
        let mut ports = Vec::new();
        for _ in 0..size {
            ports.push((free_port()?, free_port()?));
        }
        let cluster = cluster(ports.iter().map(|(_, peer_port)| *peer_port));
        let mut members = Vec::new();
        for (number, (port, peer_port)) in ports.into_iter().enumerate() {
            let process = start_etcd(&scratch, number, port, &cluster)?;
            members.push(Member {
                process,
                port,
                peer_port,
            });
        }
        Ok(Some(Self { members, scratch }))
    }

    /// A place where a lease runs out after so many seconds.
    fn place_for(&self, prefix: &str, ttl: u32) -> String {
        let endpoints = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.port));
        let endpoints: Vec<String> = endpoints.collect();
        format!("etcd://{}/{prefix}?ttl={ttl}", endpoints.join(","))
    }

    /// A place where a lease runs out soon, but not if a busy machine keeps it from being renewed for
    /// a while.
    fn place(&self, prefix: &str) -> String {
        self.place_for(prefix, 6)
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        let mut members = self.members.iter_mut();
        members.try_for_each(|member| member.process.kill())
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        let cluster = cluster(self.members.iter().map(|member| member.peer_port));
        for (number, member) in self.members.iter_mut().enumerate() {
            member.process = start_etcd(&self.scratch, number, member.port, &cluster)?;
        }
        Ok(())
    }

    /// SIGSTOP: its connections are there, and nobody answers.
    fn stop_first(&self) -> anyhow::Result<()> {
        self.members.first().context("no member")?.process.stop()
    }
}

/// Where the members of a cluster reach each other, in etcd's notation.
fn cluster(peer_ports: impl Iterator<Item = u16>) -> Vec<String> {
    let of = |(number, port)| format!("member{number}=http://127.0.0.1:{port}");
    peer_ports.enumerate().map(of).collect()
}

fn start_etcd(
    scratch: &Scratch,
    number: usize,
    port: u16,
    cluster: &[String],
) -> anyhow::Result<Process> {
    let client = format!("http://127.0.0.1:{port}");
    let (name, peer) = cluster[number].split_once('=').unwrap_or_default();
    let mut command = Command::new("etcd");
    command
        .args(["--name", name])
        .args(["--data-dir", &scratch.file(name)])
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", peer])
        .args(["--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &cluster.join(",")])
        // A busy machine or a slow disk is not to depose a leader.
        .args(["--heartbeat-interval", "500", "--election-timeout", "5000"])
        .args(["--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(name, &mut command)
}

/// Runs a test with a cluster of this size, if there is an etcd.
fn with_cluster(
    size: usize,
    test: impl AsyncFnOnce(&mut Etcd) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match Etcd::start(size)? {
        Some(mut etcd) => run_test(test(&mut etcd)),
        None => Ok(()),
    }
}

fn with_etcd(test: impl AsyncFnOnce(&mut Etcd) -> anyhow::Result<()>) -> anyhow::Result<()> {
    with_cluster(1, test)
}

fn start(at: &str, name: &str, rank: Option<u32>) -> anyhow::Result<Launched> {
    let launch = Launch::new(&Options::default())?
        .env("FARREF_NAME", name)
        .env("FARREF_RENDEZVOUS", at);
    let launch = match rank {
        Some(rank) => launch
            .env("FARREF_RANK", rank)
            .env("FARREF_WORLD_SIZE", SIZE),
        None => launch,
    };
    launch.start(name)
}

/// The driver, which has this rank.
async fn join(at: &str, rank: u32, world_size: u32) -> farref::Result<Worker> {
    let me = Worker::builder("driver").rank(rank).world_size(world_size);
    Options::default().apply(me.rendezvous(at)).join().await
}

/// How many workers found a group.
const SIZE: u32 = 3;

/// A group of three: `a`, which is rank 0, the driver, and `b`.
async fn group_of_three(at: &str) -> anyhow::Result<(Launched, Worker, Launched)> {
    let (a, b) = (start(at, "a", Some(0))?, start(at, "b", Some(2))?);
    Ok((a, join(at, 1, SIZE).await?, b))
}

/// Two of a group do what workers do; then all end, and well.
async fn work_and_end_well(
    me: &Worker,
    [one, two]: [&str; 2],
    others: impl IntoIterator<Item = Launched>,
) -> anyhow::Result<()> {
    work_and_end(me, one, two).await?;
    for other in others {
        other.ended_well().await?;
    }
    Ok(())
}

/// A joining that came to this error.
fn refused(joined: farref::Result<Worker>) -> anyhow::Result<Arc<RendezvousError>> {
    match joined {
        Err(Error::Rendezvous(error)) => Ok(error),
        other => bail!("{other:?}"),
    }
}

fn one_after_the_other() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("jobs/1");
        for _ in 0..2 {
            let (a, me, b) = group_of_three(&at).await?;
            work_and_end_well(&me, ["a", "b"], [a, b]).await?;
        }
        Ok(())
    })
}

fn rank_0_dies() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let (a, me, b) = group_of_three(&at).await?;
        let first = me.peer("a")?;
        a.kill()?;
        within("the death of `a`", first.gone()).await??;
        let newcomer = start(&at, "newcomer", None)?;
        me.wait_for_peer("newcomer", TEST_TIMEOUT).await?;
        // The next life of the one that died, too.
        let again = start(&at, "a", Some(0))?;
        let first = me.wait_for_peer("a", TEST_TIMEOUT).await?;
        ensure!(add::on(&first, 1, 2).await? == 3);
        work_and_end_well(&me, ["newcomer", "b"], [b, newcomer, again]).await
    })
}

fn all_are_killed() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        // The group is there once the driver is in it, and the driver leaves it.
        let (a, me, b) = group_of_three(&at).await?;
        for killed in [a, b] {
            killed.kill()?;
        }
        // What the driver had is as gone as what the others had.
        me.crash().await;
        let (a, me, b) = group_of_three(&at).await?;
        work_and_end_well(&me, ["a", "b"], [a, b]).await
    })
}

fn etcd_dies() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place("group");
        let (a, me, b) = group_of_three(&at).await?;
        // Who answers has done with etcd, for now.
        for name in ["a", "b"] {
            ensure!(add::on(&me.peer(name)?, 1, 2).await? == 3);
        }
        etcd.kill()?;
        ensure!(add::on(&me.peer("a")?, 1, 2).await? == 3);
        let hurried = Worker::builder("hurried").rendezvous(&at);
        let hurried = hurried.join_timeout(Duration::from_millis(300)).join();
        match &*refused(hurried.await)? {
            RendezvousError::Store {
                source: StoreError::NoEtcd { .. },
                ..
            } => {}
            other => bail!("{other}"),
        }
        let newcomer = start(&at, "newcomer", None)?;
        ensure!(add::on(&me.peer("b")?, 1, 2).await? == 3);
        etcd.start_again()?;
        me.wait_for_peer("newcomer", TEST_TIMEOUT).await?;
        work_and_end_well(&me, ["a", "newcomer"], [a, b, newcomer]).await
    })
}

/// One of three members of the cluster hangs, with all that are connected to it.
fn a_member_hangs() -> anyhow::Result<()> {
    with_cluster(3, async |etcd| {
        let at = etcd.place_for("group", 10);
        let (a, me, b) = group_of_three(&at).await?;
        etcd.stop_first()?;
        let second = me.peer("b")?;
        b.kill()?;
        within("the death of `b`", second.gone()).await??;
        // When the lease of who was killed has run out, so have all that were not kept meanwhile.
        let seen = EtcdStore::look(&at.parse()?, TEST_TIMEOUT).await?;
        eventually_async("the lease runs out", async || {
            Ok(seen.try_get("farref/latest/2").await?.is_none())
        })
        .await?;
        let newcomer = start(&at, "newcomer", None)?;
        me.wait_for_peer("newcomer", TEST_TIMEOUT).await?;
        let again = start(&at, "b", Some(2))?;
        me.wait_for_peer("b", TEST_TIMEOUT).await?;
        work_and_end_well(&me, ["a", "b"], [a, newcomer, again]).await
    })
}

/// However its program goes on, who has left is no member any more.
fn one_leaves_and_goes_on() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place_for("group", 10);
        let left = join(&at, 0, 1).await?;
        left.leave().await?;
        let dropped = join(&at, 0, 1).await?;
        drop(dropped);
        let me = join(&at, 0, 1).await?;
        me.shutdown().await?;
        drop(left);
        Ok(())
    })
}

/// A program opens its store by itself, and tries more than once.
fn a_store_is_used_again() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let at = etcd.place_for("group", 600);
        let me = join(&at, 0, 1).await?;
        let store = Arc::new(EtcdStore::open(&at.parse()?, TEST_TIMEOUT).await?);
        let with_store = |me: WorkerBuilder| {
            let me = Options::default().apply(me).store(store.clone());
            // Who begins anew for as long as that is not waited for.
            me.join_timeout(TEST_TIMEOUT * 10).join()
        };
        let other = Worker::builder("other");
        let error = refused(with_store(other.rank(0).world_size(2)).await)?;
        ensure!(
            matches!(*error, RendezvousError::Mismatch { .. }),
            "{error}"
        );
        let other = with_store(Worker::builder("other")).await?;
        ensure!(other.peers().len() == 2);
        tokio::try_join!(me.shutdown(), other.shutdown())?;
        // Who ends has left the store.
        let error = refused(with_store(Worker::builder("other")).await)?;
        ensure!(error.is_ended(), "{error}");
        Ok(())
    })
}

fn wrong_password() -> anyhow::Result<()> {
    with_etcd(async |etcd| {
        let port = etcd.members[0].port;
        // As the manual says; etcdctl comes in another package, so the same is asked for here.
        for (path, request) in [
            ("user/add", r#"{"name":"root","password":"r"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            let asked = post(port, &format!("/v3/auth/{path}"), request).await;
            asked.with_context(|| path)?;
        }
        let password = etcd.scratch.file("password");
        std::fs::write(&password, "wrong")?;
        let at = format!("etcd://root@127.0.0.1:{port}/group?password-file={password}");
        let error = refused(Worker::builder("w").rendezvous(&at).join().await)?;
        let words = error.to_string();
        match &*error {
            RendezvousError::Store {
                source: StoreError::Denied { .. },
                ..
            } => ensure!(words.contains("FARREF_ETCD_PASSWORD"), "{words}"),
            _ => bail!("{words}"),
        }
        std::fs::write(&password, "r")?;
        let me = Worker::builder("w").rendezvous(&at).join().await?;
        Ok(me.shutdown().await?)
    })
}

/// Asks etcd for something, until it is there to answer.
async fn post(port: u16, path: &str, body: &str) -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    let mut connected = None;
    eventually_async("etcd listens", async || {
        connected = TcpStream::connect(("127.0.0.1", port)).await.ok();
        Ok(connected.is_some())
    })
    .await?;
    let mut stream = connected.context("not connected")?;
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
        let error = refused(other.rendezvous(&at).join().await)?;
        ensure!(
            matches!(*error, RendezvousError::Mismatch { .. }),
            "{error}"
        );
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

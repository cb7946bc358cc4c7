//! How processes find each other: by file, as launchers say, and what they are told if they do not.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{bail, ensure};
use farref::{Error, RendezvousError, Store, StoreServer, TcpStoreClient, Worker};
use farref_testkit::{Scratch, TEST_TIMEOUT, free_port, run_test};

use crate::Tests;
use crate::functions::{Probe, add, add_on, hold, release, use_held};
use crate::group::{Options, run};
use crate::launch::Launch;

pub(crate) fn tests() -> Tests {
    vec![
        ("processes_meet_in_a_file", in_a_file),
        ("processes_meet_as_torchrun_says", as_torchrun_says),
        (
            "processes_meet_as_torchruns_agent_says",
            as_torchruns_agent_says,
        ),
        ("processes_meet_as_slurm_says", as_slurm_says),
        (
            "a_worker_that_does_not_come_is_named_by_all_others",
            missing,
        ),
        (
            "who_has_another_token_is_refused_and_the_group_goes_on",
            other_token,
        ),
        ("who_expects_another_group_size_is_told", other_size),
        ("who_finds_the_port_taken_is_told", port_taken),
    ]
}

/// The workers `a` and `b` of a group of three do what workers do, and end.
pub(crate) async fn work_and_end(me: &Worker, a: &str, b: &str) -> anyhow::Result<()> {
    let (peer_a, peer_b) = (me.peer(a)?, me.peer(b)?);
    ensure!(add_on::on(&peer_a, b.into(), 1, 2).await? == 3);
    ensure!(add_on::on(&peer_b, me.name().into(), 1, 2).await? == 3);
    hold::on(&peer_b, "k".into(), Probe::new_on(&peer_a, 5).remote()).await?;
    ensure!(use_held::on(&peer_b, "k".into()).await? == 5);
    ensure!(release::on(&peer_b, "k".into()).await?);
    Ok(me.shutdown().await?)
}

fn in_a_file() -> anyhow::Result<()> {
    run_test(async {
        let scratch = Scratch::new()?;
        let at = format!("file://{}", scratch.file("group"));
        let options = Options::default();
        let start = |name: &str, rank| -> anyhow::Result<_> {
            Launch::new(&options)?
                .env("FARREF_NAME", name)
                .env("FARREF_RENDEZVOUS", &at)
                .env("FARREF_WORLD_SIZE", 3)
                .env("FARREF_RANK", rank)
                .start(name)
        };
        let others = [start("a", 0)?, start("b", 2)?];
        let me = Worker::builder("driver")
            .rank(1)
            .world_size(3)
            .rendezvous(&at);
        let me = options.apply(me).join().await?;
        work_and_end(&me, "a", "b").await?;
        for other in others {
            other.ended_well().await?;
        }
        Ok(())
    })
}

/// Each of three processes, set up by its environment alone, calls all others by their default names.
async fn meet(environment: impl Fn(Launch, u32) -> Launch) -> anyhow::Result<()> {
    let options = Options {
        calls_everyone: true,
        ..Options::default()
    };
    let mut processes = Vec::new();
    for rank in 0..3 {
        let launch = environment(Launch::new(&options)?, rank);
        processes.push(launch.start(&format!("worker{rank}"))?);
    }
    for process in processes {
        process.ended_well().await?;
    }
    Ok(())
}

fn as_torchrun_says() -> anyhow::Result<()> {
    run_test(async {
        let port = free_port()?;
        meet(|launch, rank| {
            launch
                .env("MASTER_ADDR", "localhost")
                .env("MASTER_PORT", port)
                .env("RANK", rank)
                .env("LOCAL_RANK", rank)
                .env("WORLD_SIZE", 3)
                .env("TORCHELASTIC_RUN_ID", "job")
                .env("TORCHELASTIC_RESTART_COUNT", 2)
        })
        .await
    })
}

/// torchrun's agent may host the store itself: then rank 0 must not.
fn as_torchruns_agent_says() -> anyhow::Result<()> {
    run_test(async {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let port = store.local_addr().port();
        // The store outlives the workers; a later run of the job finds it full of the earlier one.
        for restarts in 0..2 {
            meet(|launch, rank| {
                launch
                    .env("MASTER_ADDR", "localhost")
                    .env("MASTER_PORT", port)
                    .env("RANK", rank)
                    .env("WORLD_SIZE", 3)
                    .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                    .env("TORCHELASTIC_RUN_ID", "job")
                    .env("TORCHELASTIC_RESTART_COUNT", restarts)
            })
            .await?;
        }
        Ok(())
    })
}

/// The host is the first of the node list, the port follows from the job's number.
fn as_slurm_says() -> anyhow::Result<()> {
    run_test(async {
        let is_free = |job: &u16| TcpListener::bind(("127.0.0.1", 20_000 + job)).is_ok();
        let job = std::iter::repeat_with(|| fastrand::u16(..10_000)).find(is_free);
        let job = 70_000 + u32::from(job.unwrap_or_default());
        meet(|launch, rank| {
            launch
                .env("SLURM_PROCID", rank)
                .env("SLURM_NTASKS", 3)
                .env("SLURM_JOB_ID", job)
                .env("SLURM_STEP_ID", 0)
                .env("SLURM_JOB_NODELIST", "localhost,elsewhere[1-3]")
        })
        .await
    })
}

fn missing() -> anyhow::Result<()> {
    run_test(async {
        let options = Options::default();
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let at = format!("tcp://{}", store.local_addr());
        let start = |name: &str, rank| -> anyhow::Result<_> {
            Launch::new(&options)?
                .env("FARREF_NAME", name)
                .env("FARREF_RENDEZVOUS", &at)
                .env("FARREF_WORLD_SIZE", 4)
                .env("FARREF_RANK", rank)
                .start(name)
        };
        let others = [start("a", 1)?, start("c", 3)?];
        // However long they take to start, they are there before rank 0 begins to wait.
        let port = store.local_addr().port();
        let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await?;
        let cards = [1, 3].map(|rank| format!("farref/latest/{rank}"));
        client.wait(&cards, TEST_TIMEOUT).await?;
        let me = Worker::builder("driver")
            .rank(0)
            .world_size(4)
            .rendezvous(&at)
            .store_is_hosted_elsewhere();
        let me = options.apply(me).join_timeout(Duration::from_secs(12));
        match me.join().await {
            Err(Error::Rendezvous(error)) => match &*error {
                RendezvousError::Missing { have, missing, .. } => {
                    let there = [(0, "driver"), (1, "a"), (3, "c")];
                    let there = there.map(|(rank, name)| (rank, name.to_owned()));
                    ensure!(*missing == [2] && *have == there, "{error}");
                }
                other => bail!("{other:?}"),
            },
            other => bail!("{other:?}"),
        }
        for other in others {
            let (status, complaints) = other.ended().await?;
            ensure!(!status.success());
            ensure!(complaints.contains("rank 2 did not come"), "{complaints}");
        }
        Ok(())
    })
}

fn other_token() -> anyhow::Result<()> {
    let options = Options {
        token: Some("the group's".to_owned()),
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let mut wrong = group.options.clone();
        // Enough for a busy machine to find the group, and to be refused.
        wrong.join_timeout_ms = 8_000;
        for token in [Some("guessed".to_owned()), None] {
            wrong.token = token;
            let stranger = Launch::new(&wrong)?
                .env("FARREF_NAME", "stranger")
                .env("FARREF_RENDEZVOUS", group.rendezvous())
                .start("stranger")?;
            // Meanwhile the group does its work.
            for name in ["a", "b"] {
                ensure!(add::on(&group.peer(name)?, 1, 2).await? == 3);
            }
            let (status, complaints) = stranger.ended().await?;
            ensure!(!status.success());
            ensure!(complaints.contains("token"), "{complaints}");
        }
        ensure!(group.me.peers().len() == 3, "{:?}", group.me.peers());
        for name in ["a", "b"] {
            let known = group.peer(name)?.snapshot().await?.peers;
            ensure!(known.len() == 3, "{known:?}");
        }
        // With the right one it is welcome.
        let right = Launch::addition(group, "stranger")?.start("stranger")?;
        let peer = group.me.wait_for_peer("stranger", TEST_TIMEOUT).await?;
        ensure!(add_on::on(&peer, "a".into(), 1, 2).await? == 3);
        group.me.shutdown().await?;
        right.ended_well().await
    })
}

fn other_size() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        let at = group.rendezvous();
        let join = |rank, size| {
            let builder = Worker::builder("mistaken").rank(rank).world_size(size);
            builder.rendezvous(&at).join()
        };
        for (rank, size) in [(1, 3), (2, 3)] {
            match join(rank, size).await {
                Err(Error::Rendezvous(error)) => {
                    let fits = matches!(&*error, RendezvousError::Mismatch { mine, group }
                        if mine == "a world size of 3" && group == "a world size of 2");
                    ensure!(fits, "{error:?}");
                    ensure!(
                        error
                            .to_string()
                            .contains("give all workers the same world size")
                    );
                }
                other => bail!("{other:?}"),
            }
        }
        match join(1, 2).await {
            Err(Error::Rendezvous(error)) => ensure!(
                matches!(&*error, RendezvousError::DuplicateRank { rank: 1, first, .. }
                    if first == "a"),
                "{error:?}"
            ),
            other => bail!("{other:?}"),
        }
        ensure!(add::on(&group.peer("a")?, 1, 2).await? == 3);
        Ok(())
    })
}

/// A store's port may be that of another program: both the host and those who ask there are told.
fn port_taken() -> anyhow::Result<()> {
    run_test(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let options = Options {
            join_timeout_ms: 2_000,
            ..Options::default()
        };
        let host = Launch::new(&options)?
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port)
            .env("RANK", 0)
            .env("WORLD_SIZE", 2)
            .start("worker0")?;
        let (status, complaints) = host.ended().await?;
        ensure!(!status.success());
        ensure!(
            complaints.contains("cannot host a store")
                && complaints.contains(&port.to_string())
                && complaints.contains("does another process use that port?"),
            "{complaints}"
        );
        // Whoever listens there does not answer.
        let guest = Worker::builder("worker1").rank(1).world_size(2);
        let guest = guest
            .rendezvous(&format!("tcp://127.0.0.1:{port}"))
            .join_timeout(Duration::from_secs(1));
        match guest.join().await {
            Err(Error::Rendezvous(error)) => {
                ensure!(error.to_string().contains(&port.to_string()), "{error}");
            }
            other => bail!("{other:?}"),
        }
        Ok(())
    })
}

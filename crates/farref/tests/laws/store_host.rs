//! The worker that hosts the group's store dies and comes back: the others go on without it, and tell
//! its next life's empty store what they know.

use std::time::Duration;

use anyhow::Context as _;
use farref::{TcpStoreClient, Worker, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;

#[farref::remote]
async fn double(x: u64) -> u64 {
    2 * x
}

fn builder(rank: u32, port: u16) -> WorkerBuilder {
    Worker::builder(format!("w{rank}"))
        .rank(rank)
        .world_size(3)
        .rendezvous(&format!("tcp://127.0.0.1:{port}"))
        .fail_on_leaks(true)
        .join_timeout(Duration::from_secs(30))
}

/// S3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_of_the_store_dies_and_rejoins_its_group() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let (host, first, second) = tokio::try_join!(
        builder(0, port).join(),
        builder(1, port).join(),
        builder(2, port).join()
    )?;
    assert_eq!(double::on(&first.peer("w0")?, 1).await?, 2);

    host.crash().await;
    drop(host);
    let to_second = first.peer("w2")?;
    assert_eq!(double::on(&to_second, 2).await?, 4);
    while first.peer("w0")?.is_alive() || second.peer("w0")?.is_alive() {
        // Whoever has spoken with it notices by itself; the other one asks.
        let _ = double::on(&second.peer("w0")?, 1).await;
        tokio::task::yield_now().await;
    }

    let host = builder(0, port)
        .join()
        .await
        .context("the host's next life")?;
    let back = first.wait_for_peer("w0", Duration::from_secs(30)).await?;
    assert_eq!(double::on(&back, 3).await?, 6);
    assert_eq!(double::on(&host.peer("w2")?, 4).await?, 8);

    let (a, b, c) = tokio::join!(host.shutdown(), first.shutdown(), second.shutdown());
    a?;
    b?;
    c?;
    Ok(())
}

/// S3: without ranks, the first worker on the store's host serves it and others find it taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_without_ranks_needs_nobody_to_host_its_store() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let place = format!("tcp://127.0.0.1:{port}");
    let join = |name: &str| Worker::builder(name).rendezvous(&place).join();
    let first = join("first").await?;
    let second = join("second").await?;
    assert_eq!(double::on(&second.peer("first")?, 5).await?, 10);
    let second_seen = first
        .wait_for_peer("second", Duration::from_secs(30))
        .await?;
    assert_eq!(double::on(&second_seen, 6).await?, 12);
    second.leave().await?;
    first.shutdown().await?;
    Ok(())
}

/// S3: whatever the program does. A member whose only thread is in the middle of something takes the store over,
/// writes the group into it, and newcomers find it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_program_is_busy_takes_the_store_over() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let place = format!("tcp://127.0.0.1:{port}");
    let host = Worker::builder("host").rendezvous(&place).join().await?;
    let (said, is_in) = tokio::sync::oneshot::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let there = place.clone();
    let busy = std::thread::spawn(move || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let member = Worker::builder("member").rendezvous(&there).join().await?;
            let _ = said.send(());
            // Nothing else runs on this runtime meanwhile.
            let _ = held.recv();
            Ok(member.shutdown().await?)
        })
    });
    is_in.await?;
    host.leave().await?;
    drop(host);
    TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .context("nobody has taken the store over")?;
    let newcomer = Worker::builder("newcomer")
        .rendezvous(&place)
        .join()
        .await?;
    newcomer
        .wait_for_peer("member", TEST_TIMEOUT)
        .await
        .context("the newcomer's group is another one")?;
    drop(release);
    newcomer.shutdown().await?;
    tokio::task::spawn_blocking(move || busy.join())
        .await?
        .expect("no panic")
}

/// F3, V1: the numbers that the store has given went with it, and the handles stand for the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_held_peer_reaches_the_next_life_of_the_stores_host() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let place = format!("tcp://127.0.0.1:{port}");
    let join = |name: &str| Worker::builder(name).rendezvous(&place).join();
    let host = join("host").await?;
    let member = join("member").await?;
    let held = member.peer("host")?;
    assert_eq!(double::on(&held, 1).await?, 2);

    let gone = held.gone();
    host.crash().await;
    drop(host);
    tokio::time::timeout(TEST_TIMEOUT, gone).await??;
    assert!(!held.is_alive());
    let host = join("host").await.context("the host's next life")?;
    member.wait_for_peer("host", TEST_TIMEOUT).await?;
    farref_testkit::eventually("the next life is there", || held.is_alive()).await?;
    assert_eq!(double::on(&held, 2).await?, 4);
    let gone = held.gone();
    host.leave().await?;
    tokio::time::timeout(TEST_TIMEOUT, gone).await??;
    member.shutdown().await?;
    Ok(())
}

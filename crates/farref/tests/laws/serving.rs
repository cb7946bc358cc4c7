//! A worker that serves waits as long as others work (guarantee S1a).

use std::time::{Duration, Instant};

use farref::testing::Cluster;
use farref::{Error, Worker};

#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[farref::remote]
async fn endless() {
    std::future::pending().await
}

/// The limit of a shutdown. A busy machine ends a group in less.
const LIMIT: Duration = Duration::from_secs(3);

/// Uses another worker for longer than a shutdown may take.
async fn work(me: &Worker, server: &str) -> farref::Result<()> {
    let server = me.peer(server)?;
    let began = Instant::now();
    while began.elapsed() < LIMIT * 5 / 4 {
        assert_eq!(add::on(&server, 1, 2).await?, 3);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// S1a: the limit of a shutdown is for those who do not come to rest, not for those who work.
#[tokio::test]
async fn s1a_the_clock_of_a_shutdown_starts_when_all_have_asked() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.shutdown_timeout(LIMIT)).await?;
    let servers = [1, 2].map(|n| {
        let server = cluster.worker(n).clone();
        tokio::spawn(async move { server.shutdown().await })
    });
    let me = cluster.worker(0);
    work(me, "worker1").await?;
    work(me, "worker2").await?;
    me.shutdown().await?;
    for server in servers {
        server.await??;
    }
    Ok(())
}

/// S1a, S1: from then on the clock runs, and a call that never returns is named.
#[tokio::test]
async fn s1a_when_all_have_asked_the_clock_runs() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.shutdown_timeout(LIMIT)).await?;
    let (me, server) = (cluster.worker(0), cluster.worker(1).clone());
    let serving = tokio::spawn(async move { server.serve().await });
    work(me, "worker1").await?;
    let pending = endless::on(&me.peer("worker1")?).timeout(None).start();
    // The first to give up is as dead to the other as if it had crashed.
    let outcomes = [me.shutdown().await, serving.await?];
    let mut named = Vec::new();
    for error in outcomes.into_iter().filter_map(Result::err) {
        let Error::ShutdownTimeout {
            waited,
            waiting_for,
            ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(waited, LIMIT);
        named.extend(waiting_for);
    }
    let names_calls = |who: &String| who.contains("with 1 calls");
    assert!(named.iter().any(names_calls), "{named:?}");
    assert!(pending.await.is_err());
    Ok(())
}

/// S1a
#[tokio::test]
async fn who_serves_ends_with_the_others() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(4, |builder| builder.shutdown_timeout(LIMIT)).await?;
    let serving = [1, 2].map(|n| {
        let server = cluster.worker(n).clone();
        tokio::spawn(async move { server.serve().await })
    });
    let [me, other] = [cluster.worker(0), cluster.worker(3)];
    let (mine, others) = tokio::join!(work(me, "worker1"), work(other, "worker2"));
    mine.and(others)?;
    let (mine, others) = tokio::join!(me.shutdown(), other.shutdown());
    mine.and(others)?;
    for server in serving {
        server.await??;
    }
    Ok(())
}

/// S1a, F2: the one who works dies, and with it the reason to serve, in a group of fixed size.
#[tokio::test]
async fn who_serves_a_group_of_fixed_size_does_not_outlast_those_who_work() -> anyhow::Result<()> {
    let cluster = Cluster::start(3).await?;
    let serving = [1, 2].map(|n| {
        let server = cluster.worker(n).clone();
        tokio::spawn(async move { server.serve().await })
    });
    assert_eq!(add::on(&cluster.worker(0).peer("worker1")?, 1, 2).await?, 3);
    cluster.worker(0).crash().await;
    for server in serving {
        server.await??;
    }
    Ok(())
}

/// A worker of a group without a fixed size.
async fn guest(name: &str, place: &str) -> farref::Result<Worker> {
    let builder = Worker::builder(name).rendezvous(place);
    builder.shutdown_timeout(LIMIT).join().await
}

/// S1a, S3: where workers come and go, whoever serves waits for the next ones.
#[tokio::test]
async fn who_serves_a_group_that_grows_waits_for_whoever_comes() -> anyhow::Result<()> {
    let store = farref::StoreServer::bind("127.0.0.1:0").await?;
    let place = format!("tcp://{}", store.local_addr());
    let servers = [
        guest("first", &place).await?,
        guest("second", &place).await?,
    ];
    let serving = servers
        .clone()
        .map(|server| tokio::spawn(async move { server.serve().await }));
    // Comes, works, and goes again: one in good order, one not.
    let visitor = guest("visitor", &place).await?;
    assert_eq!(add::on(&visitor.peer("first")?, 1, 2).await?, 3);
    visitor.leave().await?;
    let unlucky = guest("unlucky", &place).await?;
    assert_eq!(add::on(&unlucky.peer("second")?, 1, 2).await?, 3);
    unlucky.crash().await;
    // Nobody is there who would ask for the end.
    tokio::time::sleep(LIMIT * 5 / 4).await;
    assert!(servers.iter().all(Worker::is_member));
    assert!(serving.iter().all(|serving| !serving.is_finished()));

    let last = guest("last", &place).await?;
    work(&last, "first").await?;
    last.shutdown().await?;
    for server in serving {
        server.await??;
    }
    Ok(())
}

#[farref::remote]
async fn please_leave() -> farref::Result<()> {
    let me = Worker::current().expect("inside of a remote function");
    tokio::spawn(async move { me.leave().await });
    Ok(())
}

/// S1a, S3
#[tokio::test]
async fn who_is_told_to_leave_serves_no_more() -> anyhow::Result<()> {
    let cluster = Cluster::start(2).await?;
    let (me, server) = (cluster.worker(0), cluster.worker(1).clone());
    let serving = tokio::spawn(async move { server.serve().await });
    please_leave::on(&me.peer("worker1")?).await?;
    serving.await??;
    me.shutdown().await?;
    Ok(())
}

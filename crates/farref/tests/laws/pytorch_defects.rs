//! Defects of `torch.distributed.rpc` that were seen in runs of torch 2.15, and the same programs
//! here. The numbers (E1, E2, ...) are those of the runs.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::testing::Cluster;
use farref::{Error, Peer, RRef, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually};

/// Who lives, and what has run to its end, by the name of the test that wants to know.
static COUNTS: Mutex<Option<HashMap<String, i64>>> = Mutex::new(None);

fn counts() -> MutexGuard<'static, Option<HashMap<String, i64>>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(key: &str, change: i64) {
    *counts()
        .get_or_insert_default()
        .entry(key.to_owned())
        .or_default() += change;
}

fn counted(key: &str) -> i64 {
    let counts = counts();
    counts
        .as_ref()
        .and_then(|counts| counts.get(key))
        .copied()
        .unwrap_or(0)
}

/// A value whose life can be watched.
struct Probe {
    key: String,
    training: bool,
}

impl Drop for Probe {
    fn drop(&mut self) {
        count(&self.key, -1);
    }
}

#[farref::remote]
impl Probe {
    pub(crate) fn new(key: String) -> Self {
        count(&key, 1);
        Self {
            key,
            training: true,
        }
    }

    /// Takes its time, without being timed out by the caller.
    pub(crate) async fn slowly(key: String, ms: u64) -> Self {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Self::new(key)
    }

    pub(crate) async fn key(&self) -> String {
        self.key.clone()
    }

    /// What `RemoteModule.train` does.
    pub(crate) fn train(&mut self, mode: bool) {
        self.training = mode;
    }

    pub(crate) fn is_training(&self) -> bool {
        self.training
    }
}

#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[farref::remote]
async fn sleep_ms(ms: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    ms
}

#[farref::remote]
async fn never(key: String) {
    count(&key, 1);
    struct Stopped(String);
    impl Drop for Stopped {
        fn drop(&mut self) {
            count(&self.0, -1);
        }
    }
    let _stopped = Stopped(key);
    std::future::pending().await
}

/// Uses a reference late: long after its caller may have let go of it.
#[farref::remote]
async fn use_later(probe: RRef<Probe>, ms: u64) -> farref::Result<String> {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    probe.key().await
}

/// Hands a reference on to a third worker and lets that one use it.
#[farref::remote]
async fn use_there(probe: RRef<Probe>, there: String) -> farref::Result<String> {
    let Some(me) = Worker::current() else {
        return Ok(String::new());
    };
    use_later::on(&me.peer(&there)?, probe, 0).await
}

/// Shuts a cluster down and looks whether anybody has anything left.
async fn finish(cluster: Cluster) -> Result<()> {
    let workers: Vec<Worker> = cluster.workers().to_vec();
    cluster.shutdown().await?;
    for worker in workers {
        let left = worker.snapshot();
        ensure!(
            left.references.is_empty() && left.open_calls == 0 && left.contexts == 0,
            "left behind: {left:?}"
        );
    }
    Ok(())
}

fn peer(cluster: &Cluster, from: usize, to: usize) -> Result<Peer> {
    let name = cluster.worker(to).name().to_owned();
    Ok(cluster.worker(from).peer(&name)?)
}

/// E1: a control message that is sent again arrives as it was.
///
/// PyTorch moves the payload out of the message at the first write, so every re-send has none: the
/// receiver logs "Unexpected end of pickler archive", the delete of a reference never takes effect and
/// the owner keeps the value.
///
/// Here the first write of the release is lost, over and over, with the connection that carried it.
/// The value is freed all the same, and so are references that were handed to a third worker while
/// every connection broke.
#[tokio::test(flavor = "multi_thread")]
async fn e1_what_is_sent_again_is_what_was_sent() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let owner = peer(&cluster, 0, 1)?;
    for round in 0..5 {
        let key = format!("e1 {round}");
        let probe = Probe::new_on(&owner, key.clone()).remote();
        probe.confirmed().await?;
        let shared = use_there::on(&peer(&cluster, 0, 2)?, probe.clone(), "worker1".into()).start();
        cluster.cut(0, 2);
        cluster.cut(1, 2);
        assert_eq!(shared.await?, key);
        assert_eq!(counted(&key), 1);

        // Whatever says so is written into a pipe that nothing comes out of, and that then breaks.
        cluster.partition(0, 1);
        drop(probe);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(counted(&key), 1, "nothing can have arrived");
        cluster.cut(0, 1);
        cluster.heal(0, 1);
        eventually("the value is freed", || counted(&key) == 0).await?;
    }
    let links = cluster.worker(0).snapshot().peers;
    let link = links.iter().find(|peer| peer.name == "worker1");
    assert!(link.is_some_and(|link| link.connections > 5), "{link:?}");
    finish(cluster).await
}

/// E2: a reference whose creation has not reached its owner does not claim that it has.
///
/// PyTorch's `confirmed_by_owner()` answers True for an RRef whose `remote()` timed out, the second
/// one as well as the first, though the owner knows of neither.
///
/// Here neither is confirmed while the owner cannot be reached, fetching either is a typed
/// `Timeout`, and both are confirmed when the owner is there again.
#[tokio::test(flavor = "multi_thread")]
async fn e2_a_creation_that_timed_out_is_not_confirmed() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let owner = peer(&cluster, 0, 1)?;
    add::on(&owner, 1, 1).await?;

    cluster.partition(0, 1);
    let short = Duration::from_millis(50);
    for _ in 0..2 {
        let probe = Probe::new_on(&owner, "e2".into()).timeout(short).remote();
        let Err(Error::Timeout { limit, .. }) = probe.key().timeout(short).await else {
            panic!("nobody can have answered");
        };
        assert_eq!(limit, short);
        let confirmed = tokio::time::timeout(short, probe.confirmed()).await;
        assert!(
            confirmed.is_err(),
            "the owner cannot know of it: {confirmed:?}"
        );
    }
    let late = Probe::new_on(&owner, "e2 late".into()).remote();
    cluster.heal(0, 1);
    late.confirmed().await?;
    assert_eq!(late.key().await?, "e2 late");
    drop(late);

    eventually("nothing is left of them", || counted("e2") == 0).await?;
    finish(cluster).await
}

/// E2, the other half: a constructor that overran its time limit says so, each time.
#[tokio::test(flavor = "multi_thread")]
async fn e2_a_constructor_that_overran_its_limit_says_so_at_every_use() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let owner = peer(&cluster, 0, 1)?;
    for _ in 0..2 {
        let limit = Duration::from_millis(20);
        let probe = Probe::slowly_on(&owner, "e2 slow".into(), 60_000)
            .timeout(limit)
            .remote();
        // The owner has it registered, which is what was asked.
        probe.confirmed().await?;
        for _ in 0..2 {
            let error = probe.key().await.unwrap_err();
            assert!(
                error.to_string().contains("Probe::slowly"),
                "names what was too slow: {error}"
            );
        }
    }
    assert_eq!(counted("e2 slow"), 0);
    finish(cluster).await
}

/// E3: a killed worker is an error for those who need it, and no trouble for the rest.
///
/// In PyTorch the RRef whose `remote()` was in flight stays pending for ever, there is never a new
/// connection, and the survivors' graceful shutdown does not return.
///
/// Here its calls fail with `PeerLost`, references to its values with `OwnerLost`, the survivors work
/// on, what it held is freed, and the shutdown ends with nothing left.
#[tokio::test(flavor = "multi_thread")]
async fn e3_a_killed_worker_leaves_nothing_pending() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let victim = peer(&cluster, 0, 2)?;
    let survivor = peer(&cluster, 0, 1)?;

    let held_by_victim = Probe::new_on(&survivor, "e3 held".into()).remote();
    assert_eq!(held_by_victim.key().await?, "e3 held");
    let there = use_later::on(&victim, held_by_victim.clone(), 600_000).start();
    eventually("the victim has the reference", || {
        let owned = cluster.worker(1).snapshot().references;
        owned
            .iter()
            .any(|it| it.holders.iter().any(|holder| holder == "worker2"))
    })
    .await?;
    drop(held_by_victim);
    assert_eq!(counted("e3 held"), 1, "the victim still holds it");

    let value = Probe::new_on(&victim, "e3 value".into()).remote();
    assert_eq!(value.key().await?, "e3 value");
    let pending = never::on(&victim, "e3 never".into()).start();
    let in_flight = Probe::slowly_on(&victim, "e3 in flight".into(), 600_000).remote();
    let unmade = never::on(&victim, "e3 fetched".into()).remote();
    let fetched = unmade.to_here().start();

    cluster.crash(2).await;

    assert!(matches!(pending.await, Err(Error::PeerLost { peer, .. }) if &*peer == "worker2"));
    assert!(matches!(there.await, Err(Error::PeerLost { peer, .. }) if &*peer == "worker2"));
    // Nothing ran that could have had an effect: what is lost is the value (F2).
    let fetched = fetched.await;
    drop(unmade);
    assert!(
        matches!(&fetched, Err(Error::OwnerLost { owner }) if &**owner == "worker2"),
        "{fetched:?}"
    );
    for lost in [&value, &in_flight] {
        let used = lost.key().await;
        assert!(
            matches!(&used, Err(Error::OwnerLost { owner }) if &**owner == "worker2"),
            "{used:?}"
        );
    }
    let confirmed = in_flight.confirmed().await;
    assert!(
        matches!(confirmed, Err(Error::OwnerLost { .. })),
        "{confirmed:?}"
    );
    let again = add::on(&victim, 1, 2).await;
    assert!(matches!(again, Err(Error::PeerLost { .. })), "{again:?}");

    eventually("what the victim held is freed", || counted("e3 held") == 0).await?;
    assert_eq!(add::on(&survivor, 1, 2).await?, 3);
    drop((value, in_flight));
    finish(cluster).await
}

/// E4: a result that nobody uses holds up nothing and leaks nothing.
///
/// In PyTorch, `backward` waits for a gradient of every RPC made in the context, also of one whose
/// result the loss does not use: it fails with a timeout, or hangs for ever.
///
/// Distributed autograd is not there yet. This is the part that the runtime can show: calls that were
/// made and never awaited, results that were left there and never fetched, and one result used out of
/// two, with a shutdown that does not wait for any of them.
#[tokio::test(flavor = "multi_thread")]
async fn e4_results_that_nobody_uses_hold_up_nothing() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let there = peer(&cluster, 0, 1)?;

    let used = add::on(&there, 1, 2).start();
    let unused = never::on(&there, "e4 never".into()).start();
    eventually("it runs", || counted("e4 never") == 1).await?;
    assert_eq!(used.await?, 3);
    drop(unused);
    eventually("it is stopped", || counted("e4 never") == 0).await?;

    let used = Probe::new_on(&there, "e4 used".into()).remote();
    let unused = Probe::new_on(&there, "e4 unused".into()).remote();
    let unmade = Probe::slowly_on(&there, "e4 unmade".into(), 50).remote();
    assert_eq!(used.key().await?, "e4 used");
    drop((used, unused, unmade));
    for key in ["e4 used", "e4 unused", "e4 unmade"] {
        eventually("it is freed", || counted(key) == 0).await?;
    }
    finish(cluster).await
}

/// E5: a result is not lost because whoever began the call has gone on.
///
/// In PyTorch, when the context exits while an RPC started in it still runs, the function succeeds and
/// the caller gets "Couldn't find autograd context data for current autograd context id".
///
/// Contexts are not there yet. The runtime's counterpart: the task that made the calls ends, and drops
/// its references, while the calls that use them still run. What they compute reaches everyone who
/// holds a reference to it, and then everything is freed.
#[tokio::test(flavor = "multi_thread")]
async fn e5_a_result_outlives_the_task_that_asked_for_it() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (owner, user) = (peer(&cluster, 0, 2)?, peer(&cluster, 0, 1)?);

    let task = tokio::spawn(async move {
        let probe = Probe::new_on(&owner, "e5".into()).remote();
        let pending = use_later::on(&user, probe.clone(), 200).start();
        let left_there = use_later::on(&user, probe, 200).remote();
        // The task ends here, before either call has looked at the value.
        (pending, left_there)
    });
    let (pending, left_there) = task.await?;
    assert!(counted("e5") <= 1);
    let other_holder = left_there.clone();
    drop(left_there);
    assert_eq!(pending.await?, "e5");
    assert_eq!(other_holder.to_here().await?, "e5");
    drop(other_holder);
    eventually("the value is freed", || counted("e5") == 0).await?;
    finish(cluster).await
}

/// E7: half a millisecond is half a millisecond.
///
/// PyTorch casts a timeout to whole milliseconds, and 0 means unlimited: `timeout=0.0005` never times
/// out.
///
/// Here a call that would never end is given 0.5 ms, and then nothing at all: both end, with an error
/// that says how long they were given, and the function is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn e7_a_timeout_below_a_millisecond_is_not_infinite() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let there = peer(&cluster, 0, 1)?;
    for limit in [
        Duration::from_micros(500),
        Duration::from_nanos(1),
        Duration::ZERO,
    ] {
        let Err(Error::Timeout { limit: given, .. }) =
            never::on(&there, "e7".into()).timeout(limit).await
        else {
            panic!("a function that never ends was not timed out");
        };
        assert_eq!(given, limit);
    }
    eventually("it is stopped", || counted("e7") == 0).await?;
    // The other end of the scale.
    assert_eq!(sleep_ms::on(&there, 20).timeout(Duration::MAX).await?, 20);
    assert_eq!(sleep_ms::on(&there, 20).timeout(None).await?, 20);
    finish(cluster).await
}

/// E8: a process may join, shut down and join again, and references work each time.
///
/// PyTorch's reference table is a singleton bound to the first agent: after `init_rpc`, `shutdown`,
/// `init_rpc` the passing of an RRef fails ("RPC is no longer running on this node") and deletes are
/// never sent.
///
/// Here the same two workers meet at the same address three times over, in this one process.
#[tokio::test(flavor = "multi_thread")]
async fn e8_references_work_after_every_new_start() -> Result<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    for round in 0..3 {
        let key = format!("e8 {round}");
        let joining = |rank| {
            let builder = Worker::builder(format!("worker{rank}"))
                .rank(rank)
                .world_size(2)
                .rendezvous(&format!("tcp://127.0.0.1:{port}"))
                .fail_on_leaks(true);
            tokio::spawn(builder.join())
        };
        let (a, b) = (joining(0), joining(1));
        let (a, b) = (a.await??, b.await??);

        let there = a.peer("worker1")?;
        let probe = Probe::new_on(&there, key.clone()).remote();
        assert_eq!(probe.key().await?, key);
        // Handed to its owner, and back to where it came from.
        assert_eq!(use_later::on(&there, probe.clone(), 0).await?, key);
        assert_eq!(
            use_there::on(&there, probe.clone(), "worker0".into()).await?,
            key
        );
        drop(probe);
        eventually("deletes are sent", || counted(&key) == 0).await?;

        let (first, second) = tokio::join!(a.shutdown(), b.shutdown());
        first?;
        second?;
        for worker in [a, b] {
            let left = worker.snapshot();
            ensure!(
                left.references.is_empty() && left.open_calls == 0,
                "{left:?}"
            );
        }
    }
    Ok(())
}

/// E10: an argument that is given is an argument that is received.
///
/// PyTorch's `RemoteModule.train(False)` drops its argument: the remote module stays in training mode.
#[tokio::test(flavor = "multi_thread")]
async fn e10_an_argument_given_is_an_argument_received() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let module = Probe::new_on(&peer(&cluster, 0, 1)?, "e10".into()).remote();
    assert!(module.is_training().await?);
    for mode in [false, true, false, false, true] {
        module.train(mode).await?;
        assert_eq!(module.is_training().await?, mode);
        // Left there, as well: what comes after it on the same value comes after it.
        drop(module.train(!mode).remote());
        assert_eq!(module.is_training().await?, !mode);
    }
    drop(module);
    finish(cluster).await
}

/// E11: names may have hyphens in them.
///
/// PyTorch keeps the members of a dynamic group as "name-id," in one string and splits it at `-`: the
/// second worker to join dies with "stoi".
///
/// Here a group without a fixed size grows by names that are all hyphens, digits and other names'
/// beginnings, and everyone can be called by everyone, also after some have left.
#[tokio::test(flavor = "multi_thread")]
async fn e11_names_with_hyphens_join_and_leave() -> Result<()> {
    let names = [
        "trainer-0",
        "trainer-0-1",
        "ps-1-2-3",
        "-",
        "--",
        "7-7",
        "a_b:c-d.e",
    ];
    let mut cluster = Cluster::start(0).await?;
    for name in names {
        cluster.join(name).await?;
    }
    for from in cluster.workers() {
        for to in names {
            let to = from.wait_for_peer(to, TEST_TIMEOUT).await?;
            assert_eq!(add::on(&to, 1, 2).await?, 3);
        }
    }
    cluster.worker(1).leave().await?;
    cluster.worker(4).leave().await?;
    cluster.join("trainer-0-").await?;
    let newcomer = cluster.worker(names.len());
    for name in ["trainer-0", "ps-1-2-3", "-", "7-7"] {
        let there = newcomer.wait_for_peer(name, TEST_TIMEOUT).await?;
        assert_eq!(add::on(&there, 1, 2).await?, 3);
    }
    finish(cluster).await
}

/// E13: a member that is gone without leaving does not keep others from joining.
///
/// In PyTorch the next to join fails, and while it holds the join token it tries to take the leave
/// token: it waits for itself until the store times out, the token is never given back, and nobody can
/// ever join again.
///
/// Here two members crash, one before and one right while others join; all that come later are let
/// in, also one under the name of the dead, and references to third workers reach them.
#[tokio::test(flavor = "multi_thread")]
async fn e13_members_that_vanish_do_not_keep_others_out() -> Result<()> {
    let mut cluster = Cluster::start(0).await?;
    for name in ["a", "b", "c", "d"] {
        cluster.join(name).await?;
    }
    let probe = Probe::new_on(&cluster.worker(0).peer("c")?, "e13".into()).remote();
    assert_eq!(probe.key().await?, "e13");

    cluster.crash(1).await;
    cluster.join("e").await?;
    let (_, joined) = tokio::join!(cluster.worker(3).crash(), cluster.builder("f").join());
    let f = joined?;
    // The name of a dead worker is free.
    cluster.join("b").await?;

    for name in ["e", "f", "b"] {
        let newcomer = cluster.worker(0).wait_for_peer(name, TEST_TIMEOUT).await?;
        assert_eq!(use_later::on(&newcomer, probe.clone(), 0).await?, "e13");
    }
    drop(probe);
    eventually("the value is freed", || counted("e13") == 0).await?;
    let (shut_down, f) = tokio::join!(finish(cluster), f.shutdown());
    f?;
    shut_down
}

//! A group to look at, of real processes: it calls, fails, leaks, blocks, and has a worker that is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use farref::context::{ContextId, ContextScope, Extension};
use farref::{Peer, RRef, StoreServer, Worker};
use tokio::sync::Barrier;

/// Tells this program that it is a worker, and which.
const RANK: &str = "FARREF_DASHBOARD_TEST_RANK";
const PLACE: &str = "FARREF_DASHBOARD_TEST_PLACE";
pub(crate) const TOKEN: &str = "a token of the test";
pub(crate) const NAMES: [&str; 4] = ["conductor", "keeper", "reader", "victim"];

/// A name that would be a script, if a page took it for one.
pub(crate) const EVIL: &str =
    "evil::<script>window.harmed=true</script><img/src=x/onerror='window.harmed=true'>";

/// The line of this file that leaks.
pub(crate) const LEAK: &str = "command/dashboard/group.rs";

/// Runs as a worker, if this process was started as one.
pub(crate) fn work_if_told() -> Option<anyhow::Result<()>> {
    let rank: usize = std::env::var(RANK).ok()?.parse().ok()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    Some(
        runtime
            .map_err(anyhow::Error::from)
            .and_then(|runtime| runtime.block_on(work(rank))),
    )
}

async fn work(rank: usize) -> anyhow::Result<()> {
    let place = std::env::var(PLACE)?;
    let me = Worker::builder(*NAMES.get(rank).context("no such rank")?)
        .rank(rank as u32)
        .world_size(NAMES.len() as u32)
        .rendezvous(&place)
        .token(TOKEN)
        .store_is_hosted_elsewhere()
        .join()
        .await?;
    me.extension::<Steps>();
    println!("joined");
    if rank == 0 {
        conduct(&me).await?;
    }
    std::future::pending().await
}

/// Stands for what keeps records in contexts, such as distributed autograd.
#[derive(Default)]
struct Steps;

impl Extension for Steps {
    fn describe(&self, _: ContextId) -> Option<String> {
        Some("passes: 1, sent: 2".to_owned())
    }
}

/// What there is to be seen.
async fn conduct(me: &Worker) -> anyhow::Result<()> {
    let (keeper, reader) = (me.peer("keeper")?, me.peer("reader")?);
    let victim = me.peer("victim")?;
    // Two that wait for each other.
    let one = Chest::new_on(&keeper).remote();
    let other = Chest::new_on(&reader).remote();
    let first = one.swap_with(other.clone()).start();
    let second = other.swap_with(one.clone()).start();
    // One that waits for one that does not end.
    let busy = Chest::new_on(&keeper).remote();
    let held = busy.hold().start();
    let blocked = busy.look().start();
    me.publish("shop/front", &one)?;
    let scope = ContextScope::open(me)?;
    scope.run(async { relay::on(&keeper, 0).await }).await?;
    let of_victim: RRef<u64> = number::on(&victim, 7).remote();

    let mut leaked = Vec::new();
    for n in 0_u64.. {
        relay::on(&keeper, n).await?;
        evil::on(&reader).await?;
        let _ = fail::on(&reader).await;
        if n % 4 == 0 && leaked.len() < 4000 {
            leaked.push(number::on(&keeper, n).remote());
        }
        let _ = number::on(&victim, n).timeout(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop((first, second, held, blocked, scope, of_victim, leaked));
    Ok(())
}

/// A value that calls use.
struct Chest;

#[farref::remote(name = "shop::Chest")]
impl Chest {
    pub(crate) async fn new() -> Self {
        Self
    }

    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "it has the value to itself"
    )]
    pub(crate) async fn swap_with(&mut self, other: RRef<Self>) -> farref::Result<()> {
        // Both use their own value before they ask for the other's.
        let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
        meet::on(&me.peer("conductor")?).await?;
        other.hold().await
    }

    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "it has the value to itself"
    )]
    pub(crate) async fn hold(&mut self) {
        std::future::pending().await
    }

    pub(crate) async fn look(&self) {}
}

/// Returns once it has been called twice.
#[farref::remote(name = "shop::meet")]
async fn meet() {
    static BOTH: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
    BOTH.wait().await;
}

#[farref::remote(name = "shop::relay")]
async fn relay(n: u64) -> farref::Result<u64> {
    let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
    let reader: Peer = me.peer("reader")?;
    number::on(&reader, n).await
}

#[farref::remote(name = "shop::number")]
async fn number(n: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(2)).await;
    n
}

#[farref::remote(
    name = "evil::<script>window.harmed=true</script><img/src=x/onerror='window.harmed=true'>"
)]
async fn evil() {}

#[farref::remote(name = "shop::fail")]
async fn fail() -> Result<(), String> {
    Err("as it should".to_owned())
}

/// The group's processes.
pub(crate) struct Group {
    _store: StoreServer,
    pub(crate) place: String,
    workers: Vec<Child>,
}

impl Group {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = store.local_addr().to_string();
        let mut workers = Vec::new();
        for rank in 0..NAMES.len() {
            let worker = Command::new(std::env::current_exe()?)
                .env(RANK, rank.to_string())
                .env(PLACE, format!("tcp://{place}"))
                .stdout(Stdio::piped())
                .spawn()?;
            workers.push(worker);
        }
        let mut group = Self {
            _store: store,
            place,
            workers,
        };
        for worker in &mut group.workers {
            let out = worker.stdout.take().context("no output")?;
            let line = tokio::task::spawn_blocking(move || BufReader::new(out).lines().next());
            let line = line.await?.context("a worker did not join")??;
            anyhow::ensure!(line == "joined", "{line}");
        }
        Ok(group)
    }

    /// As the system does it when memory runs out.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let rank = NAMES
            .iter()
            .position(|known| *known == name)
            .context("no such worker")?;
        let worker = self.workers.get_mut(rank).context("no such worker")?;
        worker.kill()?;
        worker.wait()?;
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

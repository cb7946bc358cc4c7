//! Groups on PyTorch's wire whose workers are all Rust's, in one process: what needs no Python to be seen.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farref::{Error, RRef, Store, StoreServer, TcpStoreClient, Worker};
use farref_torch::TorchGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Nothing takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// A port that nobody has at the moment.
fn free_port() -> u16 {
    // Not one that the system gives whoever asks for any.
    let is_free = |port: &u16| std::net::TcpListener::bind((HERE, *port)).is_ok();
    let ports = std::iter::repeat_with(|| fastrand::u16(20_000..30_000));
    ports.take(1_000).find(is_free).expect("a port")
}

fn member(name: &str, rank: u16, port: u16) -> TorchGroup {
    TorchGroup::new(name)
        .master("127.0.0.1", port)
        .rank(rank)
        .address(HERE)
        .dynamic()
}

/// A static group of workers with these names.
async fn group<const N: usize>(names: [&str; N]) -> [Worker; N] {
    group_at(free_port(), names).await
}

/// The same, whose store is at that port.
async fn group_at<const N: usize>(port: u16, names: [&str; N]) -> [Worker; N] {
    let mut joining = tokio::task::JoinSet::new();
    for (rank, name) in (0..).zip(names) {
        let world = u16::try_from(N).expect("a small group");
        let member = member(name, rank, port).world_size(world);
        joining.spawn(async move { (rank, member.join().await.expect("joined")) });
    }
    let mut joined = timeout(HANG, joining.join_all()).await.expect("no hanging");
    joined.sort_by_key(|(rank, _)| *rank);
    let workers: Vec<Worker> = joined.into_iter().map(|(_, worker)| worker).collect();
    workers.try_into().expect("all of them")
}

/// TA-6: between two followers of a gathering there is no pipe before the first call.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_to_a_peer_may_come_from_a_thread_without_a_runtime() {
    let workers = group(["a", "b", "c"]).await;
    let c = workers[1].peer("c").expect("a member");
    let (sender, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(add::on(&c, 1, 2).wait()));
    let answer = timeout(HANG, answer).await.expect("no hanging");
    assert_eq!(answer.expect("no panic").expect("an answer"), 3);
    let [a, b, c] = &workers;
    let ends = timeout(HANG, async {
        tokio::join!(a.shutdown(), b.shutdown(), c.shutdown())
    });
    let (a, b, c) = ends.await.expect("no hanging");
    a.and(b).and(c).expect("a graceful end");
}

/// Ends a group of which one has died, and says what each of the others reads.
async fn ends_without<const N: usize>(workers: [Worker; N], dead: &str) -> Vec<(String, Error)> {
    let mut ending = tokio::task::JoinSet::new();
    let mut dies = None;
    for worker in workers {
        match worker.name() == dead {
            true => dies = Some(worker),
            false => drop(ending.spawn(async move {
                let ended = worker.shutdown().await;
                (
                    worker.name().to_owned(),
                    ended.expect_err("one of them is gone"),
                )
            })),
        }
    }
    // The others wait by then, for the one that has not asked for the end.
    tokio::time::sleep(Duration::from_millis(200)).await;
    dies.expect("a member").crash().await;
    timeout(HANG, ending.join_all()).await.expect("no hanging")
}

/// TA-7, in groups of two: the one that waits learns of the death, whichever it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_when_the_other_worker_dies() {
    for dead in ["a", "b"] {
        for _ in 0..10 {
            for (name, error) in ends_without(group(["a", "b"]).await, dead).await {
                assert!(
                    error.to_string().contains(&format!("`{dead}` is gone")),
                    "{name}: {error}"
                );
            }
        }
    }
}

/// TA-7: nobody has to say anything to the dead one to notice, and all name the same. They agree on it in the store, whose
/// host is not the one that dies.
#[tokio::test(flavor = "multi_thread")]
async fn all_learn_who_died_though_they_never_spoke_to_it() {
    for dead in ["a", "b", "d"] {
        for (name, error) in ends_without(group(["host", "a", "b", "d"]).await, dead).await {
            assert!(
                error.to_string().contains(&format!("`{dead}` is gone")),
                "{name}: {error}"
            );
        }
    }
}

/// TA-7: whoever notices says so in the store, and all name the one that was told there first. What they see themselves may be
/// one that went because of it.
#[tokio::test(flavor = "multi_thread")]
async fn ta_7_all_name_the_one_that_was_missed_first() {
    let port = free_port();
    let workers = group_at(port, ["host", "a", "b", "d"]).await;
    let first = "rpc_prefix_0/shutdown/FARREF_LOST";
    let told = store(port).await.set(first, b"first").await;
    told.expect("the store");
    for (name, error) in ends_without(workers, "d").await {
        assert!(
            error.to_string().contains("`first` is gone"),
            "{name}: {error}"
        );
    }
}

const LIST: &str = "rpc_prefix_0/names/_ALL_WORKER_INFOS";
const TURN: &str = "rpc_prefix_0/RpcGroupManagementToken";

async fn store(port: u16) -> TcpStoreClient {
    let store = TcpStoreClient::connect("127.0.0.1", port, HANG).await;
    store.expect("the store")
}

async fn text(store: &TcpStoreClient, key: &str) -> String {
    let value = store.try_get(key).await.expect("the store");
    String::from_utf8(value.unwrap_or_default().to_vec()).expect("a text")
}

/// Waits until a key of the store is so.
async fn until(store: &TcpStoreClient, key: &str, is_so: impl Fn(&str) -> bool) {
    let waiting = async {
        while !is_so(&text(store, key).await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(HANG, waiting).await;
    let now = text(store, key).await;
    waited.unwrap_or_else(|_| panic!("{key} is {now:?}"));
}

/// Another worker joins, is reached, and leaves.
async fn comes_and_goes(name: &str, rank: u16, port: u16, host: &Worker) {
    let newcomer = timeout(HANG, member(name, rank, port).join()).await;
    let newcomer = newcomer.expect("no hanging").expect("joined");
    let sum = add::on(&host.peer(name).expect("a member"), 1, 2).await;
    assert_eq!(sum.expect("an answer"), 3);
    let left = timeout(HANG, newcomer.shutdown()).await;
    left.expect("no hanging").expect("left");
}

/// Puts a member on the list that takes connections, and says nothing.
async fn silent_member(store: &TcpStoreClient) -> std::net::TcpListener {
    let silent = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", silent.local_addr().expect("an address"));
    let set = store
        .set("rpc_prefix_0/addrs/silent", address.as_bytes())
        .await;
    set.expect("the store");
    store.set(LIST, b"silent-7,").await.expect("the store");
    silent
}

/// GR-2, GR-4: nobody else could join or leave if its turn stayed with a worker that is no more. There is no other worker that
/// would give it up for it.
#[tokio::test(flavor = "multi_thread")]
async fn gr_4_a_join_that_is_given_up_leaves_the_group_as_it_was() {
    let server = StoreServer::bind("127.0.0.1:0").await.expect("a store");
    let port = server.local_addr().port();
    let store = store(port).await;
    let _silent = silent_member(&store).await;
    let join = |name, rank| member(name, rank, port).host_store(false).join();
    let joining = tokio::spawn(join("b", 1));
    until(&store, TURN, |turn| turn == "Token_for_b_join").await;
    until(&store, LIST, |list| list.contains("b-1,")).await;
    joining.abort();
    drop(joining.await);
    until(&store, TURN, str::is_empty).await;
    assert_eq!(text(&store, LIST).await, "silent-7,");
    // So the next one can come, once the silent one is off the list.
    store.set(LIST, b"").await.expect("the store");
    let next = timeout(HANG, join("c", 2)).await.expect("no hanging");
    let next = next.expect("joined");
    let left = timeout(HANG, next.shutdown()).await;
    left.expect("no hanging").expect("left");
    server.close().await;
}

/// A way to the store at that port which takes so many milliseconds, in the direction of the store.
async fn slow_way_to(port: u16, takes: &'static AtomicU64) -> u16 {
    let listener = tokio::net::TcpListener::bind((HERE, 0)).await;
    let listener = listener.expect("a port");
    let slow = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let to = tokio::net::TcpStream::connect((HERE, port)).await;
            let (mut asked, mut answers) = from.into_split();
            let (mut answered, mut asks) = to.expect("the store").into_split();
            tokio::spawn(async move { tokio::io::copy(&mut answered, &mut answers).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 4096];
                while let Ok(read @ 1..) = asked.read(&mut bytes).await {
                    let takes = Duration::from_millis(takes.load(Ordering::Relaxed));
                    tokio::time::sleep(takes).await;
                    if asks.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    slow
}

/// GR-4: the worker that joined, and the turn, are dropped at the same time, and the one does not wait for the other for long.
/// There is no other worker that would give the turn up for it.
#[tokio::test(flavor = "multi_thread")]
async fn gr_4_a_turn_is_given_up_though_the_store_takes_its_time() {
    static TAKES: AtomicU64 = AtomicU64::new(0);
    let server = StoreServer::bind("127.0.0.1:0").await.expect("a store");
    let port = server.local_addr().port();
    let store = store(port).await;
    let silent = silent_member(&store).await;
    let joining = member("b", 1, slow_way_to(port, &TAKES).await);
    let joining = tokio::spawn(joining.host_store(false).join());
    until(&store, LIST, |list| list.contains("b-1,")).await;
    // It asks the silent one, which has it wait.
    silent.accept().expect("a connection");
    TAKES.store(300, Ordering::Relaxed);
    joining.abort();
    drop(joining.await);
    until(&store, TURN, str::is_empty).await;
    assert_eq!(text(&store, LIST).await, "silent-7,");
    server.close().await;
}

/// GR-4: a process may end when its worker has, so the worker waits a moment for it.
#[tokio::test(flavor = "multi_thread")]
async fn gr_4_a_worker_that_ends_has_given_its_turn_up() {
    static TAKES: AtomicU64 = AtomicU64::new(0);
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let store = store(port).await;
    let leaver = member("b", 1, slow_way_to(port, &TAKES).await).join();
    let leaver = timeout(HANG, leaver).await.expect("no hanging");
    let leaver = leaver.expect("joined");
    // It goes when its own calls are answered.
    let nap = nap::on(&leaver.peer("a").expect("a member"), 60_000).start();
    let leaves = leaver.clone();
    let leaving = tokio::spawn(async move { leaves.shutdown().await });
    until(&store, TURN, |turn| turn == "Token_for_b_leave").await;
    TAKES.store(50, Ordering::Relaxed);
    leaving.abort();
    drop(leaving.await);
    leaver.crash().await;
    assert_eq!(text(&store, TURN).await, "");
    assert_eq!(text(&store, LIST).await, "a-0,");
    drop(nap);
    host.crash().await;
}

/// GR-2: a member whose name is none in farref's eyes.
#[tokio::test(flavor = "multi_thread")]
async fn gr_2_a_worker_that_fails_to_start_is_not_in_the_list() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let store = store(port).await;
    let odd = "x".repeat(2000);
    let key = format!("rpc_prefix_0/addrs/{odd}");
    let set = store.set(&key, b"uv://127.0.0.1:1").await;
    set.expect("the store");
    let list = format!("a-0,{odd}-7,");
    store.set(LIST, list.as_bytes()).await.expect("the store");
    let joined = timeout(HANG, member("b", 1, port).join()).await;
    joined.expect("no hanging").expect_err("no such name");
    assert_eq!(text(&store, TURN).await, "");
    assert_eq!(text(&store, LIST).await, list);
    host.crash().await;
}

/// GR-4: nor is it lost with a shutdown that has to end without an answer of a member.
#[tokio::test(flavor = "multi_thread")]
async fn gr_4_a_shutdown_whose_time_is_up_gives_its_turn_up() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let store = store(port).await;
    // A member on a runtime of its own, which stands still when it is told to.
    let (joined, is_there) = tokio::sync::oneshot::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let (standing, stands) = tokio::sync::oneshot::channel();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let worker = member("stopped", 1, port).join().await.expect("joined");
            joined.send(()).expect("the test");
            let () = stopped.await.expect("the test");
            standing.send(()).expect("the test");
            let _ = goes_on.recv();
            worker.crash().await;
        });
    });
    is_there.await.expect("joined");
    let leaver = member("b", 2, port).worker(|it| it.shutdown_timeout(Duration::from_secs(1)));
    let leaver = timeout(HANG, leaver.join())
        .await
        .expect("no hanging")
        .expect("joined");
    stop.send(()).expect("the other");
    stands.await.expect("the other");
    let left = timeout(HANG, leaver.shutdown()).await.expect("no hanging");
    left.expect_err("one of them does not answer");
    until(&store, TURN, str::is_empty).await;
    assert_eq!(text(&store, LIST).await, "a-0,stopped-1,");
    drop(go_on);
    other.join().expect("no panic");
    host.crash().await;
}

/// GR-5, MR-1: whoever comes would call it in vain, and if it had its turn, nobody would ever come. Two members notice, and
/// two die at once.
#[tokio::test(flavor = "multi_thread")]
async fn gr_5_members_that_die_keep_nobody_from_coming() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let other = member("b", 1, port).join().await.expect("joined");
    let store = store(port).await;
    for (rank, turn) in [(2, ""), (4, "leave"), (6, "join"), (8, "remove0")] {
        let mut die = Vec::new();
        for rank in [rank, rank + 1] {
            let dies = timeout(HANG, member(&format!("dies{rank}"), rank, port).join()).await;
            die.push(dies.expect("no hanging").expect("joined"));
        }
        if !turn.is_empty() {
            let token = format!("Token_for_dies{rank}_{turn}");
            let set = store.set(TURN, token.as_bytes()).await;
            set.expect("the store");
        }
        let [first, second] = &die[..] else {
            unreachable!("two of them");
        };
        tokio::join!(first.crash(), second.crash());
        until(&store, LIST, |list| list == "a-0,b-1,").await;
    }
    comes_and_goes("c", 10, port, &host).await;
    let left = timeout(HANG, other.shutdown()).await;
    left.expect("no hanging").expect("left");
    until(&store, LIST, |list| list == "a-0,").await;
    until(&store, TURN, str::is_empty).await;
    host.crash().await;
}

/// MR-5: somebody else has the turn for longer than it is waited for. It is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn mr_5_one_that_is_gone_is_taken_off_when_the_turn_is_free() {
    let port = free_port();
    let host = member("a", 0, port).join_timeout(Duration::from_secs(1));
    let host = host.join().await.expect("joined");
    let dies = timeout(HANG, member("b", 1, port).join()).await;
    let dies = dies.expect("no hanging").expect("joined");
    let store = store(port).await;
    let other = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", other.local_addr().expect("an address"));
    let set = store.set("rpc_prefix_0/addrs/other", address.as_bytes());
    set.await.expect("the store");
    let set = store.set(TURN, b"Token_for_other_leave").await;
    set.expect("the store");
    dies.crash().await;
    // It has waited for its turn once by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(text(&store, LIST).await, "a-0,b-1,");
    store.set(TURN, b"").await.expect("the store");
    until(&store, LIST, |list| list == "a-0,").await;
    until(&store, TURN, str::is_empty).await;
    host.crash().await;
}

#[farref::remote]
async fn nap(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// A worker that leaves has told the others, and its own calls are answered all the same, before it goes.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_worker_that_leaves_are_answered() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let leaver = timeout(HANG, member("b", 1, port).join()).await;
    let leaver = leaver.expect("no hanging").expect("joined");
    let a = leaver.peer("a").expect("a member");
    // For longer than it waits before it says that it leaves.
    let calls: Vec<_> = (0..3).map(|_| nap::on(&a, 4000).start()).collect();
    let left = timeout(HANG, leaver.shutdown()).await;
    left.expect("no hanging").expect("left");
    for call in calls {
        call.await.expect("an answer");
    }
    host.crash().await;
}

/// Whoever drops a shutdown in the rounds of the store, and asks for it again, has been counted and is not once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gives_a_shutdown_up_in_the_rounds_is_counted_once() {
    let port = free_port();
    let [a, b, c] = group_at(port, ["a", "b", "c"]).await;
    let store = store(port).await;
    let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
    let others = [&a, &c].map(|worker| {
        let worker = worker.clone();
        tokio::spawn(async move {
            // The first of them comes late to the rounds.
            let late = worker.peer("b").expect("a member");
            let nap = (worker.name() == "a").then(|| nap::on(&late, 2000).start());
            let ended = worker.shutdown().await;
            drop(nap);
            ended
        })
    });
    let impatient = b.clone();
    let given_up = tokio::spawn(async move { impatient.shutdown().await });
    until(&store, round, |count| count == "2").await;
    given_up.abort();
    drop(given_up.await);
    let ended = timeout(HANG, async { tokio::join!(b.shutdown(), b.serve()) }).await;
    let (ended, served) = ended.expect("no hanging");
    ended.and(served).expect("a graceful end");
    for other in others {
        let ended = timeout(HANG, other).await.expect("no hanging");
        ended.expect("no panic").expect("a graceful end");
    }
}

/// Their shutdowns fail, and say who is gone.
async fn all_name_somebody<const N: usize>(shutdowns: [JoinHandle<farref::Result<()>>; N]) {
    for shutdown in shutdowns {
        let ended = timeout(HANG, shutdown).await.expect("no hanging");
        let error = ended.expect("no panic").expect_err("one of them is gone");
        let text = error.to_string();
        assert!(
            text.contains("worker `") && text.contains("is gone"),
            "{text}"
        );
    }
}

/// TA-7: the host of the store dies while the others wait in its rounds, and the store with it. They are told who is gone, and
/// not only that the store is. Without it they cannot agree on the first: each names the one whose pipe it saw end.
#[tokio::test(flavor = "multi_thread")]
async fn ta_7_all_name_somebody_when_the_store_dies_with_its_host_in_the_rounds() {
    for _ in 0..5 {
        let port = free_port();
        let [a, b, c] = group_at(port, ["a", "b", "c"]).await;
        let store = store(port).await;
        let nap = nap::on(&a.peer("b").expect("a member"), 60_000).start();
        let host = a.clone();
        let waits = tokio::spawn(async move { host.shutdown().await });
        let others = [b, c].map(|worker| tokio::spawn(async move { worker.shutdown().await }));
        let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
        until(&store, round, |count| count == "2").await;
        waits.abort();
        drop(waits.await);
        a.crash().await;
        drop(nap);
        all_name_somebody(others).await;
    }
}

/// TA-7: the store goes with its host, and its end shows before that of the host's pipes. Whoever has lost it looks for a moment
/// who is gone.
#[tokio::test(flavor = "multi_thread")]
async fn ta_7_who_is_gone_is_named_though_the_store_was_lost_before() {
    let server = StoreServer::bind("127.0.0.1:0").await.expect("a store");
    let port = server.local_addr().port();
    let join = |name, rank| {
        member(name, rank, port)
            .world_size(3)
            .host_store(false)
            .join()
    };
    let joined = async { tokio::try_join!(join("a", 0), join("b", 1), join("c", 2)) };
    let joined = timeout(HANG, joined).await.expect("no hanging");
    let (a, b, c) = joined.expect("joined");
    let store = store(port).await;
    let nap = nap::on(&a.peer("b").expect("a member"), 60_000).start();
    let dies = a.clone();
    let waits = tokio::spawn(async move { dies.shutdown().await });
    let others = [b, c].map(|worker| tokio::spawn(async move { worker.shutdown().await }));
    let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
    until(&store, round, |count| count == "2").await;
    server.close().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    waits.abort();
    drop(waits.await);
    a.crash().await;
    drop(nap);
    all_name_somebody(others).await;
}

#[farref::remote]
async fn text_of(text: String) -> String {
    text
}

static KEPT: Mutex<Option<RRef<String>>> = Mutex::new(None);

#[farref::remote]
async fn keep(rref: RRef<String>) -> farref::Result<()> {
    rref.confirmed().await?;
    *KEPT.lock().expect("no panic") = Some(rref);
    Ok(())
}

#[farref::remote]
async fn kept() -> farref::Result<String> {
    let rref = KEPT.lock().expect("no panic").clone();
    rref.expect("kept").to_here().await
}

#[farref::remote]
async fn let_go() {
    drop(KEPT.lock().expect("no panic").take());
}

/// What a worker had made elsewhere is there for others when it is gone, and goes with the last of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_outlives_the_worker_that_asked_for_it() {
    let [owner, maker, holder] = group(["a", "b", "c"]).await;
    let made = text_of::on(&maker.peer("a").expect("a member"), "made by b".to_owned()).remote();
    let c = maker.peer("c").expect("a member");
    keep::on(&c, made).await.expect("handed on");
    maker.crash().await;
    let peers = || (owner.peers().len(), holder.peers().len());
    let gone = async {
        while peers() != (2, 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, gone).await.expect("no hanging");
    let c = owner.peer("c").expect("a member");
    let fetched = kept::on(&c).timeout(Some(HANG)).await;
    assert_eq!(fetched.expect("the value"), "made by b");
    let_go::on(&c).await.expect("let go");
    let freed = async {
        while !owner.references().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, freed).await.expect("the value goes");
    tokio::join!(owner.crash(), holder.crash());
}

/// `MASTER_ADDR=::1`, and a host that has both kinds of addresses.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_where_the_others_are_told_to_look() {
    let local: IpAddr = Ipv6Addr::LOCALHOST.into();
    if std::net::TcpListener::bind((local, 0)).is_err() {
        return eprintln!("LEFT OUT: this host has no IPv6");
    }
    let port = free_port();
    let member = |name: &str, rank| {
        let group = TorchGroup::new(name).master("::1", port).address(local);
        group.rank(rank).world_size(2).join()
    };
    let joined = timeout(HANG, async { tokio::join!(member("a", 0), member("b", 1)) });
    let (a, b) = joined.await.expect("no hanging");
    let (a, b) = (a.expect("joined"), b.expect("joined"));
    let sum = add::on(&a.peer("b").expect("a member"), 1, 2).await;
    assert_eq!(sum.expect("an answer"), 3);
    let ended = timeout(HANG, async { tokio::join!(a.shutdown(), b.shutdown()) });
    let (a, b) = ended.await.expect("no hanging");
    a.and(b).expect("a graceful end");
}

/// Launchers tell rank 0 `MASTER_ADDR=localhost`, and the others by what name its host is reached.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_reached_by_all_addresses_whatever_its_host_is_told() {
    let port = free_port();
    let member = |name: &str, rank, master: &str| {
        let group = TorchGroup::new(name).master(master, port).address(HERE);
        group.rank(rank).world_size(2).join()
    };
    let joined = async { tokio::join!(member("a", 0, "localhost"), member("b", 1, "127.0.0.2")) };
    let (a, b) = timeout(HANG, joined).await.expect("no hanging");
    let (a, b) = (a.expect("joined"), b.expect("joined"));
    let ended = timeout(HANG, async { tokio::join!(a.shutdown(), b.shutdown()) });
    let (a, b) = ended.await.expect("no hanging");
    a.and(b).expect("a graceful end");
    // Unless it is to be kept to this host.
    let port = free_port();
    let host = TorchGroup::new("a").master("127.0.0.1", port).address(HERE);
    let host = host.store_address(Ipv4Addr::LOCALHOST).rank(0).dynamic();
    let host = host.join().await.expect("joined");
    let elsewhere = std::net::TcpStream::connect(("127.0.0.2", port));
    elsewhere.expect_err("nobody listens there");
    host.crash().await;
}

/// What all workers of this process log.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Logged;

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// TA-7: whoever is through closes its pipes while others still read that all are. And what was dropped in time is gone,
/// though the news of it is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn ta_7_a_graceful_end_is_nobodys_death_and_nothing_was_forgotten() {
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(|| Logged);
    log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let names = ["ends0", "ends1", "ends2", "ends3"];
    for _ in 0..5 {
        let mut ending = tokio::task::JoinSet::new();
        for worker in group(names).await {
            ending.spawn(async move {
                let mut made = Vec::new();
                for peer in worker
                    .peers()
                    .iter()
                    .filter(|peer| peer.name() != worker.name())
                {
                    for _ in 0..50 {
                        made.push(text_of::on(peer, "dropped".to_owned()).remote());
                    }
                }
                for made in &made {
                    made.confirmed().await.expect("made");
                }
                drop(made);
                worker.shutdown().await.expect("a graceful end");
            });
        }
        timeout(HANG, ending.join_all()).await.expect("no hanging");
    }
    // Nor is it in a group that goes on.
    let port = free_port();
    let host = member("ends0", 0, port).join().await.expect("joined");
    comes_and_goes("ends1", 1, port, &host).await;
    let gone = async {
        while host.peers().len() > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, gone).await.expect("no hanging");
    let left = timeout(HANG, host.shutdown()).await;
    left.expect("no hanging").expect("left");
    let log = LOG.lock().expect("no panic").clone();
    let log = String::from_utf8_lossy(&log);
    let wrong = |line: &&str| {
        let is_ours = names.iter().any(|name| line.contains(name));
        is_ours
            && ["Died", "broke", "never dropped"]
                .iter()
                .any(|text| line.contains(text))
    };
    let wrong: Vec<&str> = log.lines().filter(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

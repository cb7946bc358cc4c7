//! Groups on PyTorch's wire whose workers are all Rust's, in this process. They need no Python.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farref::{Error, RRef, Store, StoreServer, TcpStoreClient, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually, eventually_async, run_test, within};
use farref_torch::TorchGroup;
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

macro_rules! trials {
    ($($test:ident),* $(,)?) => {
        /// The tests of this module.
        pub(crate) fn trials() -> Vec<Trial> {
            vec![$(Trial::test(stringify!($test), || {
                Ok(run_test(async {
                    $test().await;
                    Ok(())
                })?)
            })),*]
        }
    };
}

trials![
    the_first_message_to_a_peer_may_come_from_a_thread_without_a_runtime,
    a_shutdown_ends_when_the_other_worker_dies,
    all_learn_who_died_though_they_never_spoke_to_it,
    ta_7_all_name_the_one_that_was_missed_first,
    gr_4_a_join_that_is_given_up_leaves_the_group_as_it_was,
    gr_4_a_turn_is_given_up_though_the_store_takes_its_time,
    gr_4_a_worker_that_ends_has_given_its_turn_up,
    gr_2_a_worker_that_fails_to_start_is_not_in_the_list,
    gr_4_a_shutdown_whose_time_is_up_gives_its_turn_up,
    gr_5_members_that_die_keep_nobody_from_coming,
    mr_5_one_that_is_gone_is_taken_off_when_the_turn_is_free,
    calls_of_a_worker_that_leaves_are_answered,
    a_worker_that_gives_a_shutdown_up_in_the_rounds_is_counted_once,
    ta_7_all_name_somebody_when_the_store_dies_with_its_host_in_the_rounds,
    ta_7_who_is_gone_is_named_though_the_store_was_lost_before,
    a_value_outlives_the_worker_that_asked_for_it,
    the_store_is_where_the_others_are_told_to_look,
    the_store_is_reached_by_all_addresses_whatever_its_host_is_told,
    ta_7_a_graceful_end_is_nobodys_death_and_nothing_was_forgotten,
];

#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

fn free_port() -> u16 {
    farref_testkit::free_port().expect("a port")
}

/// The output of a future that does not hang.
async fn done<T>(future: impl Future<Output = T>) -> T {
    within("a step", future).await.expect("no hanging")
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
    let mut joined = done(joining.join_all()).await;
    joined.sort_by_key(|(rank, _)| *rank);
    let workers: Vec<Worker> = joined.into_iter().map(|(_, worker)| worker).collect();
    workers.try_into().expect("all of them")
}

/// TA-6: between two followers of a gathering there is no pipe before the first call.
async fn the_first_message_to_a_peer_may_come_from_a_thread_without_a_runtime() {
    let workers = group(["a", "b", "c"]).await;
    let c = workers[1].peer("c").expect("a member");
    let (sender, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(add::on(&c, 1, 2).wait()));
    let answer = done(answer).await;
    assert_eq!(answer.expect("no panic").expect("an answer"), 3);
    let [a, b, c] = &workers;
    let ends = done(async { tokio::join!(a.shutdown(), b.shutdown(), c.shutdown()) });
    let (a, b, c) = ends.await;
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
    // Mostly the others wait by then, for the one that has not asked for the end. No event shows
    // that they do, and a worker that does not wait yet ends in the same way.
    tokio::time::sleep(Duration::from_millis(100)).await;
    dies.expect("a member").crash().await;
    done(ending.join_all()).await
}

/// TA-7, in groups of two: the one that waits learns of the death, whichever it was.
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
    let store = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
    store.expect("the store")
}

async fn text(store: &TcpStoreClient, key: &str) -> String {
    let value = store.try_get(key).await.expect("the store");
    String::from_utf8(value.unwrap_or_default().to_vec()).expect("a text")
}

/// Waits until a key of the store is so.
async fn until(store: &TcpStoreClient, key: &str, is_so: impl Fn(&str) -> bool) {
    let mut now = String::new();
    let waited = eventually_async(key, async || {
        now = text(store, key).await;
        Ok(is_so(&now))
    });
    let waited = waited.await;
    waited.unwrap_or_else(|_| panic!("{key} is {now:?}"));
}

/// Another worker joins, is reached, and leaves.
async fn comes_and_goes(name: &str, rank: u16, port: u16, host: &Worker) {
    let newcomer = done(member(name, rank, port).join()).await;
    let newcomer = newcomer.expect("joined");
    let sum = add::on(&host.peer(name).expect("a member"), 1, 2).await;
    assert_eq!(sum.expect("an answer"), 3);
    let left = done(newcomer.shutdown()).await;
    left.expect("left");
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
    let next = done(join("c", 2)).await;
    let next = next.expect("joined");
    let left = done(next.shutdown()).await;
    left.expect("left");
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

/// How long a worker that ends waits at most for its turn to be given up. The agent has the same.
const LAST_TURN: Duration = Duration::from_secs(2);

/// GR-4: a process may end when its worker has, so the worker waits a moment for it.
async fn gr_4_a_worker_that_ends_has_given_its_turn_up() {
    static TAKES: AtomicU64 = AtomicU64::new(0);
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let store = store(port).await;
    let leaver = member("b", 1, slow_way_to(port, &TAKES).await).join();
    let leaver = done(leaver).await;
    let leaver = leaver.expect("joined");
    // It goes when its own calls are answered.
    let call = never::on(&leaver.peer("a").expect("a member")).start();
    let leaves = leaver.clone();
    let leaving = tokio::spawn(async move { leaves.shutdown().await });
    until(&store, TURN, |turn| turn == "Token_for_b_leave").await;
    TAKES.store(20, Ordering::Relaxed);
    leaving.abort();
    drop(leaving.await);
    let began = Instant::now();
    leaver.crash().await;
    if began.elapsed() >= LAST_TURN {
        // The machine is so busy that the worker may have waited in vain.
        until(&store, TURN, str::is_empty).await;
    }
    assert_eq!(text(&store, TURN).await, "");
    assert_eq!(text(&store, LIST).await, "a-0,");
    drop(call);
    host.crash().await;
}

/// GR-2: a member whose name is none in farref's eyes.
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
    let joined = done(member("b", 1, port).join()).await;
    joined.expect_err("no such name");
    assert_eq!(text(&store, TURN).await, "");
    assert_eq!(text(&store, LIST).await, list);
    host.crash().await;
}

/// GR-4: nor is it lost with a shutdown that has to end without an answer of a member.
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
    let leaver = member("b", 2, port).worker(|it| it.shutdown_timeout(Duration::from_secs(3)));
    let leaver = done(leaver.join()).await.expect("joined");
    stop.send(()).expect("the other");
    stands.await.expect("the other");
    let left = done(leaver.shutdown()).await;
    left.expect_err("one of them does not answer");
    until(&store, TURN, str::is_empty).await;
    assert_eq!(text(&store, LIST).await, "a-0,stopped-1,");
    drop(go_on);
    other.join().expect("no panic");
    host.crash().await;
}

/// GR-5, MR-1: whoever comes would call it in vain, and if it had its turn, nobody would ever come. Two members notice, and
/// two die at once.
async fn gr_5_members_that_die_keep_nobody_from_coming() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let other = member("b", 1, port).join().await.expect("joined");
    let store = store(port).await;
    for (rank, turn) in [(2, ""), (4, "leave"), (6, "join"), (8, "remove0")] {
        let mut die = Vec::new();
        for rank in [rank, rank + 1] {
            let dies = done(member(&format!("dies{rank}"), rank, port).join()).await;
            die.push(dies.expect("joined"));
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
    let left = done(other.shutdown()).await;
    left.expect("left");
    until(&store, LIST, |list| list == "a-0,").await;
    until(&store, TURN, str::is_empty).await;
    host.crash().await;
}

/// MR-5: somebody else has the turn for longer than it is waited for. It is tried again.
async fn mr_5_one_that_is_gone_is_taken_off_when_the_turn_is_free() {
    let port = free_port();
    // Also how long it waits for its turn.
    let host = member("waits_for_its_turn", 0, port).join_timeout(Duration::from_secs(3));
    let host = host.join().await.expect("joined");
    let dies = done(member("b", 1, port).join()).await;
    let dies = dies.expect("joined");
    let store = store(port).await;
    let other = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", other.local_addr().expect("an address"));
    let set = store.set("rpc_prefix_0/addrs/other", address.as_bytes());
    set.await.expect("the store");
    let set = store.set(TURN, b"Token_for_other_leave").await;
    set.expect("the store");
    dies.crash().await;
    let waited = eventually("it has waited for its turn in vain", || {
        logged().lines().any(|line| {
            line.contains("waits_for_its_turn") && line.contains("until the turn is free")
        })
    });
    waited.await.expect("it is logged");
    assert_eq!(text(&store, LIST).await, "waits_for_its_turn-0,b-1,");
    store.set(TURN, b"").await.expect("the store");
    until(&store, LIST, |list| list == "waits_for_its_turn-0,").await;
    until(&store, TURN, str::is_empty).await;
    host.crash().await;
}

#[farref::remote]
async fn nap(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Is never answered.
#[farref::remote]
async fn never() {
    std::future::pending().await
}

/// Permits for calls of `pass_gate`.
static GATE: Semaphore = Semaphore::const_new(0);

#[farref::remote]
async fn pass_gate() {
    GATE.acquire().await.expect("it stays open").forget();
}

/// A worker that leaves has told the others, and its own calls are answered all the same, before it goes.
async fn calls_of_a_worker_that_leaves_are_answered() {
    let port = free_port();
    let host = member("a", 0, port).join().await.expect("joined");
    let leaver = done(member("b", 1, port).join()).await;
    let leaver = leaver.expect("joined");
    let a = leaver.peer("a").expect("a member");
    // For longer than it waits before it says that it leaves.
    let calls: Vec<_> = (0..3).map(|_| nap::on(&a, 4000).start()).collect();
    let left = done(leaver.shutdown()).await;
    left.expect("left");
    for call in calls {
        call.await.expect("an answer");
    }
    host.crash().await;
}

/// Whoever drops a shutdown in the rounds of the store, and asks for it again, has been counted and is not once more.
async fn a_worker_that_gives_a_shutdown_up_in_the_rounds_is_counted_once() {
    let port = free_port();
    let [a, b, c] = group_at(port, ["a", "b", "c"]).await;
    let store = store(port).await;
    let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
    let others = [&a, &c].map(|worker| {
        let worker = worker.clone();
        tokio::spawn(async move {
            // The first of them comes to the rounds when its call is answered.
            let late = worker.peer("b").expect("a member");
            let call = (worker.name() == "a").then(|| pass_gate::on(&late).start());
            let ended = worker.shutdown().await;
            drop(call);
            ended
        })
    });
    let impatient = b.clone();
    let given_up = tokio::spawn(async move { impatient.shutdown().await });
    until(&store, round, |count| count == "2").await;
    given_up.abort();
    drop(given_up.await);
    GATE.add_permits(1);
    let (ended, served) = done(async { tokio::join!(b.shutdown(), b.serve()) }).await;
    ended.and(served).expect("a graceful end");
    for other in others {
        let ended = done(other).await;
        ended.expect("no panic").expect("a graceful end");
    }
}

/// Their shutdowns fail, and say who is gone.
async fn all_name_somebody<const N: usize>(shutdowns: [JoinHandle<farref::Result<()>>; N]) {
    for shutdown in shutdowns {
        let ended = done(shutdown).await;
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
async fn ta_7_all_name_somebody_when_the_store_dies_with_its_host_in_the_rounds() {
    for _ in 0..5 {
        let port = free_port();
        let [a, b, c] = group_at(port, ["a", "b", "c"]).await;
        let store = store(port).await;
        let call = never::on(&a.peer("b").expect("a member")).start();
        let host = a.clone();
        let waits = tokio::spawn(async move { host.shutdown().await });
        let others = [b, c].map(|worker| tokio::spawn(async move { worker.shutdown().await }));
        let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
        until(&store, round, |count| count == "2").await;
        waits.abort();
        drop(waits.await);
        a.crash().await;
        drop(call);
        all_name_somebody(others).await;
    }
}

/// TA-7: the store goes with its host, and its end shows before that of the host's pipes. Whoever has lost it looks for a moment
/// who is gone.
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
    let joined = done(joined).await;
    let (a, b, c) = joined.expect("joined");
    let store = store(port).await;
    let call = never::on(&a.peer("b").expect("a member")).start();
    let dies = a.clone();
    let waits = tokio::spawn(async move { dies.shutdown().await });
    let others = [b, c].map(|worker| tokio::spawn(async move { worker.shutdown().await }));
    let round = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1";
    until(&store, round, |count| count == "2").await;
    server.close().await;
    // Time for the others to see that the store is gone; no event shows it. Both orders end in the
    // same way. This one is the rarer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    waits.abort();
    drop(waits.await);
    a.crash().await;
    drop(call);
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
async fn a_value_outlives_the_worker_that_asked_for_it() {
    let [owner, maker, holder] = group(["a", "b", "c"]).await;
    let made = text_of::on(&maker.peer("a").expect("a member"), "made by b".to_owned()).remote();
    let c = maker.peer("c").expect("a member");
    keep::on(&c, made).await.expect("handed on");
    maker.crash().await;
    let peers = || (owner.peers().len(), holder.peers().len());
    let gone = eventually("the maker is gone", || peers() == (2, 2));
    gone.await.expect("its end is noticed");
    let c = owner.peer("c").expect("a member");
    let fetched = kept::on(&c).timeout(Some(TEST_TIMEOUT)).await;
    assert_eq!(fetched.expect("the value"), "made by b");
    let_go::on(&c).await.expect("let go");
    let freed = eventually("the value goes", || owner.references().is_empty());
    freed.await.expect("it is let go of");
    tokio::join!(owner.crash(), holder.crash());
}

/// `MASTER_ADDR=::1`, and a host that has both kinds of addresses.
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
    let joined = done(async { tokio::join!(member("a", 0), member("b", 1)) });
    let (a, b) = joined.await;
    let (a, b) = (a.expect("joined"), b.expect("joined"));
    let sum = add::on(&a.peer("b").expect("a member"), 1, 2).await;
    assert_eq!(sum.expect("an answer"), 3);
    let ended = done(async { tokio::join!(a.shutdown(), b.shutdown()) });
    let (a, b) = ended.await;
    a.and(b).expect("a graceful end");
}

/// Launchers tell rank 0 `MASTER_ADDR=localhost`, and the others by what name its host is reached.
async fn the_store_is_reached_by_all_addresses_whatever_its_host_is_told() {
    let port = free_port();
    let member = |name: &str, rank, master: &str| {
        let group = TorchGroup::new(name).master(master, port).address(HERE);
        group.rank(rank).world_size(2).join()
    };
    let joined = async { tokio::join!(member("a", 0, "localhost"), member("b", 1, "127.0.0.2")) };
    let (a, b) = done(joined).await;
    let (a, b) = (a.expect("joined"), b.expect("joined"));
    let ended = done(async { tokio::join!(a.shutdown(), b.shutdown()) });
    let (a, b) = ended.await;
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

/// Has the workers of this process log to where [`logged`] reads.
pub(crate) fn keep_log() {
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(|| Logged);
    log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
}

fn logged() -> String {
    String::from_utf8_lossy(&LOG.lock().expect("no panic")).into_owned()
}

/// TA-7: a worker that has ended closes its pipes while others still read that all have. References
/// that were dropped before are released, though the messages about it may still be on their way.
async fn ta_7_a_graceful_end_is_nobodys_death_and_nothing_was_forgotten() {
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
        done(ending.join_all()).await;
    }
    // Nor is it in a group that goes on.
    let port = free_port();
    let host = member("ends0", 0, port).join().await.expect("joined");
    comes_and_goes("ends1", 1, port, &host).await;
    let gone = eventually("it is alone", || host.peers().len() == 1);
    gone.await.expect("the end of the other is noticed");
    let left = done(host.shutdown()).await;
    left.expect("left");
    let log = logged();
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

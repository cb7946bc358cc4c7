//! What strangers can and cannot do to a member (IN-1 to IN-4).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use farref::{Part, Store as _, StoreServer, TcpStoreClient, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually, free_port};
use tokio::time::timeout;

use crate::agent::state::accepted_pipes::{AcceptedPipe, Standing, Unclaimed};
use crate::agent::state::links::lock;
use crate::agent::{messages, pickled};
use crate::rpc::{Kind, Message, WorkerInfo};
use crate::transport::{Incoming, Limits, Outgoing, PipeReceiver, PipeSender, connect};
use crate::{TorchGroup, py_call};

pub(in crate::agent) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How long is looked whether something happens that must not.
pub(in crate::agent) const WHILE: Duration = Duration::from_millis(300);

#[farref::remote(python = "agent_tests.double")]
async fn double(number: i64) -> i64 {
    2 * number
}

/// A group that is about to come together, in which each has this address.
pub(in crate::agent) fn group() -> (impl Fn(&str, u16) -> TorchGroup, u16) {
    let port = free_port().expect("a port");
    let member = move |name: &str, rank| {
        let group = TorchGroup::new(name).master("127.0.0.1", port);
        group.address(HERE).rank(rank).dynamic()
    };
    (member, port)
}

/// Where a worker listens.
pub(in crate::agent) async fn address_of(name: &str, port: u16) -> String {
    let store = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
    let key = format!("rpc_prefix_0/addrs/{name}");
    let address = store.expect("the store").get(&key, TEST_TIMEOUT).await;
    String::from_utf8(address.expect("published").to_vec()).expect("a text")
}

/// Two workers of a static group, and where the second one listens.
async fn pair() -> (Worker, Worker, String) {
    let (member, port) = group();
    let joined = async {
        let (a, b) = (member("a", 0).world_size(2), member("b", 1).world_size(2));
        tokio::join!(a.join(), b.join())
    };
    let (a, b) = timeout(TEST_TIMEOUT, joined).await.expect("no hanging");
    let (a, b) = (a.expect("joined"), b.expect("joined"));
    let address = address_of("b", port).await;
    (a, b, address)
}

pub(in crate::agent) async fn pipe(address: &str, name: &str) -> (PipeSender, PipeReceiver) {
    let pipe = connect(address, name, Limits::default()).await;
    pipe.expect("a pipe")
}

/// Both reach each other.
async fn assert_both_there(a: &Worker, b: &Worker) {
    for (caller, callee) in [(a, "b"), (b, "a")] {
        let callee = caller.peer(callee).expect("a member");
        let answer: farref::Result<i64> = py_call(&callee, "agent_tests.double", (21,)).await;
        assert_eq!(answer.expect("an answer"), 42);
    }
}

async fn end(a: Worker, b: Worker) {
    let ended = timeout(TEST_TIMEOUT, async {
        tokio::join!(a.shutdown(), b.shutdown())
    });
    let (a, b) = ended.await.expect("no hanging");
    a.and(b).expect("a graceful end");
}

/// What one asks who joins a dynamic group.
pub(in crate::agent) fn device_infos() -> Vec<u8> {
    let module = "torch.distributed.rpc.backend_registry";
    pickled::udf(module, "_get_device_infos", |writer| {
        writer.tuple_of(0);
    })
}

/// What one says who joins or leaves.
pub(in crate::agent) fn news(name: &str, id: u16, joins: bool) -> Vec<u8> {
    let module = "torch.distributed.rpc._utils";
    pickled::udf(module, "_update_group_membership", |writer| {
        writer.mark();
        WorkerInfo { name, id }.write(writer);
        writer.empty_list().empty_dict().bool(joins).tuple();
    })
}

/// A call as it is sent.
pub(in crate::agent) fn call(udf: &[u8]) -> Outgoing<Part> {
    let message = Message::PythonCall {
        is_async: false,
        udf,
    };
    let (kind, bytes) = message.encode();
    messages::ready(kind, 7, bytes)
}

/// Asks something, and returns the answer.
pub(in crate::agent) async fn ask(pipe: &mut (PipeSender, PipeReceiver), udf: &[u8]) -> Incoming {
    pipe.0.send(&[call(udf)]).await.expect("sent");
    let answer = timeout(TEST_TIMEOUT, pipe.1.next())
        .await
        .expect("no hanging");
    answer.expect("a pipe").expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_2_closing_a_pipe_that_only_greeted_ends_no_member() {
    let (a, b, address) = pair().await;
    assert_both_there(&a, &b).await;
    for _ in 0..3 {
        drop(pipe(&address, "a").await);
    }
    tokio::time::sleep(WHILE).await;
    assert_both_there(&a, &b).await;
    end(a, b).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_1_a_second_pipe_of_a_member_is_a_strangers() {
    let (a, b, address) = pair().await;
    assert_both_there(&a, &b).await;
    let mut second = pipe(&address, "a").await;
    let udf = pickled::udf("agent_tests", "double", |writer| {
        writer.int(1).tuple_of(1);
    });
    let answer = ask(&mut second, &udf).await;
    let text = String::from_utf8_lossy(&answer.payload);
    assert!(text.contains("no member of this group"), "{text}");
    drop(second);
    tokio::time::sleep(WHILE).await;
    assert_both_there(&a, &b).await;
    end(a, b).await;
}

/// IN-3: a group of fixed size takes nobody in, and nobody is told to go by somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn in_3_a_stranger_speaks_for_nobody() {
    let (a, b, address) = pair().await;
    assert_both_there(&a, &b).await;
    for (name, id, joins) in [("a", 0, false), ("evil", 7, true), ("evil", 0, true)] {
        let mut stranger = pipe(&address, "evil").await;
        let answer = ask(&mut stranger, &news(name, id, joins)).await;
        let text = String::from_utf8_lossy(&answer.payload);
        assert!(text.contains("evil"), "{text}");
    }
    assert_eq!(b.peers().len(), 2);
    assert_both_there(&a, &b).await;
    end(a, b).await;
}

/// IN-4: whoever opens pipes and says nothing pushes out others that say nothing, and no member.
#[tokio::test(flavor = "multi_thread")]
async fn in_4_strangers_push_each_other_out() {
    let (a, b, address) = pair().await;
    assert_both_there(&a, &b).await;
    let most = Limits::default().unclaimed;
    let mut silent = Vec::new();
    for _ in 0..most + 10 {
        silent.push(pipe(&address, "nobody").await);
    }
    let first = timeout(TEST_TIMEOUT, silent[0].1.next())
        .await
        .expect("no hanging");
    assert!(!matches!(first, Ok(Some(_))), "the oldest is closed");
    assert_both_there(&a, &b).await;
    drop(silent);
    end(a, b).await;
}

/// IN-2, IN-3: of two joiners of one name the first has failed, and closes its pipe when the second is a member. The end
/// of the second is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn in_2_a_joiner_that_failed_takes_nobody_along() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let mut failed = pipe(&address_of("a", port).await, "b").await;
    drop(ask(&mut failed, &device_infos()).await);
    let b = timeout(TEST_TIMEOUT, member("b", 1).join()).await;
    let b = b.expect("no hanging").expect("joined");
    drop(failed);
    tokio::time::sleep(WHILE).await;
    assert_both_there(&a, &b).await;
    b.crash().await;
    let gone = eventually("its end is noticed", || a.peers().len() == 1).await;
    gone.expect("it is gone");
    a.crash().await;
}

#[farref::remote(python = "agent_tests.length")]
async fn length(text: String) -> usize {
    text.len()
}

/// IN-3: a worker that is there has one number, whoever says what.
#[tokio::test(flavor = "multi_thread")]
async fn in_3_a_stranger_is_no_second_worker_of_a_members_name() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let b = timeout(TEST_TIMEOUT, member("b", 1).join()).await;
    let b = b.expect("no hanging").expect("joined");
    assert_both_there(&a, &b).await;
    for number in [77, 1, 40_000] {
        let mut stranger = pipe(&address_of("a", port).await, "b").await;
        drop(ask(&mut stranger, &news("b", number, true)).await);
        assert_eq!(a.peers().len(), 2, "{number}");
        drop(stranger);
    }
    tokio::time::sleep(WHILE).await;
    assert_both_there(&a, &b).await;
    tokio::join!(a.crash(), b.crash());
}

/// IN-3: nor has anybody a number that PyTorch's workers cannot have.
#[tokio::test(flavor = "multi_thread")]
async fn in_3_one_that_joins_has_a_number_of_a_worker() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let store = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
    let store = store.expect("the store");
    let listener = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", listener.local_addr().expect("an address"));
    let set = store.set("rpc_prefix_0/addrs/x", address.as_bytes());
    set.await.expect("the store");
    for (number, is_one) in [(1 << 15, false), ((1 << 15) - 1, true)] {
        let mut newcomer = pipe(&address_of("a", port).await, "x").await;
        let answer = ask(&mut newcomer, &news("x", number, true)).await;
        assert_eq!(answer.kind == Kind::PythonRet.code(), is_one, "{number}");
        assert_eq!(a.peers().len(), 1 + usize::from(is_one), "{number}");
    }
    a.crash().await;
}

/// IN-5: who asks to join, and is nowhere in the store, asks that one question at a time.
#[tokio::test(flavor = "multi_thread")]
async fn in_5_a_stranger_costs_the_store_one_connection() {
    let store = StoreServer::bind("127.0.0.1:0").await.expect("a store");
    let port = store.local_addr().port();
    let a = TorchGroup::new("a").master("127.0.0.1", port).address(HERE);
    let a = a.rank(0).dynamic().host_store(false).join().await;
    let a = a.expect("joined");
    let mut stranger = pipe(&address_of("a", port).await, "x").await;
    let before = store.connections();
    let questions: Vec<_> = (0..100).map(|_| call(&news("x", 9, true))).collect();
    stranger.0.send(&questions).await.expect("sent");
    let mut most = 0;
    for _ in 0..30 {
        tokio::time::sleep(WHILE / 30).await;
        most = most.max(store.connections());
    }
    assert!(most <= before + 2, "{most} connections, {before} before");
    a.crash().await;
}

/// IN-5: nothing large comes from one that is no member, and everything from one that has become one.
#[tokio::test(flavor = "multi_thread")]
async fn in_5_a_stranger_sends_nothing_large() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let large = || "x".repeat(1 << 20);
    let mut stranger = pipe(&address_of("a", port).await, "x").await;
    let udf = pickled::udf("agent_tests", "length", |writer| {
        writer.text(large().as_bytes()).tuple_of(1);
    });
    // It may have been closed before all was written.
    drop(stranger.0.send(&[call(&udf)]).await);
    let answer = timeout(TEST_TIMEOUT, stranger.1.next())
        .await
        .expect("no hanging");
    assert!(!matches!(answer, Ok(Some(_))), "it is closed, and not read");
    let b = timeout(TEST_TIMEOUT, member("b", 1).join()).await;
    let b = b.expect("no hanging").expect("joined");
    let to_a = b.peer("a").expect("a member");
    let answer: farref::Result<usize> = py_call(&to_a, "agent_tests.length", (large(),)).await;
    assert_eq!(answer.expect("an answer"), 1 << 20);
    tokio::join!(a.crash(), b.crash());
}

/// IN-5: what waits to be read by a stranger is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn in_5_a_stranger_that_does_not_read_is_closed() {
    let (a, b, address) = pair().await;
    let mut stranger = pipe(&address, "nobody").await;
    let questions: Vec<_> = (0..1000).map(|_| call(&device_infos())).collect();
    let closed = async {
        for _ in 0..300 {
            if stranger.0.send(&questions).await.is_err() {
                return true;
            }
        }
        false
    };
    assert!(timeout(TEST_TIMEOUT, closed).await.expect("no hanging"));
    assert_both_there(&a, &b).await;
    end(a, b).await;
}

/// IN-4: the first pipe of each member that has none stays, however many come, and takes nobody's place.
#[test]
fn in_4_members_do_not_push_each_others_first_pipes_out() {
    let unclaimed = Unclaimed::default();
    let standing = |name: &str| match &name[..1] {
        "e" => Standing::Expected,
        "m" => Standing::Member,
        _ => Standing::Stranger,
    };
    let add = |name: &str| unclaimed.add(name.to_owned(), Default::default(), 4, standing);
    let has = |accepted: &AcceptedPipe| lock(&unclaimed.pipes).contains_key(&accepted.number);
    let firsts: Vec<_> = (0..10).map(|number| add(&format!("e{number}"))).collect();
    let seconds: Vec<_> = ["e1", "e2", "m"].map(add).into();
    let stranger = add("s");
    assert!(firsts.iter().chain(&seconds).all(|accepted| has(accepted)) && has(&stranger));
    // A stranger goes first, then the oldest of the seconds.
    let more = [add("e3"), add("m")];
    assert!(!has(&stranger) && !has(&seconds[0]));
    assert!(
        firsts
            .iter()
            .chain(&seconds[1..])
            .chain(&more)
            .all(|accepted| has(accepted))
    );
}

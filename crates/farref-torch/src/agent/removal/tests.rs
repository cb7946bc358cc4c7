//! What is done, and what is not, when a worker of a dynamic group is gone (MR-1 to MR-5).

use farref::{Store as _, TcpStoreClient, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually_async, free_port};
use tokio::time::timeout;

use crate::agent::accepting::tests::{
    HERE, WHILE, address_of, ask, call, device_infos, group, news, pipe,
};
use crate::rpc::Kind;

const LIST: &str = "rpc_prefix_0/names/_ALL_WORKER_INFOS";
const TURN: &str = "rpc_prefix_0/RpcGroupManagementToken";

async fn store(port: u16) -> TcpStoreClient {
    let store = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
    store.expect("the store")
}

async fn set(store: &TcpStoreClient, key: &str, value: &str) {
    store.set(key, value.as_bytes()).await.expect("the store");
}

async fn text(store: &TcpStoreClient, key: &str) -> String {
    let value = store.try_get(key).await.expect("the store");
    String::from_utf8(value.unwrap_or_default().to_vec()).expect("a text")
}

/// Waits until it is so.
async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = eventually_async("what is waited for", async || Ok(is_so().await));
    waited.await.expect("it happens");
}

/// An address at which nobody listens.
fn nowhere() -> String {
    format!("uv://{HERE}:{}", free_port().expect("a port"))
}

fn knows(worker: &Worker, name: &str) -> bool {
    worker.peers().iter().any(|peer| peer.name() == name)
}

/// MR-4: somebody joins, and says that others are gone. They are not.
#[tokio::test(flavor = "multi_thread")]
async fn mr_4_who_is_said_to_be_gone_and_is_there_stays() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let b = member("b", 1).join().await.expect("joined");
    let listener = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", listener.local_addr().expect("an address"));
    set(&store(port).await, "rpc_prefix_0/addrs/liar", &address).await;
    let mut liar = pipe(&address_of("a", port).await, "liar").await;
    let joined = ask(&mut liar, &news("liar", 7, true)).await;
    assert_eq!(joined.kind, Kind::PythonRet.code());
    let told = ask(&mut liar, &news("b", 1, false)).await;
    assert_eq!(
        told.kind,
        Kind::PythonRet.code(),
        "whoever tells it goes on"
    );
    let told = ask(&mut liar, &news("a", 0, false)).await;
    assert_eq!(
        told.kind,
        Kind::Exception.code(),
        "nobody is gone who answers"
    );
    tokio::time::sleep(WHILE).await;
    assert!(knows(&a, "b") && knows(&a, "liar"));
    let answer: farref::Result<i64> =
        crate::py_call(&a.peer("b").expect("a member"), "agent_tests.double", (21,)).await;
    assert_eq!(answer.expect("an answer"), 42);
    drop(liar);
    until(async || !knows(&a, "liar")).await;
    tokio::join!(a.crash(), b.crash());
}

/// MR-1: a member whose pipe has ended, and who is there. It stays on the list.
#[tokio::test(flavor = "multi_thread")]
async fn mr_1_a_member_that_listens_stays_on_the_list() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let store = store(port).await;
    let listener = std::net::TcpListener::bind((HERE, 0)).expect("a port");
    let address = format!("uv://{}", listener.local_addr().expect("an address"));
    set(&store, "rpc_prefix_0/addrs/b", &address).await;
    set(&store, LIST, "a-0,b-7,").await;
    let mut b = pipe(&address_of("a", port).await, "b").await;
    drop(ask(&mut b, &news("b", 7, true)).await);
    drop(b);
    until(async || !knows(&a, "b")).await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(text(&store, LIST).await, "a-0,b-7,");
    // Once it is gone, too, it is taken off.
    drop(listener);
    until(async || text(&store, LIST).await == "a-0,").await;
    assert_eq!(text(&store, TURN).await, "");
    a.crash().await;
}

/// MR-2: one that has come again under the name of one that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn mr_2_a_second_life_is_not_taken_off_for_the_first() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let store = store(port).await;
    set(&store, "rpc_prefix_0/addrs/b", &nowhere()).await;
    let mut b = pipe(&address_of("a", port).await, "b").await;
    drop(ask(&mut b, &news("b", 7, true)).await);
    set(&store, LIST, "a-0,b-7,").await;
    set(&store, "rpc_prefix_0/addrs/b", "uv://127.0.0.1:1").await;
    drop(b);
    until(async || !knows(&a, "b")).await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(text(&store, LIST).await, "a-0,b-7,");
    a.crash().await;
}

/// GR-5, IN-3: it has its turn, is on the list and has asked, and then it is gone. Whoever comes would call it in vain.
#[tokio::test(flavor = "multi_thread")]
async fn mr_1_one_that_dies_while_it_joins_keeps_nobody_from_coming() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let store = store(port).await;
    set(&store, TURN, "Token_for_dies_join").await;
    set(&store, LIST, "a-0,dies-7,").await;
    set(&store, "rpc_prefix_0/addrs/dies", &nowhere()).await;
    let mut dies = pipe(&address_of("a", port).await, "dies").await;
    drop(ask(&mut dies, &device_infos()).await);
    drop(dies);
    until(async || text(&store, LIST).await == "a-0,").await;
    let b = timeout(TEST_TIMEOUT, member("b", 1).join()).await;
    let b = b.expect("no hanging").expect("joined");
    let left = timeout(TEST_TIMEOUT, b.shutdown()).await;
    left.expect("no hanging").expect("left");
    a.crash().await;
}

/// IN-2: where it listens is known only when its pipe has ended. Nobody else would notice that it is no more.
#[tokio::test(flavor = "multi_thread")]
async fn in_2_one_that_is_gone_before_it_is_a_member_does_not_stay_one() {
    let (member, port) = group();
    let a = member("a", 0).join().await.expect("joined");
    let store = store(port).await;
    let dies = pipe(&address_of("a", port).await, "dies").await;
    let (mut sender, receiver) = dies;
    let asked = call(&news("dies", 7, true));
    sender.send(&[asked]).await.expect("sent");
    tokio::time::sleep(WHILE).await;
    sender.close();
    drop(receiver);
    tokio::time::sleep(WHILE).await;
    set(&store, "rpc_prefix_0/addrs/dies", &nowhere()).await;
    // It is taken in when its address is known, if it is at all.
    tokio::time::sleep(WHILE).await;
    until(async || !knows(&a, "dies")).await;
    a.crash().await;
}

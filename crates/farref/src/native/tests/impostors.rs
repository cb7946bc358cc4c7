//! HS-6: with certificates nobody is taken for another, whatever the store says, and a store that says nothing keeps nobody out.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::fixture::{Book, Setup};
use super::tls::certificates::{Authority, tls, worker_tls};
use super::*;
use crate::native::inquiry::{ObserverConnection, ObserverConnectionError};
use crate::native::transport::Stream;
use crate::rendezvous::Address;
use crate::support::lock::lock;

const NEVER: Duration = Duration::from_secs(3600);

fn setup(worker: u32, tls: Tls, book: &Arc<Book>) -> Setup {
    let bind = BindOptions {
        unix: false,
        ..BindOptions::default()
    };
    let mut setup = Setup::new(worker, bind, book);
    setup.tls = Some(tls);
    setup
}

/// Where nobody listens: who is to be reached there makes all connections itself.
fn nowhere() -> Option<Address> {
    Some(Address::Tcp(([127, 0, 0, 1], 1).into()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_stays_with_the_name_it_is_known_under_whatever_the_store_says_later() {
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let right = setup(2, worker_tls(&authority, "w2#1"), &book)
        .start()
        .await;
    lock(&book.names).insert(NodeId::new(1, 1), "w1#1".to_owned());

    // Who has the number of another, and has written that into the store.
    let mut liar = setup(1, worker_tls(&authority, "liar"), &book);
    liar.name = Some("liar".to_owned());
    let liar = liar.start().await;
    liar.send(&right, control(7));
    eventually("it is told", || !lock(&book.rejected).is_empty()).await;
    let rejected = lock(&book.rejected)[0].clone();
    assert!(
        matches!(&rejected, (by, Rejection::Certificate(_)) if *by == right.node),
        "{rejected:?}"
    );
    assert_eq!(right.received_count(), 0);

    // Nor does anybody go to where the store says that it is.
    let link = right.agent.links.link_or_new(liar.node).expect("a link");
    right.send(&liar, control(8));
    eventually("it was tried", || link.state().failures > 2).await;
    assert_eq!(liar.received_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_no_store_tells_of_is_let_in_under_the_name_in_its_certificate() {
    let authority = Authority::new();
    for is_silent in [false, true] {
        let [lefts, rights]: [Arc<Book>; 2] = Default::default();
        let mut left = setup(1, worker_tls(&authority, "w1#1"), &lefts);
        left.reached_at = nowhere();
        let left = left.start().await;
        let right = setup(2, worker_tls(&authority, "w2#1"), &rights)
            .start()
            .await;
        lock(&lefts.cards).insert(right.node, right.card.clone());
        if is_silent {
            rights.hanging.get_or_init(Default::default);
        }
        left.send(&right, control(1));
        eventually("it arrives", || right.received_count() == 1).await;
        let met = lock(&rights.met).clone();
        assert_eq!(met.first().map(|(node, _)| *node), Some(left.node));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_dialed_under_one_name_is_not_taken_under_another_of_its_own() {
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let mut left = setup(1, worker_tls(&authority, "w1#1"), &book);
    left.reached_at = nowhere();
    let left = left.start().await;
    let names = ["farref:worker/w2%231", "farref:worker/other"];
    let mut right = setup(2, tls(authority.issue("both", &names)), &book);
    right.name = Some("other".to_owned());
    let right = right.start().await;
    let mut listed = right.card.clone();
    listed.name = "w2#1".to_owned();
    lock(&book.cards).insert(right.node, listed);
    left.send(&right, control(1));
    let link = left.agent.links.link_or_new(right.node).expect("a link");
    eventually("it was tried", || link.state().failures > 2).await;
    assert_eq!(right.received_count(), 0);
    lock(&book.cards).insert(right.node, right.card.clone());
    eventually("it arrives", || right.received_count() == 1).await;
}

/// Whoever connects there is shown this certificate, but for the first, which goes where it belongs. Says what each has said
/// after that.
async fn listen(
    tls: Tls,
    first: Option<oneshot::Receiver<SocketAddr>>,
) -> (Address, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let hearing = Arc::clone(&heard);
    tokio::spawn(async move {
        if let Some(first) = first {
            let first = first.await.expect("an address");
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut worker = TcpStream::connect(first).await.expect("a worker");
            tokio::spawn(async move { copy_bidirectional(&mut stream, &mut worker).await });
        }
        while let Ok((stream, _)) = listener.accept().await {
            let stream = Stream::tcp(stream).expect("a stream");
            if let Ok(mut stream) = stream.accept_tls(&tls).await {
                let mut bytes = Vec::with_capacity(1 << 10);
                let _ = stream.read.read_buf(&mut bytes).await;
                lock(&hearing).push(bytes);
            }
        }
    });
    (address, heard)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_for_bulk_data_is_made_with_the_worker_of_that_name_only() {
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let mut left = setup(1, worker_tls(&authority, "w1#1"), &book);
    left.reached_at = nowhere();
    let left = left.start().await;
    let (tell, first) = oneshot::channel();
    let (address, heard) = listen(worker_tls(&authority, "liar"), Some(first)).await;
    let mut right = setup(2, worker_tls(&authority, "w2#1"), &book);
    right.reached_at = Some(address);
    let right = right.start().await;
    tell.send(right.tcp_address()).expect("it waits");
    left.send(&right, call(1, 1 << 20));
    eventually("somebody else was asked for it", || {
        !lock(&heard).is_empty()
    })
    .await;
    assert!(lock(&heard).iter().all(Vec::is_empty), "not a word is said");
}

/// F1: not by silence, which would take an hour here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_address_has_gone_to_another_is_suspected_at_once() {
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let mut left = setup(1, worker_tls(&authority, "w1#1"), &book);
    left.config.peer_timeout = NEVER;
    let left = left.start().await;
    let (address, heard) = listen(worker_tls(&authority, "liar"), None).await;
    let mut card = left.card.clone();
    card.node = NodeId::new(2, 1);
    card.name = card.node.to_string();
    card.addresses = vec![address];
    lock(&book.cards).insert(card.node, card.clone());
    left.agent.enqueue(card.node, control(1));
    left.agent.flush(card.node);
    eventually("it is suspected", || {
        lock(&left.inbound.suspected).contains(&card.node)
    })
    .await;
    assert!(lock(&heard).iter().all(Vec::is_empty), "not a word is said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_says_nothing_to_who_is_no_worker() {
    let authority = Authority::new();
    let observer = || tls(authority.issue("observer", &["farref:observer"]));
    let (address, heard) = listen(observer(), None).await;
    let looked = ObserverConnection::open(&address, b"token", Some(&observer()), None).await;
    assert!(
        matches!(looked, Err(ObserverConnectionError::Certificate(_))),
        "{looked:?}"
    );
    drop(looked);
    eventually("it has hung up", || lock(&heard).len() == 1).await;
    assert!(lock(&heard)[0].is_empty(), "not a word is said");
}

//! LT-1 to LT-4: those who connect and do not join are bounded, and harm no honest newcomer.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref_testkit::TEST_TIMEOUT;

use super::fixture::{Book, Setup, impatient};
use super::proxy::Proxy;
use super::refusals::{TOKEN, claim, connect_as};
use super::*;
use crate::native::handshake::{Purpose, Refusal, Verdict};
use crate::native::link::PendingConnection;
use crate::native::transport::Stream;
use crate::rendezvous::Address;
use crate::support::lock::lock;

const MOST: usize = 32;

/// Two workers with room for few newcomers, each to be reached through a proxy. The left one is no member.
struct Fixture {
    book: Arc<Book>,
    left: Side,
    right: Side,
    proxies: Vec<Proxy>,
    config: NativeConfig,
}

async fn start_side(
    worker: u32,
    proxy: Option<&Proxy>,
    book: &Arc<Book>,
    config: &NativeConfig,
) -> Side {
    let bind = BindOptions {
        unix: false,
        ..BindOptions::default()
    };
    let mut setup = Setup::new(worker, bind, book);
    setup.token = Some(TOKEN.to_vec());
    setup.reached_at = proxy.map(|proxy| Address::Tcp(proxy.address));
    setup.config = config.clone();
    let side = setup.start().await;
    if let Some(proxy) = proxy {
        proxy.forward_to(side.tcp_address());
    }
    side
}

impl Fixture {
    async fn start(patience: Duration, most: usize) -> Self {
        let config = NativeConfig {
            max_newcomers: most,
            newcomer_patience: patience,
            ..impatient()
        };
        let book = Arc::<Book>::default();
        let proxies = vec![Proxy::listen(), Proxy::listen()];
        let left = start_side(1, Some(&proxies[0]), &book, &config).await;
        let right = start_side(2, Some(&proxies[1]), &book, &config).await;
        lock(&book.strangers).insert(left.node);
        Self {
            book,
            left,
            right,
            proxies,
            config,
        }
    }

    /// One more.
    async fn side(&self, worker: u32) -> Side {
        start_side(worker, None, &self.book, &self.config).await
    }

    /// Somebody connects to the right one under a number of its own making.
    async fn try_to_connect(&self, number: u32) -> (Verdict, Stream) {
        self.try_to_connect_as(NodeId::new(number, 1)).await
    }

    async fn try_to_connect_as(&self, made_up: NodeId) -> (Verdict, Stream) {
        lock(&self.book.strangers).insert(made_up);
        let mut claim = claim(made_up, &self.right);
        // Nobody is to be reached there.
        claim.card.addresses.clear();
        let (verdict, is_proved, stream) = connect_as(&self.right, &claim, TOKEN).await;
        assert!(is_proved);
        (verdict, stream)
    }

    /// The same, until there is room.
    async fn connect(&self, number: u32) -> Stream {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.try_to_connect(number).await {
                (Verdict::Main { .. }, stream) => return stream,
                (Verdict::Refused(Refusal::Crowded), _) => {}
                (verdict, _) => panic!("{verdict:?}"),
            }
            assert!(Instant::now() < until, "there is never room");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The left one connects by itself, and is heard.
    async fn speak(&self) {
        self.left.send(&self.right, control(0));
        eventually("a newcomer is heard", || self.right.received_count() == 1).await;
    }

    fn linked(&self) -> HashSet<NodeId> {
        let links = self.right.agent.links();
        links.into_iter().map(|link| link.peer).collect()
    }
}

const FOR_EVER: Duration = Duration::from_secs(3600);

/// LT-1, LT-2: whoever has the token can say that it is anybody. What it makes others keep for that is bounded.
#[tokio::test]
async fn made_up_numbers_are_forgotten_with_their_connections() {
    let fixture = Fixture::start(FOR_EVER, MOST).await;
    let numbers = 1000..1200;
    for number in numbers.clone() {
        drop(fixture.connect(number).await);
    }
    let linked = fixture.linked();
    assert!(linked.len() <= MOST, "{} links are kept", linked.len());
    let unmet = lock(&fixture.book.unmet).clone();
    let forgotten: HashSet<NodeId> = unmet.iter().copied().collect();
    assert_eq!(unmet.len(), forgotten.len(), "each is forgotten once");
    assert!(forgotten.is_disjoint(&linked), "who is kept is known");
    let all: HashSet<NodeId> = numbers.map(|number| NodeId::new(number, 1)).collect();
    let kept: HashSet<NodeId> = forgotten.union(&linked).copied().collect();
    assert_eq!(kept, all, "whose link is gone is forgotten");
    fixture.speak().await;
}

/// LT-1: somebody comes under ever later lives of one worker. Of the earlier ones nobody says by themselves that they are over.
#[tokio::test]
async fn with_a_life_the_links_of_its_earlier_ones_go_and_are_not_counted() {
    let fixture = Fixture::start(FOR_EVER, 4).await;
    let right = &fixture.right;
    let mut connections = Vec::new();
    for rounds in 0..3 {
        let lives = (1..=4).map(|life| NodeId::new(1000, rounds * 4 + life));
        for life in lives {
            let (verdict, stream) = fixture.try_to_connect_as(life).await;
            assert!(matches!(verdict, Verdict::Main { .. }), "{verdict:?}");
            connections.push(stream);
        }
        assert_eq!(fixture.linked().len(), 4);
        let last = NodeId::new(1000, rounds * 4 + 4);
        right.agent.forget(last, Departure::Died);
        assert_eq!(fixture.linked(), HashSet::new());
    }
    let (verdict, _) = fixture.try_to_connect_as(NodeId::new(1000, 3)).await;
    assert!(
        matches!(verdict, Verdict::Refused(Refusal::Gone)),
        "{verdict:?}"
    );
    fixture.speak().await;
}

/// LT-2: what a newcomer has said and heard is not lost while others crowd in and its connection is broken.
#[tokio::test]
async fn a_newcomer_that_has_spoken_is_not_forgotten_and_resumes() {
    let fixture = Fixture::start(FOR_EVER, MOST).await;
    let (left, right) = (&fixture.left, &fixture.right);
    fixture.speak().await;
    right.send(left, control(0));
    eventually("it hears", || left.received_count() == 1).await;
    eventually("both know that all has come", || {
        [left.link_to(right), right.link_to(left)]
            .into_iter()
            .all(|link| link.is_some_and(|link| link.queued_messages == 0))
    })
    .await;
    for proxy in &fixture.proxies {
        proxy.set_down(true);
    }
    eventually("they are disconnected", || {
        right.link_to(left).expect("a link").transport.is_none()
    })
    .await;
    for number in 1000..1000 + 2 * MOST as u32 {
        drop(fixture.connect(number).await);
    }
    assert!(!lock(&fixture.book.unmet).is_empty(), "there was no crowd");
    for proxy in &fixture.proxies {
        proxy.set_down(false);
    }
    left.send(right, control(1));
    right.send(left, control(1));
    eventually("they go on", || {
        left.received_count() == 2 && right.received_count() == 2
    })
    .await;
    for side in [left, right] {
        let cut_off = lock(&side.inbound.misbehaved);
        assert!(cut_off.is_empty(), "{cut_off:?}");
        assert!(lock(&side.inbound.suspected).is_empty());
    }
    assert!(!lock(&fixture.book.unmet).contains(&left.node));
}

/// LT-3: though they answer when they are asked whether they live.
#[tokio::test]
async fn those_who_stay_connected_without_a_word_keep_nobody_out_for_ever() {
    let fixture = Fixture::start(Duration::from_millis(50), 4).await;
    let mut silent = Vec::new();
    for worker in 3..7 {
        let side = fixture.side(worker).await;
        lock(&fixture.book.strangers).insert(side.node);
        side.agent.watch(fixture.right.node);
        silent.push(side);
    }
    eventually("there is no room", || fixture.linked().len() == 4).await;
    fixture.speak().await;
    for side in silent.iter().chain([&fixture.right]) {
        assert!(lock(&side.inbound.misbehaved).is_empty());
        assert!(lock(&side.inbound.refused).is_empty());
    }
}

/// LT-4: nor do those who have said something, once this worker can let others in.
#[tokio::test]
async fn who_speaks_and_does_not_join_is_cut_off_if_it_could_have_joined() {
    let fixture = Fixture::start(Duration::from_millis(5), 1).await;
    let (left, right) = (&fixture.left, &fixture.right);
    fixture.book.is_joining.store(true, Ordering::SeqCst);
    fixture.speak().await;
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        let (verdict, _) = fixture.try_to_connect(1000).await;
        assert!(
            matches!(verdict, Verdict::Refused(Refusal::Crowded)),
            "{verdict:?}"
        );
    }
    assert!(lock(&right.inbound.misbehaved).is_empty());
    fixture.book.is_joining.store(false, Ordering::SeqCst);
    drop(fixture.connect(1000).await);
    let cut_off = lock(&right.inbound.misbehaved).clone();
    assert_eq!(cut_off.len(), 1, "{cut_off:?}");
    assert_eq!(cut_off[0].0, left.node);
}

/// LT-2: whoever connects in the moment in which its link is forgotten is not told that it is gone.
#[tokio::test]
async fn who_was_forgotten_a_moment_ago_may_come_again() {
    let fixture = Fixture::start(FOR_EVER, MOST).await;
    let (left, right) = (&fixture.left, &fixture.right);
    let link = right.agent.links.link_for_dialer(left.node).expect("room");
    assert!(link.close_if_unused(false));
    let Purpose::Main(hello) = claim(left.node, right).purpose else {
        unreachable!("it is for the main stream");
    };
    let refused = PendingConnection::accept(&link, left.card.clone(), &hello);
    assert!(matches!(refused, Err(Refusal::Crowded)), "{refused:?}");
    assert!(!link.keep_connected(), "it is not to be watched");
}

/// LT-2
#[tokio::test]
async fn whom_somebody_watches_is_not_forgotten() {
    let fixture = Fixture::start(FOR_EVER, MOST).await;
    let (left, right) = (&fixture.left, &fixture.right);
    let link = right.agent.links.link_for_dialer(left.node).expect("room");
    right.agent.watch(left.node);
    assert!(!link.close_if_unused(true));
}

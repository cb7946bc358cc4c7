//! F1, F3 and what the links do about it: who is suspected, reset, cut off and refused.

use std::time::Duration;

use farref_proto::{Lane, PeerMisbehaved};

use super::fixture::{Setup, impatient};
use super::*;
use crate::support::lock::lock;

const NEVER: Duration = Duration::from_secs(3600);

/// Longer than a busy machine keeps a runnable thread waiting, so that heartbeats come in time.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_crashed_peer_is_suspected_at_once() {
    // F1: not by silence, which would take an hour here.
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.peer_timeout = NEVER;
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.meet(&right).await;
    network.crash("w2#1");
    eventually("it is suspected", || {
        *lock(&left.inbound.suspected) == [right.node]
    })
    .await;
}

#[tokio::test]
async fn a_peer_whose_sockets_are_gone_is_suspected_at_once() {
    // F1
    for unix in [false, cfg!(unix)] {
        let [left, right] = Side::socket_pair(unix).await;
        left.meet(&right).await;
        let node = right.node;
        drop(right);
        eventually("it is suspected", || {
            *lock(&left.inbound.suspected) == [node]
        })
        .await;
    }
}

#[tokio::test]
async fn a_silent_peer_is_suspected_in_time() {
    // F1
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.peer_timeout = PEER_TIMEOUT;
    config.heartbeat_interval = PEER_TIMEOUT / 20;
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.meet(&right).await;
    tokio::time::sleep(PEER_TIMEOUT + PEER_TIMEOUT / 4).await;
    assert_eq!(
        *lock(&left.inbound.suspected),
        [],
        "heartbeats keep it alive"
    );
    network.partition("w1#1", "w2#1");
    eventually("each suspects the other", || {
        *lock(&left.inbound.suspected) == [right.node]
            && *lock(&right.inbound.suspected) == [left.node]
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_never_comes_is_suspected_in_time() {
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.peer_timeout = Duration::from_millis(200);
    let [left, _right] = Side::memory_pair_with(&network, config).await;
    let stranger = NodeId::new(9, 1);
    left.agent.enqueue(stranger, control(1));
    eventually("it is suspected", || {
        *lock(&left.inbound.suspected) == [stranger]
    })
    .await;
}

#[tokio::test]
async fn a_stuck_connection_is_replaced_and_nothing_is_lost() {
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.ack_timeout = Duration::from_millis(100);
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.meet(&right).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, control(1));
    eventually("the connection is given up", || {
        left.link_to(&right)
            .is_some_and(|link| link.transport.is_none())
    })
    .await;
    network.heal("w1#1", "w2#1");
    // Perhaps on the former connection, which is over at the left and has brought what was on its way to the right.
    eventually("the message arrives", || right.received_count() == 2).await;
    eventually("there is another connection", || {
        let link = left.link_to(&right).expect("a link");
        link.connections > 1 && link.transport.is_some()
    })
    .await;
    assert_eq!(right.received_count(), 2, "it has arrived once");
    assert!(lock(&left.inbound.suspected).is_empty());
}

#[tokio::test]
async fn a_peer_that_breaks_the_rules_is_cut_off_for_good() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    *lock(&right.inbound.hook) = Some(Arc::new(Box::new(|message| match message {
        Message::Call(_) => Err(PeerMisbehaved::ForeignFork {
            parent: NodeId::new(5, 5),
        }),
        _ => Ok(()),
    })));
    left.meet(&right).await;
    left.agent.enqueue(right.node, call(1, 1));
    left.agent
        .enqueue(right.node, Message::Cancel(farref_proto::MessageId(1)));
    left.agent.flush(right.node);
    eventually("it is reported", || {
        let misbehaved = lock(&right.inbound.misbehaved);
        misbehaved.len() == 1 && misbehaved[0].0 == left.node
    })
    .await;
    // The other end tries again, and is told that it counts as gone.
    eventually("the other end is told", || {
        lock(&left.inbound.refused).contains(&right.node)
    })
    .await;
    assert_eq!(right.received_count(), 1, "nothing after the offence");
    assert_eq!(network.connections("w1#1", "w2#1"), 0);
    assert_eq!(lock(&right.inbound.misbehaved).len(), 1);
}

#[tokio::test]
async fn a_life_that_is_over_is_refused_and_told() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    lock(&right.inbound.gone).insert(left.node);
    left.send(&right, control(1));
    eventually("it is told", || {
        *lock(&left.inbound.refused) == [right.node]
    })
    .await;
    assert_eq!(right.received_count(), 0);
}

#[tokio::test]
async fn two_lives_of_a_worker_have_links_of_their_own() {
    // F3
    let network = MemoryNetwork::new();
    let book = Arc::default();
    let bind = |name: &str| BindOptions::memory(&network, name);
    let left = Setup::new(1, bind("left"), &book).start().await;
    let old = Setup::new(2, bind("old"), &book).start().await;
    left.meet(&old).await;
    let mut setup = Setup::new(2, bind("new"), &book);
    setup.node = NodeId::new(2, 2);
    let new = setup.start().await;
    new.send(&left, control(7));
    eventually("the new life is heard", || {
        lock(&left.inbound.received)
            .iter()
            .any(|(from, _)| *from == new.node)
    })
    .await;
    left.send(&new, control(8));
    left.send(&old, control(9));
    eventually("each gets what is meant for it", || {
        new.received_count() == 1 && old.received_count() == 2
    })
    .await;
}

#[tokio::test]
async fn an_address_that_belongs_to_another_life_now_counts_as_refusing() {
    // F1, F3
    let network = MemoryNetwork::new();
    let book = Arc::default();
    let left = Setup::new(1, BindOptions::memory(&network, "left"), &book)
        .start()
        .await;
    let mut setup = Setup::new(2, BindOptions::memory(&network, "right"), &book);
    setup.node = NodeId::new(2, 2);
    let new = setup.start().await;
    let old = NodeId::new(2, 1);
    let mut card = new.card.clone();
    card.node = old;
    lock(&book.cards).insert(old, card);
    left.agent.enqueue(old, control(1));
    eventually("the old life is suspected", || {
        *lock(&left.inbound.suspected) == [old]
    })
    .await;
    assert_eq!(new.received_count(), 0);
}

/// F1, TI-2: the silence is its own, as it finds out when it reads what came meanwhile.
#[tokio::test]
async fn a_process_that_slept_blames_nobody() {
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.peer_timeout = PEER_TIMEOUT;
    config.heartbeat_interval = PEER_TIMEOUT / 20;
    let book = Arc::default();
    let side = |worker| {
        let bind = BindOptions::memory(&network, format!("w{worker}#1"));
        let mut setup = Setup::new(worker, bind, &book);
        setup.config = config.clone();
        setup
    };
    // One that stays awake, on threads of its own.
    let awake = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let right = awake.spawn(side(2).start()).await.unwrap();
    let io = IoThread::alone();
    let mut sleeper = side(1);
    sleeper.io = Arc::clone(&io);
    let left = sleeper.start().await;
    left.meet(&right).await;
    for _ in 0..2 {
        // Something else ends the timer's sleep than its moment.
        let link = left.agent.links.link(right.node).expect("they have met");
        let timer = &left.agent.links.timer;
        timer.arm(&link, Some(farref_proto::Time(0)));
        // All its threads at once.
        io.handle()
            .spawn(async { std::thread::sleep(PEER_TIMEOUT * 3 / 2) });
        std::thread::sleep(PEER_TIMEOUT * 3 / 2);
        tokio::time::sleep(PEER_TIMEOUT / 4).await;
        assert_eq!(*lock(&left.inbound.suspected), []);
    }
    drop((left, right));
    awake.shutdown_background();
}

#[tokio::test]
async fn a_message_that_could_not_be_handed_in_is_never_missing_in_silence() {
    // RE-2: a fault of ours, not the peer's.
    let [left, right] = Side::memory_pair(&MemoryNetwork::new()).await;
    left.meet(&right).await;
    let hook = |message: &Message| match fixture::numbers(
        std::slice::from_ref(message),
        Lane::Control,
    )[..]
    {
        [1] => panic!("ours"),
        _ => Ok(()),
    };
    *lock(&right.inbound.hook) = Some(Arc::new(Box::new(hook)));
    for number in 1..5 {
        left.send(&right, control(number));
    }
    eventually("it is given up", || {
        *lock(&right.inbound.suspected) == [left.node]
    })
    .await;
    assert_eq!(
        right.received_on(Lane::Control),
        [0],
        "nothing after the gap"
    );
    assert_eq!(*lock(&right.inbound.misbehaved), [], "it is not to blame");
}

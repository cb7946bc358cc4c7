//! Ends: of an agent, of a link, in good order or not. Nothing is left behind.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farref_proto::Lane;
use farref_testkit::TEST_TIMEOUT;
use tokio::runtime::Handle;

use super::fixture::impatient;
use super::*;
use crate::native::accept::Acceptor;
use crate::native::transport::Stream;
use crate::support::lock::lock;

/// How many tasks the runtime of this test has.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_delivers_what_is_queued() {
    let network = MemoryNetwork::new();
    network.set_capacity(1000);
    let [left, right] = Side::memory_pair(&network).await;
    for number in 0..200 {
        left.agent.enqueue(right.node, control(number));
        left.agent.enqueue(right.node, call(number, 70 << 10));
    }
    left.close().await;
    assert_eq!(right.received_on(Lane::Control), Vec::from_iter(0..200));
    assert_eq!(right.received_on(Lane::Bulk), Vec::from_iter(0..200));
}

#[tokio::test]
async fn closing_leaves_no_task_no_socket_and_no_buffer() {
    let before = tasks();
    let [left, right] = Side::socket_pair(true).await;
    left.meet(&right).await;
    let part = bytes::Bytes::from(vec![1; 1 << 20]);
    left.send(
        &right,
        answerable(1, bytes::Bytes::new(), vec![part.clone()]),
    );
    eventually("bulk arrives", || right.received_count() == 2).await;
    assert!(tasks() > before);
    assert!(TcpStream::connect(left.tcp_address()).is_ok());
    for side in [&left, &right] {
        side.close().await;
        assert_eq!(side.agent.links().len(), 0);
        assert!(TcpStream::connect(side.tcp_address()).is_err());
        assert_eq!(Arc::strong_count(&side.agent.links), 1);
        assert_eq!(Arc::strong_count(&side.agent.links.endpoint), 1);
    }
    assert_eq!(tasks(), before);
    // On the thread for what is the program's (LI-4).
    eventually("the buffer is let go", || part.is_unique()).await;
    // Harmless afterwards, and nothing to wait for.
    left.send(&right, control(1));
    left.agent.close(Duration::from_secs(3600)).await;
    assert_eq!(tasks(), before);
}

#[tokio::test]
async fn an_agent_that_is_dropped_leaves_nothing_either() {
    let before = tasks();
    let [left, right] = Side::socket_pair(true).await;
    left.meet(&right).await;
    let address = left.tcp_address();
    let links = Arc::downgrade(&left.agent.links);
    let endpoint = Arc::downgrade(&left.agent.links.endpoint);
    drop((left, right));
    eventually("all tasks end", || tasks() == before).await;
    // Those of the I/O thread are not counted, and what they had goes with them.
    eventually("nobody listens", || TcpStream::connect(address).is_err()).await;
    eventually("nothing is shared", || {
        links.upgrade().is_none() && endpoint.upgrade().is_none()
    })
    .await;
}

#[tokio::test]
async fn closing_waits_for_a_silent_peer_no_longer_than_it_is_patient() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, control(1));
    left.agent.close(Duration::from_millis(50)).await;
    assert_eq!(right.received_count(), 1);
}

#[tokio::test]
async fn closing_does_not_wait_for_a_peer_that_is_gone() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    network.crash("w2#1");
    left.send(&right, control(1));
    // Patience that would outlast the test.
    left.agent.close(Duration::from_secs(3600)).await;
    drop(right);
}

#[tokio::test]
async fn closing_acknowledges_what_was_received() {
    // Or the peer would take an orderly end for a crash.
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.ack_delay = Duration::from_secs(3600);
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.send(&right, control(1));
    eventually("it arrives", || right.received_count() == 1).await;
    right.close().await;
    eventually("it is acknowledged", || {
        left.link_to(&right)
            .is_some_and(|link| link.queued_messages == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_handed_in_and_nobody_suspected_after_closing_began() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    let begun = Arc::new(AtomicBool::new(false));
    let late = Arc::new(AtomicBool::new(false));
    let (seen, noted) = (Arc::clone(&begun), Arc::clone(&late));
    *lock(&left.inbound.hook) = Some(Arc::new(Box::new(move |_| {
        if seen.load(Ordering::SeqCst) {
            noted.store(true, Ordering::SeqCst);
        }
        Ok(())
    })));
    let (agent, to) = (Arc::clone(&right.agent), left.node);
    let sender = std::thread::spawn(move || {
        for number in 0..2000 {
            agent.enqueue(to, call(number, 10));
            agent.flush(to);
        }
    });
    eventually("messages arrive", || left.received_count() > 10).await;
    // Keeps the flush of the closing agent going.
    network.partition("w1#1", "w2#1");
    left.send(&right, control(5));
    let closing = left.agent.close(Duration::from_millis(200));
    tokio::pin!(closing);
    // One poll begins it.
    assert!(timeout(Duration::ZERO, &mut closing).await.is_err());
    {
        // Whatever was being delivered when it began is done.
        let link = left.agent.links.link(right.node).expect("a link");
        drop(lock(&link.delivery_lock));
    }
    begun.store(true, Ordering::SeqCst);
    network.crash("w2#1");
    closing.await;
    sender.join().expect("a sender");
    assert!(!late.load(Ordering::SeqCst));
    assert!(lock(&left.inbound.suspected).is_empty());
}

#[tokio::test]
async fn who_connects_while_an_agent_stops_does_not_keep_it_from_ending() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = Stream::tcp(listener.accept().await.unwrap().0).unwrap();
    // Its listener has just accepted, and is not at a point where it can be aborted.
    let mut tasks = left.agent.links.stop();
    let acceptor = Acceptor::new(&left.agent.links);
    let (done, admitted) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        acceptor.admit(stream);
        done.send(())
    });
    admitted
        .recv_timeout(TEST_TIMEOUT)
        .expect("it is still at it");
    while tasks.join_next().await.is_some() {}
    drop(right);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_does_not_wait_for_what_the_program_does_with_a_message() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let (begun, begins) = std::sync::mpsc::channel();
    *lock(&right.inbound.hook) = Some(Arc::new(Box::new(move |_| {
        let _ = begun.send(());
        // What is queued on this thread goes on elsewhere: closing waits for it.
        let _ = tokio::task::block_in_place(|| lock(&held).recv());
        Ok(())
    })));
    left.send(&right, control(1));
    let begins = tokio::task::spawn_blocking(move || begins.recv());
    begins.await.unwrap().expect("it is handed in");
    let closing = timeout(TEST_TIMEOUT, right.close()).await;
    drop(release);
    closing.expect("it is still closing");
    left.close().await;
}

#[tokio::test]
async fn a_dead_peer_is_forgotten_at_once_and_refused() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    let part = bytes::Bytes::from(vec![1; 1 << 20]);
    network.partition("w1#1", "w2#1");
    left.send(
        &right,
        answerable(1, bytes::Bytes::new(), vec![part.clone()]),
    );
    left.agent.forget(right.node, Departure::Died);
    assert!(left.agent.links().is_empty());
    left.send(&right, control(1));
    assert!(
        left.agent.links().is_empty(),
        "nothing is queued for the dead"
    );
    eventually("what was queued is thrown away", || part.is_unique()).await;
    network.heal("w1#1", "w2#1");
    right.send(&left, control(2));
    eventually("it is told that it is gone", || {
        *lock(&right.inbound.refused) == [left.node]
    })
    .await;
    assert_eq!(left.received_count(), 1);
    assert_eq!(network.connections("w1#1", "w2#1"), 0);
}

#[tokio::test]
async fn a_peer_that_left_still_gets_what_is_queued() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, control(1));
    left.agent.forget(right.node, Departure::Left);
    left.send(&right, control(2));
    network.heal("w1#1", "w2#1");
    eventually("it arrives", || right.received_count() == 3).await;
    right.close().await;
    eventually("then the link is dropped", || left.agent.links().is_empty()).await;
    left.send(&right, control(3));
    assert!(left.agent.links().is_empty());
}

#[tokio::test]
async fn a_peer_that_left_and_closed_is_not_waited_for() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, control(1));
    left.agent.forget(right.node, Departure::Left);
    network.crash("w2#1");
    eventually("the link is dropped", || left.agent.links().is_empty()).await;
    assert!(lock(&left.inbound.suspected).is_empty());
}

#[tokio::test]
async fn a_silent_peer_that_left_is_dropped_in_time() {
    let network = MemoryNetwork::new();
    let mut config = impatient();
    config.leave_timeout = Duration::from_millis(50);
    let [left, right] = Side::memory_pair_with(&network, config).await;
    left.meet(&right).await;
    network.partition("w1#1", "w2#1");
    left.send(&right, control(1));
    left.agent.forget(right.node, Departure::Left);
    eventually("the link is dropped", || left.agent.links().is_empty()).await;
}

#[tokio::test]
async fn an_agent_whose_runtime_is_gone_hands_nothing_in_and_lets_go() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    let Side { agent, inbound, .. } = right;
    drop(inbound);
    left.agent.enqueue(agent.links.endpoint.node(), control(1));
    left.agent.flush(agent.links.endpoint.node());
    eventually("the connection is closed", || {
        network.connections("w1#1", "w2#1") == 0
    })
    .await;
}

/// A buffer that a message came in is kept for the next one for some seconds, and not for ever: also if
/// nobody is left who could send one.
#[tokio::test]
async fn a_receive_buffer_is_given_back_when_its_sender_has_left() {
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.meet(&right).await;
    right.send(&left, call(1, 4 << 20));
    eventually("it arrives", || left.received_count() == 2).await;
    left.agent.forget(right.node, Departure::Died);
    assert!(left.agent.links().is_empty());
    let received = std::mem::take(&mut *lock(&left.inbound.received));
    drop(received);
    let recycler = &left.agent.links.endpoint.recycler;
    assert!(recycler.kept() >= 4 << 20);
    eventually("its memory is given back", || recycler.kept() == 0).await;
}

/// Of a worker that is started again and again the latest of its lives that are over says it all.
#[tokio::test]
async fn lives_that_are_over_are_remembered_once_for_each_worker() {
    let network = MemoryNetwork::new();
    let [left, _right] = Side::memory_pair(&network).await;
    const LIVES: u32 = 1_000;
    // In an order in which nobody dies.
    for incarnation in (1..=LIVES / 2).chain((LIVES / 2 + 1..=LIVES).rev()) {
        let life = NodeId::new(7, incarnation);
        left.agent.forget(life, Departure::Died);
        assert!(left.agent.links.link_or_new(life).is_none());
    }
    left.agent.forget(NodeId::new(8, 1), Departure::Died);
    assert_eq!(left.agent.links.departed(), 2);
    for incarnation in 0..=LIVES {
        let life = NodeId::new(7, incarnation);
        assert!(left.agent.links.link_or_new(life).is_none(), "{life}");
    }
    let next = NodeId::new(7, LIVES + 1);
    assert!(left.agent.links.link_or_new(next).is_some());
}

//! TI-3: the timer looks at those links that want it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fixture::{Book, Setup, impatient};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_on_which_nothing_happens_are_left_alone_while_another_is_busy() {
    // TI-3
    const IDLE: u32 = 8;
    let network = MemoryNetwork::new();
    let book: Arc<Book> = Arc::default();
    let mut config = impatient();
    // Nothing but acknowledgements falls due while this lasts.
    config.peer_timeout = Duration::from_secs(3600);
    config.heartbeat_interval = Duration::from_secs(600);
    config.ack_timeout = Duration::from_secs(600);
    let start = |worker| {
        let bind = BindOptions::memory(&network, format!("w{worker}#1"));
        let mut setup = Setup::new(worker, bind, &book);
        setup.config = config.clone();
        setup.start()
    };
    let hub = start(0).await;
    let busy = start(1).await;
    hub.meet(&busy).await;
    let mut idle = Vec::new();
    for worker in 2..2 + IDLE {
        let side = start(worker).await;
        hub.meet(&side).await;
        idle.push(side);
    }
    let looks = |at: &Side| {
        let link = hub.agent.links.link(at.node).expect("they have met");
        link.alarm.looks.load(Ordering::Relaxed)
    };
    eventually("what came is acknowledged", || {
        idle.iter().all(|side| {
            let link = side.link_to(&hub).expect("they have met");
            link.queued_messages == 0
        })
    })
    .await;
    let before: Vec<_> = idle.iter().map(looks).collect();
    let begun = looks(&busy);
    let mut number = 0;
    while looks(&busy) < begun + 50 {
        number += 1;
        busy.send(&hub, control(number));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (side, before) in idle.iter().zip(before) {
        // What was under way when it was counted.
        assert!(
            looks(side) <= before + 2,
            "{} looks at {}",
            looks(side),
            side.node
        );
    }
}

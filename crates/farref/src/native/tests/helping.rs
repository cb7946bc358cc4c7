//! HE-1, HE-2: what a worker does while its program keeps its runtime from running.

use std::sync::mpsc;
use std::time::Duration;

use super::fixture::{Book, Setup, impatient};
use super::*;
use crate::native::shared::lock;

/// Starts an agent on a runtime of its own, which nobody drives from then on until the test is over.
fn undriven(setup: Setup) -> (Side, mpsc::Sender<()>) {
    let (give, take) = mpsc::channel();
    let (over, wait) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let side = runtime.block_on(setup.start());
        drop(give.send(side));
        let _ = wait.recv();
    });
    let side = take.recv_timeout(Duration::from_secs(60));
    (side.expect("it starts"), over)
}

fn pairs() -> Vec<(&'static str, [BindOptions; 2])> {
    let network = MemoryNetwork::new();
    let sockets = |unix| {
        [1, 2].map(|_| BindOptions {
            unix,
            ..BindOptions::default()
        })
    };
    let memory = [1, 2].map(|worker| BindOptions::memory(&network, format!("w{worker}#1")));
    vec![
        ("memory", memory),
        ("tcp", sockets(false)),
        ("unix", sockets(true)),
    ]
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_keeps_its_runtime_from_running_is_not_silent_and_hears_what_is_said() {
    for (transport, [here, there]) in pairs() {
        let book: Arc<Book> = Arc::default();
        let mut config = impatient();
        config.peer_timeout = Duration::from_secs(1);
        config.heartbeat_interval = Duration::from_millis(250);
        let setup = |worker, bind| {
            let mut setup = Setup::new(worker, bind, &book);
            setup.config = config.clone();
            setup
        };
        let left = setup(1, here).start().await;
        let (right, over) = undriven(setup(2, there));

        // HE-1: both ways, small messages and large ones.
        left.meet(&right).await;
        for number in 1..20 {
            left.send(&right, control(number));
            right.send(&left, control(number));
        }
        const LARGE: usize = 8 << 20;
        left.send(&right, call(1, LARGE));
        right.send(&left, call(2, LARGE));
        eventually("all arrives", || {
            left.received_count() == 21 && right.received_count() == 21
        })
        .await;
        // HE-2: once, and not before it has lasted for a while.
        eventually("somebody is told", || lock(&book.starving).len() == 2).await;
        assert_eq!(lock(&book.starving)[0], Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(lock(&book.starving).len(), 2, "{transport}: once is enough");

        for (side, peer) in [(&left, &right), (&right, &left)] {
            assert_eq!(*lock(&side.inbound.suspected), [], "{transport}");
            let link = side.link_to(peer).expect("a link");
            assert_eq!(link.connections, 1, "{transport}");
        }
        left.send(&right, control(20));
        eventually("it still hears", || right.received_count() == 22).await;
        drop(over);
    }
}

#[tokio::test]
async fn a_worker_whose_runtime_is_gone_gives_no_sign_of_life() {
    let book: Arc<Book> = Arc::default();
    let left = Setup::new(1, BindOptions::default(), &book).start().await;
    let (right, over) = undriven(Setup::new(2, BindOptions::default(), &book));
    left.meet(&right).await;
    // The runtime goes; whoever has the agent still has it.
    drop(over);
    eventually("it is suspected", || {
        *lock(&left.inbound.suspected) == [right.node]
    })
    .await;
}

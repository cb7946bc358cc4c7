//! Errors say what is the matter: whom was waited for and how long, and who takes no part any more.

use std::time::Duration;

use farref::testing::Cluster;
use farref::{Error, RRef};
use farref_testkit::TEST_TIMEOUT;

#[farref::remote]
async fn nap(long: Duration) -> u8 {
    tokio::time::sleep(long).await;
    1
}

/// F4
#[tokio::test]
async fn a_peer_that_did_not_come_is_named_with_the_time_that_was_waited() {
    let cluster = Cluster::start(1).await.unwrap();
    let me = cluster.worker(0).clone();
    let patience = Duration::from_millis(30);
    let error = me.wait_for_peer("nobody", patience).await.unwrap_err();
    assert!(
        matches!(&error, Error::NoSuchPeer { waited, .. } if *waited == Some(patience)),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("30ms") && !text.contains("wait_for_peer"),
        "{text}"
    );
    let text = me.peer("nobody").unwrap_err().to_string();
    assert!(text.contains("wait_for_peer"), "{text}");
    cluster.shutdown().await.unwrap();
    let ended = me.peer("nobody");
    assert!(matches!(ended, Err(Error::NotMember { .. })), "{ended:?}");
}

/// F4
#[tokio::test]
async fn a_reference_that_was_cast_to_another_type_is_told_to_cast() {
    let cluster = Cluster::start(2).await.unwrap();
    let peer = cluster.worker(0).peer("worker1").unwrap();
    let number: RRef<u8> = nap::on(&peer, Duration::ZERO).remote();
    let error = number.cast::<String>().unwrap_err();
    assert!(matches!(error, Error::TypeMismatch(_)), "{error:?}");
    assert!(error.to_string().contains("cast it to"), "{error}");
    drop(number);
    cluster.shutdown().await.unwrap();
}

/// A call has the runtime of its worker, whoever awaits it.
#[test]
fn a_call_can_be_awaited_outside_of_tokio() {
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(2)).unwrap();
    let peer = cluster.worker(0).peer("worker1").unwrap();
    let call = nap::on(&peer, Duration::from_millis(20)).timeout(TEST_TIMEOUT);
    let mut call = std::pin::pin!(call);
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let outcome = loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => std::thread::park_timeout(TEST_TIMEOUT),
        }
    };
    assert_eq!(outcome.unwrap(), 1);
    runtime.block_on(cluster.shutdown()).unwrap();
}

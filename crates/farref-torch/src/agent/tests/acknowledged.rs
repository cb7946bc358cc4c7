//! TA-4: what peers say about references is acknowledged. PyTorch's workers count what is not, and wait for it at the end.

use super::*;
use crate::agent::pickled::references_of;
use crate::pickle::Pickle;
use crate::{PyValue, py_call, py_remote};

/// Says something about references, which is acknowledged.
async fn tell(stage: &Stage, from: &mut Played, message: &Message<'_>, id: i64) {
    let (kind, bytes) = message.encode();
    let message = super::super::messages::ready(kind, id, bytes);
    from.send_all(stage, &[message]).await;
    let answer = from.answer().await.expect("it is not cut off");
    assert_eq!((answer.id, answer.kind), (id, Kind::Ack.code()), "{kind:?}");
}

/// The reference in the next call, which is answered.
async fn handed(to: &mut Played) -> Fork {
    let request = to.request().await;
    let Message::PythonCall { udf, .. } = request.decoded() else {
        panic!("{:?}", request.kind());
    };
    let pickle = Pickle::read(udf).unwrap();
    let mut references = references_of(&pickle);
    let mut none = Writer::new(4);
    none.none();
    let value = none.finish();
    request.answer(&Message::PythonRet { value: &value });
    references.pop().expect("a reference").1
}

#[tokio::test]
async fn whatever_peers_say_about_references_is_acknowledged() {
    let (stage, mut played) = stage(&["python", "other"], Limits::default(), |it| it).await;
    let [python, other] = &mut played[..] else {
        unreachable!("two are played")
    };
    let peer = |name: &str| stage.worker.peer(name).unwrap();

    // A value of this worker's, which one of them hands on to the other.
    let mine = stage.worker.rref(5_i64).unwrap();
    let give = py_call::<PyValue>(&peer("python"), "shop.take", (mine.clone(),)).start();
    let Fork { rref, fork, .. } = handed(python).await;
    timeout(TEST_TIMEOUT, give).await.unwrap().unwrap();
    let handed_on = GlobalId::new(python.id, 50);
    let registered = Message::ForkRequest {
        rref,
        fork: handed_on,
    };
    tell(&stage, other, &registered, 1).await;
    let gone = Message::UserDelete {
        rref,
        fork: handed_on,
    };
    tell(&stage, other, &gone, 2).await;
    tell(&stage, python, &Message::UserDelete { rref, fork }, 3).await;
    drop(mine);
    let references = stage.worker.references();
    assert!(references.is_empty(), "{references:?}");

    // A value of theirs, which this worker hands on.
    let made = py_remote(&peer("python"), "shop.make", ());
    let creation = python.request().await;
    let Message::PythonRemoteCall { rref, fork, .. } = creation.decoded() else {
        panic!("{:?}", creation.kind());
    };
    creation.answer(&Message::RemoteRet { rref, fork });
    let give = py_call::<PyValue>(&peer("other"), "shop.take", (made.clone(),)).start();
    let Fork { fork, .. } = handed(other).await;
    timeout(TEST_TIMEOUT, give).await.unwrap().unwrap();
    tell(&stage, other, &Message::ChildAccept { fork }, 4).await;
    drop(made);
    let gone = python.request().await;
    assert_eq!(gone.kind(), Kind::UserDelete);
    gone.answer(&Message::Ack);
    stage.worker.crash().await;
}

//! TA-8: values that a peer is still making.

use super::*;
use crate::agent::state::ids::Incarnations;
use crate::agent::state::links::{Link, Pending};
use crate::rpc;
use crate::{PyValue, py_call, py_remote};

/// PyTorch's owners count a creation's reference once its function has run, and forget a value with the last reference
/// they have counted. So what the owner hands back before that is not deleted before that, or the value would be made
/// for nobody: whoever has it at the owner would wait for it for ever.
#[tokio::test]
async fn a_reference_from_an_owner_that_is_still_making_the_value_is_deleted_when_it_is_made() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    let made = py_remote(&peer, "shop.make", ());
    let creation = python.request().await;
    let Message::PythonRemoteCall { rref, fork, .. } = creation.decoded() else {
        panic!("{:?}", creation.kind());
    };
    let handed_back = Fork {
        owner: python.id,
        rref,
        fork: GlobalId::new(python.id, 9),
        parent: python.id,
        type_name: "PyObject".to_owned(),
    };
    let call = udf("shop", "no_such_function", |writer| {
        rpc::write_rref(writer, &handed_back);
    });
    let (kind, bytes) = Message::PythonCall {
        is_async: false,
        udf: &call,
    }
    .encode();
    let call = super::super::messages::ready(kind, 77, bytes);
    python.send_all(&stage, &[call]).await;
    drop(python.answer().await.expect("it is answered"));

    // What is said next is not that the reference is gone.
    let next = tokio::spawn(async move { py_call::<PyValue>(&peer, "shop.next", ()).await });
    let request = python.request().await;
    assert_eq!(request.kind(), Kind::PythonCall);
    let mut none = Writer::new(4);
    none.none();
    let value = none.finish();
    request.answer(&Message::PythonRet { value: &value });
    timeout(TEST_TIMEOUT, next).await.unwrap().unwrap().unwrap();

    creation.answer(&Message::RemoteRet { rref, fork });
    let gone = python.request().await;
    let expected = Message::UserDelete {
        rref,
        fork: handed_back.fork,
    };
    assert_eq!(gone.decoded(), expected);
    gone.answer(&Message::Ack);
    drop(made);
    let gone = python.request().await;
    assert_eq!(gone.decoded(), Message::UserDelete { rref, fork });
    gone.answer(&Message::Ack);
    stage.worker.crash().await;
}

/// A peer that hands the same value back without end is not taken at its word: what is held back is bounded, and none of it
/// is lost.
#[test]
fn ta_8_deletes_that_wait_for_a_creation_are_bounded() {
    let node = NodeId::new(0, 0);
    let link = Link::new(node, "python".to_owned(), String::new());
    let incarnations = Incarnations::default();
    let rref = GlobalId::new(RUST, 1);
    let share = |number| incarnations.share(rref, GlobalId::new(0, number));
    let creation = Pending::Create {
        share: share(0),
        context: None,
        weight: 0,
    };
    assert!(link.expect(7, creation));
    let held_back: Vec<_> = (1..10_000)
        .map(share)
        .take_while(|share| link.delete_later(*share))
        .collect();
    assert!((1..5000).contains(&held_back.len()), "{}", held_back.len());
    assert_eq!(link.created(share(0).rref), held_back);
    // From then on there is nothing to wait for.
    assert!(!link.delete_later(share(10_000)));
    assert!(link.created(share(0).rref).is_empty());
}

//! What fits, and cannot be sent all the same: its bytes are not to be had when it is written.

use std::ops::Range;

use farref::{Buffer, Source, Width};

use super::*;
use crate::agent::state::links::ToSend;
use crate::{Dtype, PyValue, RawTensor, py_call, py_remote};

const LENGTH: usize = 8 << 10;

/// How many creations a peer is sent at once at most.
const WINDOW: usize = 4096;

/// Has fewer bytes than it says, which are so many that they travel beside the value.
struct Broken;

impl Source for Broken {
    fn len(&self) -> usize {
        LENGTH
    }

    fn width(&self) -> Width {
        Width::One
    }

    fn look(&self, _: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        look(&[1]);
    }
}

fn broken() -> Buffer {
    Buffer::from_source(Arc::new(Broken))
}

/// The next request is this call of a function without a result.
async fn answer_call(python: &mut Played) {
    let request = python.request().await;
    assert_eq!(request.kind(), Kind::PythonCall);
    let mut none = Writer::new(4);
    none.none();
    let value = none.finish();
    request.answer(&Message::PythonRet { value: &value });
}

/// R5: it is an error for whoever made it, and nothing is left of it: no share of what it carried, nothing that is open in
/// its context.
#[tokio::test]
async fn a_call_that_cannot_be_composed_is_undone() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    let mine = stage.worker.rref(5_i64).unwrap();
    let context = farref_autograd::Context::new(&stage.worker).unwrap();
    let call = async { py_call::<PyValue>(&peer, "shop.sell", (mine.clone(), broken())).await };
    let failed = timeout(TEST_TIMEOUT, context.run(call)).await;
    let error = failed.expect("it is known at once").unwrap_err();
    assert!(error.to_string().contains("source"), "{error}");
    let made = context.enter(|| py_remote(&peer, "shop.sell", (mine.clone(), broken())));
    let refused = timeout(TEST_TIMEOUT, made.confirmed()).await;
    refused.expect("it is known at once").unwrap_err();
    drop(made);
    let released = async {
        let released = timeout(TEST_TIMEOUT, context.release()).await;
        released.expect("no call is open in it").unwrap();
    };
    // Nothing was sent, but the peer may be asked to forget it all the same.
    let cleaned = async {
        loop {
            let cleanup = python.request().await;
            assert_eq!(cleanup.kind(), Kind::Cleanup);
            cleanup.answer(&Message::CleanupDone);
        }
    };
    tokio::select! {
        () = released => {}
        () = cleaned => {}
    }
    // Nobody but this worker has a share of its value.
    drop(mine);
    let references = stage.worker.references();
    assert!(references.is_empty(), "{references:?}");
    // And the wire is as before.
    let next = tokio::spawn(async move { py_call::<PyValue>(&peer, "shop.next", ()).await });
    answer_call(python).await;
    timeout(TEST_TIMEOUT, next).await.unwrap().unwrap().unwrap();
    stage.worker.crash().await;
}

/// Those that were not sent take no place of those that are.
#[tokio::test]
async fn creations_that_cannot_be_composed_do_not_count() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    for _ in 0..WINDOW + 1 {
        let made = py_remote(&peer, "shop.sell", (broken(),));
        let refused = timeout(TEST_TIMEOUT, made.confirmed()).await;
        refused.expect("it is known at once").unwrap_err();
    }
    let next = tokio::spawn(async move { py_call::<PyValue>(&peer, "shop.next", ()).await });
    answer_call(python).await;
    timeout(TEST_TIMEOUT, next).await.unwrap().unwrap().unwrap();
    stage.worker.crash().await;
}

/// Nor do those that are done.
#[tokio::test]
async fn creations_that_are_confirmed_do_not_count() {
    const TOGETHER: usize = 128;
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    let mut kept = Vec::new();
    for _ in 0..=WINDOW / TOGETHER {
        let made: Vec<_> = (0..TOGETHER)
            .map(|_| py_remote(&peer, "shop.make", ()))
            .collect();
        for _ in &made {
            let creation = python.request().await;
            let Message::PythonRemoteCall { rref, fork, .. } = creation.decoded() else {
                panic!("{:?}", creation.kind());
            };
            creation.answer(&Message::RemoteRet { rref, fork });
        }
        for made in &made {
            timeout(TEST_TIMEOUT, made.confirmed())
                .await
                .unwrap()
                .unwrap();
        }
        kept.extend(made);
    }
    stage.worker.crash().await;
}

/// Messages are written together, up to 64 at once: what is wrong with one is an error of it, and does not concern the others.
#[tokio::test]
async fn a_tensor_whose_bytes_are_not_to_be_had_is_an_error_of_its_call_only() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    let mut calls = Vec::new();
    for number in 0..5 {
        let value = match number {
            2 => PyValue::Tensor(RawTensor::new(Dtype::Byte, vec![LENGTH], broken())),
            _ => PyValue::Int(number.into()),
        };
        let call = py_call::<PyValue>(&peer, "shop.sell", (value,));
        calls.push((number, call.start()));
    }
    for (number, call) in calls {
        if number != 2 {
            answer_call(python).await;
        }
        let outcome = timeout(TEST_TIMEOUT, call)
            .await
            .expect("it is known at once");
        assert_eq!(outcome.is_err(), number == 2, "{number}: {outcome:?}");
    }
    stage.worker.crash().await;
}

/// The same for what only shows when they are written.
#[tokio::test]
async fn a_message_that_the_pipe_refuses_is_the_only_one_that_does_not_leave() {
    let limits = Limits {
        payload: 64 << 10,
        ..Limits::default()
    };
    let (stage, mut played) = stage(&["python"], limits, |it| it).await;
    let shared = stage.agent.shared();
    let link = shared.link_by_name("python").unwrap();
    for (id, size) in [(0, 10), (1, 100 << 10), (2, 10), (3, 100 << 10), (4, 10)] {
        let message = super::super::messages::ready(Kind::PythonCall, id, vec![0; size]);
        shared.queue(&link, ToSend::Ready(message));
    }
    for id in [0, 2, 4] {
        assert_eq!(played[0].request().await.message.id, id);
    }
    stage.worker.crash().await;
}

#[farref::remote(python = "unsent.tensor")]
async fn tensor(_: i64) -> PyValue {
    PyValue::Tensor(RawTensor::new(Dtype::Byte, vec![LENGTH], broken()))
}

/// TA-4: the caller waits for an answer.
#[tokio::test]
async fn an_answer_whose_bytes_are_not_to_be_had_is_an_error() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let udf = udf("unsent", "tensor", |writer| {
        writer.int(1);
    });
    let is_async = false;
    let call = Message::PythonCall {
        is_async,
        udf: &udf,
    };
    let (kind, bytes) = call.encode();
    let call = super::super::messages::ready(kind, 77, bytes);
    python.send_all(&stage, &[call]).await;
    let error = error_of(&python.answer().await.expect("it is answered"));
    assert!(error.contains("source"), "{error}");
    stage.worker.crash().await;
}

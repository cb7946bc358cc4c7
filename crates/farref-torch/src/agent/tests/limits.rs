//! What is too large, or too much, harms nobody else: not those whose messages are written together with it, not a
//! peer that asks for more than this worker takes at once.

use farref::{Blob, Error, RRef};
use farref_autograd::Tensor;
use farref_testkit::eventually;
use tokio::sync::{Notify, Semaphore};

use super::*;
use crate::{PyValue, py_call, py_remote};

/// A worker that sends little at once.
fn tight() -> Limits {
    Limits {
        payload: 64 << 10,
        message: 1 << 20,
        tensors: 4,
        ..Limits::default()
    }
}

/// Too many bytes besides tensors, too many tensors, too many bytes in all.
fn too_large() -> [(&'static str, PyValue); 3] {
    let bytes = |size| PyValue::Bytes(Blob::from(vec![0_u8; size]));
    let raw = |size| {
        PyValue::Tensor(crate::RawTensor::new(
            crate::Dtype::Byte,
            vec![size],
            vec![0_u8; size],
        ))
    };
    [
        ("bytes", bytes(100 << 10)),
        ("tensors", PyValue::List((0..9).map(|_| raw(1)).collect())),
        ("all", raw(2 << 20)),
    ]
}

/// R5: as if it had not been made, with all that it would have carried; a context closes.
#[tokio::test]
async fn a_call_that_is_too_large_is_undone() {
    let (stage, mut played) = stage(&["python"], tight(), |it| it).await;
    let peer = stage.worker.peer("python").unwrap();
    let mine = stage.worker.rref(5_i64).unwrap();
    for (what, value) in too_large() {
        let context = farref_autograd::Context::new(&stage.worker).unwrap();
        let call =
            async { py_call::<PyValue>(&peer, "shop.sell", (mine.clone(), value.clone())).await };
        let refused = context.run(call).await;
        assert!(
            matches!(refused, Err(Error::Codec { .. })),
            "{what}: {refused:?}"
        );
        let made = context.enter(|| py_remote(&peer, "shop.sell", (mine.clone(), value)));
        let refused = timeout(TEST_TIMEOUT, made.confirmed())
            .await
            .expect("it is known at once");
        assert!(refused.is_err(), "{what}");
        drop(made);
        let released = async {
            let released = timeout(TEST_TIMEOUT, context.release()).await;
            released.expect("no call is open in it").unwrap();
        };
        // The peer might know of it.
        let cleaned = async {
            let cleanup = played[0].request().await;
            assert_eq!(cleanup.kind(), Kind::Cleanup);
            cleanup.answer(&Message::CleanupDone);
        };
        tokio::join!(released, cleaned);
    }
    // Nobody but this worker has a share of its value.
    drop(mine);
    assert!(
        stage.worker.references().is_empty(),
        "{:?}",
        stage.worker.references()
    );
    // And the wire is as before.
    let call = tokio::spawn(async move { py_call::<i64>(&peer, "shop.count", ()).await });
    let request = played[0].request().await;
    let mut three = Writer::new(4);
    three.int(3);
    let value = three.finish();
    request.answer(&Message::PythonRet { value: &value });
    assert_eq!(call.await.unwrap().unwrap(), 3);
    stage.worker.crash().await;
}

#[farref::remote(python = "limits.large")]
async fn large(what: String) -> PyValue {
    large_of(&what)
}

fn large_of(what: &str) -> PyValue {
    let mut all = too_large().into_iter();
    let found = all.find(|(name, _)| *name == what);
    found.map_or(PyValue::Int(7), |(_, value)| value)
}

/// Answers are written together, up to 64 at once: what is wrong with one concerns its caller.
#[tokio::test]
async fn an_answer_that_is_too_large_is_an_error_for_its_caller_only() {
    let (stage, mut played) = stage(&["python"], tight(), |it| it).await;
    let python = &mut played[0];
    let names = ["fits", "bytes", "fits", "tensors", "fits", "all", "fits"];
    let calls: Vec<_> = names
        .iter()
        .zip(0..)
        .map(|(name, id)| {
            let udf = udf("limits", "large", |writer| {
                writer.text(name.as_bytes());
            });
            let is_async = false;
            let call = Message::PythonCall {
                is_async,
                udf: &udf,
            };
            let (kind, bytes) = call.encode();
            super::super::messages::ready(kind, id, bytes)
        })
        .collect();
    python.send_all(&stage, &calls).await;
    for _ in names {
        let answer = python.answer().await.expect("all are answered");
        let name = names[answer.id as usize];
        let outcome = super::super::responses::plain_answer(&answer);
        assert_eq!(outcome.is_ok(), name == "fits", "{name}: {outcome:?}");
    }
    stage.worker.crash().await;
}

static RELEASED: Notify = Notify::const_new();

#[farref::remote(python = "limits.wait")]
async fn wait(number: i64) -> i64 {
    // One after the other, so that none is done before the last has come, or it waits for room.
    RELEASED.notified().await;
    RELEASED.notify_one();
    number
}

/// PyTorch's workers know of no limits: they wait.
#[tokio::test]
async fn a_peer_that_asks_more_than_is_taken_at_once_is_served_in_time() {
    const CALLS: i64 = 400;
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| {
        it.max_calls_per_peer(64)
    })
    .await;
    let python = &mut played[0];
    let calls: Vec<_> = (0..CALLS)
        .map(|id| {
            let udf = udf("limits", "wait", |writer| {
                writer.int(id);
            });
            let number = 10 * id as u64;
            // Most are creations, and more of them than are taken at once in any case (LO-2).
            let call = match id % 4 {
                0 => Message::PythonCall {
                    is_async: false,
                    udf: &udf,
                },
                _ => Message::PythonRemoteCall {
                    udf: &udf,
                    tensors: 0,
                    rref: GlobalId::new(0, number),
                    fork: GlobalId::new(0, number + 1),
                    is_async: false,
                },
            };
            let (kind, bytes) = call.encode();
            super::super::messages::ready(kind, id, bytes)
        })
        .collect();
    python.send_all(&stage, &calls).await;
    RELEASED.notify_one();
    for _ in 0..CALLS {
        let answer = python.answer().await.expect("it is not cut off");
        assert_ne!(answer.kind, Kind::Exception.code());
    }
    stage.worker.crash().await;
}

static HELD: Semaphore = Semaphore::const_new(0);

#[farref::remote(python = "limits.hold")]
async fn hold(number: i64) -> i64 {
    // Until it is closed.
    drop(HELD.acquire().await);
    number
}

/// D5, LO-2: while as much of a peer's is open as this worker takes, nothing more of it is read, and what waits is not in
/// this worker's memory.
#[tokio::test]
async fn calls_of_a_peer_beyond_what_is_taken_at_once_are_not_read() {
    const CALLS: i64 = 2000;
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| {
        it.max_calls_per_peer(64)
    })
    .await;
    let python = &mut played[0];
    let mut calls: Vec<_> = (0..CALLS)
        .map(|id| {
            let udf = udf("limits", "hold", |writer| {
                writer.int(id);
            });
            let call = Message::PythonCall {
                is_async: false,
                udf: &udf,
            };
            let (kind, bytes) = call.encode();
            super::super::messages::ready(kind, id, bytes)
        })
        .collect();
    // Whoever reads this answers it at once.
    let (kind, bytes) = Message::Cleanup { context: 5 }.encode();
    calls.push(super::super::messages::ready(kind, CALLS, bytes));
    python.send_all(&stage, &calls).await;
    let (_, receiver) = python.pipe.as_mut().unwrap();
    let early = timeout(Duration::from_secs(2), receiver.next()).await;
    early.expect_err("it is behind what is not read");
    HELD.close();
    for _ in 0..=CALLS {
        drop(python.answer().await.expect("it is not cut off"));
    }
    stage.worker.crash().await;
}

#[farref::remote(python = "limits.beside")]
async fn beside(what: String) -> (RRef<i64>, PyValue) {
    let worker = Worker::current().expect("it is called by one");
    (worker.rref(5_i64).expect("a value"), large_of(&what))
}

/// Nobody has got the references in it.
#[tokio::test]
async fn references_in_an_answer_that_is_too_large_are_taken_back() {
    let (stage, mut played) = stage(&["python"], tight(), |it| it).await;
    let python = &mut played[0];
    for (what, _) in too_large() {
        let udf = udf("limits", "beside", |writer| {
            writer.text(what.as_bytes());
        });
        let call = Message::PythonCall {
            is_async: false,
            udf: &udf,
        };
        let (kind, bytes) = call.encode();
        let call = super::super::messages::ready(kind, 77, bytes);
        python.send_all(&stage, &[call]).await;
        drop(error_of(&python.answer().await.expect("it is answered")));
        let freed = eventually(what, || stage.worker.references().is_empty()).await;
        freed.expect("they are taken back");
    }
    stage.worker.crash().await;
}

/// Gradients that are too large are an error of the pass, and of nothing else.
#[tokio::test]
async fn gradients_that_are_too_large_fail_their_pass_only() {
    let (stage, mut played) = stage(&["python"], tight(), |it| it).await;
    let peer = stage.worker.peer("python").unwrap();
    let python = &mut played[0];
    let context = farref_autograd::Context::new(&stage.worker).unwrap();
    let received = context.run(async { py_call::<Tensor>(&peer, "shop.tensor", ()).await });
    let number = crate::torch_context_id(&context);
    let played = async {
        let request = python.request().await;
        // One tensor of one number, which claims to be large: so do the gradients of it.
        let mut value = Writer::new(4);
        crate::rpc::write_tensor(&mut value, 0);
        let value = value.finish();
        let (kind, inner) = Message::PythonRet { value: &value }.encode();
        let answer = Message::Forward {
            request: false,
            kind,
            inner: &inner,
            context: number,
            autograd: 9,
            sender: 0,
        };
        let (kind, bytes) = answer.encode();
        let mut answer = super::super::messages::ready(kind, request.message.id, bytes);
        let view = crate::rpc::tensors::TensorView {
            requires_grad: true,
            strides: vec![0],
            ..crate::rpc::tensors::TensorView::whole(crate::Dtype::Float, 0, vec![1 << 20])
        };
        let list = [crate::rpc::tensors::ListedTensor::Dense(view)];
        answer.tensor_list = crate::rpc::tensors::write_list(&list).unwrap().into();
        answer.storages = vec![Part::from_vec(vec![1.0_f32])];
        drop(request.back.send(answer));
    };
    let (received, ()) = tokio::join!(received, played);
    let loss = context
        .enter(|| received.unwrap().sum_all())
        .unwrap()
        .into();
    let backward = context.backward(&[&loss]);
    let failed = timeout(TEST_TIMEOUT, backward)
        .await
        .expect("it is known at once");
    let error = failed.expect_err("they do not fit").to_string();
    assert!(error.contains("limit"), "{error}");
    stage.worker.crash().await;
}

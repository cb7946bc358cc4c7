//! TA-5: what a refused message carries is taken in all the same.

use bytes::Bytes;

use super::*;
use crate::rpc::tensors::{Dtype, ListedTensor, TensorView, write_list};
use crate::rpc::{self, JitValue, ScriptTarget};
use crate::{PyValue, py_call};

/// How a call is made that will be refused.
#[derive(Clone, Copy, Debug)]
enum Refused {
    /// Nobody serves the function.
    Unknown,
    /// Its tensor did not come.
    NoTensor,
    /// What should be a function has no name.
    Nameless,
    /// Nobody serves the operator, nor the function of TorchScript.
    Operator,
    Script,
}

const ALL: [Refused; 5] = [
    Refused::Unknown,
    Refused::NoTensor,
    Refused::Nameless,
    Refused::Operator,
    Refused::Script,
];

/// The list of a message whose tensor reaches beyond its bytes, of which there are none.
fn bad_list() -> Bytes {
    let tensor = ListedTensor::Dense(TensorView::whole(Dtype::Float, 0, vec![3]));
    write_list(&[tensor]).unwrap().into()
}

/// What is to stay is known by these.
const STAYS: (GlobalId, GlobalId) = (GlobalId::new(0, 1000), GlobalId::new(0, 1001));

/// A call of an operator or of TorchScript that carries a reference.
fn script(target: ScriptTarget<'_>, mine: &Fork, stays: bool) -> Outgoing<Part> {
    let arguments = [JitValue::RRef(mine.clone())];
    let (kind, ids) = match stays {
        true => (Kind::ScriptRemoteCall, Some(STAYS)),
        false => (Kind::ScriptCall, None),
    };
    let bytes = rpc::write_script_call(target, &arguments, ids);
    super::super::messages::ready(kind, 77, bytes)
}

/// A call that carries a reference; its result stays, or is the answer.
fn refused(how: Refused, mine: &Fork, stays: bool) -> Outgoing<Part> {
    let udf = match how {
        Refused::Operator => {
            let name = "torch.ops.aten.no_such_operator";
            let schema = "aten::no_such_operator(RRef(t) x) -> Tensor";
            return script(ScriptTarget::Builtin { name, schema }, mine, stays);
        }
        Refused::Script => {
            let name = "__torch__.shop.no_such_function";
            let is_async = false;
            return script(ScriptTarget::Function { name, is_async }, mine, stays);
        }
        Refused::Unknown => udf("shop", "no_such_function", |writer| {
            rpc::write_rref(writer, mine);
        }),
        Refused::NoTensor => udf("farref", "farref_torch::refused", |writer| {
            rpc::write_rref(writer, mine);
            rpc::write_tensor(writer, 0);
            writer.tuple_of(2);
        }),
        Refused::Nameless => {
            let mut writer = Writer::new(4);
            writer.global("torch.distributed.rpc.internal", "PythonUDF");
            rpc::write_rref(&mut writer, mine);
            writer.tuple_of(0).empty_dict().tuple_of(3).new_object();
            writer.finish()
        }
    };
    let call = match stays {
        true => Message::PythonRemoteCall {
            udf: &udf,
            tensors: 0,
            rref: STAYS.0,
            fork: STAYS.1,
            is_async: false,
        },
        false => Message::PythonCall {
            is_async: false,
            udf: &udf,
        },
    };
    let (kind, bytes) = call.encode();
    let mut message = super::super::messages::ready(kind, 77, bytes);
    if let Refused::NoTensor = how {
        message.tensor_list = bad_list();
    }
    message
}

fn ids(fork: &Fork) -> (GlobalId, GlobalId) {
    (fork.rref, fork.fork)
}

/// Its owner, who handed it on itself, hears that a reference is gone.
#[tokio::test]
async fn the_owner_hears_of_references_in_refused_calls() {
    for (how, stays) in ALL.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
        let python = &mut played[0];
        let mine = fork(0, 0, 5);
        let call = refused(how, &mine, stays);
        python.send_all(&stage, &[call]).await;
        let answer = python.answer().await.expect("it is answered");
        let kind = Kind::from_code(answer.kind).unwrap();
        match stays {
            // Errors of results that stay show when they are fetched.
            true => assert_eq!(kind, Kind::RemoteRet, "{how:?}"),
            false => drop(error_of(&answer)),
        }
        let gone = python.request().await;
        let Message::UserDelete { rref, fork } = gone.decoded() else {
            panic!("{how:?} {stays}: {:?}", gone.kind());
        };
        assert_eq!((rref, fork), ids(&mine), "{how:?} {stays}");
        gone.answer(&Message::Ack);
        stage.worker.crash().await;
    }
}

/// So do, if it was handed on by another worker, both: the owner that there is a share, and the other that it
/// need not keep its own for it.
#[tokio::test]
async fn whoever_handed_on_a_reference_in_a_refused_call_hears_that_it_is_there() {
    for how in ALL {
        let (stage, mut played) = stage(&["python", "owner"], Limits::default(), |it| it).await;
        let [python, owner] = &mut played[..] else {
            unreachable!("two are played")
        };
        let theirs = fork(owner.id, 0, 5);
        python
            .send_all(&stage, &[refused(how, &theirs, false)])
            .await;
        drop(python.answer().await.expect("it is answered"));
        let registration = owner.request().await;
        let Message::ForkRequest { rref, fork } = registration.decoded() else {
            panic!("{how:?}: {:?}", registration.kind());
        };
        assert_eq!((rref, fork), ids(&theirs), "{how:?}");
        registration.answer(&Message::Ack);
        let accepted = python.request().await;
        let Message::ChildAccept { fork } = accepted.decoded() else {
            panic!("{how:?}: {:?}", accepted.kind());
        };
        assert_eq!(fork, theirs.fork, "{how:?}");
        accepted.answer(&Message::Ack);
        let gone = owner.request().await;
        assert_eq!(gone.kind(), Kind::UserDelete, "{how:?}");
        gone.answer(&Message::Ack);
        stage.worker.crash().await;
    }
}

/// An answer that cannot be read is an error for the caller, and its references are let go of.
#[tokio::test]
async fn the_owner_hears_of_references_in_refused_answers() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let peer = stage.worker.peer("python").unwrap();
    let call = tokio::spawn(async move { py_call::<PyValue>(&peer, "shop.prices", ()).await });
    let request = python.request().await;
    let mine = fork(0, 0, 5);
    let mut value = Writer::new(4);
    rpc::write_rref(&mut value, &mine);
    rpc::write_tensor(&mut value, 0);
    value.tuple_of(2);
    let value = value.finish();
    let (kind, bytes) = Message::PythonRet { value: &value }.encode();
    let mut answer = super::super::messages::ready(kind, request.message.id, bytes);
    answer.tensor_list = bad_list();
    drop(request.back.send(answer));
    let outcome = timeout(TEST_TIMEOUT, call).await.unwrap().unwrap();
    let error = outcome.expect_err("it cannot be read").to_string();
    assert!(error.contains("beyond its"), "{error}");
    let gone = python.request().await;
    let Message::UserDelete { rref, fork } = gone.decoded() else {
        panic!("{:?}", gone.kind());
    };
    assert_eq!((rref, fork), ids(&mine));
    stage.worker.crash().await;
}

/// A call in a context that is refused takes part in it all the same, and is done.
#[tokio::test]
async fn a_refused_call_leaves_nothing_of_its_context() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    for (number, how) in ALL.into_iter().enumerate() {
        let mine = fork(0, 0, 5 + 10 * number as u64);
        let inner = refused(how, &mine, false);
        let context = 7 + number as i64;
        let message = Message::Forward {
            request: true,
            kind: Kind::from_code(inner.kind).unwrap(),
            inner: &inner.payload,
            context,
            autograd: 1,
            sender: 0,
        };
        let (kind, bytes) = message.encode();
        let mut call = super::super::messages::ready(kind, context, bytes);
        call.tensor_list = inner.tensor_list;
        python.send_all(&stage, &[call]).await;
        drop(error_of(&python.answer().await.expect("it is answered")));
        python.request().await.answer(&Message::Ack);
        let cleanup = Message::Cleanup { context };
        let (kind, bytes) = cleanup.encode();
        let cleanup = super::super::messages::ready(kind, 100 + context, bytes);
        python.send_all(&stage, &[cleanup]).await;
        let done = python.answer().await.expect("it is answered");
        assert_eq!(done.kind, Kind::CleanupDone.code(), "{how:?}");
    }
    let snapshot = stage.worker.snapshot();
    assert_eq!(snapshot.contexts, 0);
    assert!(stage.agent.shared().arrivals.is_empty());
    stage.worker.crash().await;
}

//! Objects in Python pickles, in all forms that Python has for them. The bytes that are written here were read by
//! Python with torch 2.15 and torch 1.13.

use crate::pickle::{Pickle, View, Writer};
use crate::rpc::{
    Fork, GlobalId, Named, RemoteException, RpcError, Udf, WorkerInfo, read_rref, read_tensor,
    write_rref, write_tensor,
};

fn with<T>(bytes: &[u8], look: impl FnOnce(View<'_, '_>) -> T) -> T {
    let pickle = Pickle::read(bytes).expect("a pickle");
    let budget = pickle.budget();
    look(pickle.view(&budget))
}

fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(4);
    write(&mut writer);
    writer.finish()
}

fn fork() -> Fork {
    Fork {
        owner: 1,
        rref: GlobalId::new(0, 30),
        fork: GlobalId::new(2, 300),
        parent: 2,
        type_name: "PyObject".to_owned(),
    }
}

const TENSOR: &[u8] =
    b"\x80\x04cbuiltins\ngetattr\nctorch.distributed.rpc.internal\n_InternalRPCPickler\n\
    X\x10\0\0\0_tensor_receiver\x86RK\x05\x85R.";

const RREF: &[u8] =
    b"\x80\x04cbuiltins\ngetattr\nctorch.distributed.rpc.internal\n_InternalRPCPickler\n\
    X\x11\0\0\0_py_rref_receiver\x86R(K\x01K\0K\x1eK\x02M,\x01K\x02X\x08\0\0\0PyObjectt\x85R.";

const EXCEPTION: &[u8] = b"\x80\x04ctorch.distributed.rpc.internal\nRemoteException\n\
    X\x15\0\0\0\\u00e9 \\\\ \\U0001f600\ncbuiltins\nValueError\n\x86\x81.";

const WORKER: &[u8] =
    b"\x80\x04ctorch._C._distributed_rpc\nWorkerInfo\n)\x81X\x06\0\0\0workerK\x07\x86b.";

const CALL: &[u8] = b"\x80\x04ctorch.distributed.rpc.internal\nPythonUDF\ncbuiltins\nstr.upper\n\
    X\x01\0\0\0a\x85}\x87\x81.";

#[test]
fn objects_are_written_in_a_form_that_python_reads() {
    assert_eq!(written(|writer| write_tensor(writer, 5)), TENSOR);
    assert_eq!(written(|writer| write_rref(writer, &fork())), RREF);
    let exception = written(|writer| {
        let text = "\u{e9} \\ \u{1f600}\n";
        RemoteException::write(writer, text, "builtins", "ValueError");
    });
    assert_eq!(exception, EXCEPTION, "{}", exception.escape_ascii());
    let worker = WorkerInfo {
        name: "worker",
        id: 7,
    };
    assert_eq!(written(|writer| worker.write(writer)), WORKER);
    let call = written(|writer| {
        Udf::begin(writer, "builtins", "str.upper");
        writer.text(b"a").tuple_of(1).empty_dict();
        Udf::end(writer);
    });
    assert_eq!(call, CALL);
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(with(TENSOR, read_tensor), Ok(Some(5)));
    assert_eq!(with(RREF, read_rref), Ok(Some(fork())));
    assert_eq!(with(TENSOR, read_rref), Ok(None));
    assert_eq!(with(RREF, read_tensor), Ok(None));
    let pickle = Pickle::read(EXCEPTION).expect("a pickle");
    let budget = pickle.budget();
    let read = RemoteException::read(pickle.view(&budget)).expect("an exception");
    let read = read.expect("an exception");
    assert_eq!(read.text, b"\\u00e9 \\\\ \\U0001f600\n");
    let class = read.class.expect("a class");
    assert_eq!((class.module, &*class.name), ("builtins", "ValueError"));
    let pickle = Pickle::read(WORKER).expect("a pickle");
    let budget = pickle.budget();
    let worker = WorkerInfo {
        name: "worker",
        id: 7,
    };
    assert_eq!(WorkerInfo::read(pickle.view(&budget)), Ok(Some(worker)));
    with(CALL, |view| {
        let call = Udf::read(view).expect("a call");
        assert_eq!(
            (call.function.module, &*call.function.name),
            ("builtins", "str.upper")
        );
        assert_eq!(call.arguments.tuple().map(|items| items.len()), Ok(1));
    });
}

#[test]
fn tensors_and_references_are_recognised_in_all_forms() {
    // With dots in the name, as protocol 4 allows.
    let dotted = b"\x80\x04\x8c\x1etorch.distributed.rpc.internal\x8c\x24_InternalRPCPickler._tensor_receiver\x93K\x03\x85R.";
    assert_eq!(with(dotted, read_tensor), Ok(Some(3)));
    // As protocol 2 calls `getattr`.
    let old =
        b"\x80\x02c__builtin__\ngetattr\nctorch.distributed.rpc.internal\n_InternalRPCPickler\n\
        X\x10\0\0\0_tensor_receiver\x86RK\x03\x85R.";
    assert_eq!(with(old, read_tensor), Ok(Some(3)));
    for other in [
        &b"N."[..],
        b"cbuiltins\ncomplex\nK\x01\x85R.",
        b"ctorch.distributed.rpc.internal\nPythonUDF\nN\x85\x81.",
        b"cbuiltins\ngetattr\nN\x85R)R.",
    ] {
        let read = with(other, read_tensor);
        assert!(!matches!(read, Ok(Some(_))), "{}", other.escape_ascii());
    }
    let without_place = b"\x80\x04\x8c\x1etorch.distributed.rpc.internal\x8c\x24_InternalRPCPickler._tensor_receiver\x93)R.";
    assert!(with(without_place, read_tensor).is_err());
}

#[test]
fn names_inside_of_classes_are_names_in_both_forms() {
    let name = |bytes: &[u8]| {
        with(bytes, |view| {
            let named = Named::read(view)?;
            Ok::<_, RpcError>(named.map(|named| format!("{} {}", named.module, named.name)))
        })
    };
    let expected = Ok(Some("m A.B.c".to_owned()));
    assert_eq!(name(b"cm\nA.B.c\n."), expected);
    let nested =
        b"cbuiltins\ngetattr\ncbuiltins\ngetattr\ncm\nA\nX\x01\0\0\0B\x86RX\x01\0\0\0c\x86R.";
    assert_eq!(name(nested), expected);
    assert_eq!(name(b"N."), Ok(None));
    // A method of an object that travels along.
    assert_eq!(
        name(b"cbuiltins\ngetattr\ncm\nA\n)\x81X\x01\0\0\0c\x86R."),
        Ok(None)
    );
    assert!(name(b"cm\xff\nA\n.").is_err());
}

#[test]
fn a_method_of_an_object_that_travels_along_cannot_be_called() {
    let bytes = b"ctorch.distributed.rpc.internal\nPythonUDF\n\
        cbuiltins\ngetattr\ncm\nA\n)\x81X\x01\0\0\0c\x86R)}\x87\x81.";
    let error = with(bytes, |view| Udf::read(view).err());
    assert!(matches!(error, Some(RpcError::Unsupported(_))), "{error:?}");
    let other = with(b"N.", |view| Udf::read(view).err());
    assert!(matches!(other, Some(RpcError::Wrong { .. })), "{other:?}");
}

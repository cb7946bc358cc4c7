//! Payload 2, where the captured messages do not reach.

use crate::rpc::{GlobalId, JitValue, Kind, Message, RpcError, ScriptTarget, write_script_call};

fn id(on: u16, number: u64) -> GlobalId {
    GlobalId::new(on, number)
}

/// One of each type that is not passed through as it is.
fn samples() -> Vec<Message<'static>> {
    let (rref, fork) = (id(32767, 1 << 40), id(0, i64::MAX as u64));
    let row = JitValue::List {
        items: vec![JitValue::Int(1), JitValue::Bool(false)],
        type_name: "List[Any]".to_owned(),
    };
    vec![
        Message::PythonCall {
            is_async: true,
            udf: b"udf",
        },
        Message::PythonRemoteCall {
            udf: b"\xffudf",
            tensors: 300,
            rref,
            fork,
            is_async: true,
        },
        Message::RemoteRet { rref, fork },
        Message::ScriptFetch { rref, from: 300 },
        Message::PythonFetch { rref, from: 300 },
        Message::PythonFetchRet {
            tensors: 0,
            value: b"value",
        },
        Message::PythonFetchRet {
            tensors: 3,
            value: b"value",
        },
        Message::UserDelete { rref, fork },
        Message::ForkRequest { rref, fork },
        Message::ChildAccept { fork },
        Message::Ack,
        Message::Forward {
            request: true,
            kind: Kind::PythonCall,
            inner: b"inner",
            context: -1,
            autograd: i64::MAX,
            sender: 32767,
        },
        Message::Forward {
            request: false,
            kind: Kind::Exception,
            inner: b"",
            context: 0,
            autograd: 1 << 48,
            sender: 0,
        },
        Message::Backward {
            gradients: vec![0, 0, 1, 5],
            context: 1 << 48,
            autograd: 3,
            retain_graph: true,
        },
        Message::Backward {
            gradients: vec![],
            context: 0,
            autograd: 0,
            retain_graph: false,
        },
        Message::BackwardDone,
        Message::Cleanup { context: 1 << 48 },
        Message::CleanupDone,
        Message::RRefBackward {
            rref,
            context: 70_000,
            retain_graph: true,
        },
        Message::RRefBackwardDone,
        Message::Profiled {
            request: true,
            kind: Kind::ForwardRequest,
            inner: b"inner",
            profile: rref,
            rows: vec![row.clone()],
        },
        Message::Profiled {
            request: false,
            kind: Kind::ScriptRet,
            inner: b"inner",
            profile: rref,
            rows: vec![],
        },
        Message::Profiled {
            request: false,
            kind: Kind::ScriptRet,
            inner: b"inner",
            profile: rref,
            rows: vec![row.clone(), row],
        },
        Message::Exception { text: b"\xff" },
    ]
}

#[test]
fn what_is_written_is_read() {
    for message in samples() {
        let (kind, payload) = message.encode();
        assert_eq!(kind, message.kind());
        assert_eq!(Message::decode(kind, &payload), Ok(message));
    }
}

#[test]
fn calls_are_written_and_read_with_any_number_of_arguments() {
    let function = ScriptTarget::Function {
        name: "__torch__.f",
        is_async: true,
    };
    let builtin = ScriptTarget::Builtin {
        name: "torch.ops.aten.add",
        schema: "aten::add(Tensor self) -> Tensor",
    };
    for target in [function, builtin] {
        for count in 0..5 {
            let arguments: Vec<_> = (0..count).map(JitValue::Int).collect();
            let pickle = write_script_call(target, &arguments, None);
            let Ok(Message::ScriptCall(call)) = Message::decode(Kind::ScriptCall, &pickle) else {
                panic!("{}", pickle.escape_ascii());
            };
            assert_eq!(call.target, target);
            assert_eq!(call.read_arguments(), Ok(arguments.clone()));

            let ids = (id(1, 2), id(3, 4));
            let pickle = write_script_call(target, &arguments, Some(ids));
            let read = Message::decode(Kind::ScriptRemoteCall, &pickle);
            let Ok(Message::ScriptRemoteCall { call, rref, fork }) = read else {
                panic!("{}", pickle.escape_ascii());
            };
            assert_eq!((call.target, rref, fork), (target, ids.0, ids.1));
            assert_eq!(call.read_arguments(), Ok(arguments));
        }
    }
}

#[test]
fn no_beginning_of_a_message_passes_for_one() {
    for message in samples() {
        let (kind, payload) = message.encode();
        // These are passed on as they are.
        if matches!(kind, Kind::Exception | Kind::PythonCall) {
            continue;
        }
        for size in 0..payload.len() {
            let read = Message::decode(kind, &payload[..size]);
            assert!(read.is_err(), "{size} of {}", payload.escape_ascii());
        }
    }
}

#[test]
fn ids_that_pytorch_does_not_give_are_refused() {
    for (number, is_id) in [
        (&b"K\0"[..], true),
        (b"M\xff\x7f", true),
        (b"M\0\x80", false),
        (b"J\xff\xff\xff\xff", false),
        (b"\x8a\x08\0\0\0\0\x01\0\0\0", false),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01", false),
        (b"N", false),
    ] {
        let worker = [b"\x80\x02", number, b"K\x07\x86\x85."].concat();
        let read = Message::decode(Kind::ChildAccept, &worker);
        assert_eq!(read.is_ok(), is_id, "{}", worker.escape_ascii());
        let from = [b"\x80\x02K\0K\0\x86", number, b"\x86."].concat();
        let read = Message::decode(Kind::PythonFetch, &from);
        assert_eq!(read.is_ok(), is_id, "{}", from.escape_ascii());
    }
    let negative = b"\x80\x02K\0J\xff\xff\xff\xff\x86\x85.";
    let error = Message::decode(Kind::ChildAccept, negative);
    assert!(matches!(error, Err(RpcError::Wrong { .. })), "{error:?}");
}

#[test]
fn messages_are_not_wrapped_without_end() {
    // RM-3, by every pair of types.
    let wrappers = [
        Kind::ForwardRequest,
        Kind::ForwardResponse,
        Kind::ProfiledRequest,
        Kind::ProfiledResponse,
    ];
    for outer in wrappers {
        let request = outer.is_request();
        for kind in Kind::ALL.iter().copied() {
            let inner = b"";
            let message = match outer {
                Kind::ForwardRequest | Kind::ForwardResponse => Message::Forward {
                    request,
                    kind,
                    inner,
                    context: 0,
                    autograd: 0,
                    sender: 0,
                },
                _ => Message::Profiled {
                    request,
                    kind,
                    inner,
                    profile: id(0, 0),
                    rows: vec![JitValue::None; usize::from(request)],
                },
            };
            let (_, payload) = message.encode();
            let level = |kind: Kind| match kind {
                Kind::ForwardRequest | Kind::ForwardResponse => 1,
                Kind::ProfiledRequest | Kind::ProfiledResponse => 2,
                _ => 0,
            };
            let may_be = level(kind) < level(outer) && kind.is_request() == request;
            let read = Message::decode(outer, &payload);
            assert_eq!(read.is_ok(), may_be, "{} in {}", kind.name(), outer.name());
        }
    }
}

#[test]
fn a_wrapped_message_with_a_length_that_is_not_there_is_refused() {
    for payload in [
        &b""[..],
        b"\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0",
        b"N.\0\0\0\0\0\0\0\x03",
        b"N.\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        assert!(Message::decode(Kind::ForwardRequest, payload).is_err());
        assert!(Message::decode(Kind::ProfiledResponse, payload).is_err());
    }
}

#[test]
fn tensors_of_python_values_are_all_there_are_in_order() {
    let message = Message::PythonFetchRet {
        tensors: 2,
        value: b"v",
    };
    let (kind, payload) = message.encode();
    let swapped: Vec<u8> = {
        // The numbers of both tensors are the only ones of that opcode.
        let mut swapped = payload.clone();
        let places: Vec<_> = (0..swapped.len() - 1)
            .filter(|at| swapped[*at] == b'K')
            .collect();
        assert_eq!(places.len(), 2, "{}", payload.escape_ascii());
        swapped.swap(places[0] + 1, places[1] + 1);
        swapped
    };
    assert!(Message::decode(kind, &payload).is_ok());
    assert!(Message::decode(kind, &swapped).is_err());
}

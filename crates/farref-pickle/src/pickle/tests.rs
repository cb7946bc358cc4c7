//! The machine reads what Python writes, and nothing makes it take more than its share.

use std::cell::Cell;

use super::opcode as op;
use super::view::{FLOOR, LOOKS, MAX_DEPTH, Shape, TEXT, View};
use super::{Pickle, PickleError, Writer};

/// A value, spelled out.
fn spelled(view: View<'_, '_>) -> Result<String, PickleError> {
    let all = |items: Vec<View<'_, '_>>| {
        let items = items.into_iter().map(spelled);
        Ok::<_, PickleError>(items.collect::<Result<Vec<_>, _>>()?.join(", "))
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(match view.shape()? {
        Shape::None => "None".to_owned(),
        Shape::Bool(true) => "True".to_owned(),
        Shape::Bool(false) => "False".to_owned(),
        Shape::Int(value) => value.to_string(),
        Shape::Long(bytes) => format!("long{bytes:x?}"),
        Shape::Float(value) => format!("{value:?}"),
        Shape::Text(bytes) => format!("'{}'", text(bytes)),
        Shape::Bytes(bytes) => format!("b{bytes:x?}"),
        Shape::Tuple(items) => format!("({})", all(items)?),
        Shape::List(items) => format!("[{}]", all(items)?),
        Shape::Set(items) => format!("set({})", all(items)?),
        Shape::Dict(items) => {
            let items = items.into_iter();
            let items =
                items.map(|(key, value)| Ok(format!("{}: {}", spelled(key)?, spelled(value)?)));
            format!(
                "{{{}}}",
                items.collect::<Result<Vec<_>, PickleError>>()?.join(", ")
            )
        }
        Shape::Global(module, name) => format!("{}.{}", text(module), text(name)),
        Shape::Call {
            callee,
            arguments,
            state,
            items,
        } => {
            let mut call = format!("{}{}", spelled(callee)?, spelled(arguments)?);
            if let Some(state) = state {
                call += &format!(" = {}", spelled(state)?);
            }
            if let Some(items) = items {
                call += &format!(" + {}", spelled(items)?);
            }
            call
        }
        Shape::Persistent(id) => format!("<{}>", spelled(id)?),
        Shape::Buffer(number) => format!("buffer {number}"),
    })
}

fn read(bytes: &[u8]) -> Result<String, PickleError> {
    let pickle = Pickle::read(bytes)?;
    let budget = pickle.budget();
    spelled(pickle.view(&budget))
}

/// What each opcode does. The first column is the opcode that is meant.
const OPCODES: &[(u8, &[u8], &str)] = &[
    (op::PROTO, b"\x80\x05N.", "None"),
    (op::FRAME, b"\x80\x04\x95\x02\0\0\0\0\0\0\0N.", "None"),
    (op::STOP, b"N.", "None"),
    (op::MARK, b"(K\x01t.", "(1)"),
    (op::POP, b"K\x01K\x020.", "1"),
    (op::POP, b"K\x01(0.", "1"),
    (op::POP_MARK, b"K\x01(K\x02K\x031.", "1"),
    (op::DUP, b"K\x012\x86.", "(1, 1)"),
    (op::NONE, b"N.", "None"),
    (op::NEWTRUE, b"\x88.", "True"),
    (op::NEWFALSE, b"\x89.", "False"),
    (op::BININT1, b"K\xff.", "255"),
    (op::BININT2, b"M\xff\xff.", "65535"),
    (op::BININT, b"J\0\0\0\x80.", "-2147483648"),
    (op::LONG1, b"\x8a\0.", "0"),
    (op::LONG1, b"\x8a\x01\xff.", "-1"),
    (op::LONG1, b"\x8a\x02\xff\0.", "255"),
    (
        op::LONG1,
        b"\x8a\x08\0\0\0\0\0\0\0\x80.",
        "-9223372036854775808",
    ),
    (
        op::LONG1,
        b"\x8a\x09\0\0\0\0\0\0\0\x80\0.",
        "long[0, 0, 0, 0, 0, 0, 0, 80, 0]",
    ),
    (op::LONG4, b"\x8b\x01\0\0\0\x07.", "7"),
    (op::BINFLOAT, b"G\x3f\xf8\0\0\0\0\0\0.", "1.5"),
    (op::BINUNICODE, b"X\x02\0\0\0\xc3\xa9.", "'\u{e9}'"),
    (op::SHORT_BINUNICODE, b"\x8c\x01a.", "'a'"),
    (op::BINUNICODE8, b"\x8d\x01\0\0\0\0\0\0\0a.", "'a'"),
    (op::BINBYTES, b"B\x01\0\0\0\x07.", "b[7]"),
    (op::SHORT_BINBYTES, b"C\x01\x07.", "b[7]"),
    (op::BINBYTES8, b"\x8e\x01\0\0\0\0\0\0\0\x07.", "b[7]"),
    (op::BYTEARRAY8, b"\x96\x01\0\0\0\0\0\0\0\x07.", "b[7]"),
    (op::BINSTRING, b"T\x01\0\0\0\x07.", "b[7]"),
    (op::SHORT_BINSTRING, b"U\x01\x07.", "b[7]"),
    (op::EMPTY_TUPLE, b").", "()"),
    (op::TUPLE1, b"N\x85.", "(None)"),
    (op::TUPLE2, b"K\x01K\x02\x86.", "(1, 2)"),
    (op::TUPLE3, b"K\x01K\x02K\x03\x87.", "(1, 2, 3)"),
    (op::TUPLE, b"(t.", "()"),
    (op::EMPTY_LIST, b"].", "[]"),
    (op::LIST, b"(K\x01l.", "[1]"),
    (op::APPEND, b"]K\x01aK\x02a.", "[1, 2]"),
    (op::APPENDS, b"](K\x01K\x02e(K\x03e.", "[1, 2, 3]"),
    (op::EMPTY_DICT, b"}.", "{}"),
    (op::DICT, b"(K\x01Nd.", "{1: None}"),
    (op::SETITEM, b"}K\x01Ns.", "{1: None}"),
    (
        op::SETITEMS,
        b"}(K\x01NK\x02Nu(K\x03Nu.",
        "{1: None, 2: None, 3: None}",
    ),
    (op::EMPTY_SET, b"\x8f.", "set()"),
    (op::ADDITEMS, b"\x8f(K\x01K\x02\x90.", "set(1, 2)"),
    (op::FROZENSET, b"(K\x01\x91.", "set(1)"),
    (op::GLOBAL, b"ca.b\nC.d\n.", "a.b.C.d"),
    (op::STACK_GLOBAL, b"\x8c\x03a.b\x8c\x03C.d\x93.", "a.b.C.d"),
    (op::REDUCE, b"ca\nb\nK\x01\x85R.", "a.b(1)"),
    (op::NEWOBJ, b"ca\nb\n)\x81.", "a.b()"),
    (op::NEWOBJ_EX, b"ca\nb\n)}\x92.", "a.b() = {}"),
    (op::BUILD, b"ca\nb\n)\x81}b.", "a.b() = {}"),
    (op::BINPERSID, b"K\x01Q.", "<1>"),
    (op::BINPUT, b"K\x01q\x05K\x02h\x05\x86.", "(2, 1)"),
    (op::BINGET, b"K\x01q\x05h\x05\x86.", "(1, 1)"),
    (
        op::LONG_BINPUT,
        b"K\x01r\0\0\x01\0j\0\0\x01\0\x86.",
        "(1, 1)",
    ),
    (op::LONG_BINGET, b"K\x01q\x05j\x05\0\0\0\x86.", "(1, 1)"),
    (op::MEMOIZE, b"K\x01\x94K\x02\x94h\x01h\0\x86.", "(2, 1)"),
    (op::NEXT_BUFFER, b"\x97\x97\x86.", "(buffer 0, buffer 1)"),
    (op::READONLY_BUFFER, b"\x97\x98.", "buffer 0"),
];

#[test]
fn every_opcode_does_what_it_does_in_python() {
    for (opcode, bytes, expected) in OPCODES {
        assert!(bytes.contains(opcode), "{opcode:#x}");
        let found = read(bytes);
        assert_eq!(found.as_deref(), Ok(*expected), "{}", bytes.escape_ascii());
    }
}

#[test]
fn every_opcode_that_is_known_is_tested_and_no_other_is_known() {
    for opcode in 0..=u8::MAX {
        let is_known = OPCODES.iter().any(|(known, ..)| *known == opcode);
        let refused = matches!(Pickle::read(&[opcode]), Err(PickleError::Opcode(_)));
        assert_ne!(is_known, refused, "{opcode:#x}");
    }
}

#[test]
fn an_opcode_without_what_it_needs_is_refused() {
    for bytes in [
        &b"."[..],
        b"0.",
        b"1.",
        b"2.",
        b"N\x86.",
        b"t.",
        b"l.",
        b"K\x01e.",
        b"](K\x01a.",
        b"K\x01(K\x02e.",
        b"K\x01K\x02a.",
        b"}(K\x01u.",
        b"(K\x01d.",
        b"]K\x01K\x02s.",
        b"](K\x01\x90.",
        b"R.",
        b")R.",
        b"N\x81.",
        b"]}b.",
        b"ca\nb\n)\x81}b}b.",
        b"N}\x92.",
        b"Q.",
        b"q\0.",
        b"\x94.",
        b"(q\0.",
        b"K\x01K\x02\x93.",
        b"(.",
    ] {
        let found = Pickle::read(bytes);
        let is_misplaced = matches!(found, Err(PickleError::Misplaced(_)));
        assert!(is_misplaced, "{}: {found:?}", bytes.escape_ascii());
    }
    assert_eq!(
        Pickle::read(b"h\x05.").err(),
        Some(PickleError::NoSuchMemo(5))
    );
    assert_eq!(
        Pickle::read(b"\x80\x06N.").err(),
        Some(PickleError::Protocol(6))
    );
    assert_eq!(Pickle::read(b"N.N").err(), Some(PickleError::Trailing(1)));
}

/// Written by Python: `pickle.dumps(value, protocol)`, with a value of
///
/// ```python
/// {'a': [1, -1, 300, 70000, 2**40, -2**80, True, None, 1.5], 't': ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
///  's': 'hé', 'b': b'\x00\xff', 'set': {7}, 'f': frozenset([8]), 'o': OrderedDict(z=1), 'd': deque([1, 2]),
///  'r': range(3)}
/// ```
const BY_PYTHON: [(&[u8], [&str; 6]); 4] = [
    (
        b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\x88NG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00tq\x03()K\x01\x85q\x04K\x01K\x02\x86q\x05K\x01K\x02K\x03\x87q\x06(K\x01K\x02K\x03K\x04tq\x07tq\x08X\x01\x00\x00\x00sq\tX\x03\x00\x00\x00h\xc3\xa9q\nX\x01\x00\x00\x00bq\x0bc_codecs\nencode\nq\x0cX\x03\x00\x00\x00\x00\xc3\xbfq\rX\x06\x00\x00\x00latin1q\x0e\x86q\x0fRq\x10X\x03\x00\x00\x00setq\x11c__builtin__\nset\nq\x12]q\x13K\x07a\x85q\x14Rq\x15X\x01\x00\x00\x00fq\x16c__builtin__\nfrozenset\nq\x17]q\x18K\x08a\x85q\x19Rq\x1aX\x01\x00\x00\x00oq\x1bccollections\nOrderedDict\nq\x1c)Rq\x1dX\x01\x00\x00\x00zq\x1eK\x01sX\x01\x00\x00\x00dq\x1fccollections\ndeque\nq )Rq!(K\x01K\x02eX\x01\x00\x00\x00rq\"c__builtin__\nxrange\nq#K\x00K\x03K\x01\x87q$Rq%u.",
        [
            "_codecs.encode('\0\u{ff}', 'latin1')",
            "__builtin__.set([7])",
            "__builtin__.frozenset([8])",
            "collections.OrderedDict() + {'z': 1}",
            "collections.deque() + [1, 2]",
            "__builtin__.xrange(0, 3, 1)",
        ],
    ),
    (
        b"\x80\x03}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\x88NG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00tq\x03()K\x01\x85q\x04K\x01K\x02\x86q\x05K\x01K\x02K\x03\x87q\x06(K\x01K\x02K\x03K\x04tq\x07tq\x08X\x01\x00\x00\x00sq\tX\x03\x00\x00\x00h\xc3\xa9q\nX\x01\x00\x00\x00bq\x0bC\x02\x00\xffq\x0cX\x03\x00\x00\x00setq\rcbuiltins\nset\nq\x0e]q\x0fK\x07a\x85q\x10Rq\x11X\x01\x00\x00\x00fq\x12cbuiltins\nfrozenset\nq\x13]q\x14K\x08a\x85q\x15Rq\x16X\x01\x00\x00\x00oq\x17ccollections\nOrderedDict\nq\x18)Rq\x19X\x01\x00\x00\x00zq\x1aK\x01sX\x01\x00\x00\x00dq\x1bccollections\ndeque\nq\x1c)Rq\x1d(K\x01K\x02eX\x01\x00\x00\x00rq\x1ecbuiltins\nrange\nq\x1fK\x00K\x03K\x01\x87q Rq!u.",
        [
            "b[0, ff]",
            "builtins.set([7])",
            "builtins.frozenset([8])",
            "collections.OrderedDict() + {'z': 1}",
            "collections.deque() + [1, 2]",
            "builtins.range(0, 3, 1)",
        ],
    ),
    (
        b"\x80\x04\x95\xf1\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\x88NG?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01t\x94()K\x01\x85\x94K\x01K\x02\x86\x94K\x01K\x02K\x03\x87\x94(K\x01K\x02K\x03K\x04t\x94t\x94\x8c\x01s\x94\x8c\x03h\xc3\xa9\x94\x8c\x01b\x94C\x02\x00\xff\x94\x8c\x03set\x94\x8f\x94(K\x07\x90\x8c\x01f\x94(K\x08\x91\x94\x8c\x01o\x94\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01z\x94K\x01s\x8c\x01d\x94h\x12\x8c\x05deque\x94\x93\x94)R\x94(K\x01K\x02e\x8c\x01r\x94\x8c\x08builtins\x94\x8c\x05range\x94\x93\x94K\x00K\x03K\x01\x87\x94R\x94u.",
        [
            "b[0, ff]",
            "set(7)",
            "set(8)",
            "collections.OrderedDict() + {'z': 1}",
            "collections.deque() + [1, 2]",
            "builtins.range(0, 3, 1)",
        ],
    ),
    (
        b"\x80\x05\x95\xf1\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xff\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x0b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\x88NG?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01t\x94()K\x01\x85\x94K\x01K\x02\x86\x94K\x01K\x02K\x03\x87\x94(K\x01K\x02K\x03K\x04t\x94t\x94\x8c\x01s\x94\x8c\x03h\xc3\xa9\x94\x8c\x01b\x94C\x02\x00\xff\x94\x8c\x03set\x94\x8f\x94(K\x07\x90\x8c\x01f\x94(K\x08\x91\x94\x8c\x01o\x94\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01z\x94K\x01s\x8c\x01d\x94h\x12\x8c\x05deque\x94\x93\x94)R\x94(K\x01K\x02e\x8c\x01r\x94\x8c\x08builtins\x94\x8c\x05range\x94\x93\x94K\x00K\x03K\x01\x87\x94R\x94u.",
        [
            "b[0, ff]",
            "set(7)",
            "set(8)",
            "collections.OrderedDict() + {'z': 1}",
            "collections.deque() + [1, 2]",
            "builtins.range(0, 3, 1)",
        ],
    ),
];

#[test]
fn what_python_writes_is_read_in_all_its_protocols() {
    for (bytes, [b, set, f, o, d, r]) in BY_PYTHON {
        let expected = format!(
            "{{'a': [1, -1, 300, 70000, 1099511627776, long[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ff], True, None, 1.5], \
             't': ((), (1), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 's': 'h\u{e9}', \
             'b': {b}, 'set': {set}, 'f': {f}, 'o': {o}, 'd': {d}, 'r': {r}}}"
        );
        assert_eq!(read(bytes), Ok(expected), "protocol {}", bytes[1]);
    }
}

#[test]
fn no_beginning_of_a_pickle_passes_for_one() {
    let by_python = BY_PYTHON.iter().map(|(bytes, _)| *bytes);
    for bytes in by_python.chain(OPCODES.iter().map(|(_, bytes, _)| *bytes)) {
        for size in 0..bytes.len() {
            assert!(
                Pickle::read(&bytes[..size]).is_err(),
                "{size} of {}",
                bytes.escape_ascii()
            );
        }
        let (_, rest) = Pickle::read_first(&[bytes, b"more"].concat()).map_or_else(
            |error| panic!("{error}"),
            |(pickle, rest)| (pickle.bytes, rest.to_vec()),
        );
        assert_eq!(rest, b"more");
    }
}

#[test]
fn objects_keep_all_they_are_filled_with() {
    // Python fills a thousand at a time.
    let batches = b"ccollections\nOrderedDict\n)R(K\x01NK\x02Nu(K\x03Nu}b.";
    let expected = "collections.OrderedDict() = {} + {1: None, 2: None, 3: None}";
    assert_eq!(read(batches).as_deref(), Ok(expected));
    // Nothing is filled with both.
    let found = Pickle::read(b"ca\nb\n)R(K\x01NuK\x02a.");
    assert!(matches!(found, Err(PickleError::Misplaced(_))), "{found:?}");
}

#[test]
fn a_length_that_is_not_there_takes_no_memory() {
    for bytes in [
        &b"X\xff\xff\xff\xffabc"[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc",
        b"\x96\0\0\0\0\0\x01\0\0abc",
        b"\x8b\xff\xff\xff\x7fabc",
        b"cno end of the line",
    ] {
        assert_eq!(Pickle::read(bytes).err(), Some(PickleError::Truncated));
    }
}

#[test]
fn there_are_not_more_nodes_than_bytes() {
    // PK-2, for the densest there is.
    let bytes = [vec![b'N'; 1000], vec![op::STOP]].concat();
    let pickle = Pickle::read(&bytes).expect("a pickle");
    assert_eq!(pickle.nodes.len(), 1000);
    let filled = Pickle::read(b"ca\nb\n)RK\x01aK\x02a.").expect("a pickle");
    assert!(filled.nodes.len() <= 8, "{:?}", filled.nodes);
}

/// Walks all of a value so many times, and says how many steps are left.
/// PK-2: by whatever opcode of one byte it grows.
#[test]
fn what_is_kept_while_reading_is_bounded() {
    const MOST: u32 = 1000;
    let growing: [(&[u8], &[u8]); 7] = [
        (b"", b"N"),
        (b"", b")"),
        (b"", b"("),
        (b"N", b"2"),
        (b"N", b"\x94"),
        (b"Nq\x00", b"h\x00"),
        (b"]", b"(NNNe"),
    ];
    for (before, again) in growing {
        let some = |times: usize| {
            let bytes = [before, &again.repeat(times), b"."].concat();
            Pickle::read_within(&bytes, MOST).err()
        };
        let few = MOST as usize / 10;
        assert_ne!(some(few), Some(PickleError::TooLarge), "{again:?}");
        assert_eq!(
            some(2 * MOST as usize),
            Some(PickleError::TooLarge),
            "{again:?}"
        );
    }
    assert!(size_of::<super::read::Node<'_>>() <= 32);
}

fn walk(pickle: &Pickle<'_>, times: usize) -> Result<usize, PickleError> {
    let budget = pickle.budget();
    for _ in 0..times {
        visit(pickle.view(&budget))?;
    }
    Ok(budget.get())
}

fn visit(view: View<'_, '_>) -> Result<(), PickleError> {
    match view.shape()? {
        Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
            items.into_iter().try_for_each(visit)
        }
        Shape::Dict(items) => items.into_iter().try_for_each(|(key, value)| {
            visit(key)?;
            visit(value)
        }),
        Shape::Call {
            callee,
            arguments,
            state,
            items,
        } => {
            visit(callee)?;
            visit(arguments)?;
            state.into_iter().chain(items).try_for_each(visit)
        }
        Shape::Persistent(id) => visit(id),
        _ => Ok(()),
    }
}

/// A list, of what `items` writes.
fn list(items: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(4);
    writer.empty_list().mark();
    items(&mut writer);
    writer.appends();
    writer.finish()
}

#[test]
fn a_value_that_shares_nothing_may_be_walked_as_often_as_promised() {
    // Far above the floor, in the shapes that are densest.
    let values = [
        list(|writer| {
            for _ in 0..FLOOR {
                writer.none();
            }
        }),
        list(|writer| {
            for _ in 0..FLOOR {
                writer.tuple_of(0).tuple_of(1);
            }
        }),
        list(|writer| {
            for _ in 0..FLOOR / 4 {
                writer.empty_dict().mark().none().none().set_items();
            }
        }),
        list(|writer| {
            for _ in 0..FLOOR / 4 {
                writer.none().tuple_of(0).reduce().none().build();
            }
        }),
        list(|writer| {
            writer.text(&vec![b'x'; FLOOR * TEXT]);
        }),
        list(|writer| {
            writer.long(&vec![b'x'; FLOOR * TEXT]);
        }),
    ];
    for value in values {
        let pickle = Pickle::read(&value).expect("a pickle");
        let left = walk(&pickle, LOOKS);
        assert!(
            matches!(left, Ok(left) if left >= FLOOR),
            "{left:?} of {} bytes",
            value.len()
        );
    }
}

#[test]
fn short_texts_may_be_shared_without_limit() {
    for (length, passes) in [(480, true), (2_000, false)] {
        let value = list(|writer| {
            let number = writer.text(&vec![b'x'; length]).memoize();
            for _ in 0..FLOOR {
                writer.recall(number);
            }
        });
        let pickle = Pickle::read(&value).expect("a pickle");
        assert_eq!(walk(&pickle, 1).is_ok(), passes, "{length}");
    }
}

#[test]
fn what_is_shared_may_be_spelled_out_up_to_the_floor() {
    // A row of a hundred, a thousand times: Python's `[[0] * 100] * 1000`.
    let value = list(|writer| {
        writer.empty_list().mark();
        for _ in 0..100 {
            writer.int(0);
        }
        let row = writer.appends().memoize();
        for _ in 1..1000 {
            writer.recall(row);
        }
    });
    let pickle = Pickle::read(&value).expect("a pickle");
    assert!(walk(&pickle, 1).is_ok());
}

#[test]
fn a_value_without_end_is_refused() {
    // A list that is in itself, and a tuple by way of a list, as Python writes them.
    for bytes in [&b"]\x94h\0a."[..], b"]\x94h\0\x85\x94a0h\x01."] {
        assert_eq!(read(bytes), Err(PickleError::TooLarge));
    }
    // Lists of lists of lists.., each twice what is in it: two to the power of a hundred.
    let mut writer = Writer::new(4);
    writer.empty_list();
    let mut inner = writer.memoize();
    for _ in 0..100 {
        writer.empty_list().mark();
        writer.recall(inner).recall(inner).appends();
        inner = writer.memoize();
    }
    let bytes = writer.finish();
    let pickle = Pickle::read(&bytes).expect("a pickle");
    assert_eq!(walk(&pickle, 1), Err(PickleError::TooLarge));
}

#[test]
fn a_value_may_be_deep_but_not_too_deep() {
    let nested = |depth: usize| {
        let mut writer = Writer::new(4);
        writer.none();
        for _ in 0..depth {
            writer.tuple_of(1);
        }
        writer.finish()
    };
    let deepest = MAX_DEPTH as usize;
    assert!(read(&nested(deepest)).is_ok());
    assert_eq!(read(&nested(deepest + 1)), Err(PickleError::TooLarge));
    // Reading it takes no stack, however deep.
    assert!(Pickle::read(&nested(1_000_000)).is_ok());
}

#[test]
fn what_is_written_is_read() {
    let mut writer = Writer::new(4);
    writer.mark().none().bool(true).int(-1).int(200).int(60_000);
    writer.int(100_000).int(i64::MIN).float(-0.5).text(b"a");
    writer
        .long(&[0; 300])
        .byte_string(b"b")
        .byte_string(&[0; 2]);
    writer.empty_list().mark().int(1).appends();
    writer.empty_dict().mark().int(1).int(2).set_items();
    writer.empty_set().mark().int(1).add_items();
    let number = writer.global("m", "n").memoize();
    writer.tuple_of(0).reduce();
    writer
        .recall(number)
        .tuple_of(0)
        .new_object()
        .int(3)
        .build();
    writer.int(7).persistent().tuple();
    let zeros = vec!["0"; 300].join(", ");
    let expected = format!(
        "(None, True, -1, 200, 60000, 100000, -9223372036854775808, -0.5, 'a', long[{zeros}], b[62], b[0, 0], \
         [1], {{1: 2}}, set(1), m.n(), m.n() = 3, <7>)"
    );
    assert_eq!(read(&writer.finish()), Ok(expected));
}

#[test]
fn more_than_255_values_are_remembered() {
    let mut writer = Writer::new(2);
    writer.mark();
    let numbers: Vec<u32> = (0..300).map(|value| writer.int(value).memoize()).collect();
    for number in &numbers {
        writer.recall(*number);
    }
    let bytes = writer.tuple().clone().finish();
    let once = (0..300).map(|value| value.to_string()).collect::<Vec<_>>();
    let twice = [once.clone(), once].concat().join(", ");
    assert_eq!(read(&bytes), Ok(format!("({twice})")));
}

#[test]
fn looking_is_paid_for() {
    let pickle = Pickle::read(b"(K\x01K\x02K\x03t.").expect("a pickle");
    let budget = Cell::new(4);
    let view = pickle.view(&budget);
    assert_eq!(view.tuple().map(|items| items.len()), Ok(3));
    assert_eq!(budget.get(), 0);
    assert_eq!(view.shape().err(), Some(PickleError::TooLarge));
}

#[test]
fn what_is_remembered_under_a_number_is_the_latest() {
    assert_eq!(
        read(b"\x80\x02(K\x01q\x00h\x00K\x02q\x00h\x00t."),
        Ok("(1, 1, 2, 2)".to_owned())
    );
}

#[test]
fn names_with_line_breaks_are_names_and_no_opcodes() {
    let mut writer = Writer::new(2);
    writer.global("os\nsystem\n)R", "name\n.");
    assert_eq!(read(&writer.finish()), Ok("os system )R.name .".to_owned()));
}

#[test]
fn long_names_are_paid_for_as_texts_are() {
    let mut writer = Writer::new(2);
    writer.global("m", &"n".repeat(1 << 16));
    let bytes = writer.finish();
    let pickle = Pickle::read(&bytes).expect("a pickle");
    let budget = Cell::new(1 << 16);
    assert!(pickle.view(&budget).shape().is_ok());
    assert!((1 << 16) - budget.get() > (1 << 15) / TEXT);
}

#[test]
fn buffers_in_what_is_there_twice_are_there_twice() {
    let mut writer = Writer::new(5);
    writer.mark().next_buffer();
    let list = writer.empty_list().memoize();
    writer.mark().next_buffer().appends();
    let itself = writer.recall(list).next_buffer().memoize();
    writer.recall(itself).next_buffer().tuple();
    let bytes = writer.finish();
    let pickle = Pickle::read(&bytes).expect("a pickle");
    let mut shared = pickle.shared_buffers();
    shared.sort_unstable();
    assert_eq!(shared, [1, 2]);
}

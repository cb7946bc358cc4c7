//! The opcodes of pickles, of protocols 2 to 5, as far as anybody writes them to us.

macro_rules! opcodes {
    ($($name:ident = $byte:literal),* $(,)?) => {
        $(pub(super) const $name: u8 = $byte;)*
    };
}

opcodes! {
    MARK = b'(',
    STOP = b'.',
    POP = b'0',
    POP_MARK = b'1',
    DUP = b'2',
    BINFLOAT = b'G',
    BININT = b'J',
    BININT1 = b'K',
    BININT2 = b'M',
    NONE = b'N',
    BINPERSID = b'Q',
    REDUCE = b'R',
    BINSTRING = b'T',
    SHORT_BINSTRING = b'U',
    BINUNICODE = b'X',
    APPEND = b'a',
    BUILD = b'b',
    GLOBAL = b'c',
    DICT = b'd',
    APPENDS = b'e',
    BINGET = b'h',
    LONG_BINGET = b'j',
    LIST = b'l',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    SETITEM = b's',
    TUPLE = b't',
    SETITEMS = b'u',
    EMPTY_DICT = b'}',
    EMPTY_LIST = b']',
    EMPTY_TUPLE = b')',
    PROTO = 0x80,
    NEWOBJ = 0x81,
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    BINBYTES = b'B',
    SHORT_BINBYTES = b'C',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE8 = 0x8d,
    BINBYTES8 = 0x8e,
    EMPTY_SET = 0x8f,
    ADDITEMS = 0x90,
    FROZENSET = 0x91,
    NEWOBJ_EX = 0x92,
    STACK_GLOBAL = 0x93,
    MEMOIZE = 0x94,
    FRAME = 0x95,
    BYTEARRAY8 = 0x96,
    NEXT_BUFFER = 0x97,
    READONLY_BUFFER = 0x98,
}

/// The newest protocol that is read.
pub(super) const NEWEST: u8 = 5;

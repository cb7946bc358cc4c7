//! Writing pickles. What PyTorch writes with the same values comes out as the same bytes where the caller
//! asks for the same opcodes.

use super::opcode as op;

/// A pickle under way: opcodes, one after the other.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    memo: u32,
}

impl Writer {
    /// Begins a pickle of this protocol: 2 for what PyTorch's C++ reads, 4 for what its Python reads.
    pub fn new(protocol: u8) -> Self {
        Self {
            bytes: vec![op::PROTO, protocol],
            memo: 0,
        }
    }

    /// Ends it.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(op::STOP);
        self.bytes
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// How many bytes have been written.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// Opcodes that were written before.
    pub fn raw(&mut self, opcodes: &[u8]) -> &mut Self {
        self.put(opcodes)
    }

    pub fn none(&mut self) -> &mut Self {
        self.put(&[op::NONE])
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.put(&[if value { op::NEWTRUE } else { op::NEWFALSE }])
    }

    /// In the shortest form that PyTorch's C++ writes it in.
    pub fn int(&mut self, value: i64) -> &mut Self {
        if let Ok(value) = u8::try_from(value) {
            self.put(&[op::BININT1, value])
        } else if let Ok(value) = u16::try_from(value) {
            self.put(&[op::BININT2]).put(&value.to_le_bytes())
        } else if let Ok(value) = i32::try_from(value) {
            self.put(&[op::BININT]).put(&value.to_le_bytes())
        } else {
            self.put(&[op::LONG1, 8]).put(&value.to_le_bytes())
        }
    }

    /// A number of any size: little endian, two's complement.
    pub fn long(&mut self, bytes: &[u8]) -> &mut Self {
        match u8::try_from(bytes.len()) {
            Ok(length) => self.put(&[op::LONG1, length]),
            Err(_) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                self.put(&[op::LONG4]).put(&length.to_le_bytes())
            }
        };
        self.put(bytes)
    }

    pub fn float(&mut self, value: f64) -> &mut Self {
        self.put(&[op::BINFLOAT]).put(&value.to_be_bytes())
    }

    /// A text, or what PyTorch keeps in one.
    pub fn text(&mut self, text: &[u8]) -> &mut Self {
        self.counted([None, Some(op::BINUNICODE), Some(op::BINUNICODE8)], text)
    }

    pub fn byte_string(&mut self, bytes: &[u8]) -> &mut Self {
        let opcodes = [op::SHORT_BINBYTES, op::BINBYTES, op::BINBYTES8];
        self.counted(opcodes.map(Some), bytes)
    }

    /// Bytes behind their length, with the opcode for one, four or eight bytes of it.
    fn counted(&mut self, [short, plain, long]: [Option<u8>; 3], bytes: &[u8]) -> &mut Self {
        let length = bytes.len() as u64;
        match (u8::try_from(length), u32::try_from(length)) {
            (Ok(length), _) if short.is_some() => {
                self.bytes.extend(short);
                self.put(&[length])
            }
            (_, Ok(length)) => {
                self.bytes.extend(plain);
                self.put(&length.to_le_bytes())
            }
            _ => {
                self.bytes.extend(long);
                self.put(&length.to_le_bytes())
            }
        };
        self.put(bytes)
    }

    pub fn mark(&mut self) -> &mut Self {
        self.put(&[op::MARK])
    }

    /// A tuple of what was written since the mark.
    pub fn tuple(&mut self) -> &mut Self {
        self.put(&[op::TUPLE])
    }

    /// A tuple of the last so many values: none to three.
    pub fn tuple_of(&mut self, values: usize) -> &mut Self {
        match values {
            0 => self.put(&[op::EMPTY_TUPLE]),
            1 => self.put(&[op::TUPLE1]),
            2 => self.put(&[op::TUPLE2]),
            _ => self.put(&[op::TUPLE3]),
        }
    }

    pub fn empty_list(&mut self) -> &mut Self {
        self.put(&[op::EMPTY_LIST])
    }

    /// What was written since the mark goes into the list before it.
    pub fn appends(&mut self) -> &mut Self {
        self.put(&[op::APPENDS])
    }

    pub fn empty_dict(&mut self) -> &mut Self {
        self.put(&[op::EMPTY_DICT])
    }

    /// Keys and values since the mark go into the dict before it.
    pub fn set_items(&mut self) -> &mut Self {
        self.put(&[op::SETITEMS])
    }

    pub fn empty_set(&mut self) -> &mut Self {
        self.put(&[op::EMPTY_SET])
    }

    /// What was written since the mark goes into the set before it.
    pub fn add_items(&mut self) -> &mut Self {
        self.put(&[op::ADDITEMS])
    }

    /// Something to be imported. Names with line breaks have no meaning in any case.
    pub fn global(&mut self, module: &str, name: &str) -> &mut Self {
        let line = |text: &str| text.replace('\n', " ");
        let (module, name) = (line(module), line(name));
        self.put(&[op::GLOBAL])
            .put(module.as_bytes())
            .put(b"\n")
            .put(name.as_bytes())
            .put(b"\n")
    }

    /// Calls the value before the last with the last.
    pub fn reduce(&mut self) -> &mut Self {
        self.put(&[op::REDUCE])
    }

    /// Makes an object of the class before the last, with the arguments that the last are.
    pub fn new_object(&mut self) -> &mut Self {
        self.put(&[op::NEWOBJ])
    }

    /// Gives the object before the last the state that the last is.
    pub fn build(&mut self) -> &mut Self {
        self.put(&[op::BUILD])
    }

    /// The next of the buffers that travel beside the pickle.
    pub fn next_buffer(&mut self) -> &mut Self {
        self.put(&[op::NEXT_BUFFER])
    }

    /// The last value is an id for whoever loads the pickle.
    pub fn persistent(&mut self) -> &mut Self {
        self.put(&[op::BINPERSID])
    }

    /// Remembers the last value; returns its number.
    pub fn memoize(&mut self) -> u32 {
        let number = self.memo;
        self.memo += 1;
        match u8::try_from(number) {
            Ok(number) => self.put(&[op::BINPUT, number]),
            Err(_) => self.put(&[op::LONG_BINPUT]).put(&number.to_le_bytes()),
        };
        number
    }

    /// A value that was remembered.
    pub fn recall(&mut self, number: u32) -> &mut Self {
        match u8::try_from(number) {
            Ok(number) => self.put(&[op::BINGET, number]),
            Err(_) => self.put(&[op::LONG_BINGET]).put(&number.to_le_bytes()),
        }
    }
}

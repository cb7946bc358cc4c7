//! The machine that reads pickles: a stack, a memo, and nodes instead of objects (PK-1, PK-2).

use std::collections::HashMap;

use super::PickleError;
use super::opcode as op;

/// Which node. There are not more (PK-2).
pub(super) type Id = u32;

/// The most parts that a value may have, be they shared: what is pushed, marked or memoized. Of one opcode of one byte
/// each, they take about 70 bytes each at worst.
pub(super) const MAX_PARTS: u32 = 1 << 24;

/// A value, or the recipe of one. Texts and bytes are where they were read from.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Little endian, two's complement, of more than eight bytes.
    Long(&'a [u8]),
    Float(f64),
    /// Meant to be UTF-8; PyTorch keeps bytes in texts, so it need not be.
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Set(Vec<Id>),
    /// Something that Python would import: its module and its name in that.
    Global(Box<(&'a [u8], &'a [u8])>),
    /// Something that Python would call, or make an object of.
    Call {
        callee: Id,
        arguments: Id,
        /// What Python would give to the object as its state.
        state: Option<Id>,
        /// What Python would fill the object with: a list or a dict.
        items: Option<Id>,
    },
    /// Something that whoever loads the pickle would look up.
    Persistent(Id),
    /// Memory that travels beside the pickle: which one of all.
    Buffer(u32),
}

/// A pickle that has been read.
#[derive(Clone, Debug)]
pub struct Pickle<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) root: Id,
    /// How many bytes it was read from.
    pub(super) bytes: usize,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle that is all of `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, PickleError> {
        Self::read_within(bytes, MAX_PARTS)
    }

    /// Reads a pickle that is all of `bytes` and has so many parts at most.
    pub fn read_within(bytes: &'a [u8], parts: u32) -> Result<Self, PickleError> {
        let (pickle, rest) = Self::read_some(bytes, parts)?;
        match rest.len() {
            0 => Ok(pickle),
            more => Err(PickleError::Trailing(more)),
        }
    }

    /// How many values it is made of.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Reads a pickle, and says what follows it.
    pub fn read_first(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), PickleError> {
        Self::read_some(bytes, MAX_PARTS)
    }

    fn read_some(bytes: &'a [u8], parts: u32) -> Result<(Self, &'a [u8]), PickleError> {
        let mut machine = Machine {
            rest: bytes,
            left: parts,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            buffers: 0,
        };
        let root = machine.run()?;
        let pickle = Self {
            nodes: machine.nodes,
            root,
            bytes: bytes.len() - machine.rest.len(),
        };
        Ok((pickle, machine.rest))
    }
}

struct Machine<'a> {
    rest: &'a [u8],
    /// How many more parts there may be.
    left: u32,
    nodes: Vec<Node<'a>>,
    stack: Vec<Id>,
    /// How high the stack was at each mark.
    marks: Vec<u32>,
    memo: HashMap<u32, Id>,
    /// How many buffers beside it there were so far.
    buffers: u32,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            let opcode = self.byte()?;
            if opcode == op::STOP {
                return self.pop("the end");
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            op::PROTO => match self.byte()? {
                protocol if protocol > op::NEWEST => return Err(PickleError::Protocol(protocol)),
                _ => {}
            },
            // How much follows is known anyway.
            op::FRAME => drop(self.take(8)?),
            op::MARK => {
                self.pay()?;
                self.marks.push(self.height());
            }
            // What is on top may be a mark.
            op::POP => match self.marks.pop_if(|mark| *mark as usize == self.stack.len()) {
                Some(_) => {}
                None => drop(self.pop("a pop")?),
            },
            op::POP_MARK => drop(self.pop_mark()?),
            op::DUP => {
                let top = self.top("a duplicate")?;
                self.pay()?;
                self.stack.push(top);
            }
            op::NONE => self.push(Node::None)?,
            op::NEWTRUE => self.push(Node::Bool(true))?,
            op::NEWFALSE => self.push(Node::Bool(false))?,
            op::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Node::Int(value.into()))?;
            }
            op::BININT1 => {
                let value = self.byte()?;
                self.push(Node::Int(value.into()))?;
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Node::Int(value.into()))?;
            }
            op::LONG1 => {
                let length = self.byte()?;
                self.long(length.into())?;
            }
            op::LONG4 => {
                let length = u32::from_le_bytes(self.array()?);
                self.long(length as usize)?;
            }
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Node::Float(value))?;
            }
            op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                let text = self.counted(opcode)?;
                self.push(Node::Text(text))?;
            }
            op::SHORT_BINBYTES
            | op::BINBYTES
            | op::BINBYTES8
            | op::BYTEARRAY8
            | op::SHORT_BINSTRING
            | op::BINSTRING => {
                let bytes = self.counted(opcode)?;
                self.push(Node::Bytes(bytes))?;
            }
            op::NEXT_BUFFER => {
                self.push(Node::Buffer(self.buffers))?;
                self.buffers += 1;
            }
            // What was made here is never written to.
            op::READONLY_BUFFER => drop(self.top("a buffer")?),
            op::BINPUT => {
                let number = self.byte()?;
                self.memoize(number.into())?;
            }
            op::LONG_BINPUT => {
                let number = u32::from_le_bytes(self.array()?);
                self.memoize(number)?;
            }
            op::MEMOIZE => {
                let number = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                self.memoize(number)?;
            }
            op::BINGET => {
                let number = self.byte()?;
                self.recall(number.into())?;
            }
            op::LONG_BINGET => {
                let number = u32::from_le_bytes(self.array()?);
                self.recall(number)?;
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Node::Global(Box::new((module, name))))?;
            }
            other => return self.compose(other),
        }
        Ok(())
    }

    /// Opcodes that make something of what is on the stack.
    fn compose(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            op::EMPTY_TUPLE => self.push(Node::Tuple(Vec::new()))?,
            op::EMPTY_LIST => self.push(Node::List(Vec::new()))?,
            op::EMPTY_DICT => self.push(Node::Dict(Vec::new()))?,
            op::EMPTY_SET => self.push(Node::Set(Vec::new()))?,
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let size = usize::from(opcode - op::TUPLE1) + 1;
                let items = self.pop_last(size, "a tuple")?;
                self.push(Node::Tuple(items))?;
            }
            op::TUPLE => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items))?;
            }
            op::LIST => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))?;
            }
            op::FROZENSET => {
                let items = self.pop_mark()?;
                self.push(Node::Set(items))?;
            }
            op::DICT => {
                let items = pairs(&self.pop_mark()?)?;
                self.push(Node::Dict(items))?;
            }
            op::APPEND => {
                let items = self.pop_last(1, "an append")?;
                self.extend_list(items)?;
            }
            op::APPENDS => {
                let items = self.pop_mark()?;
                self.extend_list(items)?;
            }
            op::SETITEM => {
                let items = pairs(&self.pop_last(2, "an item")?)?;
                self.extend_dict(items)?;
            }
            op::SETITEMS => {
                let items = pairs(&self.pop_mark()?)?;
                self.extend_dict(items)?;
            }
            op::ADDITEMS => {
                let items = self.pop_mark()?;
                let set = self.top("items of a set")?;
                match self.nodes.get_mut(set as usize) {
                    Some(Node::Set(have)) => have.extend(items),
                    _ => return Err(PickleError::Misplaced("items of a set")),
                }
            }
            op::STACK_GLOBAL => {
                let names = self.pop_last(2, "a global")?;
                let text = |id: &Id| match self.nodes.get(*id as usize) {
                    Some(Node::Text(text)) => Ok(*text),
                    _ => Err(PickleError::Misplaced("a global")),
                };
                let (module, name) = match &names[..] {
                    [module, name] => (text(module)?, text(name)?),
                    _ => return Err(PickleError::Misplaced("a global")),
                };
                self.push(Node::Global(Box::new((module, name))))?;
            }
            op::REDUCE | op::NEWOBJ => self.call("a call")?,
            op::NEWOBJ_EX => {
                // Named arguments come last; they count as state.
                let named = self.pop("an object")?;
                self.call("an object")?;
                self.set_state(named)?;
            }
            op::BUILD => {
                let state = self.pop("a state")?;
                self.set_state(state)?;
            }
            op::BINPERSID => {
                let id = self.pop("a persistent id")?;
                self.push(Node::Persistent(id))?;
            }
            other => return Err(PickleError::Opcode(other)),
        }
        Ok(())
    }

    fn call(&mut self, what: &'static str) -> Result<(), PickleError> {
        let arguments = self.pop(what)?;
        let callee = self.pop(what)?;
        self.push(Node::Call {
            callee,
            arguments,
            state: None,
            items: None,
        })
    }

    fn set_state(&mut self, new: Id) -> Result<(), PickleError> {
        let object = self.top("a state")?;
        match self.nodes.get_mut(object as usize) {
            Some(Node::Call { state, .. }) if state.is_none() => *state = Some(new),
            _ => return Err(PickleError::Misplaced("a state")),
        }
        Ok(())
    }

    fn extend_list(&mut self, new: Vec<Id>) -> Result<(), PickleError> {
        let list = self.top("items of a list")?;
        let list = self.filling(list, || Node::List(Vec::new()))?;
        match self.nodes.get_mut(list as usize) {
            Some(Node::List(have)) => have.extend(new),
            _ => return Err(PickleError::Misplaced("items of a list")),
        }
        Ok(())
    }

    fn extend_dict(&mut self, new: Vec<(Id, Id)>) -> Result<(), PickleError> {
        let dict = self.top("items of a dict")?;
        let dict = self.filling(dict, || Node::Dict(Vec::new()))?;
        match self.nodes.get_mut(dict as usize) {
            Some(Node::Dict(have)) => have.extend(new),
            _ => return Err(PickleError::Misplaced("items of a dict")),
        }
        Ok(())
    }

    /// What is filled when that is to be filled: itself, or what an object is filled with. Objects such as ordered
    /// dicts are made first and filled afterwards, a thousand items at a time.
    fn filling(&mut self, id: Id, empty: fn() -> Node<'a>) -> Result<Id, PickleError> {
        match self.nodes.get(id as usize) {
            Some(Node::Call {
                items: Some(items), ..
            }) => Ok(*items),
            Some(Node::Call { items: None, .. }) => {
                let next = self.add(empty())?;
                if let Some(Node::Call { items, .. }) = self.nodes.get_mut(id as usize) {
                    *items = Some(next);
                }
                Ok(next)
            }
            _ => Ok(id),
        }
    }

    fn long(&mut self, length: usize) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        let node = match bytes.len() {
            0..=8 => {
                let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
                let mut all = [if negative { 0xff } else { 0 }; 8];
                all[..bytes.len()].copy_from_slice(bytes);
                Node::Int(i64::from_le_bytes(all))
            }
            _ => Node::Long(bytes),
        };
        self.push(node)
    }

    /// Bytes behind their length, which is as long as the opcode says.
    fn counted(&mut self, opcode: u8) -> Result<&'a [u8], PickleError> {
        let length = match opcode {
            op::SHORT_BINUNICODE | op::SHORT_BINBYTES | op::SHORT_BINSTRING => self.byte()?.into(),
            op::BINUNICODE | op::BINBYTES | op::BINSTRING => {
                u32::from_le_bytes(self.array()?) as usize
            }
            _ => usize::try_from(u64::from_le_bytes(self.array()?))
                .map_err(|_| PickleError::Truncated)?,
        };
        self.take(length)
    }

    fn memoize(&mut self, number: u32) -> Result<(), PickleError> {
        let top = self.top("a memo")?;
        self.pay()?;
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), PickleError> {
        let id = self.memo.get(&number);
        let id = *id.ok_or(PickleError::NoSuchMemo(number))?;
        self.pay()?;
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, node: Node<'a>) -> Result<(), PickleError> {
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    fn add(&mut self, node: Node<'a>) -> Result<Id, PickleError> {
        self.pay()?;
        let id = Id::try_from(self.nodes.len()).map_err(|_| PickleError::TooLarge)?;
        self.nodes.push(node);
        Ok(id)
    }

    /// Whatever is kept is one of the parts that there may be.
    fn pay(&mut self) -> Result<(), PickleError> {
        self.left = self.left.checked_sub(1).ok_or(PickleError::TooLarge)?;
        Ok(())
    }

    fn height(&self) -> u32 {
        u32::try_from(self.stack.len()).unwrap_or(u32::MAX)
    }

    /// The bottom of what may be taken: nothing below the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0) as usize
    }

    fn top(&self, what: &'static str) -> Result<Id, PickleError> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.floor() => Ok(*id),
            _ => Err(PickleError::Misplaced(what)),
        }
    }

    fn pop(&mut self, what: &'static str) -> Result<Id, PickleError> {
        let top = self.top(what)?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_last(&mut self, count: usize, what: &'static str) -> Result<Vec<Id>, PickleError> {
        let from = self.stack.len().checked_sub(count);
        match from.filter(|from| *from >= self.floor()) {
            Some(from) => Ok(self.stack.split_off(from)),
            None => Err(PickleError::Misplaced(what)),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop();
        match mark.filter(|mark| *mark as usize <= self.stack.len()) {
            Some(mark) => Ok(self.stack.split_off(mark as usize)),
            None => Err(PickleError::Misplaced("what ends at a mark")),
        }
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let (bytes, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(PickleError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let taken = self.rest.split_at_checked(length);
        let (bytes, rest) = taken.ok_or(PickleError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let line = self.take(end.ok_or(PickleError::Truncated)?)?;
        self.take(1)?;
        Ok(line)
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, PickleError> {
    let (pairs, rest) = items.as_chunks();
    if !rest.is_empty() {
        return Err(PickleError::Misplaced("items of a dict"));
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

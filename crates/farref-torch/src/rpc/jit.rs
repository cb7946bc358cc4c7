//! Values the way PyTorch's C++ pickles them: what TorchScript and builtin operators take and return.
//!
//! PyTorch remembers every name, every text, and every object that is used more than once (by its reference
//! count), and writes it as a back reference the next time. Here that is: names and texts always; arguments and
//! results themselves, and tensors of a list of tensors; nothing that is inside of other values. That is what a
//! PyTorch worker does with values that are nowhere else in use (RM-1).

use std::collections::HashMap;

use super::error::RpcError;
use super::reference::{Fork, GlobalId, read_index, read_str};
#[cfg(any(test, feature = "fuzzing"))]
use crate::pickle::Pickle;
use crate::pickle::{Shape, View, Writer};

/// Where PyTorch's own functions for pickles are.
const MODULE: &str = "torch.jit._pickle";

/// A value of TorchScript's.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum JitValue {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Complex {
        real: f64,
        imaginary: f64,
    },
    Text(String),
    /// A text that is not UTF-8.
    Bytes(Vec<u8>),
    /// A tensor, by its place in the list of the message.
    Tensor(usize),
    /// A device by its name, such as `cpu`.
    Device(String),
    Tuple(Vec<Self>),
    IntList(Vec<i64>),
    FloatList(Vec<f64>),
    BoolList(Vec<bool>),
    TensorList(Vec<usize>),
    /// A list of anything else. PyTorch wants to know the type, such as `List[str]`.
    List {
        items: Vec<Self>,
        type_name: String,
    },
    /// PyTorch wants to know the type, such as `Dict[str, int]`.
    Dict {
        items: Vec<(Self, Self)>,
        type_name: String,
    },
    RRef(Fork),
}

impl JitValue {
    /// The pickle of a value alone: what a call of a builtin or of TorchScript returns.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = JitWriter::new();
        writer.shared(self);
        writer.finish()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    /// Reads the pickle of a value alone.
    pub(crate) fn decode(pickle: &[u8]) -> Result<Self, RpcError> {
        let pickle = Pickle::read(pickle)?;
        Self::read(pickle.view(&pickle.budget()))
    }

    /// The pickle of a tuple of the value: what is sent to whoever fetches it.
    pub(crate) fn encode_fetched(&self) -> Vec<u8> {
        let mut writer = JitWriter::new();
        writer.shared(self).end_tuple(1);
        writer.finish()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    /// Reads the pickle of a tuple of one value.
    pub(crate) fn decode_fetched(pickle: &[u8]) -> Result<Self, RpcError> {
        let pickle = Pickle::read(pickle)?;
        let budget = pickle.budget();
        let [value] = pickle.view(&budget).tuple_of()?;
        Self::read(value)
    }

    /// Reads a value in a pickle.
    pub(crate) fn read(view: View<'_, '_>) -> Result<Self, RpcError> {
        Ok(match view.shape()? {
            Shape::None => Self::None,
            Shape::Bool(value) => Self::Bool(value),
            Shape::Int(value) => Self::Int(value),
            Shape::Float(value) => Self::Float(value),
            Shape::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes(text.to_vec()),
            },
            Shape::Tuple(items) => Self::Tuple(read_all(items)?),
            Shape::List(items) => Self::List {
                items: read_all(items)?,
                type_name: String::new(),
            },
            Shape::Dict(items) => Self::Dict {
                items: read_pairs(items)?,
                type_name: String::new(),
            },
            Shape::Call {
                callee,
                arguments,
                state: None,
                items: None,
            } => Self::read_call(callee, arguments)?,
            other => return Err(RpcError::Unsupported(format!("{other} of TorchScript"))),
        })
    }

    fn read_call(callee: View<'_, '_>, arguments: View<'_, '_>) -> Result<Self, RpcError> {
        let callee = callee.shape()?;
        let name = match &callee {
            Shape::Global(module, name) => (&module[..], &name[..]),
            _ => return Err(unknown(&callee)),
        };
        let arguments = arguments.tuple()?;
        match (name, &arguments[..]) {
            ((b"torch.jit._pickle", b"build_tensor_from_id"), [id]) => {
                Ok(Self::Tensor(read_index(*id)?))
            }
            ((b"torch.jit._pickle", b"build_intlist"), [items]) => {
                let items = list(*items)?.into_iter();
                let items = items.map(|item| Ok(item.int()?));
                Ok(Self::IntList(items.collect::<Result<_, RpcError>>()?))
            }
            ((b"torch.jit._pickle", b"build_doublelist"), [items]) => {
                let items = list(*items)?.into_iter();
                let items = items.map(|item| read_float(item));
                Ok(Self::FloatList(items.collect::<Result<_, RpcError>>()?))
            }
            ((b"torch.jit._pickle", b"build_boollist"), [items]) => {
                let items = list(*items)?.into_iter();
                let items = items.map(|item| Ok(item.bool()?));
                Ok(Self::BoolList(items.collect::<Result<_, RpcError>>()?))
            }
            ((b"torch.jit._pickle", b"build_tensorlist"), [items]) => {
                let items = list(*items)?.into_iter();
                let items = items.map(read_tensor);
                Ok(Self::TensorList(items.collect::<Result<_, RpcError>>()?))
            }
            ((b"torch.jit._pickle", b"restore_type_tag"), [value, type_name]) => {
                let type_name = read_str(*type_name)?.to_owned();
                match value.shape()? {
                    Shape::List(items) => Ok(Self::List {
                        items: read_all(items)?,
                        type_name,
                    }),
                    Shape::Dict(items) => Ok(Self::Dict {
                        items: read_pairs(items)?,
                        type_name,
                    }),
                    other => Err(RpcError::wrong(
                        "what has a type is a list or a dict",
                        other,
                    )),
                }
            }
            ((b"torch.distributed.rpc", b"rref"), items) => Ok(Self::RRef(Fork::read(items)?)),
            ((b"torch", b"device"), [name]) => Ok(Self::Device(read_str(*name)?.to_owned())),
            ((b"builtins", b"complex"), [real, imaginary]) => Ok(Self::Complex {
                real: read_float(*real)?,
                imaginary: read_float(*imaginary)?,
            }),
            _ => Err(unknown(&callee)),
        }
    }

    /// Whether PyTorch keeps it in an object of its own, which it remembers if it is in use elsewhere.
    fn is_object(&self) -> bool {
        !matches!(
            self,
            Self::None
                | Self::Bool(_)
                | Self::Int(_)
                | Self::Float(_)
                | Self::Text(_)
                | Self::Bytes(_)
                | Self::Device(_)
        )
    }
}

fn unknown(callee: &Shape<'_, '_>) -> RpcError {
    RpcError::Unsupported(format!("what {callee} makes"))
}

fn read_all(items: Vec<View<'_, '_>>) -> Result<Vec<JitValue>, RpcError> {
    items.into_iter().map(JitValue::read).collect()
}

type Pairs<'p, 'a> = Vec<(View<'p, 'a>, View<'p, 'a>)>;

fn read_pairs(items: Pairs<'_, '_>) -> Result<Vec<(JitValue, JitValue)>, RpcError> {
    let items = items.into_iter();
    let items = items.map(|(key, value)| Ok((JitValue::read(key)?, JitValue::read(value)?)));
    items.collect()
}

fn list<'p, 'a>(view: View<'p, 'a>) -> Result<Vec<View<'p, 'a>>, RpcError> {
    match view.shape()? {
        Shape::List(items) => Ok(items),
        other => Err(RpcError::wrong("a list is expected", other)),
    }
}

fn read_float(view: View<'_, '_>) -> Result<f64, RpcError> {
    match view.shape()? {
        Shape::Float(value) => Ok(value),
        other => Err(RpcError::wrong("a float is expected", other)),
    }
}

/// A tensor by its place in the list of the message.
pub(super) fn read_tensor(view: View<'_, '_>) -> Result<usize, RpcError> {
    match view.call_of(MODULE, "build_tensor_from_id")?.as_deref() {
        Some([id]) => read_index(*id),
        _ => Err(RpcError::wrong("a tensor is expected", "something else")),
    }
}

/// Writes pickles the way PyTorch's C++ does.
#[derive(Clone, Debug)]
pub(crate) struct JitWriter {
    pickle: Writer,
    globals: HashMap<(String, String), u32>,
    texts: HashMap<Vec<u8>, u32>,
    tensors: HashMap<usize, u32>,
    devices: HashMap<String, u32>,
}

impl JitWriter {
    pub(crate) fn new() -> Self {
        Self {
            pickle: Writer::new(2),
            globals: HashMap::new(),
            texts: HashMap::new(),
            tensors: HashMap::new(),
            devices: HashMap::new(),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.pickle.finish()
    }

    /// The opcodes themselves.
    pub(super) fn raw(&mut self) -> &mut Writer {
        &mut self.pickle
    }

    /// A value that is used elsewhere, too: an argument, a result.
    pub(crate) fn shared(&mut self, value: &JitValue) -> &mut Self {
        self.value(value);
        match value {
            JitValue::Tensor(id) => self.remember_tensor(*id),
            _ if value.is_object() => drop(self.pickle.memoize()),
            _ => {}
        }
        self
    }

    /// A value that is used nowhere else.
    pub(crate) fn value(&mut self, value: &JitValue) -> &mut Self {
        match value {
            JitValue::None => drop(self.pickle.none()),
            JitValue::Bool(value) => drop(self.pickle.bool(*value)),
            JitValue::Int(value) => drop(self.pickle.int(*value)),
            JitValue::Float(value) => drop(self.pickle.float(*value)),
            JitValue::Complex { real, imaginary } => {
                self.global("builtins", "complex");
                let pickle = self.pickle.float(*real).float(*imaginary);
                pickle.tuple_of(2).reduce();
            }
            JitValue::Text(text) => drop(self.text(text.as_bytes())),
            JitValue::Bytes(text) => drop(self.text(text)),
            JitValue::Tensor(id) => self.tensor(*id),
            JitValue::Device(name) => self.device(name),
            JitValue::Tuple(items) => {
                self.begin_tuple(items.len());
                for item in items {
                    self.value(item);
                }
                self.end_tuple(items.len());
            }
            JitValue::IntList(items) => self.special_list("build_intlist", items, |to, item| {
                to.pickle.int(*item);
            }),
            JitValue::FloatList(items) => {
                self.special_list("build_doublelist", items, |to, item| {
                    to.pickle.float(*item);
                });
            }
            JitValue::BoolList(items) => self.special_list("build_boollist", items, |to, item| {
                to.pickle.bool(*item);
            }),
            JitValue::TensorList(items) => {
                self.special_list("build_tensorlist", items, |to, item| {
                    to.tensor(*item);
                    to.remember_tensor(*item);
                });
            }
            JitValue::List { items, type_name } => {
                self.begin_tagged(type_name);
                self.pickle.empty_list().mark();
                for item in items {
                    self.value(item);
                }
                self.pickle.appends();
                self.end_tagged(type_name);
            }
            JitValue::Dict { items, type_name } => {
                self.begin_tagged(type_name);
                self.pickle.empty_dict().mark();
                for (key, value) in items {
                    self.value(key).value(value);
                }
                self.pickle.set_items();
                self.end_tagged(type_name);
            }
            JitValue::RRef(fork) => {
                self.global("torch.distributed.rpc", "rref");
                self.pickle.mark();
                for number in fork.numbers() {
                    self.pickle.int(number);
                }
                self.text(fork.type_name.as_bytes());
                self.pickle.tuple().reduce();
            }
        }
        self
    }

    /// Before the items of a tuple of so many.
    pub(crate) fn begin_tuple(&mut self, items: usize) -> &mut Self {
        if items > 3 {
            self.pickle.mark();
        }
        self
    }

    /// After the items of a tuple of so many.
    pub(crate) fn end_tuple(&mut self, items: usize) -> &mut Self {
        match items {
            0..=3 => self.pickle.tuple_of(items),
            _ => self.pickle.tuple(),
        };
        self
    }

    pub(crate) fn int(&mut self, value: i64) -> &mut Self {
        self.pickle.int(value);
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.pickle.bool(value);
        self
    }

    pub(crate) fn id(&mut self, id: GlobalId) -> &mut Self {
        self.pickle.int(id.on.into()).int(id.counter()).tuple_of(2);
        self
    }

    /// An id that is used elsewhere, too.
    pub(crate) fn shared_id(&mut self, id: GlobalId) -> &mut Self {
        self.id(id).pickle.memoize();
        self
    }

    /// A text, or the bytes that PyTorch keeps in one. Written once.
    pub(crate) fn text(&mut self, text: &[u8]) -> &mut Self {
        match self.texts.get(text) {
            Some(number) => drop(self.pickle.recall(*number)),
            None => {
                let number = self.pickle.text(text).memoize();
                self.texts.insert(text.to_vec(), number);
            }
        }
        self
    }

    /// A name. Written once.
    pub(super) fn global(&mut self, module: &str, name: &str) {
        let key = (module.to_owned(), name.to_owned());
        match self.globals.get(&key) {
            Some(number) => drop(self.pickle.recall(*number)),
            None => {
                let number = self.pickle.global(module, name).memoize();
                self.globals.insert(key, number);
            }
        }
    }

    fn device(&mut self, name: &str) {
        if let Some(number) = self.devices.get(name) {
            self.pickle.recall(*number);
            return;
        }
        self.global("torch", "device");
        self.text(name.as_bytes());
        let number = self.pickle.tuple_of(1).reduce().memoize();
        self.devices.insert(name.to_owned(), number);
    }

    fn tensor(&mut self, id: usize) {
        if let Some(number) = self.tensors.get(&id) {
            self.pickle.recall(*number);
            return;
        }
        self.global(MODULE, "build_tensor_from_id");
        let pickle = self.pickle.mark().int(index(id));
        pickle.tuple().reduce();
    }

    /// The tensor that was just written need not be written again.
    fn remember_tensor(&mut self, id: usize) {
        if !self.tensors.contains_key(&id) {
            let number = self.pickle.memoize();
            self.tensors.insert(id, number);
        }
    }

    fn special_list<T>(&mut self, name: &str, items: &[T], item: fn(&mut Self, &T)) {
        self.begin_list(name);
        for each in items {
            item(self, each);
        }
        self.end_list();
    }

    /// Before the items of a list that a function of PyTorch's makes.
    pub(super) fn begin_list(&mut self, name: &str) {
        self.global(MODULE, name);
        self.pickle.mark().empty_list().mark();
    }

    pub(super) fn end_list(&mut self) {
        self.pickle.appends().tuple().reduce();
    }

    /// Before a container that says its type.
    pub(super) fn begin_tagged(&mut self, type_name: &str) {
        if !type_name.is_empty() {
            self.global(MODULE, "restore_type_tag");
        }
    }

    pub(super) fn end_tagged(&mut self, type_name: &str) {
        if !type_name.is_empty() {
            self.text(type_name.as_bytes());
            self.pickle.tuple_of(2).reduce();
        }
    }
}

/// A place or a size as it is written.
pub(super) fn index(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

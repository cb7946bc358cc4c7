//! Walking what was read: typed questions about a value, each step paid for (PK-3).

use std::cell::Cell;
use std::fmt;

use super::PickleError;
use super::read::{Id, Node, Pickle};

/// How deep values may nest.
pub(super) const MAX_DEPTH: u32 = 128;

/// How often each part of a value may be looked at (PK-4).
pub(super) const LOOKS: usize = 8;

/// What every walk may take, however short the pickle.
pub(super) const FLOOR: usize = 1 << 18;

/// How many bytes of a text cost as much as a step: about what a step takes.
pub(super) const TEXT: usize = 16;

/// Names of up to so many bytes cost a step.
const NAME: usize = 256;

/// A value in a pickle. Looking into it costs one step of the walk's budget.
#[derive(Clone, Copy)]
pub struct View<'p, 'a> {
    pickle: &'p Pickle<'a>,
    id: Id,
    depth: u32,
    budget: &'p Cell<usize>,
}

impl<'a> Pickle<'a> {
    /// How many steps a walk over all of it may take (PK-3, PK-4).
    ///
    /// A value that is part of another one was pushed by an opcode of its own, be it only to recall something from
    /// the memo. So there are not more parts than bytes. Each costs a step when it is looked at and a step
    /// when what it is part of is looked at.
    pub fn budget(&self) -> Cell<usize> {
        Cell::new(self.bytes.saturating_mul(2 * LOOKS).saturating_add(FLOOR))
    }

    /// The value, to be walked with this budget.
    pub fn view<'p>(&'p self, budget: &'p Cell<usize>) -> View<'p, 'a> {
        View {
            pickle: self,
            id: self.root,
            depth: 0,
            budget,
        }
    }
}

impl<'a> Pickle<'a> {
    /// All calls that are in it, each of which Python would make, in the order in which it would.
    pub fn calls<'p>(&'p self, budget: &'p Cell<usize>) -> impl Iterator<Item = View<'p, 'a>> {
        (0..).zip(&self.nodes).filter_map(move |(id, node)| {
            let is_call = matches!(node, Node::Call { .. });
            is_call.then_some(View {
                pickle: self,
                id,
                depth: 0,
                budget,
            })
        })
    }
}

/// What a value is, one level deep.
pub enum Shape<'p, 'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Little endian, two's complement.
    Long(&'a [u8]),
    Float(f64),
    /// Mostly UTF-8.
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Tuple(Items<'p, 'a>),
    List(Items<'p, 'a>),
    Set(Items<'p, 'a>),
    Dict(Vec<(View<'p, 'a>, View<'p, 'a>)>),
    Global(&'a [u8], &'a [u8]),
    Call {
        callee: View<'p, 'a>,
        arguments: View<'p, 'a>,
        state: Option<View<'p, 'a>>,
        /// A list or a dict, that the object is filled with.
        items: Option<View<'p, 'a>>,
    },
    Persistent(View<'p, 'a>),
    /// Memory beside the pickle: which one of all.
    Buffer(u32),
}

/// A call of a global.
pub struct Called<'p, 'a> {
    /// Its module, and its name there.
    pub name: (&'a [u8], &'a [u8]),
    pub arguments: View<'p, 'a>,
    pub state: Option<View<'p, 'a>>,
    /// A list or a dict, that the object is filled with.
    pub items: Option<View<'p, 'a>>,
}

/// The items of a sequence.
pub(super) type Items<'p, 'a> = Vec<View<'p, 'a>>;

impl<'p, 'a> View<'p, 'a> {
    fn inside(&self, id: Id) -> Self {
        Self {
            id,
            depth: self.depth + 1,
            ..*self
        }
    }

    fn insides(&self, ids: &[Id]) -> Result<Items<'p, 'a>, PickleError> {
        self.pay(ids.len())?;
        Ok(ids.iter().map(|id| self.inside(*id)).collect())
    }

    /// Pays for what is made of this value besides what came.
    pub fn pay(&self, steps: usize) -> Result<(), PickleError> {
        let left = self.budget.get().checked_sub(steps);
        self.budget.set(left.ok_or(PickleError::TooLarge)?);
        Ok(())
    }

    /// Pays for so many bytes that are not in the pickle, and are copied.
    pub fn pay_for(&self, bytes: usize) -> Result<(), PickleError> {
        self.pay(bytes / TEXT)
    }

    /// Bytes, for which somebody may make room.
    fn paid(&self, bytes: &'a [u8]) -> Result<&'a [u8], PickleError> {
        self.pay_for(bytes.len())?;
        Ok(bytes)
    }

    /// Tells it from all others of its pickle. The same for a value that is used more than once.
    pub fn key(&self) -> usize {
        self.id as usize
    }

    /// Looks.
    pub fn shape(&self) -> Result<Shape<'p, 'a>, PickleError> {
        if self.depth > MAX_DEPTH {
            return Err(PickleError::TooLarge);
        }
        self.pay(1)?;
        Ok(match self.pickle.nodes.get(self.id as usize) {
            None | Some(Node::None) => Shape::None,
            Some(Node::Bool(value)) => Shape::Bool(*value),
            Some(Node::Int(value)) => Shape::Int(*value),
            Some(Node::Long(bytes)) => Shape::Long(self.paid(bytes)?),
            Some(Node::Float(value)) => Shape::Float(*value),
            Some(Node::Text(text)) => Shape::Text(self.paid(text)?),
            Some(Node::Bytes(bytes)) => Shape::Bytes(self.paid(bytes)?),
            Some(Node::Tuple(items)) => Shape::Tuple(self.insides(items)?),
            Some(Node::List(items)) => Shape::List(self.insides(items)?),
            Some(Node::Set(items)) => Shape::Set(self.insides(items)?),
            Some(Node::Dict(items)) => {
                self.pay(items.len().saturating_mul(2))?;
                let items = items.iter();
                let items = items.map(|(key, value)| (self.inside(*key), self.inside(*value)));
                Shape::Dict(items.collect())
            }
            Some(Node::Global(global)) => {
                let (module, name) = **global;
                // Names are looked at often, and short. A long one is paid for as a text is.
                let long = (module.len() + name.len()).saturating_sub(NAME);
                self.pay(long / TEXT)?;
                Shape::Global(module, name)
            }
            Some(Node::Call {
                callee,
                arguments,
                state,
                items,
            }) => Shape::Call {
                callee: self.inside(*callee),
                arguments: self.inside(*arguments),
                state: state.map(|state| self.inside(state)),
                items: items.map(|items| self.inside(items)),
            },
            Some(Node::Persistent(id)) => Shape::Persistent(self.inside(*id)),
            Some(Node::Buffer(number)) => Shape::Buffer(*number),
        })
    }

    /// Whether it is a call. To find that out costs one step, however much there is in it.
    pub fn is_call(&self) -> Result<bool, PickleError> {
        self.pay(1)?;
        Ok(matches!(
            self.pickle.nodes.get(self.id as usize),
            Some(Node::Call { .. })
        ))
    }

    /// The same for a persistent id.
    pub fn is_persistent(&self) -> Result<bool, PickleError> {
        self.pay(1)?;
        Ok(matches!(
            self.pickle.nodes.get(self.id as usize),
            Some(Node::Persistent(_))
        ))
    }

    /// Which of the buffers beside the pickle it is, if it is one.
    pub fn buffer(&self) -> Result<Option<u32>, PickleError> {
        self.pay(1)?;
        Ok(match self.pickle.nodes.get(self.id as usize) {
            Some(Node::Buffer(number)) => Some(*number),
            _ => None,
        })
    }

    pub fn int(&self) -> Result<i64, PickleError> {
        match self.shape()? {
            Shape::Int(value) => Ok(value),
            other => Err(other.is_not("a number")),
        }
    }

    pub fn bool(&self) -> Result<bool, PickleError> {
        match self.shape()? {
            Shape::Bool(value) => Ok(value),
            other => Err(other.is_not("True or False")),
        }
    }

    /// A text as the bytes it came as.
    pub fn text(&self) -> Result<&'a [u8], PickleError> {
        match self.shape()? {
            Shape::Text(text) => Ok(text),
            other => Err(other.is_not("a text")),
        }
    }

    /// The items of a tuple.
    pub fn tuple(&self) -> Result<Items<'p, 'a>, PickleError> {
        match self.shape()? {
            Shape::Tuple(items) => Ok(items),
            other => Err(other.is_not("a tuple")),
        }
    }

    /// The items of a tuple of so many.
    pub fn tuple_of<const N: usize>(&self) -> Result<[Self; N], PickleError> {
        let items = self.tuple()?;
        let found = items.len();
        items.try_into().map_err(|_| PickleError::Expected {
            expected: "a tuple of another length",
            found: format!("one of {found}"),
        })
    }

    /// What is called and the arguments, if this is a call of a global.
    pub fn call(&self) -> Result<Option<Called<'p, 'a>>, PickleError> {
        if !self.is_call()? {
            return Ok(None);
        }
        let Shape::Call {
            callee,
            arguments,
            state,
            items,
        } = self.shape()?
        else {
            return Ok(None);
        };
        Ok(match callee.shape()? {
            Shape::Global(module, name) => Some(Called {
                name: (module, name),
                arguments,
                state,
                items,
            }),
            _ => None,
        })
    }

    /// The arguments, if this is a call of that global.
    pub fn call_of(&self, module: &str, name: &str) -> Result<Option<Items<'p, 'a>>, PickleError> {
        match self.call()? {
            Some(called) if called.name == (module.as_bytes(), name.as_bytes()) => {
                called.arguments.tuple().map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Shape<'_, '_> {
    /// The error of whoever expected something else.
    pub fn is_not(&self, expected: &'static str) -> PickleError {
        PickleError::Expected {
            expected,
            found: self.to_string(),
        }
    }
}

/// What it is, for errors: short, whatever it contains.
impl fmt::Display for Shape<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "the number {value}"),
            Self::Long(_) => f.write_str("a large number"),
            Self::Float(value) => write!(f, "the number {value}"),
            Self::Text(text) => write!(f, "a text of {} bytes", text.len()),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Tuple(items) => write!(f, "a tuple of {}", items.len()),
            Self::List(items) => write!(f, "a list of {}", items.len()),
            Self::Set(items) => write!(f, "a set of {}", items.len()),
            Self::Dict(items) => write!(f, "a dict of {}", items.len()),
            Self::Global(module, name) => {
                let text =
                    |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(100).collect();
                let (module, name): (String, String) = (text(module), text(name));
                write!(f, "`{module}.{name}`")
            }
            Self::Call { .. } => f.write_str("an object"),
            Self::Persistent(_) => f.write_str("a persistent id"),
            Self::Buffer(_) => f.write_str("a buffer"),
        }
    }
}

//! Rust values in the foreign form: pickles, with references, peers and large buffers beside them.
//!
//! # Invariants
//!
//! - **NP-1** Nothing of a pickle is executed, and reading one takes in proportion to its bytes (PK-1 to PK-4, VC-1). What is in
//!   the body beside it, and not in parts of the message, is paid for each time that it is looked at, as texts are.
//! - **NP-2** What is beside a pickle is named in it by a number. A number of nothing is an error. What is in the pickle more than
//!   once can be read more than once, a few times: that bounds what copies of it take.

use farref::functions::ForeignCodec;
use farref::{Blob, CodecError, ValueCodec};

use super::arrays;
use super::wire::{Memory, SentPeer, Wire};
use crate::pickle::{Pickle, Shape, View, Writer};
use crate::value::{
    Beside, Captured, Fields, Outward, Special, TENSOR, ValueError, keywords, read_arguments,
    read_value, unpacked, write_value,
};

/// The module of the Python package that makes references and peers of their numbers.
const CORE: &str = "farref._core";
const REFERENCE: &str = "_reference";
const PEER: &str = "_peer";

/// What a function and its arguments write themselves as.
pub(super) const CALL: &str = "farref_pickle::Call";

/// The codec.
#[derive(Debug)]
pub(crate) struct PickleCodec;

farref::__private::inventory::submit! {
    ForeignCodec::new(&PickleCodec)
}

impl ValueCodec for PickleCodec {
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
        let mut beside = Out::default();
        let pickle = write_value(value, &mut beside).map_err(CodecError::new)?;
        let wire = Wire {
            is_call: beside.is_call,
            pickle: Blob::from(pickle),
            buffers: beside.buffers,
            references: beside.references,
            peers: beside.peers,
        };
        postcard::to_allocvec(&wire).map_err(CodecError::new)
    }

    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError> {
        let (wire, rest): (Wire, _) = postcard::take_from_bytes(body).map_err(CodecError::new)?;
        if !rest.is_empty() {
            let left = rest.len();
            return Err(CodecError::new(format_args!("{left} bytes are left over")));
        }
        decode(&wire, read).map_err(CodecError::new)
    }
}

fn decode(
    wire: &Wire,
    read: &mut dyn FnMut(
        &mut dyn erased_serde::Deserializer<'_>,
    ) -> Result<(), erased_serde::Error>,
) -> Result<(), ValueError> {
    let pickle = Pickle::read(&wire.pickle)?;
    let budget = pickle.budget();
    budget.set(budget.get().saturating_add(wire.inline()));
    let root = pickle.view(&budget);
    let special = In(wire);
    if !wire.buffers.is_empty() {
        for number in pickle.shared_buffers() {
            if let Some(Memory::Part(part)) = wire.buffers.get(number as usize) {
                farref::agent::read_again(*part);
            }
        }
    }
    if !wire.is_call {
        return read_value(root, &special, |value| {
            read(&mut <dyn erased_serde::Deserializer<'_>>::erase(value))
        });
    }
    let [_, given, named] = root.tuple_of()?;
    let given = unpacked(given)?;
    let named = match named.shape()? {
        Shape::None => Vec::new(),
        _ => keywords(named)?,
    };
    let parameters = farref::agent::parameters();
    read_arguments(&given, &named, parameters, &special, |value| {
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(value))
    })
}

/// What a pickle that came has beside it.
struct In<'w>(&'w Wire);

impl Special for In<'_> {
    fn fields(&self, name: &'static str, view: View<'_, '_>) -> Result<Option<Fields>, ValueError> {
        if name != TENSOR {
            return Ok(None);
        }
        match self.beside(view)? {
            Some(Beside::Array(array)) => array.fields().map(Some),
            _ => Err(view
                .shape()?
                .is_not("a tensor or an array of numbers")
                .into()),
        }
    }

    fn unknown(&self, view: View<'_, '_>) -> Result<Option<Fields>, ValueError> {
        match arrays::is_tensor(view)? {
            true => self.fields(TENSOR, view),
            false => Ok(None),
        }
    }

    fn beside(&self, view: View<'_, '_>) -> Result<Option<Beside>, ValueError> {
        if let Some(number) = view.buffer()? {
            return self.memory(view, number).map(Beside::Memory).map(Some);
        }
        let Some(called) = view.call()? else {
            return Ok(None);
        };
        let arguments = called.arguments;
        if let Some(array) = arrays::read(&called, &|view| self.lent(view))? {
            return Ok(Some(Beside::Array(array)));
        }
        match called.name {
            (b"farref._core", b"_reference") => {
                let number = numbered(&self.0.references, arguments, "reference")?;
                Ok(Some(Beside::Reference((*number).into())))
            }
            (b"farref._core", b"_peer") => {
                let peer = numbered(&self.0.peers, arguments, "peer")?;
                view.pay_for(peer.inline())?;
                Ok(Some(Beside::Peer(peer.captured())))
            }
            name if lends_memory(name) => match arguments.tuple()?.first() {
                Some(memory) => Ok(self.lent(*memory)?.map(Beside::Memory)),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

impl In<'_> {
    fn memory(&self, view: View<'_, '_>, number: u32) -> Result<Captured, ValueError> {
        let memory = self.0.buffers.get(number as usize);
        let memory = memory.ok_or_else(|| missing("buffer", number))?;
        view.pay_for(memory.inline())?;
        Ok(memory.captured())
    }

    /// The memory that something is made of.
    fn lent(&self, memory: View<'_, '_>) -> Result<Option<Captured>, ValueError> {
        match memory.shape()? {
            Shape::Buffer(number) => self.memory(memory, number).map(Some),
            Shape::Bytes(bytes) => Ok(Some(Memory::of(bytes).captured())),
            _ => Ok(None),
        }
    }
}

/// Whether Python, or numpy, makes something of memory by calling this: what comes first is the memory.
fn lends_memory(name: (&[u8], &[u8])) -> bool {
    matches!(
        name,
        (b"builtins", b"bytes" | b"bytearray" | b"memoryview")
            | (
                b"numpy.core.numeric" | b"numpy._core.numeric",
                b"_frombuffer"
            )
    )
}

fn numbered<'w, T>(
    all: &'w [T],
    arguments: View<'_, '_>,
    what: &'static str,
) -> Result<&'w T, ValueError> {
    let [number] = arguments.tuple_of()?;
    let number = number.int()?;
    let found = usize::try_from(number)
        .ok()
        .and_then(|number| all.get(number));
    found.ok_or_else(|| missing(what, number))
}

/// NP-2
fn missing(what: &str, number: impl std::fmt::Display) -> ValueError {
    ValueError::new(format_args!(
        "{what} number {number} did not come with the value"
    ))
}

/// What a pickle that goes out has beside it.
#[derive(Default)]
struct Out {
    is_call: bool,
    buffers: Vec<Memory>,
    references: Vec<u32>,
    peers: Vec<SentPeer>,
}

fn placeholder(writer: &mut Writer, function: &str, number: usize) {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    writer.global(CORE, function);
    writer.int(number).tuple_of(1).reduce();
}

impl Outward for Out {
    fn reference(&mut self, writer: &mut Writer, number: u32) -> Result<(), ValueError> {
        placeholder(writer, REFERENCE, self.references.len());
        self.references.push(number);
        Ok(())
    }

    fn memory(&mut self, writer: &mut Writer, is_blob: bool, part: u32) -> Result<(), ValueError> {
        writer.global("builtins", if is_blob { "bytes" } else { "memoryview" });
        writer.next_buffer().tuple_of(1).reduce();
        self.buffers.push(Memory::Part(part));
        Ok(())
    }

    fn peer(&mut self, writer: &mut Writer, inside: Captured) -> Result<(), ValueError> {
        placeholder(writer, PEER, self.peers.len());
        self.peers.push(SentPeer::of(&inside)?);
        Ok(())
    }

    fn knows_peers(&self) -> bool {
        true
    }

    fn catches(&self, name: &'static str) -> bool {
        name == TENSOR
    }

    fn caught(
        &mut self,
        writer: &mut Writer,
        _: &'static str,
        fields: Fields,
    ) -> Result<(), ValueError> {
        let buffers = &mut self.buffers;
        arrays::write(writer, &fields, |part| buffers.push(Memory::Part(part)))
    }

    fn note(&mut self, name: &'static str) {
        self.is_call |= name == CALL;
    }
}

//! The functions of this program, by name.
//!
//! `#[farref::remote]` submits each function at link time. The list is the same for every worker of the
//! process and never changes, so it is built once. How an entry of it is made is in `serve`: it knows how
//! functions are run.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::OnceLock;

use farref_proto::Fingerprint;

use super::callers::CalledFunction;
use super::function::Function;
use super::job::Job;
use crate::agent::{Failure, FunctionRef};
use crate::codec::vectors::Look;
use crate::codec::{Payload, is_foreign};
use crate::error::Error;
use crate::fingerprint;
use crate::fingerprint::signature::Signature;
use crate::support::mutation::mutated;
use crate::tables::answer_budget::Expected;

/// A function as the program's list of functions has it.
pub struct FunctionRegistration {
    pub(crate) name: &'static str,
    pub(crate) signature: &'static str,
    /// Where it is declared.
    pub(crate) place: &'static Location<'static>,
    pub(crate) fingerprint: fn() -> Fingerprint,
    pub(crate) trace_output: fn(),
    pub(crate) describe: fn() -> Signature,
    pub(crate) output: fn() -> (Fingerprint, &'static str),
    pub(crate) foreign_name: Option<&'static str>,
    /// What a method is called on a value.
    pub(crate) method: Option<&'static str>,
    /// The type that it is a method of.
    pub(crate) receiver: fn() -> TypeId,
    pub(crate) needs_receiver: bool,
    pub(crate) exclusive: bool,
    pub(crate) serve: fn(Job),
    /// Looks at the vectors of numbers in what it returns, if it is that.
    pub(crate) each_vector: fn(&mut dyn Any, Look<'_>),
}

impl fmt::Display for FunctionRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` at {}:{}",
            self.signature,
            self.place.file(),
            self.place.line()
        )
    }
}

impl fmt::Debug for FunctionRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionRegistration")
            .field("name", &self.name)
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}

inventory::collect!(FunctionRegistration);

/// The functions of a program whose own functions are written in another language: by their names, those that
/// [`#[farref::remote]`](crate::remote) gives to the worker that runs the other language.
///
/// Whoever calls one by a foreign name ([`call_foreign`](crate::functions::call_foreign)) that no Rust function has here
/// calls these. Which function of the other language is meant is in the arguments. For crates that bring another
/// language; submitted at link time.
#[derive(Clone, Copy, Debug)]
pub struct ForeignHandlers {
    /// Calls a function.
    pub function: &'static str,
    /// The same for one that waits without a thread.
    pub waiting: &'static str,
    /// Calls a method of a value. The type that it is a method of is the one that stands for all values of the other
    /// language.
    pub method: &'static str,
    /// Copies a value: a method as well.
    pub fetch: &'static str,
}

inventory::collect!(ForeignHandlers);

/// All functions of the program.
#[derive(Debug)]
pub(crate) struct Registry {
    by_id: HashMap<u64, FunctionEntry, crate::support::simulation::RandomState>,
    /// By what workers of another system call them.
    by_foreign_name: HashMap<&'static str, u64>,
    /// Methods by the hash of what they are called on a value, and the type of the value.
    methods: HashMap<(u64, TypeId), u64, crate::support::simulation::RandomState>,
    /// Functions by the hash of what workers of another system call them.
    foreign: HashMap<u64, u64, crate::support::simulation::RandomState>,
    /// Those that stand for functions which are not written in Rust.
    handlers: Option<ForeignHandlers>,
    /// What the functions return, for reports about references.
    type_names: HashMap<Fingerprint, &'static str, crate::support::simulation::RandomState>,
}

/// One function.
#[derive(Debug)]
pub(crate) struct FunctionEntry {
    registration: &'static FunctionRegistration,
    /// A hash of its name.
    id: u64,
    /// Which of all functions it is, counted from zero.
    number: usize,
    signature: Fingerprint,
    answers: Expected,
}

/// What a call names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee {
    Function(&'static FunctionEntry),
    /// The same, by a name of another language: so are its arguments, and its answer.
    Foreign(&'static FunctionEntry),
    /// A method of whatever the value turns out to be, by the hash of what it is called there.
    Method(u64),
}

impl Callee {
    /// The function, if it is known.
    pub(crate) fn entry(self) -> Option<&'static FunctionEntry> {
        match self {
            Self::Function(entry) | Self::Foreign(entry) => Some(entry),
            Self::Method(_) => None,
        }
    }

    /// Whether it only copies the value.
    pub(crate) fn is_fetch(self) -> bool {
        matches!(self, Self::Method(FETCHED))
    }

    /// Whether who calls it so asks in the form of another language, and is to be answered in it. Methods have names in every
    /// language: there the arguments tell.
    pub(crate) fn is_foreign(self, arguments: &Payload) -> bool {
        match self {
            Self::Function(_) => false,
            Self::Foreign(_) | Self::Method(FETCHED) => true,
            Self::Method(_) => is_foreign(&arguments.body),
        }
    }
}

/// In the place of a signature: the id is that of a method, by what it is called on a value.
pub(crate) const BY_METHOD: Fingerprint = Fingerprint::foreign(1);
/// In the place of a signature: the id is that of a function, by what it is called in another language.
pub(crate) const BY_FOREIGN_NAME: Fingerprint = Fingerprint::foreign(2);
/// The same for one that waits without a thread, as far as the caller knows.
pub(crate) const BY_FOREIGN_NAME_WAITING: Fingerprint = Fingerprint::foreign(3);
/// What copying a value is called among methods: no method has this name.
pub(crate) const FETCHED: u64 = fingerprint::of_name("");

impl FunctionEntry {
    pub(crate) fn name(&self) -> &'static str {
        self.registration.name
    }

    #[cfg(test)]
    fn signature_text(&self) -> &'static str {
        self.registration.signature
    }

    pub(crate) fn signature(&self) -> Signature {
        (self.registration.describe)()
    }

    pub(crate) fn needs_receiver(&self) -> bool {
        self.registration.needs_receiver
    }

    pub(crate) fn foreign_name(&self) -> Option<&'static str> {
        self.registration.foreign_name
    }

    /// How large its answers are.
    pub(crate) fn answers(&self) -> &Expected {
        &self.answers
    }

    /// What it returns.
    pub(crate) fn output(&self) -> Fingerprint {
        (self.registration.output)().0
    }

    pub(crate) fn exclusive(&self) -> bool {
        self.registration.exclusive
    }

    pub(crate) fn serve(&self, job: Job) {
        (self.registration.serve)(job);
    }

    /// Looks at the vectors of numbers in what it has returned.
    pub(crate) fn each_vector(&self, output: &mut dyn Any, look: Look<'_>) {
        (self.registration.each_vector)(output, look);
    }

    /// The hash of its name.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Which of all functions it is: less than how many there are.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// How the calls that it makes name it.
    pub(crate) fn called(&self) -> CalledFunction {
        CalledFunction {
            id: self.id,
            exclusive: self.exclusive(),
        }
    }

    /// How a call names it.
    pub(crate) fn reference(&self) -> FunctionRef {
        FunctionRef {
            id: self.id,
            signature: self.signature,
            on_first_reference: false,
        }
    }
}

impl Registry {
    /// The program's registry, or what is wrong with its functions.
    pub(crate) fn of_program() -> Result<&'static Self, Error> {
        static REGISTRY: OnceLock<Result<Registry, Error>> = OnceLock::new();
        REGISTRY
            .get_or_init(|| {
                let mut registry = Self::build(inventory::iter::<FunctionRegistration>())?;
                let handlers = inventory::iter::<ForeignHandlers>();
                registry.handlers = handlers.into_iter().next().copied();
                Ok(registry)
            })
            .as_ref()
            .map_err(Error::clone)
    }

    fn build(
        registrations: impl IntoIterator<Item = &'static FunctionRegistration>,
    ) -> Result<Self, Error> {
        let mut by_id: HashMap<u64, FunctionEntry, crate::support::simulation::RandomState> =
            HashMap::default();
        for registration in registrations {
            (registration.trace_output)();
            let id = fingerprint::of_name(registration.name);
            let entry = FunctionEntry {
                registration,
                id,
                number: by_id.len(),
                signature: (registration.fingerprint)(),
                answers: Expected::default(),
            };
            // A clash of hashes counts as one of names: rare enough, and renaming helps as well.
            if let Some(other) = by_id.insert(id, entry) {
                return Err(Error::DuplicateFunction {
                    name: registration.name,
                    first: other.registration.to_string(),
                    second: registration.to_string(),
                });
            }
        }
        let mut by_foreign_name = HashMap::new();
        let mut foreign: HashMap<_, _, crate::support::simulation::RandomState> =
            HashMap::default();
        let mut methods: HashMap<_, _, crate::support::simulation::RandomState> =
            HashMap::default();
        for (&id, entry) in &by_id {
            let FunctionRegistration {
                foreign_name,
                method,
                receiver,
                ..
            } = entry.registration;
            if let Some(name) = *foreign_name
                && let Some(other) = by_foreign_name.insert(name, id)
            {
                return Err(Error::DuplicateFunction {
                    name,
                    first: by_id
                        .get(&other)
                        .map(|other| other.registration.to_string())
                        .unwrap_or_default(),
                    second: entry.registration.to_string(),
                });
            }
            if let Some(name) = foreign_name {
                foreign.insert(fingerprint::of_name(name), id);
            }
            if let Some(method) = method {
                methods.insert((fingerprint::of_name(method), receiver()), id);
            }
        }
        let type_names = by_id.values().map(|entry| (entry.registration.output)());
        Ok(Self {
            type_names: type_names.collect(),
            by_foreign_name,
            methods,
            foreign,
            handlers: None,
            by_id,
        })
    }

    /// What the functions are called, by their numbers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let mut entries: Vec<_> = self.by_id.values().collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.into_iter().map(FunctionEntry::name)
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The name of a type that some function returns.
    pub(crate) fn type_name(&self, fingerprint: Fingerprint) -> Option<&'static str> {
        self.type_names.get(&fingerprint).copied()
    }

    /// The function that a call names.
    pub(crate) fn find(&'static self, called: &FunctionRef) -> Result<Callee, Failure> {
        match called.signature.foreign_label() {
            None => self.find_entry(called).map(Callee::Function),
            Some(_) => self.find_foreign(called),
        }
    }

    #[cold]
    fn find_foreign(&'static self, called: &FunctionRef) -> Result<Callee, Failure> {
        let waits = match called.signature {
            BY_METHOD => return Ok(Callee::Method(called.id)),
            BY_FOREIGN_NAME => false,
            BY_FOREIGN_NAME_WAITING => true,
            _ => return Err(Failure::NoSuchFunction(None)),
        };
        let own = self.foreign.get(&called.id).and_then(|id| self.by_id(*id));
        let handler = || {
            let handlers = self.handlers.as_ref()?;
            self.by_name(match waits {
                true => handlers.waiting,
                false => handlers.function,
            })
        };
        let entry = own.or_else(handler);
        entry
            .map(Callee::Foreign)
            .ok_or(Failure::NoSuchFunction(None))
    }

    fn by_name(&self, name: &str) -> Option<&FunctionEntry> {
        self.by_id(fingerprint::of_name(name))
    }

    fn find_entry(&'static self, called: &FunctionRef) -> Result<&'static FunctionEntry, Failure> {
        let Some(entry) = self.by_id.get(&called.id) else {
            return Err(Failure::NoSuchFunction(None));
        };
        if entry.signature != called.signature && !mutated!(AnySignature) {
            return Err(Failure::SignatureMismatch(Box::new(entry.signature())));
        }
        Ok(entry)
    }

    /// The method that is called so, hashed, on values of that type.
    pub(crate) fn method(&self, method: u64, of: TypeId) -> Option<&FunctionEntry> {
        if let Some(handlers) = &self.handlers {
            let name = match method {
                FETCHED => handlers.fetch,
                _ => handlers.method,
            };
            let handler = self.by_name(name)?;
            if (handler.registration.receiver)() == of {
                return Some(handler);
            }
        }
        self.by_id.get(self.methods.get(&(method, of))?)
    }

    /// The function that workers of another system call so.
    pub(crate) fn by_foreign_name(&self, name: &str) -> Option<&FunctionEntry> {
        self.by_id.get(self.by_foreign_name.get(name)?)
    }

    /// The function with this hash of its name.
    pub(crate) fn by_id(&self, id: u64) -> Option<&FunctionEntry> {
        self.by_id.get(&id)
    }

    /// What the function with this hash of its name is called.
    pub(crate) fn name_of(&self, id: u64) -> Option<&'static str> {
        self.by_id(id).map(FunctionEntry::name)
    }

    /// The entry of a function of this program.
    pub(crate) fn entry<F: Function>(&self) -> Option<&FunctionEntry> {
        self.by_id.get(const { &fingerprint::of_name(F::NAME) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R8: two functions of one name are found out before the first call.
    #[test]
    fn two_functions_of_one_name_are_an_error_that_names_both() {
        let registration = inventory::iter::<FunctionRegistration>().next();
        let Some(registration) = registration else {
            panic!("the crate has functions of its own");
        };
        let twice = Registry::build([registration, registration]);
        let error = twice.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(registration.name), "{error}");
        // Twice the same declaration: only the place says which ones are meant.
        let place = format!("{}:", registration.place.file());
        assert_eq!(error.matches(&place).count(), 2, "{error}");
    }

    /// A function like one of this crate, under other names.
    fn called(
        name: &'static str,
        signature: &'static str,
        foreign_name: Option<&'static str>,
    ) -> &'static FunctionRegistration {
        let like = inventory::iter::<FunctionRegistration>().next();
        Box::leak(Box::new(FunctionRegistration {
            name,
            signature,
            foreign_name,
            ..*like.expect("the crate has functions of its own")
        }))
    }

    #[test]
    fn two_functions_under_one_python_name_are_an_error_that_names_both() {
        let [one, two] = ["fn one(a: i64) -> i64", "fn two(b: String)"];
        let twice = Registry::build([
            called("one", one, Some("maths.double")),
            called("other", "fn other()", Some("maths.triple")),
            called("two", two, Some("maths.double")),
        ]);
        let error = twice.map(|_| ()).unwrap_err().to_string();
        for part in ["`maths.double`", one, two, "python = "] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert!(!error.contains("triple"), "{error}");
    }

    #[test]
    fn a_python_name_and_a_name_may_be_the_same() {
        let [one, two] = [
            called("maths.double", "fn one()", None),
            called("two", "fn two()", Some("maths.double")),
        ];
        let registry = Registry::build([one, two]).unwrap();
        let by_name = registry.by_id(fingerprint::of_name("maths.double"));
        assert_eq!(by_name.map(FunctionEntry::signature_text), Some("fn one()"));
        let by_python = registry.by_foreign_name("maths.double");
        assert_eq!(
            by_python.map(FunctionEntry::signature_text),
            Some("fn two()")
        );
        assert!(registry.by_foreign_name("two").is_none());
    }

    #[test]
    fn a_call_may_name_a_function_as_another_language_does() {
        let one = called("two", "fn two()", Some("maths.double"));
        let registry: &'static Registry = Box::leak(Box::new(Registry::build([one]).unwrap()));
        let find = |name, signature| {
            registry.find(&FunctionRef {
                id: fingerprint::of_name(name),
                signature,
                on_first_reference: false,
            })
        };
        for signature in [BY_FOREIGN_NAME, BY_FOREIGN_NAME_WAITING] {
            let found = find("maths.double", signature);
            assert!(
                matches!(found, Ok(Callee::Foreign(entry)) if entry.name() == "two"),
                "{found:?}"
            );
            // Its own name is none of that language, and nobody stands for functions that are not there.
            for unknown in ["two", "maths.triple"] {
                let found = find(unknown, signature);
                assert!(
                    matches!(found, Err(Failure::NoSuchFunction(None))),
                    "{found:?}"
                );
            }
        }
        // Labels that mean nothing here, as a peer may send them.
        for label in [0, 4, u32::MAX] {
            assert!(find("maths.double", Fingerprint::foreign(label)).is_err());
        }
    }

    /// Whoever runs a language besides Rust serves all names that no Rust function has.
    #[test]
    fn handlers_stand_for_functions_that_are_not_written_in_rust() {
        let own = called("own", "fn own()", Some("maths.double"));
        let [call, coroutine] = ["call", "wait"].map(|name| called(name, "fn f()", None));
        let mut registry = Registry::build([own, call, coroutine]).unwrap();
        registry.handlers = Some(ForeignHandlers {
            function: "call",
            waiting: "wait",
            method: "call",
            fetch: "call",
        });
        let registry: &'static Registry = Box::leak(Box::new(registry));
        let find = |name, signature| {
            let found = registry.find(&FunctionRef {
                id: fingerprint::of_name(name),
                signature,
                on_first_reference: false,
            });
            found.ok().and_then(Callee::entry).map(FunctionEntry::name)
        };
        assert_eq!(find("maths.double", BY_FOREIGN_NAME), Some("own"));
        assert_eq!(find("maths.triple", BY_FOREIGN_NAME), Some("call"));
        assert_eq!(find("maths.triple", BY_FOREIGN_NAME_WAITING), Some("wait"));
    }

    #[test]
    fn every_function_of_the_program_is_found() {
        let registry = Registry::of_program().unwrap();
        for registration in inventory::iter::<FunctionRegistration>() {
            let found = registry.by_id.get(&fingerprint::of_name(registration.name));
            assert!(found.is_some(), "{registration:?}");
        }
    }
}

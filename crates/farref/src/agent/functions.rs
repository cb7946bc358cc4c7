//! The functions of the program, for agents whose wires name them in their own way.

use crate::agent::{Fingerprint, FunctionRef};
use crate::codec::scope;
use crate::error::Result;
use crate::fingerprint;
use crate::registry::{BY_METHOD, Entry, Registry};

/// All remote functions of the program.
///
/// ```
/// use farref::agent::Functions;
///
/// #[farref::remote(python = "maths.double")]
/// async fn double(number: i64) -> i64 {
///     2 * number
/// }
///
/// let functions = Functions::of_program()?;
/// let double = functions.by_foreign_name("maths.double").expect("it is above");
/// assert_eq!(functions.by_id(double.reference.id).map(|same| same.name), Some(double.name));
/// assert!(functions.by_foreign_name("maths.triple").is_none());
/// # Ok::<(), farref::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Functions(&'static Registry);

/// What there is to know of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// How a call names it.
    pub reference: FunctionRef,
    /// What it is called.
    pub name: &'static str,
    /// What workers of another system call it.
    pub foreign_name: Option<&'static str>,
    /// Whether it is called on a value.
    pub is_method: bool,
    /// The type that it returns.
    pub output: Fingerprint,
}

impl Functions {
    /// The functions, or what is wrong with them.
    pub fn of_program() -> Result<Self> {
        Registry::of_program().map(Self)
    }

    /// The function that workers of another system call so: by `#[farref::remote(python = "..")]`.
    pub fn by_foreign_name(&self, name: &str) -> Option<FunctionInfo> {
        self.0.by_foreign_name(name).map(info)
    }

    /// The function that is called so: its path in the program, or `#[farref::remote(name = "..")]`.
    pub fn by_name(&self, name: &str) -> Option<FunctionInfo> {
        self.by_id(fingerprint::of_name(name))
    }

    /// The function that a call names by this hash.
    pub fn by_id(&self, id: u64) -> Option<FunctionInfo> {
        self.0.by_id(id).map(info)
    }

    /// A method by what it is called on a value, whatever type the value turns out to have.
    pub fn method(&self, name: &str) -> FunctionRef {
        FunctionRef {
            id: fingerprint::of_name(name),
            signature: BY_METHOD,
            on_first_reference: false,
        }
    }
}

fn info(entry: &Entry) -> FunctionInfo {
    FunctionInfo {
        reference: entry.reference(),
        name: entry.name(),
        foreign_name: entry.foreign_name(),
        is_method: entry.needs_receiver(),
        output: entry.output(),
    }
}

/// What the arguments are called that are being read on this thread. For codecs that can name them.
///
/// ```
/// // Outside of a call there are none.
/// assert!(farref::agent::parameters().is_empty());
/// ```
pub fn parameters() -> &'static [&'static str] {
    scope::parameters()
}

//! The functions of the program, for agents whose wires name them in their own way.

use crate::agent::{Fingerprint, FunctionRef};
use crate::error::Result;
use crate::fingerprint;
use crate::runtime::registry::{BY_METHOD, Entry, Registry};

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
///
/// ```
/// use farref::agent::Functions;
///
/// struct Till(u64);
///
/// #[farref::remote(name = "tools::Till", python = "shop.Till")]
/// impl Till {
///     pub fn new() -> Self {
///         Till(0)
///     }
///
///     pub fn put(&mut self, coins: u64) -> u64 {
///         self.0 += coins;
///         self.0
///     }
/// }
///
/// let functions = Functions::of_program()?;
/// let put = functions.by_name("tools::Till::put").expect("it is above");
/// assert!(put.is_method);
/// assert_eq!(put.foreign_name, Some("shop.Till.put"));
///
/// // To make an object, Python calls its class.
/// let new = functions.by_foreign_name("shop.Till").expect("it is above");
/// assert_eq!((new.name, new.is_method), ("tools::Till::new", false));
/// assert_ne!(new.output, put.output);
/// # Ok::<(), farref::Error>(())
/// ```
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
    /// The functions, or what is wrong with them: two that have the same name.
    ///
    /// ```
    /// #[farref::remote(name = "tools::ping")]
    /// async fn ping() {}
    ///
    /// let functions = farref::agent::Functions::of_program()?;
    /// assert!(functions.by_name("tools::ping").is_some());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn of_program() -> Result<Self> {
        Registry::of_program().map(Self)
    }

    /// The function that workers of another system call so: by `#[farref::remote(python = "..")]`.
    ///
    /// ```
    /// #[farref::remote(python = "maths.half")]
    /// async fn half(number: f64) -> f64 {
    ///     number / 2.0
    /// }
    ///
    /// let functions = farref::agent::Functions::of_program()?;
    /// assert!(functions.by_foreign_name("maths.half").is_some());
    /// assert!(functions.by_foreign_name("half").is_none());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_foreign_name(&self, name: &str) -> Option<FunctionInfo> {
        self.0.by_foreign_name(name).map(info)
    }

    /// The function that is called so: its path in the program, or `#[farref::remote(name = "..")]`.
    ///
    /// ```
    /// #[farref::remote(name = "tools::add")]
    /// async fn sum(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// let functions = farref::agent::Functions::of_program()?;
    /// assert_eq!(functions.by_name("tools::add").and_then(|add| add.foreign_name), None);
    /// assert!(functions.by_name("tools::sum").is_none());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_name(&self, name: &str) -> Option<FunctionInfo> {
        self.by_id(fingerprint::of_name(name))
    }

    /// The function that a call names by this hash. An agent that got a call finds out so what to say on
    /// its wire.
    ///
    /// ```
    /// #[farref::remote(name = "tools::pong")]
    /// async fn pong() {}
    ///
    /// let functions = farref::agent::Functions::of_program()?;
    /// let pong = functions.by_name("tools::pong").expect("it is above");
    /// assert_eq!(functions.by_id(pong.reference.id), Some(pong));
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_id(&self, id: u64) -> Option<FunctionInfo> {
        self.0.by_id(id).map(info)
    }

    /// A method by what it is called on a value, whatever type the value turns out to have. For wires whose
    /// calls say no more than that. If the type has no such method, the call fails with
    /// [`Failure::NoSuchFunction`](crate::agent::Failure::NoSuchFunction).
    ///
    /// ```
    /// let functions = farref::agent::Functions::of_program()?;
    /// let put = functions.method("put"); // of a till, of a purse, ..
    /// assert_eq!(put, functions.method("put"));
    /// assert_ne!(put, functions.method("take"));
    /// assert!(functions.by_id(put.id).is_none(), "it is no function by itself");
    /// # Ok::<(), farref::Error>(())
    /// ```
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

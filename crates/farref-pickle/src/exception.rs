//! Errors that are exceptions of a certain class in Python.

use std::error::Error;
use std::fmt;

/// What the text begins with that tells the class, behind the error itself.
const MARK: &str = "Python's ";

/// An error that Python sees as an exception of a certain class.
///
/// Any error of a remote function is a `RuntimeError` for a caller in Python. One that is to be another says so:
///
/// ```
/// use std::collections::HashMap;
///
/// use farref_pickle::PyException;
///
/// struct Table(HashMap<String, f64>);
///
/// #[farref::remote(python = "tables.Table")]
/// impl Table {
///     pub fn get(&self, name: String) -> Result<f64, PyException> {
///         let found = self.0.get(&name).copied();
///         found.ok_or_else(|| PyException::new("KeyError", name))
///     }
/// }
/// ```
///
/// The other way round, an exception that a call of Python ended with is an
/// [`Error::Remote`](farref::Error::Remote), of which [`of`](Self::of) tells the class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PyException {
    message: String,
    class: Class,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Class(String);

impl PyException {
    /// An exception of that class, one of Python's builtin ones. Another one arrives as a `RuntimeError` whose text
    /// begins with its name.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            class: Class(class.into()),
        }
    }

    /// The exception that a call of Python ended with.
    pub fn of(error: &farref::Error) -> Option<Self> {
        let farref::Error::Remote(remote) = error else {
            return None;
        };
        let (class, message) = split(&remote.messages);
        class.map(|class| Self::new(class, message))
    }

    /// The class.
    pub fn class(&self) -> &str {
        &self.class.0
    }

    /// What it says.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The messages of a remote error that is this.
    pub fn into_messages(self) -> Vec<String> {
        let class = self.class.to_string();
        vec![self.message, class]
    }
}

/// Python's own exceptions that take one text. Others cannot be made by a receiver that does not know them.
const BUILTIN: [&str; 34] = [
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BlockingIOError",
    "BrokenPipeError",
    "BufferError",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "EOFError",
    "Exception",
    "FileExistsError",
    "FileNotFoundError",
    "FloatingPointError",
    "ImportError",
    "IndexError",
    "InterruptedError",
    "KeyError",
    "LookupError",
    "MemoryError",
    "NameError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "PermissionError",
    "RecursionError",
    "ReferenceError",
    "RuntimeError",
    "TimeoutError",
    "TypeError",
    "ValueError",
    "ZeroDivisionError",
];

/// A class that every Python has, and the text for it: one that is not known becomes part of the text.
pub fn builtin(class: &str, text: &str) -> (&'static str, String) {
    match BUILTIN.iter().find(|known| **known == class) {
        Some(known) => (known, text.to_owned()),
        None => ("RuntimeError", format!("{class}: {text}")),
    }
}

/// The class that messages tell of, and what they say besides.
pub fn split(messages: &[String]) -> (Option<&str>, String) {
    let is_name = |name: &&str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        !name.is_empty() && name.chars().all(letters)
    };
    let class = |message: &String| message.strip_prefix(MARK).filter(is_name).is_some();
    let others: Vec<&str> = messages
        .iter()
        .filter(|message| !class(message))
        .map(String::as_str)
        .collect();
    let mut named = messages.iter();
    let named = named.find_map(|message| message.strip_prefix(MARK).filter(is_name));
    (named, others.join(": "))
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", self.0)
    }
}

impl Error for Class {}

impl fmt::Display for PyException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PyException {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.class)
    }
}

/// An error of a call that Python is to see as the exception that it was.
impl From<farref::Error> for PyException {
    fn from(error: farref::Error) -> Self {
        let class = match &error {
            farref::Error::Timeout { .. } => "TimeoutError",
            farref::Error::Codec { .. } | farref::Error::TypeMismatch(_) => "TypeError",
            _ => "RuntimeError",
        };
        Self::of(&error).unwrap_or_else(|| Self::new(class, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_not_every_python_has_becomes_part_of_the_text() {
        assert_eq!(builtin("KeyError", "x"), ("KeyError", "x".to_owned()));
        let unknown = ("RuntimeError", "MyError: x".to_owned());
        assert_eq!(builtin("MyError", "x"), unknown);
        assert!(BUILTIN.is_sorted());
    }

    #[test]
    fn a_class_survives_the_way_through_messages() {
        let messages = PyException::new("KeyError", "no such key").into_messages();
        assert_eq!(
            split(&messages),
            (Some("KeyError"), "no such key".to_owned())
        );
        let plain = ["one".to_owned(), "Python's name has spaces".to_owned()];
        assert_eq!(
            split(&plain),
            (None, "one: Python's name has spaces".to_owned())
        );
    }
}

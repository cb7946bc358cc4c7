//! What Python finds by its name.

use std::borrow::Cow;

use crate::pickle::{PickleError, Shape, View};

/// Something that Python finds by its name: a function, a class, a method of a class.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Named<'a> {
    pub module: &'a str,
    /// With dots, if it is inside of a class.
    pub name: Cow<'a, str>,
}

impl<'a> Named<'a> {
    /// What the value names, if it is a name. Python has two forms for what is inside of a class: a name with
    /// dots, and `getattr` of the class and the rest of the name.
    pub fn read(view: View<'_, 'a>) -> Result<Option<Self>, PickleError> {
        let (mut view, mut rest) = (view, Vec::new());
        loop {
            let (callee, arguments) = match view.shape()? {
                Shape::Global(module, name) => {
                    return Ok(Some(Self::new(utf8(module)?, utf8(name)?, rest)));
                }
                Shape::Call {
                    callee,
                    arguments,
                    state: None,
                    items: None,
                } => (callee, arguments),
                _ => return Ok(None),
            };
            // Python 2 had another name for the module; protocols up to 2 still write it.
            let Shape::Global(b"builtins" | b"__builtin__", b"getattr") = callee.shape()? else {
                return Ok(None);
            };
            let [object, name] = arguments.tuple_of()?;
            rest.push(utf8(name.text()?)?);
            view = object;
        }
    }

    fn new(module: &'a str, name: &'a str, rest: Vec<&'a str>) -> Self {
        let name = match rest.is_empty() {
            true => Cow::Borrowed(name),
            false => {
                let parts = std::iter::once(name).chain(rest.into_iter().rev());
                Cow::Owned(parts.collect::<Vec<_>>().join("."))
            }
        };
        Self { module, name }
    }

    /// Whether it is that one.
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.module == module && self.name == name
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, PickleError> {
    std::str::from_utf8(bytes).map_err(|_| PickleError::Expected {
        expected: "a name in UTF-8",
        found: format!("{} bytes", bytes.len()),
    })
}

//! Why farref's own codec cannot write or read a value, in farref's own words.

use std::fmt;

use serde::{de, ser};

use crate::support::text;

/// An error of the writers and readers. One pointer, so that results of hot loops stay small.
#[derive(Debug)]
pub(super) struct Fault(Box<Reason>);

#[derive(Debug)]
enum Reason {
    /// The compact form cannot carry it; the described one can.
    NotCompact,
    Postcard(postcard::Error),
    Said(String),
}

impl Fault {
    #[cold]
    pub(super) fn not_compact() -> Self {
        Self(Box::new(Reason::NotCompact))
    }

    #[cold]
    pub(super) fn said(words: impl fmt::Display) -> Self {
        Self(Box::new(Reason::Said(text::said(words))))
    }

    /// What postcard says, if it said it.
    pub(super) fn postcard(&self) -> Option<&postcard::Error> {
        match &*self.0 {
            Reason::Postcard(error) => Some(error),
            Reason::NotCompact | Reason::Said(_) => None,
        }
    }

    pub(super) fn is_not_compact(&self) -> bool {
        matches!(*self.0, Reason::NotCompact)
    }
}

impl From<postcard::Error> for Fault {
    #[cold]
    fn from(error: postcard::Error) -> Self {
        Self(Box::new(Reason::Postcard(error)))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use postcard::Error;

        let text = match &*self.0 {
            Reason::Said(text) => text,
            Reason::NotCompact => "it leaves out fields, or does not know its length beforehand",
            Reason::Postcard(Error::DeserializeUnexpectedEnd) => {
                "its bytes end before the value does: it is not written as it is read"
            }
            Reason::Postcard(Error::DeserializeBadUtf8) => "a text in it is not UTF-8",
            Reason::Postcard(Error::DeserializeBadVarint) => "a number in it is too large",
            Reason::Postcard(Error::CollectStrError) => "its `Display` failed",
            Reason::Postcard(_) => "its bytes are no such value: it is not written as it is read",
        };
        f.write_str(text)
    }
}

impl std::error::Error for Fault {}

impl ser::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::said(text)
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::said(text)
    }
}

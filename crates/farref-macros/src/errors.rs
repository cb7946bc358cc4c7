//! Compile errors, and collecting all of an item's rather than the first.

use std::fmt::Display;

use proc_macro2::Span;
use quote::ToTokens;

/// An error at a place in the user's code.
pub(crate) fn error(at: Span, message: impl Display) -> syn::Error {
    syn::Error::new(at, message)
}

/// An error about something that has many tokens.
pub(crate) fn error_over(what: impl ToTokens, message: impl Display) -> syn::Error {
    syn::Error::new_spanned(what, message)
}

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            None => self.0 = Some(error),
            Some(first) => first.combine(error),
        }
    }

    /// Keeps the error of a result.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// The value of a result, unless that or anything before was an error.
    pub(crate) fn finish_with<T>(mut self, result: syn::Result<T>) -> syn::Result<T> {
        match (self.0.take(), result) {
            (None, result) => result,
            (Some(first), Ok(_)) => Err(first),
            (Some(mut first), Err(last)) => {
                first.combine(last);
                Err(first)
            }
        }
    }

    /// The value, unless there were errors.
    pub(crate) fn finish<T>(self, value: T) -> syn::Result<T> {
        match self.0 {
            None => Ok(value),
            Some(error) => Err(error),
        }
    }
}

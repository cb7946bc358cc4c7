//! `farref`'s `native`, as far as scenarios need it.

pub(crate) mod endpoint;
pub(crate) mod link;

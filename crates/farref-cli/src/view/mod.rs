//! What `farref inspect`, `farref top` and `farref dashboard` share: looking at workers, and making tables of what was seen.
//!
//! | part | job |
//! | --- | --- |
//! | [`place`] | where to look and how, from the command line |
//! | [`fetch`] | looking again and again |
//! | [`seen`] | what was seen of a worker, safe to print |
//! | [`references`] | references of all workers put together: who keeps what alive |
//! | [`tables`] | tables of workers, calls, references, links |
//! | [`table`] | fitting a table into a width |
//! | [`text`], [`quantity`] | names, types, bytes and ages as a person reads them |

pub(crate) mod fetch;
pub(crate) mod place;
pub(crate) mod quantity;
pub(crate) mod references;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod seen;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod text;

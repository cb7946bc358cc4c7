//! What the benchmarks and the chaos tests share with the command: they start groups of processes on
//! this machine, too.

pub use crate::group_tls::{GroupTls, VARIABLES as TLS_VARIABLES};

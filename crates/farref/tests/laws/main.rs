//! What programs may rely on, in one process. Groups of real processes are in `tests/processes`.

mod agent;
mod authorization;
#[path = "../certificates/mod.rs"]
mod certificates;
mod channels;
mod cluster;
mod constructors;
mod contexts;
mod crowds;
mod encodings;
mod endings;
mod equality;
mod errors;
mod evicted;
mod joining;
mod late_binding;
mod leaving;
mod limits;
mod macros;
mod majority;
mod naming;
mod nested;
mod newcomers;
mod observing;
mod origins;
mod panics;
mod peers;
mod plain_calls;
mod pytorch_defects;
mod seam;
mod serving;
mod signatures;
mod store_host;
mod strangers;
mod streams;
mod tls;
mod user_code;
mod values;
mod vectors;
mod waiting;
mod watching;
mod words;

/// How long anything may take before it counts as hanging.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

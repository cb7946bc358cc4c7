//! The laws of distributed autograd, between workers of one process. One program, because what takes time is
//! to build it.

#[path = "../../../farref/tests/laws/channels.rs"]
#[allow(dead_code)]
mod channels;
#[path = "../common/mod.rs"]
mod common;

mod contexts;
mod equivalence;
mod modules;
mod nn;
mod optimizers;
mod parameters;
mod passes;
mod scenarios;
mod seam;
mod tape;
mod tensors;

/// A test that takes longer hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

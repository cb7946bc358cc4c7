//! The laws of distributed autograd, between workers of one process.

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

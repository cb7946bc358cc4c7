//! The laws of distributed autograd, between workers of one process. One program, because what takes time is
//! to build it.

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
mod tape;
mod tensors;

//! Tests of the simulator and of the protocol in it, as one program.

mod mutations;
mod seeds;
mod traffic;

//! Tests of the model checker and of the protocol in it, as one program.

mod exact_counts;
mod mutations;

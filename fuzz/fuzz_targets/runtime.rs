//! Peers of a worker that say what they like, in any order.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::runtime(data));

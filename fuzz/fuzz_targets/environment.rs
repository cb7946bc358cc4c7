//! What launchers and users write into variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::environment(data));

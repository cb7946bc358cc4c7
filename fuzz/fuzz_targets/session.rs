//! Two ends of a session over connections that break, repeat and lie.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::session(data));

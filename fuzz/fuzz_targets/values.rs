//! Bytes of arguments and results.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::values(data));

//! Bytes that come after an observer's handshake, to either end.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::observing(data));

//! Bytes that come on a fresh stream, to either end.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::handshake(data));

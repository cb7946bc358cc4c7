//! Bytes that come on a stream after the handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref::__fuzz::frames(data));

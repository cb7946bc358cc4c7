//! Bytes that a client sends to the TCPStore server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::store_request(data));

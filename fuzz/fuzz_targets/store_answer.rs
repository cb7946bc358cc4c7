//! Bytes that a TCPStore answers to its client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::store_answer(data));

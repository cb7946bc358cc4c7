//! The file that a store is in.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::store_file(data));

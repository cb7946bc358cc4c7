//! What workers write about themselves and their group into a store.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::store_records(data));

//! Bytes that come on a connection to etcd.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_rendezvous::__fuzz::etcd_answers(data));

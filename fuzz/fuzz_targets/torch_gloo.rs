//! What a rank of Gloo publishes and sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::gloo(data));

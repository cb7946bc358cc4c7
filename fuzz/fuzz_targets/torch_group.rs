//! What members of a PyTorch group put into the store, and tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::group(data));

//! Lists of tensors: the first byte is the size of their storages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::tensor_lists(data));

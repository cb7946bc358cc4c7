//! Messages of PyTorch's workers: the first byte is the type.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::messages(data));

//! Pickles, of Python's and of PyTorch's kind.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::pickles(data));

//! Values on PyTorch's wire, as Python's data and as Rust types.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::values(data));

//! Tensors, and what engines of autograd tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_autograd::__fuzz::tensors(data));

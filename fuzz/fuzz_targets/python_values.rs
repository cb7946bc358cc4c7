//! Values and calls that Python workers write on farref's own wire.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_pickle::__fuzz::values(data));

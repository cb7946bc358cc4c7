//! Descriptors, greetings, brochures and answers of TensorPipe's.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_torch::__fuzz::objects(data));

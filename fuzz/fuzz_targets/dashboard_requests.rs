//! Bytes that come on a connection to the dashboard.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farref_cli::__fuzz::dashboard_requests(data));

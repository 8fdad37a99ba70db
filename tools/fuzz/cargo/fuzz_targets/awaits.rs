#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fence_fuzz::awaits::run(data));

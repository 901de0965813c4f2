#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agentloop_tests::fuzzing::sse(data));

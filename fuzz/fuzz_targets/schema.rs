#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| geofold_fuzz::schema(data));

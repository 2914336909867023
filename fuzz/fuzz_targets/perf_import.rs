#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(target) = nvx_fuzz_targets::find("perf_import") {
        (target.run)(bytes);
    }
});

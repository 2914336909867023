//! Kernels as distributions ship them, where the environment names some: `NVX_TEST_KERNELS` is a list of
//! files, separated by colons. Lane `linux-guest` of `cargo xtask test` fetches packages and sets it.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use nvx_machine::kernel::{KernelEntry, KernelFormat, read_kernel};

fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}

#[test]
fn each_is_recognised_and_unpacked() {
    let Some(kernels) = std::env::var_os("NVX_TEST_KERNELS") else {
        skip(
            "linux_kernels::each_is_recognised_and_unpacked",
            "NVX_TEST_KERNELS names no kernels; lane linux-guest sets it",
        );
        return;
    };
    let mut seen = 0;
    for path in std::env::split_paths(&kernels) {
        let start = std::time::Instant::now();
        let kernel = read_kernel(&path).unwrap_or_else(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            panic!("{error}: {source:?}")
        });
        eprintln!(
            "{}: {}, {:?}, {:#x}..{:#x}, {} ms",
            path.display(),
            kernel.format(),
            kernel.entry(),
            kernel.lowest_address().0,
            kernel.end_address().0,
            start.elapsed().as_millis()
        );
        let banner = b"Linux version ";
        assert!(
            kernel
                .segments()
                .any(|segment| segment.bytes.windows(banner.len()).any(|at| at == banner)),
            "no banner in what was unpacked"
        );
        // Distribution kernels have CONFIG_PVH; the one inside a libkrunfw is entered at its 64-bit entry.
        match kernel.format() {
            KernelFormat::Elf | KernelFormat::BzImageUnpacked(_) => {
                assert!(matches!(kernel.entry(), KernelEntry::Pvh32 { .. }));
            }
            KernelFormat::Krunfw => {
                assert!(matches!(kernel.entry(), KernelEntry::Boot64 { .. }));
            }
            KernelFormat::BzImage => panic!("{} was not unpacked", path.display()),
        }
        seen += 1;
    }
    assert!(seen > 0, "NVX_TEST_KERNELS is empty");
}

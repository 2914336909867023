//! Opening the back ends that depend on the host, and saying that a test cannot run.

use std::io::Write;

#[cfg(target_os = "linux")]
use nvx_hypervisor::Hypervisor;

/// KVM, where this user may open `/dev/kvm`.
#[cfg(target_os = "linux")]
pub fn kvm(test: &str) -> Option<Box<dyn Hypervisor>> {
    match nvx_hypervisor::kvm::Kvm::open() {
        Ok(kvm) => Some(Box::new(kvm)),
        Err(error) => {
            skip(test, &error.to_string());
            None
        }
    }
}

/// Says that `test` cannot run here: to the reader, and to the file that counts the skips.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}

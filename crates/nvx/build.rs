//! Lets `cargo xtask build` say in which order the linker places functions (start-order.ld).

fn main() {
    const SCRIPT: &str = "start-order.ld";
    println!("cargo::rerun-if-changed={SCRIPT}");
    println!("cargo::rerun-if-env-changed=NVX_START_ORDER");
    // Only the shipped binary is linked by a linker that is known to take the script.
    if std::env::var_os("NVX_START_ORDER").is_some()
        && let Ok(directory) = std::env::var("CARGO_MANIFEST_DIR")
    {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{directory}/{SCRIPT}");
    }
}

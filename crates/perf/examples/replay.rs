fn main() {
    for path in std::env::args().skip(1) {
        nvx_perf::debug_replay(std::path::Path::new(&path));
    }
}

fn main() {
    for path in std::env::args().skip(1) {
        let start = std::time::Instant::now();
        print!(
            "{}",
            nvx_perf::evaluate(std::path::Path::new(&path))
                .unwrap()
                .to_text()
        );
        println!("  took {:?}", start.elapsed());
    }
}

//! Where the program begins: the standard library's start-up does nothing here that a sandbox waits for.

/// Makes the given function, `fn() -> u8`, the program's; what it returns is the exit status.
#[macro_export]
macro_rules! program {
    ($start:path) => {
        fn main() -> ::std::process::ExitCode {
            ::std::process::ExitCode::from($start())
        }
    };
}

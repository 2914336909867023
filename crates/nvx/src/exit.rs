//! Exit codes and how errors are told; the table is doc/exit-codes.md.

/// The status that the process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// All went well.
    pub const SUCCESS: Self = Self(0);

    /// The number that the system is given.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl From<u8> for ExitCode {
    fn from(number: u8) -> Self {
        Self(number)
    }
}

/// The monitor itself failed; every other code of `run` and `restore` is the guest's.
pub const MONITOR_FAILED: u8 = 125;
/// The guest asked for a reset of its machine: a reboot, or a panic that ends in one.
pub const GUEST_RESET: u8 = 123;
/// The user ended the VM from the keyboard: as if by SIGINT.
pub const ESCAPED: u8 = 130;
/// A control client ended the VM: as if by SIGTERM.
pub const STOPPED: u8 = 143;
/// Bad arguments or input to any other command.
pub const BAD_INPUT: u8 = 2;

/// `nvx doctor`: this host cannot run `nvx demo`.
pub const NOT_USABLE: u8 = 1;

/// An error with the code that the process ends with.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What happened.
    pub error: anyhow::Error,
}

impl Failure {
    /// A failure of the monitor.
    pub fn monitor(error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: MONITOR_FAILED,
            error: error.into(),
        }
    }

    /// Bad input to a command that runs no guest of its own.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: BAD_INPUT,
            error: error.into(),
        }
    }
}

/// Tells of a failure: one line with the error and its chain of causes.
pub fn report(failure: &Failure) -> ExitCode {
    crate::output::message(&format!("{:#}", failure.error));
    ExitCode::from(failure.code)
}

/// Tells of arguments that do not parse; help and version are no failures. `run` and `restore`
/// keep their promise that every code but 125 is the guest's.
pub fn usage(error: &clap::Error) -> ExitCode {
    // A reader that went away is no reason to fail.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let runs_a_guest = std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "run" || command == "restore");
    ExitCode::from(if runs_a_guest {
        MONITOR_FAILED
    } else {
        BAD_INPUT
    })
}

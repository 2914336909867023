//! A filter of system calls, as a program of the kernel's classic packet filter.
//!
//! The kernel tries a new filter on every number that a call may have, to know those that it need not ask
//! about again. With one comparison after the other, as libraries lay filters out, that takes 0.1 ms of every
//! start; as a search tree, a third of that. It also compiles the filter, so its length matters: all branches share
//! the instructions that they end with.

#![expect(
    unsafe_code,
    reason = "seccomp(2) has no safe wrapper in the libraries in use"
)]

use std::io;

use super::calls::{Answer, Check, answers};
use crate::confinement::ConfinedThread;

/// One instruction (linux/filter.h).
type Instruction = libc::sock_filter;

// Operation codes: linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

// Where the kernel puts what it asks about: struct seccomp_data (linux/seccomp.h). An argument has 64 bits,
// the lower half first.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const fn at_argument(index: u32) -> u32 {
    16 + 8 * index
}
const fn at_upper_half(index: u32) -> u32 {
    at_argument(index) + 4
}

/// AUDIT_ARCH_X86_64 (linux/audit.h).
const X86_64: u32 = 0xc000_003e;

// linux/seccomp.h
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRAP: u32 = libc::SECCOMP_RET_TRAP;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Type byte of an ioctl request, and the types of KVM (linux/kvm.h, KVMIO) and of terminals (asm-generic/ioctls.h).
const REQUEST_TYPE: u32 = 0xff00;
const KVM_REQUESTS: u32 = 0xae00;
const TERMINAL_REQUESTS: u32 = 0x5400;
/// Typing into a terminal (asm-generic/ioctls.h): to the shell that nvx was started from.
const TIOCSTI: u32 = 0x5412;
/// TIOCLINUX, which can paste into a console.
const TIOCLINUX: u32 = 0x541c;
/// FICLONE and FS_IOC_FIEMAP (linux/fs.h), PAGEMAP_SCAN (linux/fs.h, since 6.7).
const FILE_REQUESTS: [u32; 3] = [0x4004_9409, 0xc020_660b, 0xc060_6610];

/// prctl: PR_SET_NAME and PR_SET_VMA (linux/prctl.h).
const NAMING_OPTIONS: [u32; 2] = [15, 0x5356_4d41];

/// Installs the filter of a thread for the calling thread and those that it starts.
pub(super) fn install(thread: ConfinedThread) -> io::Result<()> {
    let mut program = program(thread, std::process::id());
    let program = libc::sock_fprog {
        // A filter's length is far below the kernel's limit of 4096, which is below 2^16.
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    seccomp(libc::SECCOMP_SET_MODE_FILTER, &raw const program as usize)
}

/// Whether the kernel filters system calls in the way that is used here.
pub(super) fn is_supported() -> bool {
    let action = TRAP;
    seccomp(libc::SECCOMP_GET_ACTION_AVAIL, &raw const action as usize).is_ok()
}

fn seccomp(operation: u32, argument: usize) -> io::Result<()> {
    // SAFETY: `argument` is the address of what seccomp(2) asks for by `operation`, which both callers keep alive.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, argument) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Numbers from `first` up to the next entry's are answered by `answer`; `None` ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u32,
    answer: Option<Answer>,
}

fn program(thread: ConfinedThread, process: u32) -> Vec<Instruction> {
    let spans = spans(thread);
    let mut assembler = Assembler::default();
    let ends = Ends {
        allow: assembler.push(statement(RETURN, ALLOW)),
        trap: assembler.push(statement(RETURN, TRAP)),
        unknown: assembler.push(statement(RETURN, UNKNOWN)),
    };
    let mut checks: Vec<(Check, Label)> = Vec::new();
    for span in &spans {
        if let Some(Answer::AllowIf(check)) = span.answer
            && !checks.iter().any(|(known, _)| *known == check)
        {
            checks.push((check, ends.check(&mut assembler, check, process)));
        }
    }
    let target = |span: &Span| match span.answer {
        None => ends.trap,
        Some(Answer::Allow) => ends.allow,
        Some(Answer::Unknown) => ends.unknown,
        Some(Answer::AllowIf(check)) => checks
            .iter()
            .find(|(known, _)| *known == check)
            .map_or(ends.trap, |(_, label)| *label),
    };
    let tree = search(&mut assembler, &spans, &target);
    let tree = assembler.statement(LOAD_WORD, AT_NUMBER, tree);
    let kill = assembler.push(statement(RETURN, KILL));
    let begin = assembler.branch(JUMP_IF_EQUAL, X86_64, tree, kill);
    assembler.statement(LOAD_WORD, AT_ARCHITECTURE, begin);
    assembler.finish()
}

/// An instruction by its distance from the program's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Jumps go forward only, so the program is put together from its end: each target is there before what jumps to it.
#[derive(Default)]
struct Assembler {
    /// The last instruction first.
    reversed: Vec<Instruction>,
}

impl Assembler {
    fn push(&mut self, instruction: Instruction) -> Label {
        self.reversed.push(instruction);
        Label(self.reversed.len() - 1)
    }

    /// How many instructions one that is pushed next would have to skip.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target.0
    }

    /// An instruction that goes on at `next`.
    fn statement(&mut self, code: u16, operand: u32, next: Label) -> Label {
        let distance = self.distance(next);
        if distance > 0 {
            self.push(statement(JUMP, distance as u32));
        }
        self.push(statement(code, operand))
    }

    fn branch(&mut self, code: u16, operand: u32, if_true: Label, if_false: Label) -> Label {
        let if_true = self.near(if_true);
        let if_false = self.near(if_false);
        let distances = [if_true, if_false].map(|label| self.distance(label) as u8);
        self.push(branch(code, operand, distances[0], distances[1]))
    }

    /// `target`, or a jump to it where a branch, whose distances have eight bits, would not reach it.
    fn near(&mut self, target: Label) -> Label {
        let distance = self.distance(target);
        // The other target of the same branch may need a jump too.
        if distance < usize::from(u8::MAX) {
            return target;
        }
        self.push(statement(JUMP, distance as u32))
    }

    fn finish(mut self) -> Vec<Instruction> {
        self.reversed.reverse();
        self.reversed
    }
}

/// Where the program ends.
struct Ends {
    allow: Label,
    trap: Label,
    unknown: Label,
}

/// The answers as spans that cover all numbers.
fn spans(thread: ConfinedThread) -> Vec<Span> {
    let mut answers: Vec<(u32, Answer)> = answers(thread)
        .map(|(call, answer)| (call.id() as u32, answer))
        .collect();
    answers.sort_unstable_by_key(|(number, _)| *number);
    let mut spans = vec![Span {
        first: 0,
        answer: None,
    }];
    for (number, answer) in answers {
        start_span(&mut spans, number, Some(answer));
        start_span(&mut spans, number + 1, None);
    }
    spans
}

fn start_span(spans: &mut Vec<Span>, first: u32, answer: Option<Answer>) {
    // An empty span before this one is superseded by it.
    spans.pop_if(|last| last.first == first);
    if spans.last().is_none_or(|last| last.answer != answer) {
        spans.push(Span { first, answer });
    }
}

/// A search tree over the spans; the number is in the accumulator.
fn search(assembler: &mut Assembler, spans: &[Span], target: &impl Fn(&Span) -> Label) -> Label {
    if let [span] = spans {
        return target(span);
    }
    let (lower, upper) = spans.split_at(spans.len() / 2);
    let pivot = upper.first().map_or(0, |span| span.first);
    let upper = search(assembler, upper, target);
    let lower = search(assembler, lower, target);
    assembler.branch(JUMP_IF_AT_LEAST, pivot, upper, lower)
}

impl Ends {
    /// Code that looks at a call's arguments.
    fn check(&self, assembler: &mut Assembler, check: Check, process: u32) -> Label {
        match check {
            Check::Request => self.request(assembler),
            Check::NotExecutable => {
                let exec = libc::PROT_EXEC as u32;
                let test = assembler.branch(JUMP_IF_ANY_BIT, exec, self.trap, self.allow);
                assembler.statement(LOAD_WORD, at_argument(2), test)
            }
            Check::NewThread => {
                let thread = libc::CLONE_THREAD as u32;
                let test = assembler.branch(JUMP_IF_ANY_BIT, thread, self.allow, self.trap);
                assembler.statement(LOAD_WORD, at_argument(0), test)
            }
            Check::Naming => self.equal_to_one_of(assembler, 0, &NAMING_OPTIONS),
            Check::OwnThread => self.equal_to_one_of(assembler, 0, &[process]),
            Check::NoNewLimit => {
                let upper = assembler.branch(JUMP_IF_EQUAL, 0, self.allow, self.trap);
                let upper = assembler.statement(LOAD_WORD, at_upper_half(2), upper);
                let lower = assembler.branch(JUMP_IF_EQUAL, 0, upper, self.trap);
                assembler.statement(LOAD_WORD, at_argument(2), lower)
            }
        }
    }

    fn request(&self, assembler: &mut Assembler) -> Label {
        let mut next = self.equal_to_one_of(assembler, 1, &FILE_REQUESTS);
        for requests in [TERMINAL_REQUESTS, KVM_REQUESTS] {
            next = assembler.branch(JUMP_IF_EQUAL, requests, self.allow, next);
        }
        next = assembler.statement(AND, REQUEST_TYPE, next);
        for request in [TIOCLINUX, TIOCSTI] {
            next = assembler.branch(JUMP_IF_EQUAL, request, self.trap, next);
        }
        assembler.statement(LOAD_WORD, at_argument(1), next)
    }

    /// The lower half of an argument is one of `values`. The kernel takes these arguments as 32 bits.
    fn equal_to_one_of(&self, assembler: &mut Assembler, argument: u32, values: &[u32]) -> Label {
        let mut next = self.trap;
        for value in values {
            next = assembler.branch(JUMP_IF_EQUAL, *value, self.allow, next);
        }
        assembler.statement(LOAD_WORD, at_argument(argument), next)
    }
}

const fn statement(code: u16, operand: u32) -> Instruction {
    branch(code, operand, 0, 0)
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use syscalls::Sysno;

    use super::*;

    const PROCESS: u32 = 4711;

    /// What the kernel would do (Documentation/userspace-api/seccomp_filter.rst).
    fn judge(thread: ConfinedThread, number: u32, arguments: [u64; 6]) -> u32 {
        judge_as(X86_64, thread, number, arguments)
    }

    fn judge_as(
        architecture: u32,
        thread: ConfinedThread,
        number: u32,
        arguments: [u64; 6],
    ) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_le_bytes());
        data.extend(architecture.to_le_bytes());
        data.extend(0u64.to_le_bytes());
        data.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        execute(&program(thread, PROCESS), &data)
    }

    fn execute(program: &[Instruction], data: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0, 0u32);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |condition: bool| usize::from(if condition { jt } else { jf });
            match code {
                LOAD_WORD => {
                    let bytes = data[k as usize..][..4].try_into().unwrap();
                    accumulator = u32::from_le_bytes(bytes);
                }
                AND => accumulator &= k,
                JUMP => at += k as usize,
                JUMP_IF_EQUAL => at += jump(accumulator == k),
                JUMP_IF_AT_LEAST => at += jump(accumulator >= k),
                JUMP_IF_ANY_BIT => at += jump(accumulator & k != 0),
                RETURN => return k,
                _ => panic!("operation {code:#x}"),
            }
        }
    }

    fn call(thread: ConfinedThread, call: Sysno, arguments: [u64; 3]) -> u32 {
        let [first, second, third] = arguments;
        judge(thread, call.id() as u32, [first, second, third, 0, 0, 0])
    }

    #[test]
    fn every_number_is_answered_as_declared() {
        for thread in [ConfinedThread::Monitor, ConfinedThread::Vcpu] {
            let declared: Vec<(Sysno, Answer)> = answers(thread).collect();
            for number in (0..600).chain([1 << 30, (1 << 30) + 1, u32::MAX]) {
                let answer = declared
                    .iter()
                    .find(|(call, _)| call.id() as u32 == number)
                    .map(|(_, answer)| *answer);
                let expected = match answer {
                    None => TRAP,
                    Some(Answer::Allow) => ALLOW,
                    Some(Answer::Unknown) => UNKNOWN,
                    Some(Answer::AllowIf(_)) => continue,
                };
                assert_eq!(judge(thread, number, [0; 6]), expected, "{number}");
            }
        }
    }

    #[test]
    fn targets_beyond_a_branch_s_reach_are_jumped_to() {
        for distance in [0, 1, 252, 253, 254, 255, 256, 1000] {
            let mut assembler = Assembler::default();
            let unequal = assembler.push(statement(RETURN, TRAP));
            let equal = assembler.push(statement(RETURN, ALLOW));
            for _ in 0..distance {
                assembler.push(statement(RETURN, KILL));
            }
            let test = assembler.branch(JUMP_IF_EQUAL, 7, equal, unequal);
            assembler.push(statement(RETURN, KILL));
            assembler.statement(LOAD_WORD, AT_NUMBER, test);
            let program = assembler.finish();
            for (number, expected) in [(7u32, ALLOW), (8, TRAP)] {
                let mut data = number.to_le_bytes().to_vec();
                data.resize(64, 0);
                assert_eq!(execute(&program, &data), expected, "{number}, {distance}");
            }
        }
    }

    #[test]
    fn no_call_is_declared_twice() {
        let mut numbers: Vec<_> = answers(ConfinedThread::Monitor)
            .map(|(call, _)| call.id())
            .collect();
        let declared = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), declared);
    }

    #[test]
    fn another_architecture_s_calls_end_the_process() {
        // AUDIT_ARCH_I386, by which 32-bit calls come from a 64-bit process too.
        let i386 = 0x4000_0003;
        assert_eq!(judge_as(i386, ConfinedThread::Monitor, 3, [0; 6]), KILL);
    }

    #[test]
    fn arguments_decide() {
        let monitor = |number, arguments| call(ConfinedThread::Monitor, number, arguments);
        for (number, arguments, expected) in [
            (Sysno::ioctl, [3, 0xae80, 0], ALLOW),
            (Sysno::ioctl, [3, 0x4004_ae99, 0], ALLOW),
            (Sysno::ioctl, [3, 0x5401, 0], ALLOW),
            (Sysno::ioctl, [3, 0x5413, 0], ALLOW),
            (Sysno::ioctl, [3, 0x5412, 0], TRAP),
            (Sysno::ioctl, [3, 0x541c, 0], TRAP),
            (Sysno::ioctl, [3, 0x4004_9409, 0], ALLOW),
            (Sysno::ioctl, [3, 0xc060_6610, 0], ALLOW),
            (Sysno::ioctl, [3, 0x8933, 0], TRAP),
            (Sysno::ioctl, [3, 0, 0], TRAP),
            (Sysno::mmap, [0, 4096, 3], ALLOW),
            (Sysno::mmap, [0, 4096, 4], TRAP),
            (Sysno::mprotect, [0, 4096, 1], ALLOW),
            (Sysno::mprotect, [0, 4096, 7], TRAP),
            (Sysno::clone, [0x003d_0f00, 0, 0], ALLOW),
            (Sysno::clone, [0x0120_0011, 0, 0], TRAP),
            (Sysno::clone3, [0, 0, 0], UNKNOWN),
            (Sysno::prctl, [15, 0, 0], ALLOW),
            (Sysno::prctl, [0x5356_4d41, 0, 0], ALLOW),
            (Sysno::prctl, [4, 1, 0], TRAP),
            (Sysno::tgkill, [u64::from(PROCESS), 1, 9], ALLOW),
            (Sysno::tgkill, [1, 1, 9], TRAP),
            (Sysno::prlimit64, [0, 7, 0], ALLOW),
            (Sysno::prlimit64, [0, 7, 1], TRAP),
            (Sysno::prlimit64, [0, 7, 1 << 32], TRAP),
            (Sysno::execve, [0; 3], TRAP),
            (Sysno::kill, [1, 9, 0], TRAP),
            (Sysno::socket, [1, 1, 0], TRAP),
            (Sysno::ptrace, [0; 3], TRAP),
        ] {
            assert_eq!(
                monitor(number, arguments),
                expected,
                "{number} {arguments:x?}"
            );
        }
    }

    #[test]
    fn a_vcpu_s_thread_opens_nothing_and_starts_nothing() {
        for number in [
            Sysno::openat,
            Sysno::open,
            Sysno::clone,
            Sysno::clone3,
            Sysno::unlinkat,
        ] {
            assert_eq!(
                call(ConfinedThread::Vcpu, number, [0x003d_0f00, 0, 0]),
                TRAP,
                "{number}"
            );
        }
        assert_eq!(
            call(ConfinedThread::Vcpu, Sysno::ioctl, [3, 0xae80, 0]),
            ALLOW
        );
    }
}

//! What a guest does that means the monitor no good, for tests of the monitor.

use iced_x86::code_asm::{CodeAssembler, al, ax, dword_ptr, dx, eax, ecx, edx};

use super::{Assembled, Program};
use crate::layout;
use crate::ports;

/// Accesses of one `h`. Some of them request a snapshot, which a monitor may take some time to refuse.
const HAMMER_TURNS: u32 = 2048;
/// A linear congruential generator (multiplier and increment of "Numerical Recipes"); its low bits are poor
/// and not used.
const RANDOM_FACTOR: u32 = 1_664_525;
const RANDOM_STEP: u32 = 1_013_904_223;
/// Ports that are hit most: a power of two of them, so that some bits of a random number choose one.
const TARGETS: [u32; 8] = [
    ports::CONSOLE,
    ports::CONSOLE_STATUS,
    ports::SNAPSHOT,
    ports::SHUTDOWN - 1,
    ports::RTC,
    ports::RTC + 1,
    ports::SERIAL,
    ports::SERIAL + 5,
];
/// Memory that is no RAM, in a machine with less than 3 GiB of low RAM.
const NO_RAM: u32 = 0xd000_0000;
const NO_RAM_BYTES: u32 = 0x2000;

impl Program<'_> {
    /// `h`: reads and writes ports and memory that is no RAM, at random and in every width, but never the
    /// shutdown port, which would end the test.
    pub(super) fn hammer(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut turn = a.create_label();
        let mut access = a.create_label();
        let mut write = a.create_label();
        let mut memory = a.create_label();
        let mut next = a.create_label();
        a.set_label(&mut self.routines.hammer)?;
        a.mov(ecx, HAMMER_TURNS)?;
        a.set_label(&mut turn)?;
        a.imul_3(eax, dword_ptr(layout::RANDOM), RANDOM_FACTOR)?;
        a.add(eax, RANDOM_STEP)?;
        a.mov(dword_ptr(layout::RANDOM), eax)?;
        // Bits 16 to 31: the place. Bits 12 and 13: what kind of place. Bits 8 to 11: what is done there.
        a.mov(edx, eax)?;
        a.shr(edx, 16)?;
        a.test(eax, 0x3000u32)?;
        a.je(memory)?;
        a.test(eax, 0x1000u32)?;
        a.je(access)?;
        a.and(edx, TARGETS.len() as u32 - 1)?;
        a.mov(edx, dword_ptr(edx * 4 + self.data.hammer_ports))?;
        a.set_label(&mut access)?;
        a.cmp(edx, ports::SHUTDOWN)?;
        a.je(next)?;
        a.test(eax, 0x100u32)?;
        a.jne(write)?;
        self.by_width(a, next, |a, width| match width {
            4 => a.in_(eax, dx),
            2 => a.in_(ax, dx),
            _ => a.in_(al, dx),
        })?;
        a.set_label(&mut write)?;
        self.by_width(a, next, |a, width| match width {
            4 => a.out(dx, eax),
            2 => a.out(dx, ax),
            _ => a.out(dx, al),
        })?;
        a.set_label(&mut memory)?;
        a.and(edx, NO_RAM_BYTES - 1)?;
        a.mov(dword_ptr(edx + NO_RAM), eax)?;
        a.mov(eax, dword_ptr(edx + NO_RAM))?;
        a.set_label(&mut next)?;
        a.dec(ecx)?;
        a.jne(turn)?;
        self.say(a, self.data.hammered)?;
        a.mov(eax, dword_ptr(layout::COUNT))?;
        a.call(self.routines.decimal_line)?;
        a.jmp(self.routines.poll)
    }

    /// One of three accesses, as bits 9 and 10 of EAX say; then goes on at `next`.
    fn by_width(
        &self,
        a: &mut CodeAssembler,
        next: iced_x86::code_asm::CodeLabel,
        access: impl Fn(&mut CodeAssembler, u32) -> Assembled,
    ) -> Assembled {
        let mut not_four = a.create_label();
        let mut not_two = a.create_label();
        a.test(eax, 0x200u32)?;
        a.jne(not_four)?;
        access(a, 4)?;
        a.jmp(next)?;
        a.set_label(&mut not_four)?;
        a.test(eax, 0x400u32)?;
        a.jne(not_two)?;
        access(a, 2)?;
        a.jmp(next)?;
        a.set_label(&mut not_two)?;
        access(a, 1)?;
        a.jmp(next)
    }

    /// `w`: writes to the console for ever.
    pub(super) fn flood(&mut self, a: &mut CodeAssembler) -> Assembled {
        a.set_label(&mut self.routines.flood)?;
        self.say(a, self.data.flood)?;
        a.jmp(self.routines.flood)
    }

    /// `r`: requests snapshots for ever, without looking what becomes of them.
    pub(super) fn pester(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut again = a.create_label();
        a.set_label(&mut self.routines.pester)?;
        self.say(a, self.data.pestering)?;
        a.mov(eax, dword_ptr(layout::COUNT))?;
        a.call(self.routines.decimal_line)?;
        a.mov(edx, ports::SNAPSHOT)?;
        a.set_label(&mut again)?;
        a.out(dx, al)?;
        a.inc(dword_ptr(layout::TURNS))?;
        a.jmp(again)
    }
}

/// The ports in guest RAM, as [`Program::hammer`] reads them.
pub(crate) fn target_words() -> [u32; 8] {
    TARGETS
}

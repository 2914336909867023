//! The guest's program.
//!
//! Register use: every routine may change every register, except where its comment says what it keeps.
//! `emit` and the number printers take their arguments in ESI/ECX and EAX.

// The path, since this crate's build script has this file as a module elsewhere.
#[path = "code/hostile.rs"]
pub(crate) mod hostile;

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, al, bl, byte_ptr, dl, dword_ptr, dx, eax, ebp, ebx, ecx, edi, edx,
    esi, esp,
};

use crate::elf::LOAD_ADDRESS;
use crate::layout::{self, Data, HexText, Text};
use crate::pattern::{
    CHECKSUM_ROTATE, FILL_START, PAGE_BYTES, PAGE_FACTOR, RAM_END_CAP, SECTOR_BYTES, SECTOR_STEP,
    SECTORS_PER_PAGE, SEED_FACTOR,
};
use crate::ports;

type Assembled = Result<(), IcedError>;

/// `hvm_start_info` (Xen's public header `arch-x86/hvm/start_info.h`): magic and field offsets.
mod start_info {
    pub(super) const MAGIC: u32 = 0x336e_c578;
    pub(super) const VERSION: u32 = 4;
    pub(super) const COMMAND_LINE: u32 = 24;
    pub(super) const MEMORY_MAP: u32 = 40;
    pub(super) const MEMORY_MAP_ENTRIES: u32 = 48;
    /// Offsets in a memory map entry: 64-bit address, 64-bit size, type.
    pub(super) const ENTRY_SIZE: u32 = 8;
    pub(super) const ENTRY_KIND: u32 = 16;
    pub(super) const ENTRY_BYTES: u32 = 24;
    pub(super) const KIND_RAM: u32 = 1;
}

/// The guest reads no further than this, should a command line not end.
const COMMAND_LINE_BYTES_MAX: u32 = 4096;
/// Polls of the serial line's status before a byte is sent anyway; a port that is not there reads as ready.
const SERIAL_POLLS: u32 = 0x4000;
const SERIAL_LINE_STATUS: u32 = ports::SERIAL + 5;
const SERIAL_TRANSMIT_EMPTY: u32 = 0x20;
const SERIAL_DATA_READY: u32 = 0x01;
/// What a line status reads as where there is no serial line.
const FLOATING: u32 = 0xff;

/// Assembles the program to run at `data.end()`.
pub(crate) fn assemble(data: &Data) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    let mut program = Program {
        data,
        routines: Routines::new(&mut a),
    };
    program.boot(&mut a)?;
    program.poll(&mut a)?;
    program.command(&mut a)?;
    program.verify(&mut a)?;
    program.dirty(&mut a)?;
    program.snapshot(&mut a)?;
    program.spin(&mut a)?;
    program.hammer(&mut a)?;
    program.flood(&mut a)?;
    program.pester(&mut a)?;
    program.exit(&mut a)?;
    program.parse(&mut a)?;
    program.ram_end(&mut a)?;
    program.span(&mut a)?;
    program.fill(&mut a)?;
    program.nonce(&mut a)?;
    program.print(&mut a)?;
    a.assemble(u64::from(data.end()))
}

/// Places that more than one routine jumps to or calls.
struct Routines {
    poll: CodeLabel,
    restored: CodeLabel,
    command: CodeLabel,
    verify: CodeLabel,
    dirty: CodeLabel,
    snapshot: CodeLabel,
    spin: CodeLabel,
    hammer: CodeLabel,
    flood: CodeLabel,
    pester: CodeLabel,
    exit: CodeLabel,
    what: CodeLabel,
    failed: CodeLabel,
    halt: CodeLabel,
    say_and_poll: CodeLabel,
    parse: CodeLabel,
    parse_decimal: CodeLabel,
    ram_end: CodeLabel,
    span: CodeLabel,
    load_span: CodeLabel,
    fill: CodeLabel,
    nonce: CodeLabel,
    say_nonce_count: CodeLabel,
    hex: CodeLabel,
    decimal: CodeLabel,
    decimal_line: CodeLabel,
    emit: CodeLabel,
}

impl Routines {
    fn new(a: &mut CodeAssembler) -> Self {
        Self {
            poll: a.create_label(),
            restored: a.create_label(),
            command: a.create_label(),
            verify: a.create_label(),
            dirty: a.create_label(),
            snapshot: a.create_label(),
            spin: a.create_label(),
            hammer: a.create_label(),
            flood: a.create_label(),
            pester: a.create_label(),
            exit: a.create_label(),
            what: a.create_label(),
            failed: a.create_label(),
            halt: a.create_label(),
            say_and_poll: a.create_label(),
            parse: a.create_label(),
            parse_decimal: a.create_label(),
            ram_end: a.create_label(),
            span: a.create_label(),
            load_span: a.create_label(),
            fill: a.create_label(),
            nonce: a.create_label(),
            say_nonce_count: a.create_label(),
            hex: a.create_label(),
            decimal: a.create_label(),
            decimal_line: a.create_label(),
            emit: a.create_label(),
        }
    }
}

struct Program<'a> {
    data: &'a Data,
    routines: Routines,
}

impl Program<'_> {
    /// Entry: EBX holds the address of `hvm_start_info`.
    fn boot(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut console = a.create_label();
        let mut no_command_line = a.create_label();
        a.mov(esp, layout::STACK_TOP)?;
        a.in_(al, ports::CONSOLE_STATUS)?;
        a.cmp(al, 0xff)?;
        a.jne(console)?;
        a.mov(dword_ptr(layout::SERIAL), 1u32)?;
        a.set_label(&mut console)?;
        a.cmp(dword_ptr(ebx), start_info::MAGIC)?;
        a.jne(self.routines.failed)?;
        // Version 0 has no memory map.
        a.cmp(dword_ptr(ebx + start_info::VERSION), 1u32)?;
        a.jb(self.routines.failed)?;
        a.mov(esi, dword_ptr(ebx + start_info::COMMAND_LINE))?;
        a.test(esi, esi)?;
        a.je(no_command_line)?;
        a.cmp(dword_ptr(ebx + start_info::COMMAND_LINE + 4), 0u32)?;
        a.jne(no_command_line)?;
        a.call(self.routines.parse)?;
        a.set_label(&mut no_command_line)?;
        a.call(self.routines.ram_end)?;
        a.call(self.routines.span)?;
        a.call(self.routines.nonce)?;
        a.call(self.routines.fill)?;
        self.say(a, self.data.ready)?;
        a.call(self.routines.say_nonce_count)?;
        a.jmp(self.routines.poll)?;
        a.set_label(&mut self.routines.halt)?;
        a.hlt()?;
        a.jmp(self.routines.halt)?;

        a.set_label(&mut self.routines.failed)?;
        self.say(a, self.data.failed)?;
        a.mov(al, 1)?;
        a.mov(edx, ports::SHUTDOWN)?;
        a.out(dx, al)?;
        a.jmp(self.routines.halt)
    }

    /// Waits for a byte of input or for the news of a restore.
    fn poll(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut console = a.create_label();
        let mut serial = a.create_label();
        let mut serial_status = a.create_label();
        let mut input = a.create_label();
        let mut byte = a.create_label();
        let mut too_long = a.create_label();
        a.set_label(&mut self.routines.poll)?;
        a.cmp(dword_ptr(layout::SERIAL), 0u32)?;
        a.jne(serial)?;
        a.set_label(&mut console)?;
        a.in_(al, ports::CONSOLE_STATUS)?;
        a.test(al, 3)?;
        a.je(console)?;
        a.test(al, 2)?;
        a.je(input)?;
        a.mov(bl, al)?;
        a.mov(edx, ports::SNAPSHOT)?;
        a.in_(al, dx)?;
        a.cmp(al, 3)?;
        a.je(self.routines.restored)?;
        a.test(bl, 1)?;
        a.je(console)?;
        a.set_label(&mut input)?;
        a.in_(al, ports::CONSOLE)?;
        a.set_label(&mut byte)?;
        a.cmp(al, u32::from(b'\n'))?;
        a.je(self.routines.command)?;
        a.cmp(al, u32::from(b'\r'))?;
        a.je(self.routines.poll)?;
        a.mov(ecx, dword_ptr(layout::LINE_LEN))?;
        a.cmp(ecx, layout::LINE_BYTES)?;
        a.jae(too_long)?;
        a.mov(byte_ptr(ecx + layout::LINE), al)?;
        a.inc(dword_ptr(layout::LINE_LEN))?;
        a.jmp(self.routines.poll)?;
        a.set_label(&mut too_long)?;
        a.mov(dword_ptr(layout::LINE_LEN), layout::LINE_BYTES + 1)?;
        a.jmp(self.routines.poll)?;

        a.set_label(&mut serial)?;
        a.mov(edx, SERIAL_LINE_STATUS)?;
        a.set_label(&mut serial_status)?;
        a.in_(al, dx)?;
        a.cmp(al, FLOATING)?;
        a.je(self.routines.halt)?;
        a.test(al, SERIAL_DATA_READY)?;
        a.je(serial_status)?;
        a.mov(edx, ports::SERIAL)?;
        a.in_(al, dx)?;
        a.jmp(byte)
    }

    /// A line is complete: choose by its first letter.
    fn command(&mut self, a: &mut CodeAssembler) -> Assembled {
        a.set_label(&mut self.routines.command)?;
        a.mov(ecx, dword_ptr(layout::LINE_LEN))?;
        a.mov(dword_ptr(layout::LINE_LEN), 0u32)?;
        a.test(ecx, ecx)?;
        a.je(self.routines.poll)?;
        a.inc(dword_ptr(layout::COUNT))?;
        a.cmp(ecx, layout::LINE_BYTES)?;
        a.ja(self.routines.what)?;
        a.mov(al, byte_ptr(layout::LINE))?;
        a.cmp(al, u32::from(b'x'))?;
        a.je(self.routines.exit)?;
        a.cmp(ecx, 1)?;
        a.jne(self.routines.what)?;
        for (letter, routine) in [
            (b'v', self.routines.verify),
            (b'd', self.routines.dirty),
            (b's', self.routines.snapshot),
            (b'l', self.routines.spin),
            (b'h', self.routines.hammer),
            (b'w', self.routines.flood),
            (b'r', self.routines.pester),
        ] {
            a.cmp(al, u32::from(letter))?;
            a.je(routine)?;
        }
        a.set_label(&mut self.routines.what)?;
        self.load_text(a, self.data.what)?;
        a.set_label(&mut self.routines.say_and_poll)?;
        a.call(self.routines.emit)?;
        a.jmp(self.routines.poll)
    }

    /// `v`: compares every word and sums up.
    fn verify(&mut self, a: &mut CodeAssembler) -> Assembled {
        let HexText { text, digits } = self.data.verify_ok;
        let mut page = a.create_label();
        let mut good = a.create_label();
        let mut bad = a.create_label();
        a.set_label(&mut self.routines.verify)?;
        a.call(self.routines.load_span)?;
        a.xor(edx, edx)?;
        a.test(ebx, ebx)?;
        a.je(good)?;
        a.set_label(&mut page)?;
        first_word(a)?;
        for sector in 0..SECTORS_PER_PAGE {
            if sector > 0 {
                a.add(eax, SECTOR_STEP)?;
            }
            a.cmp(dword_ptr(edi + sector * SECTOR_BYTES), eax)?;
            a.jne(bad)?;
        }
        a.rol(edx, CHECKSUM_ROTATE)?;
        a.xor(edx, eax)?;
        a.add(edi, ebp)?;
        a.dec(ebx)?;
        a.jne(page)?;
        a.set_label(&mut good)?;
        a.mov(eax, edx)?;
        a.mov(edi, digits)?;
        a.call(self.routines.hex)?;
        self.say(a, text)?;
        a.mov(eax, dword_ptr(self.data.seed))?;
        a.call(self.routines.decimal)?;
        self.say_count_and_poll(a)?;
        a.set_label(&mut bad)?;
        self.report_bad(a)
    }

    /// A word of the page at EDI is wrong: finds the first such, with few instructions per good page.
    fn report_bad(&mut self, a: &mut CodeAssembler) -> Assembled {
        let HexText { text, digits } = self.data.verify_bad;
        let mut next = a.create_label();
        let mut found = a.create_label();
        first_word(a)?;
        a.mov(ecx, SECTORS_PER_PAGE)?;
        a.set_label(&mut next)?;
        a.cmp(dword_ptr(edi), eax)?;
        a.jne(found)?;
        a.add(eax, SECTOR_STEP)?;
        a.add(edi, SECTOR_BYTES)?;
        a.dec(ecx)?;
        a.jne(next)?;
        a.set_label(&mut found)?;
        a.mov(eax, edi)?;
        a.mov(edi, digits)?;
        a.call(self.routines.hex)?;
        self.load_text(a, text)?;
        a.jmp(self.routines.say_and_poll)
    }

    /// `d`: fills again with the next seed.
    fn dirty(&mut self, a: &mut CodeAssembler) -> Assembled {
        a.set_label(&mut self.routines.dirty)?;
        a.inc(dword_ptr(self.data.seed))?;
        a.call(self.routines.fill)?;
        self.say(a, self.data.dirtied)?;
        a.mov(eax, dword_ptr(self.data.seed))?;
        a.call(self.routines.decimal)?;
        self.say_count_and_poll(a)
    }

    /// `s`: requests a snapshot and tells which of the two it is afterwards.
    fn snapshot(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut wait = a.create_label();
        let mut refused = a.create_label();
        let mut continued = a.create_label();
        a.set_label(&mut self.routines.snapshot)?;
        a.mov(edx, ports::SNAPSHOT)?;
        a.out(dx, al)?;
        a.set_label(&mut wait)?;
        a.in_(al, dx)?;
        a.test(al, al)?;
        a.je(wait)?;
        a.cmp(al, 1)?;
        a.je(refused)?;
        a.cmp(al, 2)?;
        a.je(continued)?;
        a.cmp(al, 3)?;
        a.je(self.routines.restored)?;
        self.load_text(a, self.data.unavailable)?;
        a.jmp(self.routines.say_and_poll)?;
        a.set_label(&mut refused)?;
        self.load_text(a, self.data.refused)?;
        a.jmp(self.routines.say_and_poll)?;
        a.set_label(&mut continued)?;
        self.say(a, self.data.continued)?;
        a.call(self.routines.say_nonce_count)?;
        a.jmp(self.routines.poll)?;
        a.set_label(&mut self.routines.restored)?;
        self.say(a, self.data.restored)?;
        a.call(self.routines.say_nonce_count)?;
        a.jmp(self.routines.poll)
    }

    /// `l`: counts in RAM for ever. Nothing in the loop leaves the guest, so only a monitor that can
    /// stop a vCPU gets it back.
    fn spin(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut again = a.create_label();
        a.set_label(&mut self.routines.spin)?;
        self.say(a, self.data.looping)?;
        a.mov(eax, dword_ptr(layout::COUNT))?;
        a.call(self.routines.decimal_line)?;
        a.set_label(&mut again)?;
        a.inc(dword_ptr(layout::TURNS))?;
        a.jmp(again)
    }

    /// `xN`: ECX is the length of the line.
    fn exit(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut digit = a.create_label();
        let mut leave = a.create_label();
        a.set_label(&mut self.routines.exit)?;
        a.xor(eax, eax)?;
        a.mov(esi, layout::LINE + 1)?;
        a.set_label(&mut digit)?;
        a.dec(ecx)?;
        a.je(leave)?;
        a.movzx(edx, byte_ptr(esi))?;
        a.sub(edx, u32::from(b'0'))?;
        a.cmp(edx, 9)?;
        a.ja(self.routines.what)?;
        a.imul_3(eax, eax, 10)?;
        a.add(eax, edx)?;
        a.cmp(eax, 255)?;
        a.ja(self.routines.what)?;
        a.inc(esi)?;
        a.jmp(digit)?;
        a.set_label(&mut leave)?;
        a.mov(edx, ports::SHUTDOWN)?;
        a.out(dx, al)?;
        a.jmp(self.routines.halt)
    }

    /// Reads `fill=` and `seed=` at the starts of words of the command line at ESI. Keeps EBX.
    fn parse(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut word = a.create_label();
        let mut not_fill = a.create_label();
        let mut skip = a.create_label();
        let mut space = a.create_label();
        let mut done = a.create_label();
        a.set_label(&mut self.routines.parse)?;
        a.mov(ebp, esi)?;
        a.add(ebp, COMMAND_LINE_BYTES_MAX)?;
        a.set_label(&mut word)?;
        a.cmp(dword_ptr(esi), letters(b"fill"))?;
        a.jne(not_fill)?;
        a.cmp(byte_ptr(esi + 4), u32::from(b'='))?;
        a.jne(skip)?;
        a.add(esi, 5)?;
        self.parse_fill(a, skip)?;
        a.set_label(&mut not_fill)?;
        a.cmp(dword_ptr(esi), letters(b"seed"))?;
        a.jne(skip)?;
        a.cmp(byte_ptr(esi + 4), u32::from(b'='))?;
        a.jne(skip)?;
        a.add(esi, 5)?;
        a.call(self.routines.parse_decimal)?;
        a.mov(dword_ptr(self.data.seed), eax)?;
        a.set_label(&mut skip)?;
        a.cmp(esi, ebp)?;
        a.jae(done)?;
        a.mov(al, byte_ptr(esi))?;
        a.test(al, al)?;
        a.je(done)?;
        a.cmp(al, u32::from(b' '))?;
        a.je(space)?;
        a.inc(esi)?;
        a.jmp(skip)?;
        a.set_label(&mut space)?;
        a.inc(esi)?;
        a.jmp(word)?;
        a.set_label(&mut done)?;
        a.ret()?;
        self.parse_number(a)
    }

    /// ESI is after `fill=`; ends by a jump to `done`.
    fn parse_fill(&mut self, a: &mut CodeAssembler, done: CodeLabel) -> Assembled {
        let mut not_all = a.create_label();
        let mut not_alternate = a.create_label();
        let mut pages = a.create_label();
        a.mov(eax, dword_ptr(esi))?;
        // "all" and the NUL or space after it.
        a.and(eax, 0x00ff_ffffu32)?;
        a.cmp(eax, letters(b"all\0"))?;
        a.jne(not_all)?;
        a.mov(dword_ptr(self.data.fill_kind), layout::FILL_ALL)?;
        a.jmp(done)?;
        a.set_label(&mut not_all)?;
        a.cmp(dword_ptr(esi), letters(b"alte"))?;
        a.jne(not_alternate)?;
        a.mov(dword_ptr(self.data.fill_kind), layout::FILL_ALTERNATE)?;
        a.jmp(done)?;
        a.set_label(&mut not_alternate)?;
        a.mov(ecx, layout::FILL_TOP)?;
        a.mov(edx, 4)?;
        a.cmp(dword_ptr(esi), letters(b"top:"))?;
        a.je(pages)?;
        a.mov(ecx, layout::FILL_SPREAD)?;
        a.mov(edx, 7)?;
        a.cmp(dword_ptr(esi), letters(b"spre"))?;
        a.je(pages)?;
        a.jmp(done)?;
        a.set_label(&mut pages)?;
        a.mov(dword_ptr(self.data.fill_kind), ecx)?;
        a.add(esi, edx)?;
        a.call(self.routines.parse_decimal)?;
        a.mov(dword_ptr(self.data.fill_pages), eax)?;
        a.jmp(done)
    }

    /// Decimal digits at ESI to EAX; ESI is then at the first other byte. Keeps EBX, ECX, EBP.
    fn parse_number(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut digit = a.create_label();
        let mut done = a.create_label();
        a.set_label(&mut self.routines.parse_decimal)?;
        a.xor(eax, eax)?;
        a.set_label(&mut digit)?;
        a.movzx(edx, byte_ptr(esi))?;
        a.sub(edx, u32::from(b'0'))?;
        a.cmp(edx, 9)?;
        a.ja(done)?;
        a.imul_3(eax, eax, 10)?;
        a.add(eax, edx)?;
        a.inc(esi)?;
        a.jmp(digit)?;
        a.set_label(&mut done)?;
        a.ret()
    }

    /// EAX becomes the end of the RAM range that holds this image, by the memory map at EBX.
    fn ram_end(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut next = a.create_label();
        let mut skip = a.create_label();
        let mut cap = a.create_label();
        let mut done = a.create_label();
        a.set_label(&mut self.routines.ram_end)?;
        a.cmp(dword_ptr(ebx + start_info::MEMORY_MAP + 4), 0u32)?;
        a.jne(self.routines.failed)?;
        a.mov(esi, dword_ptr(ebx + start_info::MEMORY_MAP))?;
        a.mov(ecx, dword_ptr(ebx + start_info::MEMORY_MAP_ENTRIES))?;
        a.set_label(&mut next)?;
        a.test(ecx, ecx)?;
        a.je(self.routines.failed)?;
        a.cmp(
            dword_ptr(esi + start_info::ENTRY_KIND),
            start_info::KIND_RAM,
        )?;
        a.jne(skip)?;
        a.cmp(dword_ptr(esi + 4), 0u32)?;
        a.jne(skip)?;
        a.mov(eax, dword_ptr(esi))?;
        a.cmp(eax, LOAD_ADDRESS)?;
        a.ja(skip)?;
        a.mov(edx, dword_ptr(esi + start_info::ENTRY_SIZE + 4))?;
        a.add(eax, dword_ptr(esi + start_info::ENTRY_SIZE))?;
        a.adc(edx, 0)?;
        a.jne(cap)?;
        a.cmp(eax, LOAD_ADDRESS)?;
        a.jbe(skip)?;
        a.cmp(eax, RAM_END_CAP)?;
        a.jbe(done)?;
        a.set_label(&mut cap)?;
        a.mov(eax, RAM_END_CAP)?;
        a.set_label(&mut done)?;
        a.ret()?;
        a.set_label(&mut skip)?;
        a.add(esi, start_info::ENTRY_BYTES)?;
        a.dec(ecx)?;
        a.jmp(next)
    }

    /// Decides which pages to fill, RAM ending at EAX.
    fn span(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut above = a.create_label();
        let mut enough = a.create_label();
        let mut top = a.create_label();
        let mut spread = a.create_label();
        let mut store = a.create_label();
        a.set_label(&mut self.routines.span)?;
        a.sub(eax, FILL_START)?;
        a.jae(above)?;
        a.xor(eax, eax)?;
        a.set_label(&mut above)?;
        a.shr(eax, PAGE_BYTES.trailing_zeros())?;
        a.mov(ebx, eax)?;
        a.mov(ecx, dword_ptr(self.data.fill_pages))?;
        a.cmp(ecx, ebx)?;
        a.jbe(enough)?;
        a.mov(ecx, ebx)?;
        a.set_label(&mut enough)?;
        a.mov(edi, FILL_START)?;
        a.mov(ebp, PAGE_BYTES)?;
        a.mov(eax, dword_ptr(self.data.fill_kind))?;
        a.cmp(eax, layout::FILL_TOP)?;
        a.je(top)?;
        a.cmp(eax, layout::FILL_SPREAD)?;
        a.je(spread)?;
        a.mov(ecx, ebx)?;
        a.cmp(eax, layout::FILL_ALTERNATE)?;
        a.jne(store)?;
        a.inc(ecx)?;
        a.shr(ecx, 1)?;
        a.add(ebp, ebp)?;
        a.jmp(store)?;
        a.set_label(&mut top)?;
        a.sub(ebx, ecx)?;
        a.shl(ebx, PAGE_BYTES.trailing_zeros())?;
        a.add(edi, ebx)?;
        a.jmp(store)?;
        a.set_label(&mut spread)?;
        a.test(ecx, ecx)?;
        a.je(store)?;
        a.mov(eax, ebx)?;
        a.xor(edx, edx)?;
        a.div(ecx)?;
        a.shl(eax, PAGE_BYTES.trailing_zeros())?;
        a.mov(ebp, eax)?;
        a.set_label(&mut store)?;
        a.mov(dword_ptr(layout::FIRST), edi)?;
        a.mov(dword_ptr(layout::STRIDE), ebp)?;
        a.mov(dword_ptr(layout::PAGES), ecx)?;
        a.ret()
    }

    /// Writes the words of the current seed, and the routine that loads what describes them.
    fn fill(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut page = a.create_label();
        let mut done = a.create_label();
        a.set_label(&mut self.routines.fill)?;
        a.call(self.routines.load_span)?;
        a.test(ebx, ebx)?;
        a.je(done)?;
        a.set_label(&mut page)?;
        first_word(a)?;
        // Straight code, because a guest may be interpreted and then pays per instruction.
        for sector in 0..SECTORS_PER_PAGE {
            if sector > 0 {
                a.add(eax, SECTOR_STEP)?;
            }
            a.mov(dword_ptr(edi + sector * SECTOR_BYTES), eax)?;
        }
        a.add(edi, ebp)?;
        a.dec(ebx)?;
        a.jne(page)?;
        a.set_label(&mut done)?;
        a.ret()?;

        // EDI, EBP, EBX: first page, stride, pages. ESI: what the seed contributes.
        a.set_label(&mut self.routines.load_span)?;
        a.mov(edi, dword_ptr(layout::FIRST))?;
        a.mov(ebp, dword_ptr(layout::STRIDE))?;
        a.mov(ebx, dword_ptr(layout::PAGES))?;
        a.imul_3(esi, dword_ptr(self.data.seed), SEED_FACTOR)?;
        a.inc(esi)?;
        a.ret()
    }

    /// Draws the nonce, as digits in its text, from two readings of the time stamp counter.
    ///
    /// Not from RDRAND: CPUID announces it also where a monitor emulates instructions and does not know this
    /// one. The nonce tells boots apart; it is no secret.
    fn nonce(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut half = a.create_label();
        a.set_label(&mut self.routines.nonce)?;
        a.mov(edi, self.data.nonce_count.digits)?;
        a.call(half)?;
        a.set_label(&mut half)?;
        a.rdtsc()?;
        a.rol(edx, 16)?;
        a.xor(eax, edx)?;
        a.imul_3(eax, eax, PAGE_FACTOR)?;
        // Falls into `hex`, whose return ends each half.
        self.hex(a)
    }

    /// EAX as eight hexadecimal digits to EDI, which then is behind them. Keeps EBX, ESI, EBP.
    fn hex(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut digit = a.create_label();
        a.set_label(&mut self.routines.hex)?;
        a.mov(ecx, 8)?;
        a.set_label(&mut digit)?;
        a.rol(eax, 4)?;
        a.mov(edx, eax)?;
        a.and(edx, 15)?;
        a.mov(dl, byte_ptr(edx + self.data.hex_digits))?;
        a.mov(byte_ptr(edi), dl)?;
        a.inc(edi)?;
        a.dec(ecx)?;
        a.jne(digit)?;
        a.ret()
    }

    /// Output: numbers, and `emit`, which sends ECX (not 0) bytes at ESI.
    fn print(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut digits = a.create_label();
        let mut digit = a.create_label();
        a.set_label(&mut self.routines.say_nonce_count)?;
        self.say(a, self.data.nonce_count.text)?;
        a.mov(eax, dword_ptr(layout::COUNT))?;

        // EAX in decimal, with a line feed ...
        a.set_label(&mut self.routines.decimal_line)?;
        a.mov(esi, self.data.decimal_end + 1)?;
        a.jmp(digits)?;
        // ... or without.
        a.set_label(&mut self.routines.decimal)?;
        a.mov(esi, self.data.decimal_end)?;
        a.set_label(&mut digits)?;
        a.mov(edi, self.data.decimal_end)?;
        a.mov(ecx, 10)?;
        a.set_label(&mut digit)?;
        a.xor(edx, edx)?;
        a.div(ecx)?;
        a.add(edx, u32::from(b'0'))?;
        a.dec(edi)?;
        a.mov(byte_ptr(edi), dl)?;
        a.test(eax, eax)?;
        a.jne(digit)?;
        a.mov(ecx, esi)?;
        a.sub(ecx, edi)?;
        a.mov(esi, edi)?;
        self.emit(a)
    }

    fn emit(&mut self, a: &mut CodeAssembler) -> Assembled {
        let mut byte = a.create_label();
        let mut serial = a.create_label();
        let mut busy = a.create_label();
        let mut send = a.create_label();
        a.set_label(&mut self.routines.emit)?;
        a.cmp(dword_ptr(layout::SERIAL), 0u32)?;
        a.jne(serial)?;
        a.set_label(&mut byte)?;
        a.mov(al, byte_ptr(esi))?;
        a.out(ports::CONSOLE, al)?;
        a.inc(esi)?;
        a.dec(ecx)?;
        a.jne(byte)?;
        a.ret()?;
        a.set_label(&mut serial)?;
        a.mov(al, byte_ptr(esi))?;
        // ECX counts polls in between.
        a.mov(ebp, ecx)?;
        a.out(ports::CONSOLE, al)?;
        a.mov(ecx, SERIAL_POLLS)?;
        a.mov(edx, SERIAL_LINE_STATUS)?;
        a.set_label(&mut busy)?;
        a.in_(al, dx)?;
        a.test(al, SERIAL_TRANSMIT_EMPTY)?;
        a.jne(send)?;
        a.dec(ecx)?;
        a.jne(busy)?;
        a.set_label(&mut send)?;
        a.mov(edx, ports::SERIAL)?;
        a.mov(al, byte_ptr(esi))?;
        a.out(dx, al)?;
        a.mov(ecx, ebp)?;
        a.inc(esi)?;
        a.dec(ecx)?;
        a.jne(serial)?;
        a.ret()
    }

    fn load_text(&self, a: &mut CodeAssembler, text: Text) -> Assembled {
        a.mov(esi, text.address)?;
        a.mov(ecx, text.len)
    }

    fn say(&self, a: &mut CodeAssembler, text: Text) -> Assembled {
        self.load_text(a, text)?;
        a.call(self.routines.emit)
    }

    fn say_count_and_poll(&self, a: &mut CodeAssembler) -> Assembled {
        self.say(a, self.data.count)?;
        a.mov(eax, dword_ptr(layout::COUNT))?;
        a.call(self.routines.decimal_line)?;
        a.jmp(self.routines.poll)
    }
}

/// EAX becomes the first word of the page at EDI.
fn first_word(a: &mut CodeAssembler) -> Assembled {
    a.mov(eax, edi)?;
    a.xor(eax, esi)?;
    a.imul_3(eax, eax, PAGE_FACTOR)
}

fn letters(text: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*text)
}

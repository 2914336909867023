//! Neutral registers: x86-64 architectural state, named as the processor manuals name it. Each
//! back end converts to and from its own structures. The structs are protobuf messages as well,
//! so a field can be added without making older snapshots unreadable.

/// General registers, instruction pointer and flags.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[allow(missing_docs, reason = "the registers' own names say what they are")]
pub struct Registers {
    #[prost(uint64, tag = "1")]
    pub rax: u64,
    #[prost(uint64, tag = "2")]
    pub rbx: u64,
    #[prost(uint64, tag = "3")]
    pub rcx: u64,
    #[prost(uint64, tag = "4")]
    pub rdx: u64,
    #[prost(uint64, tag = "5")]
    pub rsi: u64,
    #[prost(uint64, tag = "6")]
    pub rdi: u64,
    #[prost(uint64, tag = "7")]
    pub rsp: u64,
    #[prost(uint64, tag = "8")]
    pub rbp: u64,
    #[prost(uint64, tag = "9")]
    pub r8: u64,
    #[prost(uint64, tag = "10")]
    pub r9: u64,
    #[prost(uint64, tag = "11")]
    pub r10: u64,
    #[prost(uint64, tag = "12")]
    pub r11: u64,
    #[prost(uint64, tag = "13")]
    pub r12: u64,
    #[prost(uint64, tag = "14")]
    pub r13: u64,
    #[prost(uint64, tag = "15")]
    pub r14: u64,
    #[prost(uint64, tag = "16")]
    pub r15: u64,
    #[prost(uint64, tag = "17")]
    pub rip: u64,
    #[prost(uint64, tag = "18")]
    pub rflags: u64,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Segment {
    /// Base address.
    #[prost(uint64, tag = "1")]
    pub base: u64,
    /// Limit in bytes, granularity already applied.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
    /// The visible selector.
    #[prost(uint32, tag = "3")]
    pub selector: u32,
    /// Access rights as the descriptor's bits 40-47 and 52-55 have them: type (bits 0-3), S (4),
    /// DPL (5-6), P (7), AVL (12), L (13), D/B (14), G (15); bit 16 set: unusable (Intel SDM
    /// volume 3, section 25.4.1, "access rights").
    #[prost(uint32, tag = "4")]
    pub access: u32,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TableRegister {
    /// Base address.
    #[prost(uint64, tag = "1")]
    pub base: u64,
    /// Limit in bytes.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
}

/// Segment, table and control registers.
#[derive(Clone, PartialEq, prost::Message)]
#[allow(missing_docs, reason = "the registers' own names say what they are")]
pub struct SystemRegisters {
    #[prost(message, required, tag = "1")]
    pub cs: Segment,
    #[prost(message, required, tag = "2")]
    pub ds: Segment,
    #[prost(message, required, tag = "3")]
    pub es: Segment,
    #[prost(message, required, tag = "4")]
    pub fs: Segment,
    #[prost(message, required, tag = "5")]
    pub gs: Segment,
    #[prost(message, required, tag = "6")]
    pub ss: Segment,
    #[prost(message, required, tag = "7")]
    pub tr: Segment,
    #[prost(message, required, tag = "8")]
    pub ldt: Segment,
    #[prost(message, required, tag = "9")]
    pub gdt: TableRegister,
    #[prost(message, required, tag = "10")]
    pub idt: TableRegister,
    #[prost(uint64, tag = "11")]
    pub cr0: u64,
    #[prost(uint64, tag = "12")]
    pub cr2: u64,
    #[prost(uint64, tag = "13")]
    pub cr3: u64,
    #[prost(uint64, tag = "14")]
    pub cr4: u64,
    #[prost(uint64, tag = "15")]
    pub cr8: u64,
    #[prost(uint64, tag = "16")]
    pub efer: u64,
    #[prost(uint64, tag = "17")]
    pub apic_base: u64,
    /// External interrupts accepted but not yet delivered: bit n of word w is vector 64 w + n.
    #[prost(uint64, repeated, tag = "18")]
    pub interrupt_bitmap: Vec<u64>,
}

impl Segment {
    /// Access right bit: the segment is unusable.
    pub const UNUSABLE: u32 = 1 << 16;

    /// A flat 4 GiB code segment of 32 bits (execute, read, accessed), present, ring 0.
    pub const fn flat_code_32(selector: u16) -> Self {
        Self::flat(selector, 0xc09b)
    }

    /// A flat 4 GiB data segment (read, write, accessed), present, ring 0.
    pub const fn flat_data_32(selector: u16) -> Self {
        Self::flat(selector, 0xc093)
    }

    /// A flat code segment of 64-bit mode (execute, read, accessed), present, ring 0.
    pub const fn flat_code_64(selector: u16) -> Self {
        Self::flat(selector, 0xa09b)
    }

    const fn flat(selector: u16, access: u32) -> Self {
        Self {
            base: 0,
            limit: 0xffff_ffff,
            selector: selector as u32,
            access,
        }
    }
}

impl SystemRegisters {
    /// The state of a 32-bit protected-mode entry without paging, as the PVH boot protocol asks
    /// for it (Xen's `docs/misc/pvh.pandoc`, "CPU state at entry"): flat CS, DS, ES and SS, CR0
    /// with PE alone, a busy 32-bit TSS of 0x67 bytes. What the protocol leaves open keeps the
    /// value of `reset`.
    pub fn protected_mode_entry(reset: &SystemRegisters) -> Self {
        let data = Segment::flat_data_32(0x18);
        Self {
            cs: Segment::flat_code_32(0x10),
            ds: data,
            es: data,
            fs: data,
            gs: data,
            ss: data,
            tr: Segment {
                base: 0,
                limit: 0x67,
                selector: 0x20,
                access: 0x8b,
            },
            gdt: TableRegister::default(),
            idt: TableRegister::default(),
            cr0: 1,
            cr3: 0,
            cr4: 0,
            ..reset.clone()
        }
    }
    /// The state of an entry in long mode: flat segments, the page tables at `page_tables` in use,
    /// as Linux's 64-bit boot protocol asks for it (`Documentation/arch/x86/boot.rst`).
    pub fn long_mode_entry(
        reset: &SystemRegisters,
        page_tables: u64,
        descriptors: TableRegister,
    ) -> Self {
        Self {
            cs: Segment::flat_code_64(0x10),
            gdt: descriptors,
            // PE, ET and PG.
            cr0: 1 | 1 << 4 | 1 << 31,
            cr3: page_tables,
            // PAE.
            cr4: 1 << 5,
            // LME and LMA.
            efer: 1 << 8 | 1 << 10,
            ..Self::protected_mode_entry(reset)
        }
    }
}

//! The least monitor that boots a PVH image: one vCPU, no interrupt controller, the paravirtual ports.
#![expect(unsafe_code, reason = "guest RAM is a mapping that KVM also writes to")]

use std::collections::VecDeque;
use std::ptr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use elf::ElfBytes;
use elf::endian::LittleEndian;
use kvm_bindings::{kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

pub const RAM_BYTES: u64 = 16 << 20;
const START_INFO: u32 = 0x6000;
const MEMORY_MAP: u32 = 0x7000;
const COMMAND_LINE: u32 = 0x8000;

/// Ends the process when a test hangs in KVM_RUN, which nothing else would end.
pub fn watchdog() -> mpsc::Sender<()> {
    let (alive, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the guest did not come to an end within 60 s");
            std::process::exit(1);
        }
    });
    alive
}

pub fn kvm() -> Option<Kvm> {
    match Kvm::new() {
        Ok(kvm) => Some(kvm),
        Err(error) => {
            eprintln!("skipped: /dev/kvm cannot be opened: {error}");
            None
        }
    }
}

/// What the image finds at its entry.
pub struct Boot<'a> {
    pub command_line: Option<&'a str>,
    /// Start, size, type.
    pub memory_map: &'a [(u64, u64, u32)],
    pub start_info_version: u32,
    pub magic: u32,
    pub port_console: bool,
    pub serial_line: bool,
}

impl Default for Boot<'_> {
    fn default() -> Self {
        Self {
            command_line: None,
            memory_map: &[(0xf000_0000, 0x1000, 2), (0, RAM_BYTES, 1)],
            start_info_version: 1,
            magic: 0x336e_c578,
            port_console: true,
            serial_line: true,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// The guest polls and has nothing to do.
    Idle,
    Exit(u8),
    Halt,
}

pub struct Vm {
    // Before the memory, so that KVM lets go of it first.
    vcpu: VcpuFd,
    _vm: VmFd,
    ram: Ram,
    output: Vec<u8>,
    first_output: Option<Instant>,
    started: Instant,
    port_console: bool,
    serial_line: bool,
    pub serial: Vec<u8>,
    pub input: VecDeque<u8>,
    pub snapshot_answers: VecDeque<u8>,
    pub snapshot_requests: u32,
    pub restored_untold: bool,
}

impl Vm {
    pub fn boot(image: &[u8], boot: &Boot<'_>) -> Option<Self> {
        let kvm = kvm()?;
        let vm = kvm.create_vm().unwrap();
        let ram = Ram::new();
        let entry = load(&ram, image);
        write_boot_data(&ram, boot);
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: RAM_BYTES,
            userspace_addr: ram.0 as u64,
        };
        // SAFETY: the mapping is `RAM_BYTES` long and `Vm` drops it after the VM.
        unsafe { vm.set_user_memory_region(region) }.unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        set_entry_state(&vcpu, entry);
        Some(Self {
            vcpu,
            _vm: vm,
            ram,
            output: Vec::new(),
            first_output: None,
            started: Instant::now(),
            port_console: boot.port_console,
            serial_line: boot.serial_line,
            serial: Vec::new(),
            input: VecDeque::new(),
            snapshot_answers: VecDeque::new(),
            snapshot_requests: 0,
            restored_untold: false,
        })
    }

    pub fn read_u32(&self, address: u32) -> u32 {
        self.ram.read_u32(address)
    }

    pub fn write_u32(&self, address: u32, value: u32) {
        self.ram.write(address, &value.to_le_bytes());
    }

    pub fn take_output(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.output)).unwrap()
    }

    pub fn first_output_after(&self) -> Option<Duration> {
        Some(self.first_output? - self.started)
    }

    pub fn run(&mut self) -> Stop {
        // Two polls in a row: the single one at boot only asks whether there is a console.
        let mut idle_polls = 0;
        for _ in 0..1_000_000 {
            match self.vcpu.run().unwrap() {
                VcpuExit::IoIn(port, data) => {
                    data[0] = match port {
                        0xe9 if self.port_console => self.input.pop_front().unwrap(),
                        0xea if self.port_console => {
                            let status = u8::from(!self.input.is_empty())
                                | u8::from(self.restored_untold) << 1;
                            idle_polls = if status == 0 { idle_polls + 1 } else { 0 };
                            status
                        }
                        0x605 => {
                            let answer = self.snapshot_answers.pop_front().unwrap();
                            self.restored_untold &= answer != 3;
                            answer
                        }
                        0x3f8 => self.input.pop_front().unwrap(),
                        0x3fd if !self.serial_line => 0xff,
                        // Transmitter empty; bit 0: a byte has come.
                        0x3fd if !self.input.is_empty() => 0x61,
                        0x3fd => {
                            idle_polls += 1;
                            0x60
                        }
                        // QEMU's debug port reads as its own number.
                        0xe9 => 0xe9,
                        0xea => 0xff,
                        _ => panic!("read of port {port:#x}"),
                    };
                    if idle_polls == 2 {
                        return Stop::Idle;
                    }
                }
                VcpuExit::IoOut(port, data) => match port {
                    0xe9 => {
                        idle_polls = 0;
                        self.first_output.get_or_insert_with(Instant::now);
                        self.output.extend_from_slice(data);
                    }
                    0x3f8 => self.serial.extend_from_slice(data),
                    0x604 => return Stop::Exit(data[0]),
                    0x605 => self.snapshot_requests += 1,
                    _ => panic!("write to port {port:#x}"),
                },
                VcpuExit::Hlt => return Stop::Halt,
                exit => {
                    let exit = format!("{exit:?}");
                    panic!(
                        "unexpected exit {exit} at {:#x}",
                        self.vcpu.get_regs().unwrap().rip
                    )
                }
            }
        }
        panic!("the guest keeps exiting without coming to rest");
    }
}

fn load(ram: &Ram, image: &[u8]) -> u64 {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(image).unwrap();
    for segment in elf.segments().unwrap() {
        if segment.p_type == elf::abi::PT_LOAD {
            let address = u32::try_from(segment.p_paddr).unwrap();
            ram.write(address, elf.segment_data(&segment).unwrap());
        }
    }
    elf.ehdr.e_entry
}

fn write_boot_data(ram: &Ram, boot: &Boot<'_>) {
    let mut map = Vec::new();
    for (start, size, kind) in boot.memory_map {
        map.extend_from_slice(&start.to_le_bytes());
        map.extend_from_slice(&size.to_le_bytes());
        map.extend_from_slice(&kind.to_le_bytes());
        map.extend_from_slice(&0u32.to_le_bytes());
    }
    ram.write(MEMORY_MAP, &map);
    let mut command_line = 0;
    if let Some(text) = boot.command_line {
        command_line = u64::from(COMMAND_LINE);
        ram.write(COMMAND_LINE, text.as_bytes());
    }
    let mut info = Vec::new();
    for field in [boot.magic, boot.start_info_version, 0, 0] {
        info.extend_from_slice(&field.to_le_bytes());
    }
    for field in [0, command_line, 0, u64::from(MEMORY_MAP)] {
        info.extend_from_slice(&field.to_le_bytes());
    }
    info.extend_from_slice(&(boot.memory_map.len() as u32).to_le_bytes());
    ram.write(START_INFO, &info);
}

/// Flat 32-bit protected mode with paging and interrupts off, as the PVH boot protocol describes the entry.
fn set_entry_state(vcpu: &VcpuFd, entry: u64) {
    let flat = |selector, type_| kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: 1,
        s: 1,
        l: 0,
        g: 1,
        ..kvm_segment::default()
    };
    let mut sregs = vcpu.get_sregs().unwrap();
    sregs.cs = flat(0x08, 0xb);
    let data = flat(0x10, 0x3);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.cr0 = 0x11;
    sregs.cr4 = 0;
    sregs.efer = 0;
    vcpu.set_sregs(&sregs).unwrap();
    let mut regs = vcpu.get_regs().unwrap();
    regs.rip = entry;
    regs.rbx = u64::from(START_INFO);
    regs.rflags = 2;
    vcpu.set_regs(&regs).unwrap();
}

struct Ram(*mut u8);

impl Ram {
    fn new() -> Self {
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                RAM_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast())
    }

    fn write(&self, address: u32, bytes: &[u8]) {
        assert!(u64::from(address) + bytes.len() as u64 <= RAM_BYTES);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, and no reference into it exists.
            unsafe { self.0.add(address as usize + index).write_volatile(*byte) };
        }
    }

    fn read_u32(&self, address: u32) -> u32 {
        assert!(u64::from(address) + 4 <= RAM_BYTES && address.is_multiple_of(4));
        // SAFETY: within the mapping and aligned, and no reference into it exists.
        unsafe { self.0.add(address as usize).cast::<u32>().read_volatile() }
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length; `Vm` closes its KVM file descriptors first.
        unsafe { libc::munmap(self.0.cast(), RAM_BYTES as usize) };
    }
}

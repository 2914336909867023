//! ACPI tables, by which a stock kernel finds processors, interrupt controller, serial ports, power
//! control, generation ID and virtio devices (ACPI 6.5).
//!
//! The machine is *hardware-reduced* (section 4.1): no power management timer, no fixed events, no SCI.
//! In this mode Linux takes it that there is no legacy interrupt controller and no legacy timer either, so
//! an interrupt of a legacy device exists only because its node in the DSDT names it.

use acpi_tables::aml::{
    Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, Package,
    Path, ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use nvx_devices::numbers;
use nvx_memory::GuestAddress;

use crate::layout::{
    ACPI_TABLES, ACPI_TABLES_MAX_BYTES, ENTROPY_SLOT, EVENT_IRQ, GENERATION_ID, IOAPIC, IOAPIC_ID,
    LOCAL_APIC, SERIAL_CONSOLE_IRQ, SERIAL_CONTROL_LINE_IRQ, VIRTIO_MMIO_SLOT_BYTES, virtio_irq,
    virtio_window,
};

/// Maker of every table, by which a guest knows the machine (ACPI 6.5, section 5.2.6).
pub const ACPI_OEM_ID: [u8; 6] = *b"NVX   ";
const OEM_TABLE: [u8; 8] = *b"NVXMICRO";
const OEM_REVISION: u32 = 1;
/// Integers of 64 bits in the DSDT (section 19.6.29).
const DSDT_REVISION: u8 = 2;
const SDT_HEADER_BYTES: u32 = 36;
/// Each table begins on such a boundary.
const TABLE_ALIGNMENT: usize = 16;

/// Boot architecture flags (table 5.11): there is no VGA. Clear bits say that there are no other legacy
/// devices and no keyboard controller, and that there is a CMOS clock.
const BOOT_NO_VGA: u16 = 1 << 2;

/// All tables for a machine with `vcpus` processors, beginning with the root pointer, to be put at
/// [`ACPI_TABLES`]. At most [`ACPI_TABLES_MAX_BYTES`].
#[must_use]
pub fn acpi_tables(vcpus: u8) -> Vec<u8> {
    let mut area = Area::default();
    // The root pointer comes first and is known last.
    let root = area.append(&[0; size_of::<Rsdp>()]);
    let dsdt = area.append(&dsdt());
    let fadt = area.append(&bytes(&fadt(dsdt)));
    let madt = area.append(&bytes(&madt(vcpus)));
    let mut xsdt = XSDT::new(ACPI_OEM_ID, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = area.append(&bytes(&xsdt));
    area.overwrite(root, &bytes(&Rsdp::new(ACPI_OEM_ID, xsdt.0)));
    debug_assert!(area.bytes.len() as u64 <= ACPI_TABLES_MAX_BYTES);
    area.bytes
}

/// The tables as they will lie in memory.
#[derive(Default)]
struct Area {
    bytes: Vec<u8>,
}

impl Area {
    fn append(&mut self, table: &[u8]) -> GuestAddress {
        let start = self.bytes.len().next_multiple_of(TABLE_ALIGNMENT);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(table);
        GuestAddress(ACPI_TABLES.0 + start as u64)
    }

    fn overwrite(&mut self, place: GuestAddress, table: &[u8]) {
        let start = (place.0 - ACPI_TABLES.0) as usize;
        if let Some(target) = self.bytes.get_mut(start..start + table.len()) {
            target.copy_from_slice(table);
        }
    }
}

struct Bytes(Vec<u8>);

impl AmlSink for Bytes {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut sink = Bytes(Vec::new());
    table.to_aml_bytes(&mut sink);
    sink.0
}

fn fadt(dsdt: GuestAddress) -> acpi_tables::fadt::FADT {
    let mut fadt = FADTBuilder::new(ACPI_OEM_ID, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt.0)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        // Neither button is a fixed one.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::Headless);
    fadt.iapc_boot_arch = BOOT_NO_VGA.into();
    fadt.reset_reg = byte_port(numbers::RESET_CONTROL);
    fadt.reset_value = numbers::RESET_VALUE;
    fadt.sleep_control_reg = byte_port(numbers::SLEEP_CONTROL);
    fadt.sleep_status_reg = byte_port(numbers::SLEEP_STATUS);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(*b"NVX     ").into();
    fadt.finalize()
}

fn byte_port(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn madt(vcpus: u8) -> MADT {
    // Both addresses are fixed ones below 4 GiB.
    let local = LocalInterruptController::Address(LOCAL_APIC.0 as u32);
    let mut madt = MADT::new(ACPI_OEM_ID, OEM_TABLE, OEM_REVISION, local);
    for index in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(
            index,
            index,
            EnabledStatus::Enabled,
        ));
    }
    madt.add_structure(IoApic::new(IOAPIC_ID, IOAPIC.0 as u32, 0));
    madt
}

fn dsdt() -> Vec<u8> {
    let mut dsdt = Sdt::new(
        *b"DSDT",
        SDT_HEADER_BYTES,
        DSDT_REVISION,
        ACPI_OEM_ID,
        OEM_TABLE,
        OEM_REVISION,
    );
    dsdt.append_slice(&serial_port(
        "COM1",
        1,
        numbers::SERIAL_CONSOLE,
        SERIAL_CONSOLE_IRQ,
    ));
    dsdt.append_slice(&serial_port(
        "COM2",
        2,
        numbers::SERIAL_CONTROL_LINE,
        SERIAL_CONTROL_LINE_IRQ,
    ));
    dsdt.append_slice(&generation_id());
    dsdt.append_slice(&event_device());
    dsdt.append_slice(&virtio_device("VR00", ENTROPY_SLOT));
    let off = numbers::SLEEP_TYPE_OFF;
    let sleep = Package::new(vec![&off, &off, &0u8, &0u8]);
    dsdt.append_slice(&bytes(&Name::new(Path::new("_S5_"), &sleep)));
    dsdt.as_slice().to_vec()
}

/// `children` as a device in the system bus.
fn device(name: &str, children: Vec<&dyn Aml>) -> Vec<u8> {
    let device = Device::new(Path::new(name), children);
    bytes(&Scope::new(Path::new("\\_SB_"), vec![&device]))
}

fn serial_port(name: &str, number: u8, port: u16, irq: u32) -> Vec<u8> {
    device(
        name,
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &number),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &Interrupt::new(true, true, false, false, irq),
                    &IO::new(port, port, 1, numbers::SERIAL_PORTS as u8),
                ]),
            ),
        ],
    )
}

/// The device object that Microsoft's "Virtual Machine Generation ID" describes. Its compatible ID is
/// too long for ACPI, so Hyper-V has a second one that is not, and Linux knows that one.
fn generation_id() -> Vec<u8> {
    let identifiers = Package::new(vec![&"VMGENCTR", &"VM_Gen_Counter"]);
    // Low and high half of the address.
    let (low, high) = (GENERATION_ID.0 as u32, (GENERATION_ID.0 >> 32) as u32);
    device(
        "VGEN",
        vec![
            &Name::new(Path::new("_HID"), &"NVXX0001"),
            &Name::new(Path::new("_CID"), &identifiers),
            &Name::new(Path::new("_DDN"), &"VM_Gen_Counter"),
            &Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high])),
        ],
    )
}

/// The generic event device (section 5.6.9): its one event says that the generation ID has changed.
fn event_device() -> Vec<u8> {
    let target = Path::new("\\_SB_.VGEN");
    let changed = Notify::new(&target, &0x80u8);
    let which = Arg(0);
    let event = Equal::new(&which, &EVENT_IRQ);
    let dispatch = If::new(&event, vec![&changed]);
    device(
        "GED_",
        vec![
            &Name::new(Path::new("_HID"), &"ACPI0013"),
            &Name::new(Path::new("_UID"), &0u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&Interrupt::new(true, true, false, false, EVENT_IRQ)]),
            ),
            &Method::new(Path::new("_EVT"), 1, true, vec![&dispatch]),
        ],
    )
}

fn virtio_device(name: &str, slot: u32) -> Vec<u8> {
    // The windows lie below 4 GiB.
    let window = Memory32Fixed::new(
        true,
        virtio_window(slot).0 as u32,
        VIRTIO_MMIO_SLOT_BYTES as u32,
    );
    let interrupt = Interrupt::new(true, false, false, false, virtio_irq(slot));
    device(
        name,
        vec![
            &Name::new(Path::new("_HID"), &"LNRO0005"),
            &Name::new(Path::new("_UID"), &slot),
            &Name::new(Path::new("_CCA"), &1u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&window, &interrupt]),
            ),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte))
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// The table at a guest address, by its own length, with its checksum checked.
    fn table(area: &[u8], address: u64) -> &[u8] {
        let start = (address - ACPI_TABLES.0) as usize;
        let length = u32::from_le_bytes(area[start + 4..start + 8].try_into().unwrap());
        let table = &area[start..start + length as usize];
        assert_eq!(sum(table), 0, "{:?}", &table[..4]);
        table
    }

    #[test]
    fn every_table_is_reached_from_the_root_and_sums_to_zero() {
        for vcpus in 1..=8 {
            let area = acpi_tables(vcpus);
            assert!(area.len() as u64 <= ACPI_TABLES_MAX_BYTES);
            assert_eq!(&area[..8], b"RSD PTR ");
            assert_eq!((sum(&area[..20]), sum(&area[..36])), (0, 0));
            let xsdt = table(&area, u64_at(&area, 24));
            assert_eq!((&xsdt[..4], xsdt.len()), (&b"XSDT"[..], 36 + 16));
            let fadt = table(&area, u64_at(xsdt, 36));
            assert_eq!(&fadt[..4], b"FACP");
            let dsdt = table(&area, u64_at(fadt, 140));
            assert_eq!(&dsdt[..4], b"DSDT");
            let madt = table(&area, u64_at(xsdt, 44));
            assert_eq!(&madt[..4], b"APIC");
            assert_eq!(madt.len(), 44 + 8 * usize::from(vcpus) + 12);
        }
    }

    #[test]
    fn the_fixed_table_says_what_is_there() {
        let area = acpi_tables(1);
        let xsdt = table(&area, u64_at(&area, 24));
        let fadt = table(&area, u64_at(xsdt, 36));
        // Hardware-reduced, with a reset register.
        let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
        assert_eq!(flags & (1 << 20 | 1 << 10), 1 << 20 | 1 << 10);
        assert_eq!(fadt[109..111], [4, 0], "boot architecture flags");
        // Address space, width, offset, access size, address: port 0x602, then the value.
        assert_eq!(fadt[116..128], [1, 8, 0, 1, 2, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(fadt[128], 1);
        assert_eq!(fadt[244..256], [1, 8, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(fadt[256..268], [1, 8, 0, 1, 1, 6, 0, 0, 0, 0, 0, 0]);
    }
}

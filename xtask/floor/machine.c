/* Partition, PVH entry, and the ports that the probe guest uses. */
#define _GNU_SOURCE
#include "floor.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Guest RAM stops here and goes on at 4 GiB; between lies MMIO. */
#define GAP_START 0xc0000000ull
#define GAP_END 0x100000000ull
/* Three pages for the processors that need them, just below the firmware's place. */
#define TSS_ADDRESS 0xfffbd000ul

#define START_INFO 0x6000
#define MEMORY_MAP 0x7000
#define COMMAND_LINE 0x20000
#define COMMAND_LINE_BYTES 4096

/* Xen public headers: XEN_ELFNOTE_PHYS32_ENTRY and the magic of struct hvm_start_info. */
#define PHYS32_ENTRY 18
#define START_INFO_MAGIC 0x336ec578

struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t module_list, command_line, rsdp, memory_map;
	uint32_t memory_map_entries, reserved;
};

struct memory_map_entry {
	uint64_t address, bytes;
	uint32_t type, reserved;
};

void fail(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	_exit(125);
}

static uint64_t low_bytes(const struct machine *machine)
{
	return machine->ram_bytes < GAP_START ? machine->ram_bytes : GAP_START;
}

static void map_ram(struct machine *machine)
{
	int flags = MAP_NORESERVE;
	switch (machine->ram_kind) {
	case RAM_ANONYMOUS:
		flags |= MAP_PRIVATE | MAP_ANONYMOUS;
		break;
	case RAM_SHARED_FILE:
		flags |= MAP_SHARED;
		break;
	case RAM_PRIVATE_FILE:
		flags |= MAP_PRIVATE;
		break;
	}
	machine->ram = mmap(NULL, machine->ram_bytes, PROT_READ | PROT_WRITE, flags,
			    machine->ram_fd, 0);
	if (machine->ram == MAP_FAILED)
		fail("map guest RAM");
	/* Else read-around builds large folios, and one store makes all of a folio dirty. */
	if (machine->ram_kind == RAM_SHARED_FILE && !on_memory_file_system(machine->ram_fd))
		madvise(machine->ram, machine->ram_bytes, MADV_RANDOM);
}

static void set_slot(struct machine *machine, uint32_t slot, uint64_t start, uint64_t bytes,
		     uint64_t offset)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot,
		.flags = machine->log_dirty ? KVM_MEM_LOG_DIRTY_PAGES : 0,
		.guest_phys_addr = start,
		.memory_size = bytes,
		.userspace_addr = (uint64_t)(machine->ram + offset),
	};
	if (ioctl(machine->vm, KVM_SET_USER_MEMORY_REGION, &region))
		fail("KVM_SET_USER_MEMORY_REGION");
}

/* The memory slots come before the interrupt chip: afterwards each costs a grace period. */
void machine_open(struct machine *machine)
{
	struct kvm_pit_config pit = { .flags = KVM_PIT_SPEAKER_DUMMY };
	uint64_t low = low_bytes(machine);

	machine->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (machine->kvm < 0)
		fail("/dev/kvm");
	machine->vm = ioctl(machine->kvm, KVM_CREATE_VM, 0);
	if (machine->vm < 0)
		fail("KVM_CREATE_VM");
	map_ram(machine);
	set_slot(machine, 0, 0, low, 0);
	if (machine->ram_bytes > low)
		set_slot(machine, 1, GAP_END, machine->ram_bytes - low, low);
	if (ioctl(machine->vm, KVM_SET_TSS_ADDR, TSS_ADDRESS))
		fail("KVM_SET_TSS_ADDR");
	if (ioctl(machine->vm, KVM_CREATE_IRQCHIP, 0))
		fail("KVM_CREATE_IRQCHIP");
	if (ioctl(machine->vm, KVM_CREATE_PIT2, &pit))
		fail("KVM_CREATE_PIT2");
}

void machine_create_vcpu(struct machine *machine)
{
	int bytes = ioctl(machine->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	machine->vcpu = ioctl(machine->vm, KVM_CREATE_VCPU, 0);
	if (machine->vcpu < 0)
		fail("KVM_CREATE_VCPU");
	machine->run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, machine->vcpu, 0);
	if (machine->run == MAP_FAILED)
		fail("map the vCPU's run area");
}

static void *guest(struct machine *machine, uint64_t address, uint64_t bytes)
{
	if (address > low_bytes(machine) || bytes > low_bytes(machine) - address) {
		errno = EFAULT;
		fail("kernel image outside RAM");
	}
	return machine->ram + address;
}

/* Entry address in a note segment, or 0. */
static uint32_t find_entry(const uint8_t *notes, uint64_t bytes)
{
	uint64_t at = 0;
	while (at + sizeof(Elf64_Nhdr) <= bytes) {
		const Elf64_Nhdr *note = (const void *)(notes + at);
		uint64_t name = at + sizeof(*note);
		uint64_t data = name + ((note->n_namesz + 3ull) & ~3ull);
		uint32_t entry;
		if (data + sizeof(entry) > bytes)
			break;
		if (note->n_type == PHYS32_ENTRY && !strncmp((const char *)notes + name, "Xen", 4)) {
			memcpy(&entry, notes + data, sizeof(entry));
			return entry;
		}
		at = data + ((note->n_descsz + 3ull) & ~3ull);
	}
	return 0;
}

/* Loads the segments and returns the PVH entry. */
static uint32_t load(struct machine *machine, const char *path)
{
	static uint8_t image[1 << 20];
	const Elf64_Ehdr *header = (const void *)image;
	uint32_t entry = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t bytes = fd < 0 ? -1 : read(fd, image, sizeof(image));
	if (bytes < (ssize_t)sizeof(*header) || memcmp(image, ELFMAG "\2", SELFMAG + 1))
		fail(path);
	close(fd);
	for (int i = 0; i < header->e_phnum; i++) {
		uint64_t at = header->e_phoff + (uint64_t)i * sizeof(Elf64_Phdr);
		const Elf64_Phdr *segment = (const void *)(image + at);
		if (at + sizeof(*segment) > (uint64_t)bytes ||
		    segment->p_offset + segment->p_filesz > (uint64_t)bytes)
			fail(path);
		if (segment->p_type == PT_LOAD)
			memcpy(guest(machine, segment->p_paddr, segment->p_memsz),
			       image + segment->p_offset, segment->p_filesz);
		if (segment->p_type == PT_NOTE && !entry)
			entry = find_entry(image + segment->p_offset, segment->p_filesz);
	}
	if (!entry)
		fail("no PVH entry note");
	return entry;
}

static void write_start_info(struct machine *machine, const char *command_line)
{
	struct memory_map_entry *map = guest(machine, MEMORY_MAP, 2 * sizeof(*map));
	struct start_info *info = guest(machine, START_INFO, sizeof(*info));
	uint64_t low = low_bytes(machine);

	if (strlen(command_line) >= COMMAND_LINE_BYTES)
		fail("command line too long");
	strcpy(guest(machine, COMMAND_LINE, COMMAND_LINE_BYTES), command_line);
	map[0] = (struct memory_map_entry){ .bytes = low, .type = 1 };
	map[1] = (struct memory_map_entry){ .address = GAP_END,
					    .bytes = machine->ram_bytes - low,
					    .type = 1 };
	*info = (struct start_info){
		.magic = START_INFO_MAGIC,
		.version = 1,
		.command_line = COMMAND_LINE,
		.memory_map = MEMORY_MAP,
		.memory_map_entries = machine->ram_bytes > low ? 2 : 1,
	};
}

/* Flat 32-bit protected mode with EBX at the start info, as the PVH boot protocol says. */
static void set_entry(struct machine *machine, uint32_t entry)
{
	struct kvm_sregs sregs;
	struct kvm_regs regs = { .rip = entry, .rbx = START_INFO, .rflags = 2 };
	struct kvm_segment data = { .limit = 0xffffffff, .selector = 0x10, .type = 3, .present = 1,
				    .db = 1, .s = 1, .g = 1 };
	struct kvm_segment code = data;
	struct kvm_segment task = { .limit = 0x67, .selector = 0x18, .type = 11, .present = 1 };

	code.selector = 8;
	code.type = 11;
	if (ioctl(machine->vcpu, KVM_GET_SREGS, &sregs))
		fail("KVM_GET_SREGS");
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	sregs.tr = task;
	sregs.cr0 = 0x11;
	if (ioctl(machine->vcpu, KVM_SET_SREGS, &sregs))
		fail("KVM_SET_SREGS");
	if (ioctl(machine->vcpu, KVM_SET_REGS, &regs))
		fail("KVM_SET_REGS");
}

void machine_boot(struct machine *machine, const char *elf, const char *command_line)
{
	static struct {
		struct kvm_cpuid2 header;
		struct kvm_cpuid_entry2 entries[MAX_CPUID];
	} cpuid = { .header.nent = MAX_CPUID };

	if (ioctl(machine->kvm, KVM_GET_SUPPORTED_CPUID, &cpuid))
		fail("KVM_GET_SUPPORTED_CPUID");
	if (ioctl(machine->vcpu, KVM_SET_CPUID2, &cpuid))
		fail("KVM_SET_CPUID2");
	write_start_info(machine, command_line);
	set_entry(machine, load(machine, elf));
}

static void put(struct machine *machine, char byte)
{
	machine->line[machine->line_len++] = byte;
	if (byte == '\n' || machine->line_len == sizeof(machine->line)) {
		if (write(1, machine->line, machine->line_len) < 0)
			fail("standard output");
		machine->line_len = 0;
	}
}

/*
 * Console status. The second question in a row means that the guest is idle (the first may only want to know
 * whether there is a console), and then the answer waits until there is something to tell.
 */
static int status(struct machine *machine, uint8_t *value)
{
	*value = 0;
	if (machine->restored_untold) {
		*value = 2;
	} else if (machine->input_at == machine->input_len && machine->asked++) {
		ssize_t bytes = read(0, machine->input, sizeof(machine->input));
		if (bytes <= 0)
			return 0;
		machine->input_at = 0;
		machine->input_len = bytes;
	}
	if (machine->input_at < machine->input_len)
		*value |= 1;
	return 1;
}

static uint8_t take_outcome(struct machine *machine)
{
	if (machine->outcome == 3)
		machine->restored_untold = 0;
	return machine->outcome;
}

/* Runs until the guest ends, asks for a snapshot, or waits for input that will never come. */
enum stop machine_run(struct machine *machine, int *exit_status)
{
	struct kvm_run *run = machine->run;
	for (;;) {
		if (ioctl(machine->vcpu, KVM_RUN, 0)) {
			if (errno == EINTR)
				continue;
			fail("KVM_RUN");
		}
		if (run->exit_reason != KVM_EXIT_IO) {
			fprintf(stderr, "floor: exit reason %u\n", run->exit_reason);
			_exit(125);
		}
		uint8_t *data = (uint8_t *)run + run->io.data_offset;
		int out = run->io.direction == KVM_EXIT_IO_OUT;
		if (run->io.port != 0xea)
			machine->asked = 0;
		switch (run->io.port) {
		case 0xe9:
			if (out)
				for (uint32_t i = 0; i < run->io.count; i++)
					put(machine, data[i]);
			else
				*data = machine->input_at < machine->input_len ?
						machine->input[machine->input_at++] :
						0;
			break;
		case 0xea:
			if (!out && !status(machine, data))
				return STOP_INPUT_END;
			break;
		case 0x604:
			if (out) {
				*exit_status = *data;
				return STOP_EXIT;
			}
			break;
		case 0x605:
			if (out)
				return STOP_SNAPSHOT;
			*data = take_outcome(machine);
			break;
		default:
			if (!out)
				memset(data, 0xff, run->io.size * run->io.count);
		}
	}
}

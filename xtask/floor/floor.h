/*
 * The speed floor: a monitor that does only what the kernel interface demands.
 *
 * It starts a PVH guest, serves the probe guest's ports, captures it when it asks, and restores it. It
 * checks nothing that the kernel does not force it to check, digests nothing and offers nothing, so that
 * what remains is the cost that no monitor with the same durability can avoid.
 */
#ifndef NVX_FLOOR_H
#define NVX_FLOOR_H

#include <linux/kvm.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES 4096ull
#define MAX_MSRS 256
#define MAX_CPUID 256
/* The largest area that KVM_GET_XSAVE2 may need (AMX included). */
#define XSAVE_BYTES_MAX 16384

/* Where guest RAM is. */
enum ram_kind { RAM_ANONYMOUS, RAM_SHARED_FILE, RAM_PRIVATE_FILE };

/* All state of the partition and its one vCPU, as it lies in the file `state`. */
struct saved_state {
	uint64_t ram_bytes;
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debugregs;
	struct kvm_mp_state mp_state;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
	struct kvm_irqchip irqchip[3];
	struct kvm_pit_state2 pit;
	struct kvm_clock_data clock;
	struct {
		struct kvm_msrs header;
		struct kvm_msr_entry entries[MAX_MSRS];
	} msrs;
	struct {
		struct kvm_cpuid2 header;
		struct kvm_cpuid_entry2 entries[MAX_CPUID];
	} cpuid;
	uint32_t xsave_bytes;
	/* Last, so that the file ends with the bytes that are used. */
	uint8_t xsave[XSAVE_BYTES_MAX];
};

struct machine {
	int kvm, vm, vcpu;
	struct kvm_run *run;
	uint8_t *ram;
	uint64_t ram_bytes;
	int ram_fd;
	enum ram_kind ram_kind;
	int log_dirty;
	/* What port 0x605 answers; 3 also raises bit 1 of the console status. */
	uint8_t outcome;
	int restored_untold;
	/* How often the guest has asked for the console's status since it last did anything else. */
	unsigned asked;
	char input[256];
	size_t input_at, input_len;
	char line[256];
	size_t line_len;
};

/* Why the guest stopped. */
enum stop { STOP_EXIT, STOP_SNAPSHOT, STOP_INPUT_END };

/* machine.c */
void fail(const char *what);
void machine_open(struct machine *machine);
void machine_create_vcpu(struct machine *machine);
void machine_boot(struct machine *machine, const char *elf, const char *command_line);
enum stop machine_run(struct machine *machine, int *status);

/* state.c */
void state_prepare(struct machine *machine, struct saved_state *state);
void state_save(struct machine *machine, struct saved_state *state);
void state_restore(struct machine *machine, struct saved_state *state);
size_t state_bytes(const struct saved_state *state);

/* publish.c */
struct destination {
	int parent;
	const char *name;
	char staging[64];
};
void destination_open(struct destination *destination, char *path);
void publish_link(struct machine *machine, const struct saved_state *state,
		  struct destination *destination);
void publish_copy(struct machine *machine, const struct saved_state *state,
		  struct destination *destination);
int create_ram_file(const char *directory, uint64_t bytes);
int on_memory_file_system(int fd);

#endif

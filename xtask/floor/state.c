/* State of the partition and its vCPU. */
#include "floor.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#define MSR_TSC 0x10
#define MSR_TSC_DEADLINE 0x6e0

static void must(int result, const char *what)
{
	if (result < 0)
		fail(what);
}

/* Deadline last, TSC first: setting the deadline arms it against the TSC of that moment. */
static int msr_rank(uint32_t index)
{
	return index == MSR_TSC ? 0 : index == MSR_TSC_DEADLINE ? 2 : 1;
}

static uint32_t get_msrs(struct machine *machine, struct kvm_msrs *msrs)
{
	int done = ioctl(machine->vcpu, KVM_GET_MSRS, msrs);
	must(done, "KVM_GET_MSRS");
	return done;
}

/* Finds out before the clock starts which MSRs exist here, in the order in which they are restored. */
void state_prepare(struct machine *machine, struct saved_state *state)
{
	static struct {
		struct kvm_msr_list header;
		uint32_t indices[MAX_MSRS];
	} list = { .header.nmsrs = MAX_MSRS };
	static struct {
		struct kvm_msrs header;
		struct kvm_msr_entry entry;
	} one = { .header.nmsrs = 1 };
	uint32_t count = 0;

	must(ioctl(machine->kvm, KVM_GET_MSR_INDEX_LIST, &list), "KVM_GET_MSR_INDEX_LIST");
	for (int rank = 0; rank < 3; rank++)
		for (uint32_t i = 0; i < list.header.nmsrs; i++) {
			one.entry.index = list.header.indices[i];
			if (msr_rank(one.entry.index) == rank && get_msrs(machine, &one.header) == 1)
				state->msrs.entries[count++].index = one.entry.index;
		}
	state->msrs.header.nmsrs = count;
	state->cpuid.header.nent = MAX_CPUID;
	must(ioctl(machine->vcpu, KVM_GET_CPUID2, &state->cpuid), "KVM_GET_CPUID2");
	int bytes = ioctl(machine->vm, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2);
	state->xsave_bytes = bytes > 4096 ? bytes : 4096;
	if (state->xsave_bytes > XSAVE_BYTES_MAX) {
		errno = E2BIG;
		fail("XSAVE area");
	}
	state->ram_bytes = machine->ram_bytes;
}

void state_save(struct machine *machine, struct saved_state *state)
{
	/* One more entry without guest code completes the pending port write. */
	machine->run->immediate_exit = 1;
	if (ioctl(machine->vcpu, KVM_RUN, 0) == 0 || errno != EINTR)
		fail("KVM_RUN with immediate exit");
	machine->run->immediate_exit = 0;

	unsigned long xsave =
		state->xsave_bytes > 4096 ? KVM_GET_XSAVE2 : KVM_GET_XSAVE;
	must(ioctl(machine->vcpu, KVM_GET_REGS, &state->regs), "KVM_GET_REGS");
	must(ioctl(machine->vcpu, KVM_GET_SREGS, &state->sregs), "KVM_GET_SREGS");
	must(ioctl(machine->vcpu, xsave, state->xsave), "KVM_GET_XSAVE");
	must(ioctl(machine->vcpu, KVM_GET_XCRS, &state->xcrs), "KVM_GET_XCRS");
	must(ioctl(machine->vcpu, KVM_GET_DEBUGREGS, &state->debugregs), "KVM_GET_DEBUGREGS");
	must(ioctl(machine->vcpu, KVM_GET_MP_STATE, &state->mp_state), "KVM_GET_MP_STATE");
	must(ioctl(machine->vcpu, KVM_GET_LAPIC, &state->lapic), "KVM_GET_LAPIC");
	get_msrs(machine, &state->msrs.header);
	must(ioctl(machine->vcpu, KVM_GET_VCPU_EVENTS, &state->events), "KVM_GET_VCPU_EVENTS");
	for (uint32_t i = 0; i < 3; i++) {
		state->irqchip[i].chip_id = i;
		must(ioctl(machine->vm, KVM_GET_IRQCHIP, &state->irqchip[i]), "KVM_GET_IRQCHIP");
	}
	must(ioctl(machine->vm, KVM_GET_PIT2, &state->pit), "KVM_GET_PIT2");
	must(ioctl(machine->vm, KVM_GET_CLOCK, &state->clock), "KVM_GET_CLOCK");
}

/* One call sets them up to the first that cannot be set, which is then passed over. */
static void set_msrs(struct machine *machine, struct saved_state *state)
{
	static struct {
		struct kvm_msrs header;
		struct kvm_msr_entry entries[MAX_MSRS];
	} rest;
	uint32_t count = state->msrs.header.nmsrs, at = 0;
	while (at < count) {
		rest.header.nmsrs = count - at;
		memcpy(rest.entries, state->msrs.entries + at, (count - at) * sizeof(rest.entries[0]));
		int done = ioctl(machine->vcpu, KVM_SET_MSRS, &rest);
		must(done, "KVM_SET_MSRS");
		at += done;
		if (at < count)
			at++;
	}
}

void state_restore(struct machine *machine, struct saved_state *state)
{
	must(ioctl(machine->vcpu, KVM_SET_CPUID2, &state->cpuid), "KVM_SET_CPUID2");
	must(ioctl(machine->vcpu, KVM_SET_SREGS, &state->sregs), "KVM_SET_SREGS");
	must(ioctl(machine->vcpu, KVM_SET_XCRS, &state->xcrs), "KVM_SET_XCRS");
	must(ioctl(machine->vcpu, KVM_SET_XSAVE, state->xsave), "KVM_SET_XSAVE");
	must(ioctl(machine->vcpu, KVM_SET_DEBUGREGS, &state->debugregs), "KVM_SET_DEBUGREGS");
	must(ioctl(machine->vcpu, KVM_SET_REGS, &state->regs), "KVM_SET_REGS");
	must(ioctl(machine->vcpu, KVM_SET_MP_STATE, &state->mp_state), "KVM_SET_MP_STATE");
	must(ioctl(machine->vcpu, KVM_SET_LAPIC, &state->lapic), "KVM_SET_LAPIC");
	set_msrs(machine, state);
	must(ioctl(machine->vcpu, KVM_SET_VCPU_EVENTS, &state->events), "KVM_SET_VCPU_EVENTS");
	for (uint32_t i = 0; i < 3; i++)
		must(ioctl(machine->vm, KVM_SET_IRQCHIP, &state->irqchip[i]), "KVM_SET_IRQCHIP");
	must(ioctl(machine->vm, KVM_SET_PIT2, &state->pit), "KVM_SET_PIT2");
	/* Every flag that KVM_GET_CLOCK sets but this one is refused here. */
	state->clock.flags &= KVM_CLOCK_REALTIME;
	must(ioctl(machine->vm, KVM_SET_CLOCK, &state->clock), "KVM_SET_CLOCK");
}

size_t state_bytes(const struct saved_state *state)
{
	return offsetof(struct saved_state, xsave) + state->xsave_bytes;
}

/*
 * floor boot ELF COMMAND-LINE [--memory MIB] [--ram-dir DIR] [--snapshot DEST]
 * floor restore DIR [--snapshot DEST]
 *
 * The guest's console is standard input and output. With --snapshot the guest's request is granted, the
 * program ends, and one line on standard error tells the times in milliseconds.
 */
#define _GNU_SOURCE
#include "floor.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct machine machine = { .ram_fd = -1, .ram_bytes = 128ull << 20 };
static struct saved_state state;
static struct destination destination;

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void usage(void)
{
	fputs("usage: floor boot ELF COMMAND-LINE [--memory MIB] [--ram-dir DIR] [--snapshot DEST]\n"
	      "       floor restore DIR [--snapshot DEST]\n",
	      stderr);
	_exit(2);
}

static const char *option(int argc, char **argv, int first, const char *name)
{
	for (int i = first; i + 1 < argc; i += 2)
		if (!strcmp(argv[i], name))
			return argv[i + 1];
	return NULL;
}

static void open_snapshot(const char *path)
{
	int directory = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	int file = directory < 0 ? -1 : openat(directory, "state", O_RDONLY | O_CLOEXEC);
	if (file < 0 || read(file, &state, sizeof(state)) < (ssize_t)offsetof(struct saved_state, xsave))
		fail(path);
	machine.ram_fd = openat(directory, "memory", O_RDONLY | O_CLOEXEC);
	if (machine.ram_fd < 0)
		fail("memory");
	machine.ram_kind = RAM_PRIVATE_FILE;
	machine.ram_bytes = state.ram_bytes;
	machine.outcome = 3;
	machine.restored_untold = 1;
}

/* Publishes, prints the times, and ends without waiting for the partition to be taken down. */
static void capture(void)
{
	double start = now_ms(), saved, published, synced;
	state_save(&machine, &state);
	saved = now_ms();
	if (machine.ram_kind == RAM_SHARED_FILE)
		publish_link(&machine, &state, &destination);
	else
		publish_copy(&machine, &state, &destination);
	published = now_ms();
	if (fsync(destination.parent))
		fail("sync the parent directory");
	synced = now_ms();
	fprintf(stderr, "{\"state_ms\":%.6f,\"file_ms\":%.6f,\"total_ms\":%.6f,\"parent_ms\":%.6f}\n",
		saved - start, published - saved, published - start, synced - published);
	_exit(0);
}

int main(int argc, char **argv)
{
	int status = 0;
	int boot = argc >= 4 && !strcmp(argv[1], "boot");
	int options = boot ? 4 : 3;
	if (!boot && !(argc >= 3 && !strcmp(argv[1], "restore")))
		usage();
	const char *snapshot = option(argc, argv, options, "--snapshot");
	const char *ram_dir = option(argc, argv, options, "--ram-dir");
	const char *memory = option(argc, argv, options, "--memory");

	if (memory)
		machine.ram_bytes = strtoull(memory, NULL, 10) << 20;
	if (!boot)
		open_snapshot(argv[2]);
	else if (ram_dir) {
		machine.ram_kind = RAM_SHARED_FILE;
		machine.ram_fd = create_ram_file(ram_dir, machine.ram_bytes);
	}
	machine.log_dirty = snapshot && machine.ram_kind != RAM_SHARED_FILE;
	machine_open(&machine);
	machine_create_vcpu(&machine);
	if (boot)
		machine_boot(&machine, argv[2], argv[3]);
	else
		state_restore(&machine, &state);
	if (snapshot) {
		destination_open(&destination, strdup(snapshot));
		state_prepare(&machine, &state);
	}
	for (;;) {
		switch (machine_run(&machine, &status)) {
		case STOP_EXIT:
			_exit(status);
		case STOP_INPUT_END:
			_exit(0);
		case STOP_SNAPSHOT:
			machine.outcome = 1;
			if (snapshot)
				capture();
		}
	}
}

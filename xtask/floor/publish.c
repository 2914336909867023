/* Files: the RAM file, and the publication of a snapshot directory by one rename. */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/* About what a manifest of one vCPU takes. */
#define MANIFEST_BYTES 3000

int on_memory_file_system(int fd)
{
	struct statfs status;
	return fstatfs(fd, &status) == 0 && status.f_type == TMPFS_MAGIC;
}

int create_ram_file(const char *directory, uint64_t bytes)
{
	int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, bytes))
		fail(directory);
	return fd;
}

/* Cuts `path` into its parent, which is opened, and its last name. */
void destination_open(struct destination *destination, char *path)
{
	char *slash = strrchr(path, '/');
	if (slash)
		*slash = 0;
	destination->name = slash ? slash + 1 : path;
	destination->parent = open(slash ? path : ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	if (destination->parent < 0)
		fail(path);
	snprintf(destination->staging, sizeof(destination->staging), ".floor-staging-%d", getpid());
}

static int create_staging(struct destination *destination)
{
	int fd;
	if (mkdirat(destination->parent, destination->staging, 0700))
		fail("create the staging directory");
	fd = openat(destination->parent, destination->staging, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail("open the staging directory");
	return fd;
}

static int create_file(int directory, const char *name, const void *data, size_t bytes)
{
	int fd = openat(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
		fail(name);
	return fd;
}

/*
 * All files are written back before the first is synced, so that one journal commit serves all. For RAM the
 * writeback is the kind that waits: of many scattered pages, ext4 writes the rest of a writeback that was
 * only started more slowly (every other page of 128 MiB: median 124-143 ms started, 116-126 ms waited for).
 */
static void sync_and_commit(struct destination *destination, int staging, const int files[3])
{
	for (int i = 1; i < 3; i++)
		sync_file_range(files[i], 0, 0, SYNC_FILE_RANGE_WRITE);
	sync_file_range(files[0], 0, 0,
			SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				SYNC_FILE_RANGE_WAIT_AFTER);
	for (int i = 0; i < 3; i++)
		if (fdatasync(files[i]))
			fail("fdatasync");
	if (fsync(staging))
		fail("sync the staging directory");
	if (renameat2(destination->parent, destination->staging, destination->parent,
		      destination->name, RENAME_NOREPLACE))
		fail("publish");
}

void publish_link(struct machine *machine, const struct saved_state *state,
		  struct destination *destination)
{
	static const char manifest[MANIFEST_BYTES];
	char own[32];
	int files[3] = { machine->ram_fd };
	int staging = create_staging(destination);

	files[1] = create_file(staging, "state", state, state_bytes(state));
	snprintf(own, sizeof(own), "/proc/self/fd/%d", machine->ram_fd);
	if (linkat(AT_FDCWD, own, staging, "memory", AT_SYMLINK_FOLLOW))
		fail("link guest RAM");
	files[2] = create_file(staging, "manifest", manifest, sizeof(manifest));
	sync_and_commit(destination, staging, files);
}

static void copy_range(struct machine *machine, int file, uint64_t start, uint64_t end)
{
	while (start < end) {
		ssize_t bytes = pwrite(file, machine->ram + start, end - start, start);
		if (bytes <= 0)
			fail("write guest RAM");
		start += bytes;
	}
}

/* Marks in `pages` what the guest has written since the restore, slot by slot. */
static void add_dirty(struct machine *machine, uint64_t *pages)
{
	uint64_t low = machine->ram_bytes < 0xc0000000ull ? machine->ram_bytes : 0xc0000000ull;
	for (uint32_t slot = 0; slot < (machine->ram_bytes > low ? 2u : 1u); slot++) {
		uint64_t first = slot ? low / PAGE_BYTES : 0;
		struct kvm_dirty_log log = { .slot = slot, .dirty_bitmap = pages + first / 64 };
		if (ioctl(machine->vm, KVM_GET_DIRTY_LOG, &log))
			fail("KVM_GET_DIRTY_LOG");
	}
}

/* Marks in `pages` what the snapshot's file holds. */
static void add_base(struct machine *machine, uint64_t *pages)
{
	off_t end = 0;
	for (;;) {
		off_t start = lseek(machine->ram_fd, end, SEEK_DATA);
		if (start < 0)
			break;
		end = lseek(machine->ram_fd, start, SEEK_HOLE);
		for (uint64_t page = start / PAGE_BYTES; page < (uint64_t)end / PAGE_BYTES; page++)
			pages[page / 64] |= 1ull << page % 64;
	}
}

void publish_copy(struct machine *machine, const struct saved_state *state,
		  struct destination *destination)
{
	static const char manifest[MANIFEST_BYTES];
	uint64_t count = machine->ram_bytes / PAGE_BYTES;
	uint64_t *pages = calloc(count / 64 + 1, sizeof(*pages));
	int files[3], staging = create_staging(destination);

	if (!pages)
		fail("page bitmap");
	files[0] = create_file(staging, "memory", "", 0);
	files[1] = create_file(staging, "state", state, state_bytes(state));
	files[2] = create_file(staging, "manifest", manifest, sizeof(manifest));
	if (ftruncate(files[0], machine->ram_bytes))
		fail("size of the copy");
	add_dirty(machine, pages);
	add_base(machine, pages);
	for (uint64_t page = 0; page < count;) {
		uint64_t end;
		/* Most words of the bitmap are empty. */
		if (!(pages[page / 64] >> page % 64)) {
			page = (page / 64 + 1) * 64;
			continue;
		}
		if (!(pages[page / 64] >> page % 64 & 1)) {
			page++;
			continue;
		}
		for (end = page; end < count && pages[end / 64] >> end % 64 & 1;)
			end++;
		copy_range(machine, files[0], page * PAGE_BYTES, end * PAGE_BYTES);
		page = end;
	}
	sync_and_commit(destination, staging, files);
}

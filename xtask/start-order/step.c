// Runs a program one instruction at a time and prints, once each, the addresses in a range that it executed.
//
// usage: step OUTPUT FIRST END PROGRAM [ARGUMENT]...     (FIRST and END in hexadecimal; END is not part of it)
//
// For x86-64 Linux. The guest's instructions are not stepped: KVM_RUN is one system call.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "step: %s: %s\n", what, strerror(errno));
    exit(1);
}

static pid_t start_traced(char **arguments) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(arguments[0], arguments);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) fail(arguments[0]);
    // Threads are stepped too; none outlives this process.
    if (ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) fail("ptrace options");
    return child;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: step OUTPUT FIRST END PROGRAM [ARGUMENT]...\n");
        return 2;
    }
    unsigned long first = strtoul(argv[2], 0, 16), end = strtoul(argv[3], 0, 16);
    FILE *output = fopen(argv[1], "w");
    if (!output) fail(argv[1]);
    if (end <= first) return 2;
    unsigned char *seen = calloc(end - first, 1);
    if (!seen) fail("memory");

    pid_t child = start_traced(argv + 4);
    if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) fail("step");
    int result = 1;
    for (;;) {
        int status;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) break;
        if (!WIFSTOPPED(status)) {
            if (thread != child) continue;
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            break;
        }
        errno = 0;
        unsigned long at = ptrace(PTRACE_PEEKUSER, thread, offsetof(struct user_regs_struct, rip), 0);
        if (errno == 0 && at >= first && at < end && !seen[at - first]) {
            seen[at - first] = 1;
            fprintf(output, "%lx\n", at);
        }
        int signal = WSTOPSIG(status);
        // Both are the tracer's own doing.
        if (signal == SIGTRAP || signal == SIGSTOP) signal = 0;
        // A thread that was killed meanwhile is reported by the next wait.
        ptrace(PTRACE_SINGLESTEP, thread, 0, signal);
    }
    if (fclose(output)) fail(argv[1]);
    return result;
}

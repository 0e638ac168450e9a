/* faulthandler.c - see faulthandler.h. The signal is SIGURG, which does nothing to a
 * process without a handler: should the worker become another program in the moment
 * between our look and the signal, no harm is done. */
#include "stacks/faulthandler.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "loop/clock.h"
#include "loop/file.h"
#include "stacks/core/faulthandler.h"

#define STACKS_FD 251 /* as in src/warm/server.py, and the name below, too */
#define FILE_NAME "/memfd:muster-stacks "
#define STEP_MS   1

static bool is_listening(int64_t pid)
{
    char path[64], room[4096];

    snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)pid);
    return faulthandler_listens(file_text(path, room, sizeof room), SIGURG);
}

/* The worker's file, or -1 if that number is something else by now. */
static int open_file(int64_t pid)
{
    char path[64], target[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, STACKS_FD);
    const ssize_t n = readlink(path, target, sizeof target);
    if (n < (ssize_t)strlen(FILE_NAME) ||
        strncmp(target, FILE_NAME, strlen(FILE_NAME)) != 0)
        return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

static bool signal_worker(int64_t pid)
{
    return syscall(SYS_tgkill, (int)pid, (int)pid, SIGURG) == 0;
}

/* Once the first answer begins the thread is asked again: the second begins when the
 * first is whole. */
static int wait_for_answer(int fd, int64_t pid, uint64_t by_ms, char *room, size_t size,
                           size_t *n)
{
    bool again = false;

    while (clock_mono_ms() < by_ms) {
        const ssize_t got = pread(fd, room, size, 0);

        *n = got > 0 ? (size_t)got : 0;
        if (faulthandler_whole(span_of(room, *n)) || *n == size)
            return 0;
        if (*n > 0 && !again)
            again = signal_worker(pid);
        nanosleep(&(struct timespec){ 0, STEP_MS * 1000000L }, NULL);
    }
    return MUSTER_ETIMEDOUT;
}

static int take_turns(int fd, uint64_t by_ms)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (clock_mono_ms() >= by_ms)
            return MUSTER_ETIMEDOUT;
        nanosleep(&(struct timespec){ 0, STEP_MS * 1000000L }, NULL);
    }
    return 0;
}

int faulthandler_read(struct arena *a, struct stack_process *p, uint64_t by_ms,
                      struct muster_error *err)
{
    char room[32768];
    size_t n = 0;
    const int fd = open_file(p->pid);

    if (fd < 0)
        return err_set(err, MUSTER_ENOTSUP, "it has no handler that prints its stack");
    int rc = take_turns(fd, by_ms);
    if (rc == 0 && !is_listening(p->pid)) {
        close(fd);
        return err_set(err, MUSTER_ENOTSUP, "it has no handler that prints its stack");
    }
    if (rc == 0)
        rc = ftruncate(fd, 0) == 0 && signal_worker(p->pid) ? 0 : MUSTER_ENOTSUP;
    if (rc == 0)
        rc = wait_for_answer(fd, p->pid, by_ms, room, sizeof room, &n);
    close(fd);
    if (rc != 0)
        return err_set(err, rc, "its faulthandler does not answer");
    return faulthandler_parse(a, p, span_of(room, n), err);
}

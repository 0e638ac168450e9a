/* machine.c - see machine.h. */
#include "launch/machine.h"

#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/file.h"
#include "process/cgroup.h"
#include "process/devices.h"

static int count_devices(void *ctx, const char *word, int64_t *n,
                         struct muster_error *err)
{
    const struct devices_machine real = devices_real(environ);

    (void)ctx;
    return devices_count(&real, word, n, err);
}

static bool is_file(void *ctx, const char *path)
{
    struct stat st;

    (void)ctx;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static bool is_directory(void *ctx, const char *path)
{
    struct stat st;

    (void)ctx;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int64_t most_processes(void *ctx, const char **limit)
{
    const int64_t group = cgroup_processes("");
    char text[32];

    (void)ctx;
    (void)file_text("/proc/sys/kernel/pid_max", text, sizeof text);
    const int64_t kernel = strtoll(text, NULL, 10);
    *limit = group ? "pids.max of its control group" : "kernel.pid_max";
    return group && (!kernel || group < kernel) ? group : kernel;
}

static char *read_text(void *ctx, const char *path, size_t most)
{
    char *room = mem_alloc(most + 1);

    (void)ctx;
    if (room && file_read(path, room, most + 1) >= 0)
        return room;
    mem_free(room);
    return NULL;
}

int machine_real(struct derive_machine *out,
                 void (*warn)(void *ctx, enum derive_warning what, const char *text),
                 void *ctx, struct muster_error *err)
{
    struct derive_machine machine = { .count_devices = count_devices,
                                      .is_file = is_file,
                                      .is_dir = is_directory,
                                      .most_processes = most_processes,
                                      .read_text = read_text,
                                      .warn = warn,
                                      .ctx = ctx,
                                      .envp = environ };

    if (getrandom(machine.random, sizeof machine.random, 0) !=
        (ssize_t)sizeof machine.random)
        return err_set(err, MUSTER_EIO, "the kernel gave no random bytes for a run id");
    *out = machine;
    return 0;
}

/* machine.c - see machine.h. */
#include "launch/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "launch/core/scheduler.h"
#include "loop/file.h"
#include "process/cgroup.h"
#include "process/devices.h"
#include "rendezvous/local_identity.h"

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

/* What the command prints, up to size - 1 bytes; NULL: it failed. */
static char *output_of(const char *command, size_t size)
{
    FILE *f = popen(command, "re");
    char *room = f ? mem_alloc(size) : NULL;
    const size_t n = room ? fread(room, 1, size - 1, f) : 0;

    if (room)
        room[n] = '\0';
    if (f && pclose(f) != 0) {
        mem_free(room);
        room = NULL;
    }
    return room;
}

int machine_scheduler(struct options *o, struct slurm_texts *texts,
                      struct muster_error *err)
{
    const enum scheduler_wants wants = scheduler_asks(o, environ);
    struct rdzv_fqdn own;
    char *hosts = NULL;
    int rc;

    if (wants == SCHEDULER_NONE)
        return 0;
    if (!rdzv_fqdn_quick(&own)) {
        rdzv_hostname(own.name, sizeof own.name);
        if (getenv("JOB_COMPLETION_INDEX")) /* The pod's domain is needed. */
            rdzv_fqdn_resolve(&own);
    }
    if (wants == SCHEDULER_PBS_FILE)
        hosts = read_text(NULL, getenv("PBS_NODEFILE"), SCHEDULER_FILE_MOST);
    if (wants == SCHEDULER_FLUX_HOSTS)
        hosts = output_of("flux hostlist --expand local", SCHEDULER_FILE_MOST);
    const struct scheduler_input in = { environ, own.name, hosts };
    rc = scheduler_apply(o, &in, texts, err);
    mem_free(hosts);
    return rc;
}

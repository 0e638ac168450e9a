/* machine.c - see machine.h. */
#include "launch/machine.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
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

int machine_real(struct derive_machine *out,
                 void (*warn)(void *ctx, enum derive_warning what, const char *text),
                 void *ctx, struct muster_error *err)
{
    struct derive_machine machine = { .count_devices = count_devices,
                                      .is_file = is_file,
                                      .warn = warn,
                                      .ctx = ctx,
                                      .envp = environ };

    if (getrandom(machine.random, sizeof machine.random, 0) !=
        (ssize_t)sizeof machine.random)
        return err_set(err, MUSTER_EIO, "the kernel gave no random bytes for a run id");
    *out = machine;
    return 0;
}

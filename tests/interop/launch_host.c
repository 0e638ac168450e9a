/* launch_host.c - a program with something in its stdout buffer and something to do at
 * its exit, which launches functions that return so many bytes each.
 *
 *     interop_launch_host WORKERS BYTES */
#include <muster/launch.h>

#include <stdio.h>
#include <stdlib.h>

static void at_exit(void)
{
    printf("exit handler\n");
}

static int work(void *ctx, const struct muster_worker *w)
{
    static char zeros[1 << 20];
    size_t left = *(const size_t *)ctx;

    printf("worker %lld\n", (long long)w->rank);
    while (left > 0) {
        const size_t n = left < sizeof zeros ? left : sizeof zeros;
        if (muster_worker_return(w, zeros, n) < 0)
            return 1;
        left -= n;
    }
    return 0;
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    const struct muster_entry entry = { .fn = work, .ctx = &bytes, .name = "work" };
    struct muster_launch_config *config;
    struct muster_launch_result *result = NULL;
    struct muster_error err;

    atexit(at_exit);
    printf("before\n");
    if (muster_launch_config_new(&config, &err) < 0 ||
        muster_launch_config_set(config, "nproc-per-node", argc > 1 ? argv[1] : "1",
                                 &err) < 0)
        return 2;
    const int rc = muster_launch(config, &entry, &result, &err);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", muster_code_name(rc), err.text);
    for (size_t i = 0; rc == 0 && i < muster_launch_result_count(result); i++) {
        size_t size;
        (void)muster_launch_result_bytes(result, i, &size);
        printf("rank %lld: %zu\n", (long long)muster_launch_result_rank(result, i),
               size);
    }
    muster_launch_result_free(result);
    muster_launch_config_free(config);
    return rc < 0 ? 1 : 0;
}

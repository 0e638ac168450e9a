/* launch_function.c - a sum in parallel: each worker is a function of this program in a
 * process of its own, adds up its share of 1 .. N, and hands it back.
 *
 *     example_launch_function 4 1000000 [rank that fails in its first attempt] */
#include <muster/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    long long n;
    long fails;
};

static int add_share(void *ctx, const struct muster_worker *w)
{
    const struct job *job = ctx;
    long long sum = 0;

    if (w->rank == job->fails && w->restart_count == 0)
        return 3; /* The whole group starts over. */
    for (long long i = w->rank + 1; i <= job->n; i += w->world_size)
        sum += i;
    return muster_worker_return(w, &sum, sizeof sum) < 0;
}

int main(int argc, char **argv)
{
    struct job job = { argc > 2 ? atoll(argv[2]) : 1000,
                       argc > 3 ? atol(argv[3]) : -1 };
    const struct muster_entry entry = { .fn = add_share,
                                        .ctx = &job,
                                        .name = "add_share" };
    struct muster_launch_config *config;
    struct muster_launch_result *result = NULL;
    struct muster_error err;
    long long total = 0;

    if (muster_launch_config_new(&config, &err) < 0 ||
        muster_launch_config_set(config, "nproc-per-node", argc > 1 ? argv[1] : "2",
                                 &err) < 0 ||
        muster_launch_config_set(config, "max-restarts", job.fails < 0 ? "0" : "1",
                                 &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const int rc = muster_launch(config, &entry, &result, &err);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", muster_code_name(rc), err.text);
    for (size_t i = 0; rc == 0 && i < muster_launch_result_count(result); i++) {
        size_t size;
        long long share;
        memcpy(&share, muster_launch_result_bytes(result, i, &size), sizeof share);
        printf("rank %lld: %lld\n", (long long)muster_launch_result_rank(result, i),
               share);
        total += share;
    }
    if (rc == 0)
        printf("total %lld\n", total);
    muster_launch_result_free(result);
    muster_launch_config_free(config);
    return rc < 0 ? 1 : 0;
}

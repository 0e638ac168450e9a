/* rendezvous.c - joins a rendezvous, tells its rank, meets the others at a barrier, and
 * leaves.
 *
 *     rendezvous ENDPOINT RUN_ID MIN_NODES [MAX_NODES [KEY=VALUE,...]]
 *
 * Start it on each node, or several times on one, with the same arguments. */
#include <stdio.h>
#include <stdlib.h>

#include <muster/rendezvous.h>
#include <muster/store.h>

static int failed(const char *what, const struct muster_error *err)
{
    fprintf(stderr, "%s: %s (%s)\n", what, err->text, muster_code_name(err->code));
    return 1;
}

/* Whoever comes last opens the door; all wait for it. */
static int meet(const struct muster_rendezvous_info *info, struct muster_error *err)
{
    struct muster_bytes open = { 0 };
    int64_t here;
    int rc = muster_store_add(info->store, "example/here", 1, &here, err);

    if (rc == 0 && here == info->world_size)
        rc = muster_store_set(info->store, "example/open", "1", 1, err);
    if (rc == 0)
        rc = muster_store_get(info->store, "example/open", &open, err);
    muster_bytes_free(&open);
    return rc;
}

int main(int argc, char **argv)
{
    struct muster_error err;
    struct muster_params *params;
    struct muster_rendezvous *rdzv;
    struct muster_rendezvous_info info;
    int rc = 0;

    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: %s ENDPOINT RUN_ID MIN_NODES [MAX_NODES [OPTIONS]]\n",
                argv[0]);
        return 2;
    }
    if (muster_params_new("c10d", argv[1], argv[2], atoi(argv[3]),
                          atoi(argv[argc > 4 ? 4 : 3]), NULL, &params, &err) < 0)
        return failed("parameters", &err);
    if (argc > 5 && muster_params_parse(params, argv[5], &err) < 0)
        return failed("options", &err);
    if (muster_rendezvous_open(params, NULL, NULL, &rdzv, &err) < 0)
        return failed("rendezvous", &err);
    muster_params_free(params);

    if (muster_rendezvous_next(rdzv, &info, &err) < 0) {
        rc = failed("joining", &err);
    } else {
        printf("round %llu: rank %lld of %lld, workers meet at %s:%u\n",
               (unsigned long long)info.round, (long long)info.rank,
               (long long)info.world_size, info.master_addr, info.master_port);
        fflush(stdout);
        if (meet(&info, &err) < 0)
            rc = failed("barrier", &err);
    }
    if (rc == 0 && muster_rendezvous_shutdown(rdzv, &err) < 0)
        rc = failed("leaving", &err);
    muster_rendezvous_free(rdzv);
    return rc;
}

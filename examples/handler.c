/* handler.c - a rendezvous of one's own, registered and launched with.
 *
 *     handler ENDPOINT RUN_ID NODES COMMAND [ARGUMENTS]
 *
 * "firstcome": whoever counts in first at the c10d store at ENDPOINT ("host:port";
 * start one with `muster store`) is rank 0, and a round begins when NODES have come.
 * Start it on each node with the same arguments: each runs COMMAND as a worker of one
 * job. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/launch.h>
#include <muster/store.h>

#define SLICE_MS 200u /* how soon a canceled wait ends */

struct firstcome {
    struct muster_store *store;
    char endpoint[300], run_id[200];
    int64_t nodes, round;
    atomic_bool canceled;
};

static int create(void *ctx, const struct muster_params *params, void **self,
                  struct muster_error *err)
{
    struct firstcome *f = calloc(1, sizeof *f);

    (void)ctx;
    if (!f) {
        err->code = MUSTER_ENOMEM;
        return MUSTER_ENOMEM;
    }
    (void)snprintf(f->endpoint, sizeof f->endpoint, "%s",
                   muster_params_endpoint(params));
    (void)snprintf(f->run_id, sizeof f->run_id, "%s", muster_params_run_id(params));
    f->nodes = muster_params_max_nodes(params);
    f->round = -1;
    *self = f;
    return 0;
}

static int connect_to(struct firstcome *f, struct muster_error *err)
{
    struct muster_store_options options;
    char host[300];
    int port,
        rc = muster_endpoint_parse(f->endpoint, 29400, host, sizeof host, &port, err);

    if (rc < 0 || f->store)
        return rc;
    muster_store_options_init(&options);
    options.host = host;
    options.port = (uint16_t)port;
    options.timeout_ms = 30000;
    return muster_store_open_tcp(&options, &f->store, err);
}

/* Until the key is there, or somebody has canceled. */
static int wait_for(struct firstcome *f, const char *key, struct muster_error *err)
{
    int rc = MUSTER_ETIMEDOUT;

    while (rc == MUSTER_ETIMEDOUT && !atomic_load(&f->canceled))
        rc = muster_store_wait(f->store, &key, 1, SLICE_MS, err);
    return rc;
}

static int next(void *self, struct muster_handler_round *out, struct muster_error *err)
{
    struct firstcome *f = self;
    char key[300];
    int64_t came;
    int rc;

    atomic_store(&f->canceled, false);
    rc = connect_to(f, err);
    (void)snprintf(key, sizeof key, "%s/came", f->run_id);
    if (rc == 0)
        rc = muster_store_add(f->store, key, 1, &came, err);
    if (rc < 0)
        return rc;
    out->round = (uint64_t)(f->round = (came - 1) / f->nodes);
    out->rank = (came - 1) % f->nodes;
    out->world_size = f->nodes;
    (void)snprintf(out->store, sizeof out->store, "%s", f->endpoint);
    (void)snprintf(out->prefix, sizeof out->prefix, "%s/%lld", f->run_id,
                   (long long)f->round);
    /* The last one to come opens the round. */
    (void)snprintf(key, sizeof key, "%s/%lld/open", f->run_id, (long long)f->round);
    rc = out->rank == f->nodes - 1 ? muster_store_set(f->store, key, "1", 1, err)
                                   : wait_for(f, key, err);
    (void)snprintf(out->master_addr, sizeof out->master_addr, "127.0.0.1");
    out->master_port = 29500;
    return rc;
}

static void cancel(void *self)
{
    atomic_store(&((struct firstcome *)self)->canceled, true);
}

static int is_closed(void *self, struct muster_error *err)
{
    struct firstcome *f = self;
    char key[300];
    const char *keys[] = { key };
    bool closed;

    (void)snprintf(key, sizeof key, "%s/closed", f->run_id);

    const int rc = muster_store_check(f->store, keys, 1, &closed, err);

    return rc < 0 ? rc : closed;
}

/* Those who have counted in for a round that has not begun. */
static int64_t num_nodes_waiting(void *self, struct muster_error *err)
{
    struct firstcome *f = self;
    char key[300];
    int64_t came;
    int rc;

    (void)snprintf(key, sizeof key, "%s/came", f->run_id);
    rc = muster_store_add(f->store, key, 0, &came, err);
    return rc < 0 ? rc : came - (f->round + 1) * f->nodes;
}

static int set_closed(void *self, struct muster_error *err)
{
    struct firstcome *f = self;
    char key[300];
    const int rc = connect_to(f, err);

    (void)snprintf(key, sizeof key, "%s/closed", f->run_id);
    return rc < 0 ? rc : muster_store_set(f->store, key, "1", 1, err);
}

static void free_handler(void *self)
{
    struct firstcome *f = self;

    muster_store_close(f->store);
    free(f);
}

static const struct muster_handler_ops firstcome = {
    .create = create,
    .next = next,
    .cancel = cancel,
    .is_closed = is_closed,
    .num_nodes_waiting = num_nodes_waiting,
    .set_closed = set_closed,
    .shutdown = set_closed,
    .free = free_handler,
};

int main(int argc, char **argv)
{
    struct muster_registry *registry = NULL;
    struct muster_launch_config *config = NULL;
    struct muster_launch_result *result = NULL;
    struct muster_error err = { 0 };
    struct muster_entry entry = { .argv = (const char *const *)argv + 4 };
    int rc;

    if (argc < 5) {
        fprintf(stderr, "usage: %s ENDPOINT RUN_ID NODES COMMAND [ARGUMENTS]\n",
                argv[0]);
        return 2;
    }
    rc = muster_registry_new(&registry, &err);
    if (rc == 0)
        rc = muster_registry_register_handler(registry, "firstcome", &firstcome, NULL,
                                              &err);
    if (rc == 0)
        rc = muster_launch_config_new(&config, &err);
    if (rc == 0) {
        muster_launch_config_registry(config, registry);
        rc = muster_launch_config_set(config, "rdzv-backend", "firstcome", &err);
    }
    if (rc == 0)
        rc = muster_launch_config_set(config, "rdzv-endpoint", argv[1], &err);
    if (rc == 0)
        rc = muster_launch_config_set(config, "rdzv-id", argv[2], &err);
    if (rc == 0)
        rc = muster_launch_config_set(config, "nnodes", argv[3], &err);
    if (rc == 0)
        rc = muster_launch(config, &entry, &result, &err);
    if (rc < 0)
        fprintf(stderr, "%s: %s (%s)\n", argv[0], err.text, muster_code_name(rc));
    muster_launch_result_free(result);
    muster_launch_config_free(config);
    muster_registry_free(registry);
    return rc < 0;
}

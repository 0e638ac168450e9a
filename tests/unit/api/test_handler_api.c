/* test_handler_api.c - a caller's whole handler in the registry: torch's error cases,
 * rounds, news, cancelling, and functions that do not come back. */
#include "testing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "muster/launch.h"
#include "muster/rendezvous.h"
#include "muster/store.h"

/* ---- A handler of the caller's: one node, as much of it as a test needs ---- */

struct desk {
    const char *store, *name;
    atomic_int made, freed, rounds, left, closed, waiting;
    atomic_bool block, canceled, deaf, back, fail, fail_shutdown;
    int64_t rank, world;
};

static int desk_create(void *ctx, const struct muster_params *params, void **self,
                       struct muster_error *err)
{
    struct desk *d = ctx;

    if (strcmp(muster_params_run_id(params), "refused") == 0) {
        (void)snprintf(err->text, sizeof err->text, "no such job");
        return MUSTER_EINVAL;
    }
    d->made++;
    *self = d;
    return 0;
}

static const char *desk_backend(void *self)
{
    return ((struct desk *)self)->name;
}

static int desk_use_agent_store(void *self)
{
    (void)self;
    return 1;
}

static int desk_next(void *self, struct muster_handler_round *out,
                     struct muster_error *err)
{
    struct desk *d = self;

    while (d->block && (!d->canceled || d->deaf))
        (void)usleep(1000);
    if (d->canceled) {
        d->back = true; /* the desk may be gone from here on */
        return MUSTER_ECANCELED;
    }
    if (d->closed) {
        (void)snprintf(err->text, sizeof err->text, "the desk is closed");
        return MUSTER_ECLOSED;
    }
    out->round = (uint64_t)d->rounds++;
    out->rank = d->rank;
    out->world_size = d->world;
    (void)snprintf(out->store, sizeof out->store, "%s", d->store);
    (void)snprintf(out->prefix, sizeof out->prefix, "round%d", (int)out->round);
    (void)snprintf(out->master_addr, sizeof out->master_addr, "desk");
    out->master_port = 7;
    return 0;
}

static void desk_cancel(void *self)
{
    ((struct desk *)self)->canceled = true;
}

static int desk_is_closed(void *self, struct muster_error *err)
{
    struct desk *d = self;

    if (d->fail)
        (void)snprintf(err->text, sizeof err->text, "the desk is on fire");
    return d->fail ? MUSTER_ECONN : d->closed;
}

static int64_t desk_waiting(void *self, struct muster_error *err)
{
    (void)err;
    return ((struct desk *)self)->waiting;
}

static int desk_set_closed(void *self, struct muster_error *err)
{
    (void)err;
    ((struct desk *)self)->closed = 1;
    return 0;
}

static int desk_shutdown(void *self, struct muster_error *err)
{
    struct desk *d = self;

    (void)snprintf(err->text, sizeof err->text, "the desk is on fire");
    return d->fail_shutdown ? MUSTER_EBUG : desk_set_closed(self, err);
}

static int desk_leave(void *self, struct muster_error *err)
{
    (void)err;
    ((struct desk *)self)->left++;
    return 0;
}

static void desk_free(void *self)
{
    ((struct desk *)self)->freed++;
}

static const struct muster_handler_ops desk_ops = {
    .create = desk_create,
    .backend = desk_backend,
    .use_agent_store = desk_use_agent_store,
    .next = desk_next,
    .cancel = desk_cancel,
    .is_closed = desk_is_closed,
    .num_nodes_waiting = desk_waiting,
    .set_closed = desk_set_closed,
    .leave = desk_leave,
    .shutdown = desk_shutdown,
    .free = desk_free,
};

/* ---- What most tests need ---- */

struct rig {
    struct desk d;
    struct muster_store *store;
    char at[64];
    struct muster_registry *registry;
    struct muster_error err;
};

static void rig_up(struct rig *t)
{
    struct muster_store_options opts;

    *t = (struct rig){ .d = { .name = "desk", .world = 1 } };
    muster_store_options_init(&opts);
    opts.host = "127.0.0.1";
    opts.serve = true;
    assert_int_equal(muster_store_open_tcp(&opts, &t->store, &t->err), 0);
    (void)snprintf(t->at, sizeof t->at, "127.0.0.1:%u", muster_store_port(t->store));
    t->d.store = t->at;
    assert_int_equal(muster_registry_new(&t->registry, &t->err), 0);
    assert_int_equal(muster_registry_register_handler(t->registry, "desk", &desk_ops,
                                                      &t->d, &t->err),
                     0);
}

static void rig_down(struct rig *t)
{
    muster_registry_free(t->registry);
    muster_store_close(t->store);
    assert_int_equal(t->d.made, t->d.freed);
}

static int open_desk(struct rig *t, const char *backend, const char *run_id,
                     const struct muster_rendezvous_hooks *hooks,
                     struct muster_rendezvous **out)
{
    struct muster_params *p;
    int rc;

    assert_int_equal(muster_params_new(backend, "", run_id, 1, 1, NULL, &p, &t->err),
                     0);
    rc = muster_rendezvous_open(p, t->registry, hooks, out, &t->err);
    muster_params_free(p);
    return rc;
}

static void says(const struct rig *t, const char *part)
{
    if (!strstr(t->err.text, part))
        fail_msg("'%s' does not say '%s'", t->err.text, part);
}

/* ---- Registering ---- */

static void registering_as_in_torch(void **state)
{
    struct rig t;
    struct muster_rendezvous *r;
    struct muster_handler_ops lame = desk_ops;

    (void)state;
    rig_up(&t);
    assert_int_equal(muster_registry_has(t.registry, "desk"), 1);
    assert_int_equal(
        muster_registry_register_handler(t.registry, "desk", &desk_ops, &t.d, &t.err),
        0);
    assert_int_equal(
        muster_registry_register_handler(t.registry, "desk", &desk_ops, &t.err, &t.err),
        MUSTER_EEXIST);
    says(&t, "The rendezvous backend 'desk' cannot be registered with");
    assert_int_equal(
        muster_registry_register_handler(t.registry, "c10d", &desk_ops, &t.d, &t.err),
        MUSTER_EEXIST);
    assert_int_equal(
        muster_registry_register_handler(t.registry, "", &desk_ops, &t.d, &t.err),
        MUSTER_EINVAL);
    says(&t, "The rendezvous backend name must be a non-empty string.");
    assert_int_equal(
        muster_registry_register_handler(t.registry, NULL, &desk_ops, &t.d, &t.err),
        MUSTER_EINVAL);
    lame.cancel = NULL;
    assert_int_equal(
        muster_registry_register_handler(t.registry, "lame", &lame, &t.d, &t.err),
        MUSTER_EINVAL);
    says(&t, "has no function 'cancel'");
    assert_int_equal(open_desk(&t, "lame", "job", NULL, &r), MUSTER_ENOENT);
    says(&t, "The rendezvous backend 'lame' is not registered.");
    t.d.name = "chair";
    assert_int_equal(open_desk(&t, "desk", "job", NULL, &r), MUSTER_EINVAL);
    says(&t, "The rendezvous backend 'chair' does not match the requested backend "
             "'desk'.");
    t.d.name = "desk";
    assert_int_equal(open_desk(&t, "desk", "refused", NULL, &r), MUSTER_EINVAL);
    says(&t, "no such job");
    rig_down(&t);
}

/* ---- Rounds ---- */

struct heard {
    atomic_int news[MUSTER_NEWS_BACKEND + 1];
};

static void on_news(void *ctx, enum muster_news news, const char *text)
{
    struct heard *h = ctx;

    assert_non_null(text);
    h->news[news]++;
}

static void wait_for(atomic_int *n)
{
    for (unsigned i = 0; i < PATIENCE_MS && *n == 0; i++)
        (void)usleep(1000);
    assert_int_equal(*n, 1);
}

static void rounds_and_news(void **state)
{
    struct rig t;
    struct heard heard = { 0 };
    const struct muster_rendezvous_hooks hooks = { .ctx = &heard, .news = on_news };
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;

    (void)state;
    rig_up(&t);
    assert_int_equal(open_desk(&t, "desk", "job", &hooks, &r), 0);
    assert_string_equal(muster_rendezvous_backend(r), "desk");
    assert_string_equal(muster_rendezvous_run_id(r), "job");
    assert_int_equal(muster_rendezvous_use_agent_store(r), 1);
    for (uint64_t round = 0; round < 3; round++) {
        struct muster_bytes value;
        char key[32];

        assert_int_equal(muster_rendezvous_next(r, &info, &t.err), 0);
        assert_int_equal(info.round, round);
        assert_int_equal(info.rank, 0);
        assert_int_equal(info.world_size, 1);
        assert_string_equal(info.master_addr, "desk");
        assert_int_equal(info.master_port, 7);
        assert_int_equal(muster_store_set(info.store, "k", "v", 1, &t.err), 0);
        (void)snprintf(key, sizeof key, "round%llu/k", (unsigned long long)round);
        assert_int_equal(muster_store_get(t.store, key, &value, &t.err), 0);
        muster_bytes_free(&value);
    }
    t.d.waiting = 2;
    wait_for(&heard.news[MUSTER_NEWS_WAITING]);
    assert_int_equal(muster_rendezvous_num_nodes_waiting(r), 2);
    t.d.fail = true;
    wait_for(&heard.news[MUSTER_NEWS_BACKEND]);
    t.d.fail = false;
    assert_int_equal(muster_rendezvous_is_closed(r), 0);
    t.d.closed = 1;
    wait_for(&heard.news[MUSTER_NEWS_CLOSED]);
    assert_int_equal(muster_rendezvous_is_closed(r), 1);
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), MUSTER_ECLOSED);
    says(&t, "the desk is closed");
    assert_int_equal(muster_rendezvous_shutdown(r, &t.err), 0);
    muster_rendezvous_free(r);
    rig_down(&t);
}

static void leaving_and_closing(void **state)
{
    struct rig t;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;

    (void)state;
    rig_up(&t);
    assert_int_equal(open_desk(&t, "desk", "job", NULL, &r), 0);
    assert_int_equal(muster_rendezvous_leave(r, &t.err), 0); /* of nothing */
    assert_int_equal(t.d.left, 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), 0);
    assert_int_equal(muster_rendezvous_leave(r, &t.err), 0);
    assert_int_equal(t.d.left, 1);
    assert_int_equal(muster_rendezvous_set_closed(r, &t.err), 0);
    assert_int_equal(t.d.closed, 1);
    assert_int_equal(muster_rendezvous_is_closed(r), 1);
    muster_rendezvous_free(r);
    rig_down(&t);
}

static void nonsense_is_refused(void **state)
{
    static const struct {
        int64_t rank, world;
        const char *store, *says;
    } rows[] = {
        { 1, 1, NULL, "answers with rank 1 in a world of 1" },
        { -1, 1, NULL, "answers with rank -1" },
        { 0, 0, NULL, "in a world of 0" },
        { 0, 1, "", "names no store" },
        { 0, 1, "a b", "hostname of the rendezvous endpoint" },
    };
    struct rig t;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;

    (void)state;
    rig_up(&t);
    assert_int_equal(open_desk(&t, "desk", "job", NULL, &r), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        t.d.rank = rows[i].rank;
        t.d.world = rows[i].world;
        t.d.store = rows[i].store ? rows[i].store : t.at;
        assert_int_equal(muster_rendezvous_next(r, &info, &t.err), MUSTER_EINVAL);
        says(&t, rows[i].says);
    }
    muster_rendezvous_free(r);
    rig_down(&t);
}

/* ---- Cancelling ---- */

static void *cancel_main(void *arg)
{
    (void)usleep(100000);
    muster_rendezvous_cancel(arg);
    return NULL;
}

static void next_can_be_canceled(void **state)
{
    struct rig t;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;
    pthread_t thread;

    (void)state;
    rig_up(&t);
    t.d.block = true;
    assert_int_equal(open_desk(&t, "desk", "job", NULL, &r), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel_main, r), 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), MUSTER_ECANCELED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    t.d.block = t.d.canceled = false;
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), 0);
    muster_rendezvous_free(r);
    rig_down(&t);
}

/* Ten seconds of patience, then we go on without it. */
static void a_next_that_does_not_come_back(void **state)
{
    struct rig t;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;
    pthread_t thread;

    (void)state;
    rig_up(&t);
    t.d.block = t.d.deaf = true;
    assert_int_equal(open_desk(&t, "desk", "job", NULL, &r), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel_main, r), 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), MUSTER_ECANCELED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(muster_rendezvous_set_closed(r, &t.err), MUSTER_ECONN);
    says(&t, "out of reach");
    assert_int_equal(muster_rendezvous_next(r, &info, &t.err), MUSTER_ECONN);
    muster_rendezvous_free(r);
    assert_int_equal(t.d.closed, 0);
    assert_int_equal(t.d.freed, 0);
    t.d.back = false;
    t.d.block = false;
    while (!t.d.back)
        (void)usleep(1000);
    t.d.freed++; /* by nobody, as promised */
    rig_down(&t);
}

/* ---- The agent on it ---- */

static int launch_desk(struct rig *t, const char *command)
{
    const char *const argv[] = { "sh", "-c", command, NULL };
    const struct muster_entry entry = { .argv = argv };
    struct muster_launch_config *c;
    int rc;

    assert_int_equal(muster_launch_config_new(&c, &t->err), 0);
    muster_launch_config_registry(c, t->registry);
    assert_int_equal(muster_launch_config_set(c, "rdzv-backend", "desk", &t->err), 0);
    assert_int_equal(muster_launch_config_set(c, "rdzv-id", "job", &t->err), 0);
    assert_int_equal(muster_launch_config_set(c, "nnodes", "1", &t->err), 0);
    assert_int_equal(muster_launch_config_set(c, "max-restarts", "1", &t->err), 0);
    rc = muster_launch(c, &entry, NULL, &t->err);
    muster_launch_config_free(c);
    return rc;
}

static void launching_with_it(void **state)
{
    struct rig t;

    (void)state;
    rig_up(&t);
    assert_int_equal(launch_desk(&t, "test $MASTER_ADDR:$MASTER_PORT = desk:7 && "
                                     "test $TORCHELASTIC_USE_AGENT_STORE = True && "
                                     "test $TORCHELASTIC_RESTART_COUNT = 1"),
                     0); /* The second attempt succeeds: two rounds. */
    assert_int_equal(t.d.rounds, 2);
    assert_int_equal(t.d.closed, 1);
    /* As since torch 2.14, a shutdown that fails does not hide the result. */
    t.d.closed = 0;
    t.d.fail_shutdown = true;
    assert_int_equal(launch_desk(&t, "true"), 0);
    assert_int_equal(launch_desk(&t, "false"), MUSTER_ECHILD);
    t.d.fail_shutdown = false;
    t.d.closed = 0;
    t.d.name = "chair";
    assert_int_equal(launch_desk(&t, "true"), MUSTER_EINVAL);
    says(&t, "does not match the requested backend 'desk'.");
    rig_down(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registering_as_in_torch),
        cmocka_unit_test(rounds_and_news),
        cmocka_unit_test(leaving_and_closing),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(next_can_be_canceled),
        cmocka_unit_test(a_next_that_does_not_come_back),
        cmocka_unit_test(launching_with_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

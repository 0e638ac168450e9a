/* test_rendezvous_api.c - the public faces: params, registry, rendezvous, a caller's
 * backend; from several threads, so that a thread sanitizer has something to look at.
 */
#include "testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/rendezvous.h"
#include "muster/store.h"

/* ---- A backend of the caller's: memory, and a count as token ---- */

struct memory {
    pthread_mutex_t lock;
    void *bytes;
    size_t size;
    uint64_t version;
    int opened, closed;
    char store[64];
};

static int memory_open(void *ctx, const struct muster_params *params, void **self,
                       struct muster_error *err)
{
    struct memory *m = ctx;

    (void)err;
    assert_string_equal(muster_params_run_id(params), "job");
    pthread_mutex_lock(&m->lock);
    m->opened++;
    pthread_mutex_unlock(&m->lock);
    *self = m;
    return 0;
}

static void *copy_of(const void *p, size_t n)
{
    void *copy = malloc(n);

    assert_non_null(copy);
    memcpy(copy, p, n);
    return copy;
}

static void answer(const struct memory *m, struct muster_state *out)
{
    if (!m->bytes)
        return;
    out->bytes = copy_of(m->bytes, m->size);
    out->size = m->size;
    out->token = copy_of(&m->version, sizeof m->version);
    out->token_size = sizeof m->version;
}

static int memory_get(void *self, struct muster_state *out, struct muster_error *err)
{
    struct memory *m = self;

    (void)err;
    pthread_mutex_lock(&m->lock);
    answer(m, out);
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static int memory_set(void *self, const void *bytes, size_t size, const void *token,
                      size_t token_size, struct muster_state *out,
                      struct muster_error *err)
{
    struct memory *m = self;

    (void)err;
    pthread_mutex_lock(&m->lock);
    if (token ? token_size == sizeof m->version && m->bytes &&
                    memcmp(token, &m->version, token_size) == 0
              : !m->bytes) {
        free(m->bytes);
        m->bytes = copy_of(bytes, size);
        m->size = size;
        m->version++;
        out->won = 1;
    }
    answer(m, out);
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static const char *memory_store(void *self)
{
    return ((struct memory *)self)->store;
}

static void memory_close(void *self)
{
    struct memory *m = self;

    pthread_mutex_lock(&m->lock);
    m->closed++;
    pthread_mutex_unlock(&m->lock);
}

static const struct muster_backend_ops memory_ops = { memory_open, memory_get,
                                                      memory_set, memory_store,
                                                      memory_close };

/* ---- Nodes on threads ---- */

struct node {
    const char *backend, *endpoint, *addr, *conf;
    const struct muster_registry *registry;
    int64_t nodes;
    int rc;
    int64_t rank, world;
    char master[64];
    struct muster_error err;
};

static int live(struct node *n, struct muster_rendezvous *r)
{
    struct muster_rendezvous_info info;
    int64_t here;

    for (uint64_t round = 0; round < 2; round++) {
        const int rc = muster_rendezvous_next(r, &info, &n->err);

        if (rc < 0)
            return rc;
        n->rank = info.rank;
        n->world = info.world_size;
        (void)snprintf(n->master, sizeof n->master, "%s:%u", info.master_addr,
                       info.master_port);
        assert_int_equal(info.round, round);
        assert_int_equal(muster_store_add(info.store, "here", 1, &here, &n->err), 0);
        if (here == info.world_size)
            assert_int_equal(muster_store_set(info.store, "all", "", 0, &n->err), 0);
        struct muster_bytes all;

        assert_int_equal(muster_store_get(info.store, "all", &all, &n->err), 0);
        muster_bytes_free(&all);
    }
    assert_int_equal(muster_rendezvous_num_nodes_waiting(r), 0);
    return n->rank == 0 ? muster_rendezvous_shutdown(r, &n->err)
                        : muster_rendezvous_leave(r, &n->err);
}

static void *node_main(void *arg)
{
    struct node *n = arg;
    struct muster_params *p;
    struct muster_rendezvous *r;

    n->rc = muster_params_new(n->backend, n->endpoint, "job", n->nodes, n->nodes,
                              n->addr, &p, &n->err);
    if (n->rc == 0)
        n->rc = muster_params_parse(p, n->conf, &n->err);
    if (n->rc < 0)
        return NULL;
    n->rc = muster_rendezvous_open(p, n->registry, NULL, &r, &n->err);
    muster_params_free(p);
    if (n->rc < 0)
        return NULL;
    n->rc = live(n, r);
    muster_rendezvous_free(r);
    return NULL;
}

static void live_together(struct node *n, size_t count)
{
    pthread_t threads[8];

    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, node_main, &n[i]), 0);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < count; i++) {
        if (n[i].rc < 0)
            fail_msg("node %s: %s", n[i].addr, n[i].err.text);
        assert_int_equal(n[i].rank, i);
        assert_int_equal(n[i].world, count);
        assert_string_equal(n[i].master, n[0].master);
    }
}

static void a_callers_backend(void **state)
{
    struct memory m = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct muster_store_options opts;
    struct muster_store *store;
    struct muster_registry *registry;
    struct muster_error err;
    struct node n[2] = { { .addr = "a" }, { .addr = "b" } };

    (void)state;
    muster_store_options_init(&opts);
    opts.host = "127.0.0.1";
    opts.serve = true;
    assert_int_equal(muster_store_open_tcp(&opts, &store, &err), 0);
    (void)snprintf(m.store, sizeof m.store, "127.0.0.1:%u", muster_store_port(store));
    assert_int_equal(muster_registry_new(&registry, &err), 0);
    assert_int_equal(muster_registry_has(registry, "memory"), 0);
    assert_int_equal(
        muster_registry_register(registry, "memory", &memory_ops, &m, &err), 0);
    assert_int_equal(
        muster_registry_register(registry, "memory", &memory_ops, &m, &err), 0);
    assert_int_equal(
        muster_registry_register(registry, "memory", &memory_ops, &err, &err),
        MUSTER_EEXIST);
    assert_int_equal(muster_registry_register(registry, "", &memory_ops, &m, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_registry_has(registry, "memory"), 1);
    for (size_t i = 0; i < 2; i++) {
        n[i].backend = "memory";
        n[i].endpoint = n[i].conf = "";
        n[i].nodes = 2;
        n[i].registry = registry;
    }
    live_together(n, 2);
    assert_int_equal(m.opened, 2);
    assert_int_equal(m.closed, 2);
    muster_registry_free(registry);
    muster_store_close(store);
    free(m.bytes);
}

static void c10d_on_threads(void **state)
{
    struct muster_store_options opts;
    struct muster_store *store;
    struct muster_error err;
    char at[64];
    struct node n[4] = {
        { .addr = "a" }, { .addr = "b" }, { .addr = "c" }, { .addr = "d" }
    };

    (void)state;
    muster_store_options_init(&opts);
    opts.host = "127.0.0.1";
    opts.serve = true;
    assert_int_equal(muster_store_open_tcp(&opts, &store, &err), 0);
    (void)snprintf(at, sizeof at, "127.0.0.1:%u", muster_store_port(store));
    for (int hosted = 1; hosted >= 0; hosted--) {
        for (size_t i = 0; i < 4; i++) {
            n[i].backend = "c10d";
            n[i].endpoint = at;
            n[i].conf = hosted ? "is_host=0" : "is_host=0,hosted=0";
            n[i].nodes = 4;
        }
        live_together(n, 4);
        muster_store_close(store); /* and with it the run, which is closed */
        assert_int_equal(muster_store_open_tcp(&opts, &store, &err), 0);
        (void)snprintf(at, sizeof at, "127.0.0.1:%u", muster_store_port(store));
    }
    muster_store_close(store);
}

/* ---- Cancelling, and what comes after the end ---- */

static void *cancel_main(void *arg)
{
    (void)usleep(200000);
    muster_rendezvous_cancel(arg);
    return NULL;
}

static void next_can_be_canceled(void **state)
{
    struct muster_params *p;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;
    struct muster_error err;
    pthread_t thread;

    (void)state;
    assert_int_equal(
        muster_params_new("c10d", "localhost:0", "job", 2, 2, "a", &p, &err), 0);
    assert_int_equal(muster_rendezvous_open(p, NULL, NULL, &r, &err), 0);
    assert_string_equal(muster_rendezvous_backend(r), "c10d");
    assert_string_equal(muster_rendezvous_run_id(r), "job");
    assert_int_equal(muster_rendezvous_use_agent_store(r), 1);
    assert_int_equal(pthread_create(&thread, NULL, cancel_main, r), 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &err), MUSTER_ECANCELED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(muster_rendezvous_is_closed(r), 0);
    assert_int_equal(muster_rendezvous_set_closed(r, &err), 0);
    assert_int_equal(muster_rendezvous_is_closed(r), 1);
    assert_int_equal(muster_rendezvous_next(r, &info, &err), MUSTER_ECLOSED);
    assert_int_equal(muster_rendezvous_shutdown(r, &err), 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &err), MUSTER_EINVAL);
    assert_int_equal(muster_rendezvous_shutdown(r, &err), MUSTER_EINVAL);
    muster_rendezvous_free(r);
    muster_rendezvous_free(NULL);
    muster_params_free(p);
}

/* ---- Several at once, and before any next ---- */

struct call {
    struct muster_rendezvous *r;
    int (*function)(struct muster_rendezvous *r, struct muster_error *err);
    pthread_barrier_t *together;
    int rc;
};

static void *call_main(void *arg)
{
    struct call *c = arg;
    struct muster_error err;

    (void)pthread_barrier_wait(c->together);
    c->rc = c->function(c->r, &err);
    return NULL;
}

#define AT_ONCE 4

static struct muster_rendezvous *handler_of(const char *backend, const char *at,
                                            const char *conf)
{
    struct muster_params *p;
    struct muster_rendezvous *r;
    struct muster_error err;

    assert_int_equal(muster_params_new(backend, at, "job", 2, 2, "a", &p, &err), 0);
    assert_int_equal(muster_params_parse(p, conf, &err), 0);
    if (muster_rendezvous_open(p, NULL, NULL, &r, &err) < 0)
        fail_msg("%s", err.text);
    muster_params_free(p);
    return r;
}

static void call_at_once(struct muster_rendezvous *r,
                         int (*function)(struct muster_rendezvous *r,
                                         struct muster_error *err))
{
    pthread_barrier_t together;
    pthread_t threads[AT_ONCE];
    struct call calls[AT_ONCE];

    (void)pthread_barrier_init(&together, NULL, AT_ONCE);
    for (size_t i = 0; i < AT_ONCE; i++) {
        calls[i] = (struct call){ r, function, &together, 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, call_main, &calls[i]), 0);
    }
    for (size_t i = 0; i < AT_ONCE; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(calls[i].rc, 0);
    }
    (void)pthread_barrier_destroy(&together);
}

static void several_may_close_and_leave(void **state)
{
    static const struct {
        const char *backend, *at, *conf;
    } kinds[] = {
        { "c10d", "localhost:0", "hosted=1" },
        { "c10d", "localhost:0", "hosted=0" },
        { "static", "127.0.0.1:0", "rank=0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct muster_rendezvous *r =
            handler_of(kinds[i].backend, kinds[i].at, kinds[i].conf);

        call_at_once(r, muster_rendezvous_leave);
        call_at_once(r, muster_rendezvous_set_closed);
        call_at_once(r, muster_rendezvous_leave);
        muster_rendezvous_free(r);
    }
}

/* Nobody listens at port 1. */
static void shutdown_ends_a_set_closed(void **state)
{
    struct muster_rendezvous *r =
        handler_of("c10d", "127.0.0.1:1", "is_host=0,read_timeout=2");
    pthread_barrier_t together;
    struct call c = { r, muster_rendezvous_set_closed, &together, 1 };
    struct muster_error err;
    pthread_t thread;

    (void)state;
    (void)pthread_barrier_init(&together, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, call_main, &c), 0);
    (void)pthread_barrier_wait(&together);
    (void)usleep(200000);
    assert_int_equal(muster_rendezvous_shutdown(r, &err), MUSTER_ECONN);
    assert_non_null(strstr(err.text, "127.0.0.1:1"));
    assert_int_equal(pthread_join(thread, NULL), 0);
    /* A thread that slept for so long finds the handler shut down. */
    assert_true(c.rc == MUSTER_ECONN || c.rc == MUSTER_EINVAL);
    (void)pthread_barrier_destroy(&together);
    muster_rendezvous_free(r);
}

static void shutdown_closes_without_a_next(void **state)
{
    struct muster_store_options opts;
    struct muster_store *store;
    struct muster_rendezvous_info info;
    struct muster_rendezvous *r;
    struct muster_error err;
    char at[64];

    (void)state;
    muster_store_options_init(&opts);
    opts.host = "127.0.0.1";
    opts.serve = true;
    for (int hosted = 0; hosted < 2; hosted++) {
        const char *conf = hosted ? "is_host=0" : "is_host=0,hosted=0";

        assert_int_equal(muster_store_open_tcp(&opts, &store, &err), 0);
        (void)snprintf(at, sizeof at, "127.0.0.1:%u", muster_store_port(store));
        r = handler_of("c10d", at, conf);
        assert_int_equal(muster_rendezvous_shutdown(r, &err), 0);
        muster_rendezvous_free(r);
        r = handler_of("c10d", at, conf);
        assert_int_equal(muster_rendezvous_next(r, &info, &err), MUSTER_ECLOSED);
        muster_rendezvous_free(r);
        muster_store_close(store);
    }
}

/* The child: whether every call says no, and the end is silent. */
static bool is_refused(struct muster_rendezvous *r)
{
    struct muster_rendezvous_info info;
    struct muster_error err = { 0 };
    const bool told = muster_rendezvous_next(r, &info, &err) == MUSTER_EINVAL &&
                      strstr(err.text, "fork()") &&
                      muster_rendezvous_leave(r, &err) == MUSTER_EINVAL &&
                      muster_rendezvous_shutdown(r, &err) == MUSTER_EINVAL;

    muster_rendezvous_cancel(r);
    if (muster_rendezvous_is_closed(r) || muster_rendezvous_num_nodes_waiting(r))
        return false;
    muster_rendezvous_free(r);
    return told;
}

static void a_child_leaves_the_handler_alone(void **state)
{
    struct muster_params *p;
    struct muster_rendezvous *r;
    struct muster_rendezvous_info info;
    struct muster_error err;
    int status;
    pid_t child;

    (void)state;
    assert_int_equal(
        muster_params_new("c10d", "localhost:0", "job", 1, 1, "a", &p, &err), 0);
    assert_int_equal(muster_rendezvous_open(p, NULL, NULL, &r, &err), 0);
    assert_int_equal(muster_rendezvous_next(r, &info, &err), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(PATIENCE_MS / 1000); /* Should it hang. */
        _exit(!is_refused(r));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(muster_store_add(info.store, "n", 1, NULL, &err), 0);
    assert_int_equal(muster_rendezvous_is_closed(r), 0);
    assert_int_equal(muster_rendezvous_shutdown(r, &err), 0);
    muster_rendezvous_free(r);
    muster_params_free(p);
}

static void unknown_backends_are_refused(void **state)
{
    struct muster_params *p;
    struct muster_rendezvous *r;
    struct muster_error err;
    char host[300];
    int port;

    (void)state;
    assert_int_equal(muster_params_new("x", "h:1", "job", 1, 1, NULL, &p, &err), 0);
    assert_int_equal(muster_rendezvous_open(p, NULL, NULL, &r, &err), MUSTER_ENOENT);
    assert_int_equal(muster_endpoint_parse(muster_params_endpoint(p), 5, host,
                                           sizeof host, &port, &err),
                     0);
    assert_string_equal(host, "h");
    assert_int_equal(port, 1);
    assert_int_equal(muster_endpoint_parse("h", 5, host, 1, &port, &err), MUSTER_EFULL);
    muster_params_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_callers_backend),
        cmocka_unit_test(c10d_on_threads),
        cmocka_unit_test(next_can_be_canceled),
        cmocka_unit_test(several_may_close_and_leave),
        cmocka_unit_test(shutdown_ends_a_set_closed),
        cmocka_unit_test(shutdown_closes_without_a_next),
        cmocka_unit_test(a_child_leaves_the_handler_alone),
        cmocka_unit_test(unknown_backends_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

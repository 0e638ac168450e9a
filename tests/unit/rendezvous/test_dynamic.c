/* test_dynamic.c - registry, static and dynamic handlers with real stores on
 * loopback, several nodes on one loop. */
#include "testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/master_addr.h"
#include "rendezvous/core/params.h"
#include "rendezvous/registry.h"
#include "rendezvous/state_backend.h"
#include "store/client.h"
#include "store/server.h"

/* ---- A node under test, and waiting for its answers ---- */

struct node {
    struct rdzv_handler *h;
    bool joined, done, gone;
    int status, done_status;
    struct muster_error err;
    struct rdzv_round round;
    char master[300];
    bool news[8]; /* by kind: whether it has come */
};

static uv_loop_t loop;
static uv_timer_t patience;

static void on_tick(uv_timer_t *t)
{
    (void)t; /* uv_run(ONCE) runs timers first and may then block in poll: this wakes
                it. */
}

/* Runs the loop until *flag. */
static void until(const bool *flag)
{
    const uint64_t by = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);

    assert_int_equal(uv_timer_start(&patience, on_tick, 5, 5), 0);
    while (!*flag && uv_hrtime() < by)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(uv_timer_stop(&patience), 0);
    if (!*flag)
        fail_msg("nothing came within %u ms", PATIENCE_MS);
}

static void on_next(void *ctx, int status, const struct rdzv_round *round,
                    const struct muster_error *err)
{
    struct node *n = ctx;

    n->joined = true;
    n->status = status;
    if (status == 0) {
        n->round = *round;
        (void)snprintf(n->master, sizeof n->master, "%s:%u", round->master_addr,
                       round->master_port);
    } else {
        n->err = *err;
    }
}

static void on_done(void *ctx, int status, const struct muster_error *err)
{
    struct node *n = ctx;

    n->done = true;
    n->done_status = status;
    if (err)
        n->err = *err;
}

static void on_gone(void *ctx)
{
    ((struct node *)ctx)->gone = true;
}

static void on_news(void *ctx, enum rdzv_news news, const struct muster_error *err)
{
    struct node *n = ctx;

    (void)err;
    n->news[news] = true;
}

static size_t errors_logged;

static void print(void *ctx, enum log_level level, enum log_place place,
                  const char *text)
{
    (void)place;
    (void)ctx;
    errors_logged += level == LOG_ERROR;
    if (getenv("TEST_TRACE"))
        fprintf(stderr, "%.3f [%d] %s\n", (double)uv_hrtime() / 1e9, (int)level, text);
}

static const struct log tracer = { .emit = print };

/* Once as members of a coordinator, once by reading and writing the state ourselves. */
static const char *hosted = "hosted=1";

static int by_ourselves(void **state)
{
    (void)state;
    hosted = "hosted=0";
    return 0;
}

static void make(struct node *n, const char *backend, const char *endpoint, int64_t min,
                 int64_t max, const char *addr, const char *conf)
{
    struct rdzv_params p;
    struct muster_error err;
    char text[256];

    *n = (struct node){ 0 };
    assert_int_equal(params_init(&p, backend, endpoint, "job", min, max, addr, &err),
                     0);
    (void)snprintf(text, sizeof text, "%s%s%s", hosted, *conf ? "," : "", conf);
    assert_int_equal(conf_parse(&p, text, &err), 0);
    if (rdzv_handler_create(&loop, &p, &tracer, &n->h, &err) < 0)
        fail_msg("%s", err.text);
    params_fini(&p);
    n->h->ops->on_news(n->h, on_news, n);
}

static void begin(struct node *n)
{
    n->joined = false;
    n->h->ops->next(n->h, on_next, n);
}

static void join(struct node *n)
{
    until(&n->joined);
    if (n->status < 0)
        fail_msg("%s", n->err.text);
}

static void stop(struct node *n, bool close)
{
    n->done = false;
    n->h->ops->shutdown(n->h, close, on_done, n);
    until(&n->done);
    assert_int_equal(n->done_status, 0);
}

static void destroy(struct node *n)
{
    n->h->ops->destroy(n->h, on_gone, n);
    until(&n->gone);
}

static uint16_t free_port(void)
{
    struct sockaddr_in sa = { .sin_family = AF_INET };
    socklen_t n = sizeof sa;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &n), 0);
    (void)close(fd);
    return ntohs(sa.sin_port);
}

static char *local_endpoint(char out[64])
{
    (void)snprintf(out, 64, "127.0.0.1:%u", free_port());
    return out;
}

/* ---- Registry ---- */

static int other_name(void *ctx, uv_loop_t *l, const struct rdzv_params *p,
                      const struct log *t, struct rdzv_handler **out,
                      struct muster_error *err)
{
    return rdzv_static_create(ctx, l, p, t, out, err);
}

static void registry_says_what_torch_says(void **state)
{
    struct registry r;
    struct rdzv_params p;
    struct rdzv_handler *h = NULL;
    struct muster_error err;
    static int a, b;

    (void)state;
    assert_int_equal(registry_init(&r, &err), 0);
    assert_int_equal(registry_register(&r, "", other_name, NULL, &err), MUSTER_EINVAL);
    assert_string_equal(err.text,
                        "The rendezvous backend name must be a non-empty string.");
    assert_int_equal(registry_register(&r, "mine", other_name, &a, &err), 0);
    assert_int_equal(registry_register(&r, "mine", other_name, &a, &err), 0);
    assert_int_equal(registry_register(&r, "mine", other_name, &b, &err),
                     MUSTER_EEXIST);
    assert_non_null(strstr(err.text,
                           "The rendezvous backend 'mine' cannot be registered "
                           "with "));
    assert_int_equal(registry_register(&r, "c10d", other_name, NULL, &err),
                     MUSTER_EEXIST);

    assert_int_equal(params_init(&p, "nobody", "", "job", 1, 1, NULL, &err), 0);
    assert_int_equal(registry_create(&r, &loop, &p, NULL, &h, &err), MUSTER_ENOENT);
    assert_non_null(
        strstr(err.text, "The rendezvous backend 'nobody' is not registered.\n"));
    params_fini(&p);
    assert_int_equal(params_init(&p, "mine", "h:1", "job", 1, 1, NULL, &err), 0);
    assert_int_equal(params_set_int(&p, "rank", 0, &err), 0);
    assert_int_equal(registry_create(&r, &loop, &p, NULL, &h, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "The rendezvous backend 'static' does not match the "
                                  "requested backend 'mine'.");
    params_fini(&p);
    registry_fini(&r);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

static void wrong_options_are_refused(void **state)
{
    static const struct {
        const char *backend, *endpoint, *run_id, *conf, *text, *addr;
    } rows[] = {
        { "c10d", "localhost:0", "j", "store_type=etcd",
          "Invalid store type given. Currently only supports file and tcp." },
        { "c10d", "localhost:0", "j", "read_timeout=0",
          "The read timeout must be a positive integer." },
        { "c10d", "localhost:0", "", "", "The run id must be a non-empty string." },
        { "c10d", "localhost:0", "j", "join_timeout=0",
          "The join timeout (0:00:00) must be positive." },
        { "c10d", "localhost:0", "j", "last_call_timeout=-5",
          "The last_call timeout (-1 day, 23:59:55) must be positive." },
        { "c10d", "localhost:0", "j", "is_host=maybe",
          "The rendezvous configuration option 'is_host' does not represent a valid "
          "boolean value." },
        { "c10d", "localhost:0", "j", "keep_alive_interval=0",
          "keep_alive_interval (0) must be at least 1: "
          "otherwise every node counts as dead at once, and no round completes" },
        { "c10d", "localhost:0", "j", "keep_alive_max_attempt=-1",
          "keep_alive_max_attempt (-1) must be at least 1: "
          "otherwise every node counts as dead at once, and no round completes" },
        { "c10d", "localhost:0", "j", "",
          "the local address (--local-addr) is not UTF-8, and the other nodes could "
          "not "
          "read the list of nodes with it; give this machine's host name or IP address",
          "h\xff"
          "1" },
        { "static", "h:1", "j", "",
          "rank is absent in RendezvousParameters.Try add --node-rank to the cmd "
          "request" },
        { "static", " ", "j", "rank=0",
          "endpoint is absent in RendezvousParametersTry add --master-port and "
          "--master-addr to the cmd request" },
        { "static", "h", "j", "rank=0",
          "Port is absent in endpoint: h. Try launching with --master-port" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rdzv_params p;
        struct rdzv_handler *h = NULL;
        struct muster_error err = { 0 };

        assert_int_equal(params_init(&p, rows[i].backend, rows[i].endpoint,
                                     rows[i].run_id, 1, 1, rows[i].addr, &err),
                         0);
        assert_int_equal(conf_parse(&p, rows[i].conf, &err), 0);
        assert_int_equal(rdzv_handler_create(&loop, &p, NULL, &h, &err), MUSTER_EINVAL);
        assert_string_equal(err.text, rows[i].text);
        params_fini(&p);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
    }
}

static void no_matter(void *ctx)
{
    (void)ctx;
}

/* Each backend refuses a bad value of each key that the table says it reads, and
 * ignores the other keys. So the manual is right about which backend reads which
 * key. */
static void backends_read_what_the_table_says(void **state)
{
    static const char *const backends[] = { "c10d", "static", "etcd", "etcd-v2",
                                            "etcd-v3" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(backends) * CONF_COUNT; i++) {
        const char *backend = backends[i / CONF_COUNT];
        const struct conf_key *k = &conf_keys[i % CONF_COUNT];
        struct rdzv_params p;
        struct rdzv_handler *h = NULL;
        struct muster_error err = { 0 };
        bool read = false;

        for (size_t j = 0; j < CONF_COUNT; j++) /* Several rows may have one name. */
            read |= strcmp(conf_keys[j].name, k->name) == 0 &&
                    conf_keys[j].backends & conf_backend(backend);
        if (k->kind == CONF_TEXT || k == &conf_keys[CONF_PEER_PORT])
            continue; /* Any text is allowed; --rdzv-serve checks the port. */
        assert_int_equal(params_init(&p, backend, "localhost:1", "j", 1, 1, NULL, &err),
                         0);
        if (strcmp(backend, "static") == 0)
            assert_int_equal(params_set_int(&p, "rank", 0, &err), 0);
        assert_int_equal(params_set_str(&p, k->name, "no such", &err), 0);
        if (rdzv_handler_create(&loop, &p, NULL, &h, &err) == 0)
            h->ops->destroy(h, no_matter, NULL);
        if (read != (h == NULL))
            fail_msg("%s: %s is %s: %s", backend, k->name, h ? "not read" : "read",
                     err.text);
        params_fini(&p);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
    }
}

/* ---- Dynamic ---- */

static void one_node_alone(void **state)
{
    struct node n;

    (void)state;
    make(&n, "c10d", "localhost:0", 1, 1, "127.0.0.1", "");
    assert_string_equal(n.h->ops->backend(n.h), "c10d");
    for (uint64_t round = 0; round < 3;
         round++) { /* as when the agent restarts its workers */
        begin(&n);
        join(&n);
        assert_int_equal(n.round.round, round);
        assert_int_equal(n.round.rank, 0);
        assert_int_equal(n.round.world_size, 1);
        assert_non_null(strstr(n.master, "127.0.0.1:"));
    }
    assert_int_equal(n.h->ops->num_nodes_waiting(n.h), 0);
    stop(&n, true);
    assert_true(n.h->ops->is_closed(n.h));
    destroy(&n);
}

struct counted {
    bool done;
    int64_t keys;
};

static void on_counted(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct counted *c = ctx;

    (void)err;
    assert_int_equal(status, 0);
    c->keys = reply->number;
    c->done = true;
}

static int64_t keys_of(const struct node *n)
{
    const struct c10d_request ask = { .op = C10D_GETNUMKEYS };
    struct counted c = { 0 };

    assert_int_equal(
        async_store_call(n->round.store, &ask, 0, PATIENCE_MS, on_counted, &c, NULL),
        0);
    until(&c.done);
    return c.keys;
}

/* A job that restarts for weeks does not fill the store: alone, on a host, and in a
 * file. */
static void old_rounds_are_forgotten(void **state)
{
    const uint64_t full = MASTER_MAX_BACK + 2;
    char at[64], path[] = "/tmp/test_dynamic.XXXXXX";
    const int fd = mkstemp(path);
    const struct {
        const char *at, *conf;
    } rows[] = { { "localhost:0", "" },
                 { local_endpoint(at), "" },
                 { path, "store_type=file" } };

    (void)state;
    assert_true(fd >= 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct node n;
        int64_t keys = 0;

        make(&n, "c10d", rows[i].at, 1, 1, "127.0.0.1", rows[i].conf);
        for (uint64_t round = 0; round < full + 5; round++) {
            begin(&n);
            join(&n);
            if (round == full)
                keys = keys_of(&n);
        }
        assert_true(keys > 0);
        assert_int_equal(keys_of(&n), keys);
        stop(&n, true);
        destroy(&n);
    }
    (void)close(fd);
    (void)unlink(path);
}

static void three_nodes_agree(void **state)
{
    struct node n[3];
    char at[64];
    char before[sizeof n[0].master] = "";
    static const char *const addrs[] = { "node-c", "node-a", "node-b" };
    static const int64_t ranks[] = { 2, 0, 1 };

    (void)state;
    local_endpoint(at);
    for (size_t i = 0; i < 3; i++) {
        make(&n[i], "c10d", at, 3, 3, addrs[i], "");
        begin(&n[i]);
    }
    for (uint64_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 3; i++) {
            join(&n[i]);
            assert_int_equal(n[i].round.rank, ranks[i]);
            assert_int_equal(n[i].round.world_size, 3);
            assert_int_equal(n[i].round.round, round);
            assert_string_equal(n[i].master, n[0].master);
        }
        assert_non_null(strstr(n[0].master, "node-a:"));
        /* Workers of old rounds meet nobody, unless torchrun's nodes may be there. */
        if (strcmp(hosted, "hosted=1") == 0)
            assert_string_not_equal(n[0].master, before);
        else if (round > 0)
            assert_string_equal(n[0].master, before);
        memcpy(before, n[0].master, sizeof before);
        if (round < 2) {
            for (size_t i = 0; i < 3; i++)
                begin(&n[i]);
        }
    }
    stop(&n[2], true);
    for (int i = 0; i < 2; i++) {
        until(&n[i].news[RDZV_NEWS_CLOSED]);
        begin(&n[i]);
        until(&n[i].joined);
        assert_int_equal(n[i].status, MUSTER_ECLOSED);
    }
    for (int i = 2; i >= 0; i--)
        destroy(&n[i]);
}

static void a_newcomer_is_told_and_let_in(void **state)
{
    struct node a, b;
    char at[64];

    (void)state;
    local_endpoint(at);
    make(&a, "c10d", at, 1, 2, "node-a", "last_call_timeout=1");
    make(&b, "c10d", at, 1, 2, "node-b", "last_call_timeout=1");
    begin(&a);
    join(&a);
    assert_int_equal(a.round.world_size, 1);
    begin(&b);
    until(&a.news[RDZV_NEWS_WAITING]);
    assert_int_equal(a.h->ops->num_nodes_waiting(a.h), 1);
    begin(&a);
    join(&a);
    join(&b);
    assert_int_equal(a.round.world_size, 2);
    assert_int_equal(b.round.rank, 1);
    assert_int_equal(a.round.round, 1);
    assert_string_equal(a.master, b.master);
    /* When it leaves, that is news, too. */
    stop(&b, false);
    until(&a.news[RDZV_NEWS_LOST]);
    begin(&a);
    join(&a);
    assert_int_equal(a.round.world_size, 1);
    destroy(&b);
    stop(&a, true);
    destroy(&a);
}

static void a_join_can_be_canceled(void **state)
{
    struct node n;

    (void)state;
    make(&n, "c10d", "localhost:0", 2, 2, "node-a", "");
    begin(&n);
    n.h->ops->cancel(n.h); /* Before the handler is open. */
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ECANCELED);
    destroy(&n);
    make(&n, "c10d", "localhost:0", 2, 2, "node-a", "");
    begin(&n);
    for (int i = 0; i < 50; i++) /* While it joins. */
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    n.h->ops->cancel(n.h);
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ECANCELED);
    destroy(&n);
}

static void turn(int turns)
{
    for (int i = 0; i < turns; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void cancels_whenever_it_is_told_to(void **state)
{
    struct node n;

    (void)state;
    for (int turns = 0; turns < 40; turns++) {
        make(&n, "c10d", "localhost:0", 2, 2, "node-a", "");
        begin(&n);
        turn(turns);
        n.h->ops->cancel(n.h);
        until(&n.joined);
        assert_int_equal(n.status, MUSTER_ECANCELED);
        begin(&n); /* By now it is open, or almost. */
        turn(turns % 3);
        n.h->ops->cancel(n.h);
        until(&n.joined);
        assert_int_equal(n.status, MUSTER_ECANCELED);
        destroy(&n);
    }
}

static void leaving_ends_a_join(void **state)
{
    struct node n;
    char at[64];

    (void)state;
    local_endpoint(at);
    for (int turns = 0; turns < 40; turns += 3) {
        /* At an address where nobody listens, and at a store of our own. */
        if (turns % 2)
            make(&n, "c10d", at, 2, 2, "node-a", "is_host=0");
        else
            make(&n, "c10d", "localhost:0", 2, 2, "node-a", "");
        begin(&n);
        turn(turns);
        n.h->ops->leave(n.h, on_done, &n);
        until(&n.done);
        assert_int_equal(n.done_status, 0);
        until(&n.joined);
        assert_int_equal(n.status, MUSTER_ECANCELED);
        destroy(&n);
    }
}

static void one_machine_has_two_nodes(void **state)
{
    struct node a, b;
    char at[64];

    (void)state;
    local_endpoint(at);
    make(&a, "c10d", at, 2, 2, "same", "");
    make(&b, "c10d", at, 2, 2, "same", "");
    begin(&a);
    begin(&b);
    join(&a);
    join(&b);
    assert_int_equal(a.round.world_size, 2);
    assert_int_not_equal(a.round.rank, b.round.rank);
    destroy(&b);
    stop(&a, true);
    destroy(&a);
}

static void a_file_does_for_one_machine(void **state)
{
    struct node a, b;
    char path[] = "/tmp/muster-test-rdzv-XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    make(&a, "c10d", path, 2, 2, "node-a", "store_type=File");
    make(&b, "c10d", path, 2, 2, "node-b", "store_type=file");
    begin(&a);
    begin(&b);
    join(&a);
    join(&b);
    assert_int_equal(a.round.rank, 0);
    assert_int_equal(b.round.rank, 1);
    assert_string_equal(a.master, b.master);
    stop(&a, true);
    until(&b.news[RDZV_NEWS_CLOSED]);
    destroy(&b);
    destroy(&a);
    assert_int_equal(unlink(path), 0);
}

static void nobody_is_there(void **state)
{
    struct node n;
    char at[64];

    (void)state;
    local_endpoint(at);
    make(&n, "c10d", at, 1, 1, "node-a", "is_host=0,read_timeout=1");
    begin(&n);
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ECONN);
    assert_non_null(strstr(n.err.text, "The connection to the C10d store has failed"));
    assert_non_null(strstr(n.err.text, at));
    assert_non_null(strstr(n.err.text, "'job'"));
    destroy(&n);
}

/* ---- Static ---- */

static void static_nodes(void **state)
{
    struct node n[2];
    char at[64];

    (void)state;
    local_endpoint(at);
    make(&n[1], "static", at, 2, 2, NULL, "rank=1,timeout=20");
    make(&n[0], "static", at, 2, 2, NULL, "rank=0,timeout=20");
    begin(&n[1]);
    begin(&n[0]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            join(&n[i]);
            assert_int_equal(n[i].round.rank, i);
            assert_int_equal(n[i].round.world_size, 2);
            assert_string_equal(n[i].master, at);
        }
        if (round == 0) {
            begin(&n[0]);
            begin(&n[1]);
        }
    }
    stop(&n[1], true);
    stop(&n[0], true);
    destroy(&n[1]);
    destroy(&n[0]);
}

static void static_alone_waits_and_gives_up(void **state)
{
    struct node n;
    char at[64];

    (void)state;
    local_endpoint(at);
    make(&n, "static", at, 2, 2, NULL, "rank=0,timeout=1");
    begin(&n);
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(n.err.text, "1/2 clients joined"));
    begin(&n); /* As in torch, a second attempt fails the same way. */
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(n.err.text, "1/2 clients joined"));
    begin(&n);
    n.h->ops->cancel(n.h);
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ECANCELED);
    begin(&n);
    until(&n.joined);
    assert_int_equal(n.status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(n.err.text, "1/2 clients joined"));
    destroy(&n);
}

static void on_number(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err)
{
    struct node *n = ctx;

    (void)err;
    n->done = true;
    n->done_status = status == 0 ? (int)reply->number : -1;
}

/* Reads the key init/, which soon is the only key in the store. */
static void assert_counted(const char *at, int want)
{
    const struct c10d_request num_keys = { .op = C10D_GETNUMKEYS };
    const struct store_client_opts opts = {
        .host = "127.0.0.1",
        .port = (uint16_t)atoi(strchr(at, ':') + 1),
        .timeout_ms = PATIENCE_MS,
        .raw_keys = true,
    };
    struct muster_error err;
    struct async_store *store;
    struct node n = { 0 };

    assert_int_equal(store_client_open(&loop, &opts, NULL, NULL, &store, &err), 0);
    assert_int_equal(
        async_store_add(store, span_str("init/"), 0, PATIENCE_MS, on_number, &n, &err),
        0);
    until(&n.done);
    assert_int_equal(n.done_status, want);
    n.done_status = 0;
    for (int i = 0; i < 5000 && n.done_status != 1; i++) {
        n.done = false;
        assert_int_equal(
            async_store_call(store, &num_keys, 0, PATIENCE_MS, on_number, &n, &err), 0);
        until(&n.done);
    }
    assert_int_equal(n.done_status, 1);
    async_store_close(store, on_gone, &n);
    until(&n.gone);
}

static void serve(const char *at, struct store_server **server)
{
    struct store_server_opts opts;
    struct muster_error err;

    store_server_opts_init(&opts);
    opts.port = (uint16_t)atoi(strchr(at, ':') + 1);
    if (store_server_open(&loop, &opts, server, &err) < 0)
        fail_msg("%s", err.text);
}

static void end_server(struct store_server *server)
{
    struct node n = { 0 };

    store_server_close(server, on_gone, &n);
    until(&n.gone);
}

/* A stranger names the key of the state a thousand times in one request. What it wrote
 * there is parsed once, which shows in one error; the group does not notice. */
static void the_state_is_parsed_once_a_request(void **state)
{
    static const char *const addrs[] = { "node-a", "node-b" };
    struct c10d_request set = { .op = C10D_MULTI_SET };
    const struct c10d_request num_keys = { .op = C10D_GETNUMKEYS };
    struct store_client_opts opts = { .host = "127.0.0.1",
                                      .timeout_ms = PATIENCE_MS,
                                      .raw_keys = true };
    struct node n[2], stranger = { 0 };
    struct async_store *store;
    struct muster_error err;
    struct buf list;
    char at[64];

    (void)state;
    local_endpoint(at);
    opts.port = (uint16_t)atoi(strchr(at, ':') + 1);
    for (size_t i = 0; i < 2; i++) {
        make(&n[i], "c10d", at, 2, 2, addrs[i], "");
        begin(&n[i]);
    }
    for (size_t i = 0; i < 2; i++)
        join(&n[i]);
    buf_init(&list, SIZE_MAX);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(c10d_list_add(&list, span_str("/torch.rendezvous.job")), 0);
        assert_int_equal(c10d_list_add(&list, span_str("no state")), 0);
    }
    set.list = (struct c10d_list){ buf_span(&list), 1000 };
    assert_int_equal(store_client_open(&loop, &opts, NULL, NULL, &store, &err), 0);
    errors_logged = 0;
    for (size_t i = 0; i < 2; i++) {
        stranger.done = false;
        assert_int_equal(async_store_call(store, i ? &num_keys : &set, 0, PATIENCE_MS,
                                          on_number, &stranger, &err),
                         0);
        until(&stranger.done);
        assert_true(stranger.done_status >= 0);
    }
    assert_int_equal(errors_logged, 1);
    buf_fini(&list);
    async_store_close(store, on_gone, &stranger);
    until(&stranger.gone);
    for (size_t i = 0; i < 2; i++)
        begin(&n[i]);
    for (size_t i = 0; i < 2; i++)
        join(&n[i]);
    stop(&n[1], true);
    for (size_t i = 2; i-- > 0;)
        destroy(&n[i]);
}

/* Cancels after each possible number of loop turns, and tries again on the same server
 * or on a new one: the node is counted once, and leaves nothing behind. */
static void static_counts_once(void **state)
{
    bool joined = false;

    (void)state;
    for (int turns = 0; !joined; turns++) {
        for (int restart = 0; restart < 2; restart++) {
            struct store_server *server;
            struct node n;
            char at[64];

            serve(local_endpoint(at), &server);
            make(&n, "static", at, 2, 2, NULL, "rank=1,timeout=20");
            begin(&n);
            for (int i = 0; i < turns && !n.joined; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
            joined = n.joined;
            if (!joined) {
                n.h->ops->cancel(n.h);
                until(&n.joined);
                assert_int_equal(n.status, MUSTER_ECANCELED);
                if (restart) {
                    end_server(server);
                    serve(at, &server);
                }
                begin(&n);
            }
            join(&n);
            assert_counted(at, 1);
            destroy(&n);
            end_server(server);
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    return uv_loop_init(&loop) < 0 || uv_timer_init(&loop, &patience) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    uv_close((uv_handle_t *)&patience, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop);
}

#define WITH_LOOP(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(registry_says_what_torch_says),
        WITH_LOOP(wrong_options_are_refused),
        WITH_LOOP(backends_read_what_the_table_says),
        WITH_LOOP(one_node_alone),
        WITH_LOOP(old_rounds_are_forgotten),
        WITH_LOOP(three_nodes_agree),
        WITH_LOOP(a_newcomer_is_told_and_let_in),
        WITH_LOOP(a_join_can_be_canceled),
        WITH_LOOP(cancels_whenever_it_is_told_to),
        WITH_LOOP(leaving_ends_a_join),
        WITH_LOOP(one_machine_has_two_nodes),
        WITH_LOOP(a_file_does_for_one_machine),
        WITH_LOOP(nobody_is_there),
        WITH_LOOP(static_nodes),

        WITH_LOOP(static_alone_waits_and_gives_up),
        WITH_LOOP(static_counts_once),
        WITH_LOOP(the_state_is_parsed_once_a_request),
    };

    const struct CMUnitTest again[] = {
        WITH_LOOP(one_node_alone),         WITH_LOOP(old_rounds_are_forgotten),
        WITH_LOOP(three_nodes_agree),      WITH_LOOP(a_newcomer_is_told_and_let_in),
        WITH_LOOP(a_join_can_be_canceled), WITH_LOOP(cancels_whenever_it_is_told_to),
        WITH_LOOP(leaving_ends_a_join),    WITH_LOOP(one_machine_has_two_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests(again, by_ourselves, NULL);
}

/* test_store_client.c - struct async_store over TCP, file, hash and views, on one loop
 * with a server of ours: callbacks, their order, closing at any moment. */
#include "testing.h"

#include <stdio.h>
#include <unistd.h>

#include "store/client.h"
#include "store/connect.h"
#include "store/server.h"

#define LONG_MS 60000

/* What the callbacks told, in order: "open:0 SET:0 GET:0=v ". */
static char told[4000];
static int inside; /* a call of ours is on the stack: no callback may come */

static void tell(const char *what, int status, struct span value)
{
    const size_t len = strlen(told);

    assert_int_equal(inside, 0);
    (void)snprintf(told + len, sizeof told - len, "%s:%s%s%.*s ", what,
                   status ? muster_code_name(status) + 7 : "0", value.n ? "=" : "",
                   (int)value.n, (const char *)value.p);
}

static void on_done(void *ctx, int status, const struct c10d_reply *reply,
                    const struct muster_error *err)
{
    assert_int_equal(status, err ? err->code : 0);
    tell(ctx, status, reply ? reply->value : span_of(NULL, 0));
}

static void on_open(void *ctx, int status, const struct muster_error *err)
{
    (void)err;
    tell(ctx, status, span_of(NULL, 0));
}

static int barrier(struct async_store *s, struct span key, void *ctx)
{
    const struct c10d_request req = { .op = C10D_BARRIER, .key = key, .number = 2 };

    return async_store_call(s, &req, 0, LONG_MS, on_done, ctx, NULL);
}

static void on_closed(void *ctx)
{
    tell(ctx, 0, span_of(NULL, 0));
}

#define CALL(what)                                                                     \
    do {                                                                               \
        inside++;                                                                      \
        assert_int_equal(what, 0);                                                     \
        inside--;                                                                      \
    } while (0)

static void run_until_told(uv_loop_t *loop, const char *what)
{
    while (!strstr(told, what))
        if (!uv_run(loop, UV_RUN_ONCE) && !strstr(told, what))
            fail_msg("nothing more will happen, and %s did not: %s", what, told);
}

static void finish(uv_loop_t *loop)
{
    while (uv_run(loop, UV_RUN_DEFAULT))
        ;
    assert_int_equal(uv_loop_close(loop), 0);
}

static struct store_server *serve(uv_loop_t *loop)
{
    struct store_server_opts o;
    struct store_server *server;

    store_server_opts_init(&o);
    o.bind = "127.0.0.1";
    assert_int_equal(store_server_open(loop, &o, &server, NULL), 0);
    return server;
}

static struct async_store *connect_to(uv_loop_t *loop, uint16_t port)
{
    const struct store_client_opts o = { .host = "127.0.0.1",
                                         .port = port,
                                         .timeout_ms = LONG_MS };
    struct async_store *s;

    CALL(store_client_open(loop, &o, on_open, "open", &s, NULL));
    return s;
}

static void calls_wait_for_the_connection(void **state)
{
    uv_loop_t loop;
    struct store_server *server;
    struct async_store *s;

    (void)state;
    told[0] = '\0';
    assert_int_equal(uv_loop_init(&loop), 0);
    server = serve(&loop);
    s = connect_to(&loop, store_server_port(server));
    CALL(async_store_set(s, span_str("k"), span_str("v"), LONG_MS, on_done, "SET",
                         NULL));
    CALL(async_store_get(s, span_str("k"), LONG_MS, on_done, "GET", NULL));
    CALL(async_store_add(s, span_str("n"), 1, LONG_MS, on_done, "ADD", NULL));
    assert_string_equal(told, "");
    run_until_told(&loop, "ADD");
    assert_string_equal(told, "open:0 SET:0 GET:0=v ADD:0 ");
    CALL(async_store_call(s, &(struct c10d_request){ .op = C10D_WAIT }, 0, LONG_MS,
                          on_done, "WAIT", NULL)); /* for nothing */
    run_until_told(&loop, "WAIT:0");
    async_store_close(s, on_closed, "closed");
    store_server_close(server, NULL, NULL);
    finish(&loop);
}

static void a_call_after_the_server_has_gone_fails(void **state)
{
    uv_loop_t loop;
    struct store_server *server;
    struct async_store *s;

    (void)state;
    told[0] = '\0';
    assert_int_equal(uv_loop_init(&loop), 0);
    server = serve(&loop);
    s = connect_to(&loop, store_server_port(server));
    run_until_told(&loop, "open");
    store_server_close(server, NULL, NULL);
    CALL(async_store_add(s, span_str("n"), 1, LONG_MS, on_done, "ADD", NULL));
    run_until_told(&loop, "ADD");
    assert_string_equal(told, "open:0 ADD:EHANGUP ");
    async_store_close(s, on_closed, "closed");
    finish(&loop);
}

static void pending_calls_end_with_the_server(void **state)
{
    uv_loop_t loop;
    struct store_server *server;
    struct async_store *s;
    const struct span key = span_str("k");

    (void)state;
    told[0] = '\0';
    assert_int_equal(uv_loop_init(&loop), 0);
    server = serve(&loop);
    s = connect_to(&loop, store_server_port(server));
    CALL(async_store_wait(s, key, UINT64_MAX, on_done, "WAIT", NULL));
    CALL(async_store_add(s, key, 1, LONG_MS, on_done, "ADD", NULL)); /* held back */
    run_until_told(&loop, "open");
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    store_server_close(server, NULL, NULL);
    run_until_told(&loop, "ADD");
    assert_string_equal(told, "open:0 WAIT:EHANGUP ADD:EHANGUP ");
    async_store_close(s, NULL, NULL);
    finish(&loop);
}

/* After each number of turns of the loop: what is pending ends before the store. */
static void closing_is_safe_at_any_moment(void **state)
{
    (void)state;
    for (int turns = 0; turns < 30; turns++) {
        uv_loop_t loop;
        struct store_server *server;
        struct async_store *tcp, *view, *hash, *file;
        const struct span key = span_str("k");
        char path[64];

        told[0] = '\0';
        (void)snprintf(path, sizeof path, "/tmp/muster-test-%d", getpid());
        assert_int_equal(uv_loop_init(&loop), 0);
        server = serve(&loop);
        tcp = connect_to(&loop, store_server_port(server));
        CALL(async_store_prefix(tcp, "p", false, &view, NULL));
        CALL(store_hash_open(&loop, &hash, NULL));
        CALL(store_file_open(&loop, path, 1, &file, NULL));
        CALL(async_store_set(tcp, key, key, LONG_MS, on_done, "a", NULL));
        CALL(async_store_get(view, key, LONG_MS, on_done, "b", NULL));
        CALL(barrier(view, key, "c"));
        CALL(async_store_wait(hash, key, LONG_MS, on_done, "d", NULL));
        CALL(barrier(hash, span_str("x"), "e"));
        CALL(async_store_wait(file, key, LONG_MS, on_done, "f", NULL));
        CALL(barrier(file, span_str("x"), "g"));
        for (int i = 0; i < turns; i++)
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        inside++;
        async_store_close(view, on_closed, "V");
        async_store_close(tcp, on_closed, "T");
        async_store_close(hash, on_closed, "H");
        async_store_close(file, on_closed, "F");
        inside--;
        store_server_close(server, NULL, NULL);
        finish(&loop);
        for (const char *c = "abcdefgVTHF"; *c; c++) {
            const char once[] = { *c, ':', '\0' };
            const char *first = strstr(told, once);

            assert_non_null(first);
            assert_null(strstr(first + 1, once));
        }
        assert_non_null(strstr(told, "b:ECANCELED"));
        assert_true(strstr(told, "b:") < strstr(told, "V:"));
        assert_true(strstr(told, "e:") < strstr(told, "H:"));
        assert_true(strstr(told, "g:") < strstr(told, "F:"));
        assert_int_not_equal(access(path, F_OK), 0); /* the last one removes it */
    }
}

static void close_inside(void *ctx, int status, const struct c10d_reply *reply,
                         const struct muster_error *err)
{
    (void)reply;
    (void)err;
    tell("closer", status, span_of(NULL, 0));
    async_store_close(ctx, on_closed, "closed");
}

/* From inside a callback, with others pending, on every kind. */
static void callbacks_may_close(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        uv_loop_t loop;
        struct store_server *server;
        struct async_store *s, *inner;
        const struct span key = span_str("k");
        char path[64];

        told[0] = '\0';
        (void)snprintf(path, sizeof path, "/tmp/muster-test-%d", getpid());
        assert_int_equal(uv_loop_init(&loop), 0);
        server = serve(&loop);
        if (kind == 0)
            s = connect_to(&loop, store_server_port(server));
        else if (kind == 1)
            CALL(store_hash_open(&loop, &s, NULL));
        else if (kind == 2)
            CALL(store_file_open(&loop, path, 1, &s, NULL));
        else {
            inner = connect_to(&loop, store_server_port(server));
            CALL(async_store_prefix(inner, "p", true, &s, NULL));
        }
        CALL(async_store_set(s, key, key, LONG_MS, close_inside, s, NULL));
        CALL(async_store_add(s, span_str("n"), 1, LONG_MS, on_done, "ADD", NULL));
        CALL(async_store_wait(s, key, LONG_MS, on_done, "WAIT", NULL));
        run_until_told(&loop, "closed:");
        assert_non_null(strstr(told, "closer:0"));
        assert_non_null(strstr(told, "ADD:"));
        assert_non_null(strstr(told, "WAIT:"));
        store_server_close(server, NULL, NULL);
        finish(&loop);
    }
}

/* Waits of many calls on one hash store: woken in any order, each once. */
static void hash_waits_are_independent(void **state)
{
    uv_loop_t loop;
    struct async_store *s, *clone;
    static const char both[] = "\1\0\0\0\0\0\0\0a\1\0\0\0\0\0\0\0b";
    const struct c10d_request ab = { .op = C10D_WAIT,
                                     .list = { span_of(both, sizeof both - 1), 2 } };
    const struct span keys[] = { span_str("a"), span_str("b") };

    (void)state;
    told[0] = '\0';
    assert_int_equal(uv_loop_init(&loop), 0);
    CALL(store_hash_open(&loop, &s, NULL));
    CALL(s->ops->clone(s, &clone, NULL));
    CALL(async_store_get(s, keys[0], LONG_MS, on_done, "A", NULL));
    CALL(async_store_get(s, keys[1], LONG_MS, on_done, "B", NULL));
    CALL(async_store_call(clone, &ab, 0, LONG_MS, on_done, "AB", NULL));
    CALL(async_store_wait(clone, keys[0], 20, on_done, "late", NULL));
    run_until_told(&loop, "late");
    CALL(async_store_set(clone, keys[1], span_str("2"), LONG_MS, on_done, "SET", NULL));
    CALL(async_store_add(s, keys[0], 1, LONG_MS, on_done, "ADD", NULL));
    run_until_told(&loop, "AB:");
    assert_non_null(strstr(told, "late:ETIMEDOUT "));
    assert_non_null(strstr(told, "B:0=2 "));
    assert_non_null(strstr(told, "A:0=1 "));
    assert_non_null(strstr(told, "AB:0 "));
    async_store_close(s, on_closed, "closed");
    async_store_close(clone, on_closed, "closed");
    finish(&loop);
}

/* A lazy client connects with its first call. One that has asked knows whether the
 * store hosts runs, and its connection can be taken while no call is under way. */
static void a_connection_is_made_late_and_given_away(void **state)
{
    struct store_client_opts o = { .host = "127.0.0.1",
                                   .timeout_ms = LONG_MS,
                                   .lazy = true };
    struct async_store *lazy, *s;
    struct store_server *server;
    struct store_conn *conn;
    uv_loop_t loop;

    (void)state;
    told[0] = '\0';
    assert_int_equal(uv_loop_init(&loop), 0);
    server = serve(&loop);
    o.port = store_server_port(server);
    CALL(store_client_open(&loop, &o, NULL, NULL, &lazy, NULL));
    o.lazy = false;
    o.ask_runs = true;
    CALL(store_client_open(&loop, &o, on_open, "open", &s, NULL));
    assert_null(store_client_take(s));
    run_until_told(&loop, "open:0");
    assert_int_equal(store_server_connections(server), 1);
    assert_true(store_client_runs(s));
    CALL(async_store_set(s, span_str("k"), span_str("v"), LONG_MS, on_done, "SET",
                         NULL));
    assert_null(store_client_take(s));
    run_until_told(&loop, "SET:0");
    conn = store_client_take(s);
    assert_non_null(conn);
    assert_string_equal(conn->ip, "127.0.0.1");
    CALL(async_store_add(s, span_str("n"), 1, LONG_MS, on_done, "ADD", NULL));
    run_until_told(&loop, "ADD:ECONN");
    CALL(async_store_get(lazy, span_str("k"), LONG_MS, on_done, "GET", NULL));
    run_until_told(&loop, "GET:0=v");
    assert_int_equal(store_server_connections(server), 2);
    store_conn_close(conn);
    async_store_close(s, on_closed, "closed");
    async_store_close(lazy, on_closed, "closed");
    store_server_close(server, NULL, NULL);
    finish(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_wait_for_the_connection),
        cmocka_unit_test(a_call_after_the_server_has_gone_fails),
        cmocka_unit_test(pending_calls_end_with_the_server),
        cmocka_unit_test(closing_is_safe_at_any_moment),
        cmocka_unit_test(callbacks_may_close),
        cmocka_unit_test(hash_waits_are_independent),
        cmocka_unit_test(a_connection_is_made_late_and_given_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_store_server.c - the server as part of another program: several on one loop,
 * sockets handed over, memory that fails. Bytes and strangers: tests/interop. */
#include "testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include "store/core/wire.h"
#include "store/server.h"

static const struct store_server_opts local = { .bind = "127.0.0.1",
                                                .fd = -1,
                                                .seed = 1 };

static int dial(uint16_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Runs the loop until n bytes have come: true; or the connection ends: false. */
static bool take(uv_loop_t *loop, int fd, uint8_t *to, size_t n)
{
    size_t have = 0;

    while (have < n) {
        const ssize_t got = read(fd, to + have, n - have);

        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        if (got > 0)
            have += (size_t)got;
        else
            (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    return true;
}

static void say(int fd, const struct buf *b)
{
    assert_int_equal(write(fd, buf_data(b), buf_len(b)), buf_len(b));
}

/* A request in dialect C, after the greeting; memory must not fail here. */
static void ask(int fd, bool first, const struct c10d_request *r)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (first)
        assert_int_equal(
            c10d_encode_request(
                &b, &(struct c10d_request){ .op = C10D_VALIDATE, .word = C10D_MAGIC },
                NULL),
            0);
    assert_int_equal(c10d_encode_request(&b, r, NULL), 0);
    say(fd, &b);
    buf_fini(&b);
}

static int64_t add(uv_loop_t *loop, int fd, bool first)
{
    uint8_t answer[8];

    ask(fd, first,
        &(struct c10d_request){ .op = C10D_ADD, .key = span_str("/n"), .number = 1 });
    return take(loop, fd, answer, 8) ? (int64_t)get_u64(answer) : -1;
}

static void finish(uv_loop_t *loop)
{
    (void)uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
}

static void count_down(void *ctx)
{
    --*(int *)ctx;
}

static void two_on_one_loop(void **state)
{
    struct store_server *a, *b;
    struct muster_error err;
    uv_loop_t loop;
    int left = 2, x, y;
    uint8_t byte;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(store_server_open(&loop, &local, &a, &err), 0);
    assert_int_equal(store_server_open(&loop, &local, &b, &err), 0);
    assert_true(store_server_port(a) != store_server_port(b));
    x = dial(store_server_port(a));
    y = dial(store_server_port(b));
    assert_int_equal(add(&loop, x, true), 1);
    assert_int_equal(add(&loop, x, false), 2);
    assert_int_equal(add(&loop, y, true), 1);
    assert_int_equal(store_server_connections(a), 1);
    store_server_wipe(a);
    assert_int_equal(add(&loop, x, false), 1);
    store_server_close(a, count_down, &left);
    assert_false(take(&loop, x, &byte, 1)); /* closed, the other is not */
    assert_int_equal(add(&loop, y, false), 2);
    store_server_close(b, count_down, &left);
    finish(&loop);
    assert_int_equal(left, 0);
    (void)close(x);
    (void)close(y);
}

struct ending {
    uv_timer_t timer;
    struct store_server *server;
    int client, left;
};

/* Closes the server once the client has its answer. */
static void on_look(uv_timer_t *timer)
{
    struct ending *e = CONTAINER_OF(timer, struct ending, timer);
    struct pollfd p = { .fd = e->client, .events = POLLIN };

    if (poll(&p, 1, 0) == 0)
        return;
    uv_close((uv_handle_t *)timer, NULL);
    store_server_close(e->server, count_down, &e->left);
}

static void alone_on_its_loop(void **state)
{
    struct ending e = { .left = 1 };
    uint8_t answer[8];
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(store_server_open(&loop, &local, &e.server, NULL), 0);
    (void)uv_timer_init(&loop, &e.timer);
    (void)uv_timer_start(&e.timer, on_look, 1, 1);
    e.client = dial(store_server_port(e.server));
    ask(e.client, true,
        &(struct c10d_request){ .op = C10D_ADD, .key = span_str("/n"), .number = 4 });
    store_server_run(e.server);
    assert_int_equal(e.left, 0);
    assert_int_equal(read(e.client, answer, sizeof answer), 8);
    assert_int_equal(get_u64(answer), 4);
    finish(&loop);
    (void)close(e.client);
}

static int bound_socket(bool listening, uint16_t *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    if (listening)
        assert_int_equal(listen(fd, 5), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void sockets_handed_over(void **state)
{
    struct store_server *s;
    struct muster_error err;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    for (int listening = 0; listening < 2; listening++) {
        struct store_server_opts o = local;
        uint16_t port;
        int fd;

        o.fd = bound_socket(listening, &port);
        o.port = (uint16_t)(port + 1);
        assert_int_equal(store_server_open(&loop, &o, &s, &err), MUSTER_EINVAL);
        assert_non_null(strstr(err.text, "expected to be bound to port"));
        assert_true(fcntl(o.fd, F_GETFD) >= 0); /* still ours */
        o.port = listening ? port : 0;
        assert_int_equal(store_server_open(&loop, &o, &s, &err), 0);
        assert_int_equal(store_server_port(s), port);
        fd = dial(port);
        assert_int_equal(add(&loop, fd, true), 1);
        store_server_close(s, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(fcntl(o.fd, F_GETFD), -1); /* closed with the server */
        (void)close(fd);
    }
    finish(&loop);
}

static void what_cannot_be_bound(void **state)
{
    struct store_server_opts o = local;
    struct store_server *s, *t;
    struct muster_error err;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(store_server_open(&loop, &local, &s, &err), 0);
    o.port = store_server_port(s);
    assert_int_equal(store_server_open(&loop, &o, &t, &err), MUSTER_EINUSE);
    assert_non_null(strstr(err.text, "address already in use"));
    o.port = 0;
    o.bind = "example.com";
    assert_int_equal(store_server_open(&loop, &o, &t, &err), MUSTER_EINVAL);
    o.bind = "203.0.113.1";
    assert_int_equal(store_server_open(&loop, &o, &t, &err), MUSTER_EINVAL);
    o.bind = NULL;
    o.fd = 9999;
    assert_int_equal(store_server_open(&loop, &o, &t, &err), MUSTER_EINVAL);
    o.fd = STDIN_FILENO;
    assert_int_equal(store_server_open(&loop, &o, &t, &err), MUSTER_EINVAL);
    store_server_close(s, NULL, NULL);
    finish(&loop);
}

/* Whatever fails: those who get an answer get the right one, the others are closed. */
static void memory_fails_while_serving(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct store_server *s;
        uv_loop_t loop;
        int fd[3];

        assert_int_equal(uv_loop_init(&loop), 0);
        if (store_server_open(&loop, &local, &s, NULL) == 0) {
            const unsigned long asked = mem_count() - f.before;

            for (int i = 0; i < 3; i++) {
                int64_t got;

                fd[i] = dial(store_server_port(s));
                mem_fail_from(0); /* for the request */
                ask(fd[i], true,
                    &(struct c10d_request){ .op = C10D_APPEND,
                                            .key = span_str("/a"),
                                            .value = span_str("xyz") });
                mem_fail_from(f.nth > asked ? f.nth - asked : 1);
                for (int k = 0; k < 5; k++)
                    (void)uv_run(&loop, UV_RUN_NOWAIT);
                mem_fail_from(0);
                struct pollfd p = { .fd = fd[i], .events = POLLIN };
                if (poll(&p, 1, 0) == 0) {
                    got = add(&loop, fd[i], false);
                    assert_true(got == -1 || got >= 1);
                }
            }
            store_server_close(s, NULL, NULL);
            for (int i = 0; i < 3; i++)
                (void)close(fd[i]);
        }
        mem_fail_from(0);
        finish(&loop);
        if (f.nth > 60) /* More than all of it needs; requests are made outside. */
            break;
    }
    mem_fail_from(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_on_one_loop),
        cmocka_unit_test(alone_on_its_loop),
        cmocka_unit_test(sockets_handed_over),
        cmocka_unit_test(what_cannot_be_bound),
        cmocka_unit_test(memory_fails_while_serving),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

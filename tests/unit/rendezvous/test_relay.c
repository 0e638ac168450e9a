/* test_relay.c - workers' connections inside one encrypted connection: the relay of one
 * node and the store of another on one loop, and a peer that has the secret and sends
 * malformed frames. */
#include "testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "auth/secret.h"
#include "auth/tls.h"
#include "rendezvous/relay.h"
#include "store/connect.h"
#include "store/core/lanes.h"
#include "store/core/wire.h"
#include "store/server.h"

struct both {
    uv_loop_t loop;
    struct auth *auth;
    struct store_server *server;
    struct relay *relay;
    int left;
};

static void begin(struct both *b)
{
    const struct secret_opts secret = { .run_id = "run", .encrypt = true };
    struct store_server_opts serve;
    struct muster_error err;

    *b = (struct both){ .left = 2 };
    assert_int_equal(setenv("MUSTER_TOKEN", "a-token-that-is-long-enough", 1), 0);
    assert_int_equal(uv_loop_init(&b->loop), 0);
    assert_int_equal(secret_load(&secret, &b->auth, &err), 0);
    store_server_opts_init(&serve);
    serve.bind = "127.0.0.1";
    serve.auth = b->auth;
    assert_int_equal(store_server_open(&b->loop, &serve, &b->server, &err), 0);
    const struct relay_opts relay = { .host = "127.0.0.1",
                                      .port = store_server_port(b->server),
                                      .auth = b->auth };
    assert_int_equal(relay_open(&b->loop, &relay, &b->relay, &err), 0);
}

static void count_down(void *ctx)
{
    --*(int *)ctx;
}

static void end(struct both *b)
{
    if (b->relay)
        relay_close(b->relay, count_down, &b->left);
    if (b->server)
        store_server_close(b->server, count_down, &b->left);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_int_equal(b->left, 0);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    auth_unref(b->auth);
}

static int come(struct both *b)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons(relay_port(b->relay)) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), little = 65536;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Runs the loop until n bytes have come; returns false if the connection ends
 * before. */
static bool take(struct both *b, int fd, uint8_t *to, size_t n)
{
    for (size_t have = 0; have < n;) {
        const ssize_t got = read(fd, to + have, n - have);

        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        if (got > 0)
            have += (size_t)got;
        else
            (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
    return true;
}

static void say(struct both *b, int fd, struct span s)
{
    while (s.n) {
        const ssize_t n = send(fd, s.p, s.n, MSG_NOSIGNAL);

        assert_true(n > 0 || errno == EAGAIN);
        if (n > 0)
            s = span_of(s.p + n, s.n - (size_t)n);
        else
            (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
}

static void greet(struct both *b, int fd)
{
    static const uint8_t validate[] = { C10D_VALIDATE, 0xce, 0xf7, 0x85, 0x3c };

    say(b, fd, span_of(validate, sizeof validate));
}

static void ask(struct both *b, int fd, const struct c10d_request *r)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    assert_int_equal(c10d_encode_request(&out, r, NULL), 0);
    say(b, fd, buf_span(&out));
    buf_fini(&out);
}

static int64_t add(struct both *b, int fd)
{
    uint8_t answer[8];

    ask(b, fd,
        &(struct c10d_request){ .op = C10D_ADD, .key = span_str("/n"), .number = 1 });
    return take(b, fd, answer, 8) ? (int64_t)get_u64(answer) : -1;
}

static void until_there_are(struct both *b, size_t connections)
{
    while (store_server_connections(b->server) != connections)
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
}

#define WORKERS 50

static void each_worker_has_its_own_connection(void **state)
{
    int fds[WORKERS];
    struct both b;
    uint8_t byte;

    (void)state;
    begin(&b);
    for (int i = 0; i < WORKERS; i++) {
        fds[i] = come(&b);
        greet(&b, fds[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(add(&b, fds[i]), i + 1);
    assert_int_equal(store_server_connections(b.server), WORKERS + 1);

    /* A worker that sends nonsense loses its own connection only. */
    say(&b, fds[0], span_of("\xff\xff\xff\xff\xff\xff\xff\xff", 8));
    assert_false(take(&b, fds[0], &byte, 1));
    assert_int_equal(add(&b, fds[1]), WORKERS + 1);
    (void)close(fds[0]);
    (void)close(fds[1]);
    until_there_are(&b, WORKERS - 1);

    /* Other connections are not affected. */
    fds[0] = come(&b);
    fds[1] = come(&b);
    greet(&b, fds[0]);
    greet(&b, fds[1]);
    assert_int_equal(add(&b, fds[1]), WORKERS + 2);
    assert_int_equal(add(&b, fds[0]), WORKERS + 3);

    /* A worker that has stopped sending still gets its answers. */
    ask(&b, fds[0],
        &(struct c10d_request){ .op = C10D_ADD, .key = span_str("/n"), .number = 1 });
    (void)shutdown(fds[0], SHUT_WR);
    uint8_t answer[9];
    assert_true(take(&b, fds[0], answer, 8));
    assert_int_equal(get_u64(answer), WORKERS + 4);
    assert_false(take(&b, fds[0], answer, 1));

    /* When the store ends, all connections end. */
    store_server_close(b.server, count_down, &b.left);
    b.server = NULL;
    assert_false(take(&b, fds[1], &byte, 1));
    for (int i = 0; i < WORKERS; i++)
        (void)close(fds[i]);
    end(&b);
}

#define VALUE 65536u
#define TIMES 400u

static void a_worker_that_does_not_read(void **state)
{
    const struct c10d_request get = { .op = C10D_GET, .key = span_str("/k") };
    struct store_server_stats stats;
    uint8_t *value = malloc(8 + VALUE);
    struct both b;
    int lazy, other;

    (void)state;
    assert_non_null(value);
    begin(&b);
    lazy = come(&b);
    other = come(&b);
    greet(&b, lazy);
    greet(&b, other);
    for (size_t i = 0; i < VALUE; i++)
        value[i] = (uint8_t)(i * 7);
    ask(&b, other,
        &(struct c10d_request){
            .op = C10D_SET, .key = span_str("/k"), .value = span_of(value, VALUE) });
    assert_int_equal(add(&b, other), 1);
    for (size_t i = 0; i < TIMES; i++)
        ask(&b, lazy, &get);
    for (int i = 0; i < 200; i++)
        assert_int_equal(add(&b, other), i + 2);
    /* The bytes that wait for it stay with the store, except for the window and the
     * sockets' buffers. */
    store_server_stats(b.server, &stats);
    assert_true(stats.requests > TIMES);
    assert_true(stats.bytes_out < VALUE * TIMES / 2);
    for (size_t k = 0; k < TIMES; k++) {
        assert_true(take(&b, lazy, value, 8 + VALUE));
        assert_int_equal(get_u64(value), VALUE);
        for (size_t i = 0; i < VALUE; i += 1021)
            assert_int_equal(value[8 + i], (uint8_t)(i * 7));
    }
    /* A worker that goes with much unread is dropped at once. */
    for (size_t i = 0; i < TIMES; i++)
        ask(&b, lazy, &get);
    (void)close(lazy);
    until_there_are(&b, 2);
    assert_int_equal(add(&b, other), 202);
    (void)close(other);
    free(value);
    end(&b);
}

/* Each allocation on the way of a worker's request fails in turn. The worker is hung up
 * on or answered, and the next one is answered. */
static void without_memory(void **state)
{
    struct buf asks;
    struct both b;
    int64_t n = 0;

    (void)state;
    buf_init(&asks, SIZE_MAX);
    assert_int_equal(c10d_encode_request(&asks,
                                         &(struct c10d_request){ .op = C10D_VALIDATE,
                                                                 .word = C10D_MAGIC },
                                         NULL),
                     0);
    assert_int_equal(c10d_encode_request(&asks,
                                         &(struct c10d_request){ .op = C10D_ADD,
                                                                 .key = span_str("/n"),
                                                                 .number = 1 },
                                         NULL),
                     0);
    begin(&b);
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct relay_opts relay = { .host = "127.0.0.1",
                                          .port = store_server_port(b.server),
                                          .auth = b.auth };
        const int fd = come(&b);
        struct muster_error err;
        uint8_t answer[8];
        int next;

        say(&b, fd, buf_span(&asks));
        (void)take(&b, fd, answer, 8);
        (void)close(fd);
        mem_fail_from(0);
        next = come(&b);
        greet(&b, next);
        n = add(&b, next);
        assert_true(n > 0);
        (void)close(next);
        relay_close(b.relay, NULL,
                    NULL); /* The next attempt builds everything again. */
        until_there_are(&b, 0);
        assert_int_equal(relay_open(&b.loop, &relay, &b.relay, &err), 0);
    }
    assert_true(n > 10); /* More than a few allocations were made to fail. */
    buf_fini(&asks);
    end(&b);
}

static int descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

#define CROWD 200

/* A crowd of connections, refused or not, leaves the loop time for others. */
static void a_crowd_leaves_the_loop_time(void **state)
{
    int fds[CROWD], before;
    struct both b;

    (void)state;
    begin(&b);
    for (int i = 0; i < CROWD; i++)
        fds[i] = come(&b);
    before = descriptors();
    (void)uv_run(&b.loop, UV_RUN_NOWAIT);
    assert_true(descriptors() < before + CROWD / 2);
    for (int i = 0; i < CROWD; i++)
        greet(&b, fds[i]);
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(add(&b, fds[i]), i + 1);
        (void)close(fds[i]);
    }
    end(&b);
}

/* No other connection will end and free a descriptor, so the relay tries again by
 * itself. */
static void without_descriptors(void **state)
{
    struct rlimit old, none;
    struct both b;
    int fd, next;

    (void)state;
    begin(&b);
    fd = come(&b);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    next = dup(fd); /* the lowest free descriptor */
    assert_true(next > 0);
    (void)close(next);
    none = (struct rlimit){ .rlim_cur = (rlim_t)next, .rlim_max = old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 10; i++)
        (void)uv_run(&b.loop, UV_RUN_NOWAIT);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    greet(&b, fd);
    assert_int_equal(add(&b, fd), 1);
    (void)close(fd);
    end(&b);
}

/* ---- Malformed frames ---- */

struct link {
    struct tls *tls;
    int fd;
    bool done;
};

static void on_connected(void *ctx, struct store_conn *conn,
                         const struct muster_error *err)
{
    struct link *l = ctx;

    assert_null(conn);
    assert_null(err);
    l->done = true;
}

static void send_in(struct both *b, struct link *l, struct span s)
{
    while (s.n) {
        const ssize_t n = tls_write(l->tls, s.p, s.n);
        uint8_t byte;

        if (n < 0) /* It has been closed already. */
            return;
        s = span_of(s.p + n, s.n - (size_t)n);
        if (n == 0) /* The handshake goes on with a read. */
            assert_int_equal(tls_read(l->tls, &byte, 1), -1);
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
}

static void put_frame(struct buf *out, enum lane_kind kind, uint32_t lane,
                      const char *data, size_t count)
{
    assert_int_equal(lanes_put(out, kind, lane, count), 0);
    assert_int_equal(buf_append_str(out, data), 0);
}

static void link_up(struct both *b, struct link *l)
{
    const struct connect_opts opts = { .host = "127.0.0.1",
                                       .port = store_server_port(b->server),
                                       .timeout_ms = 60000,
                                       .auth = b->auth,
                                       .tls = &l->tls,
                                       .tls_fd = &l->fd };
    struct muster_error err;
    struct connector *d;

    assert_int_equal(connect_start(&b->loop, &opts, on_connected, l, &d, &err), 0);
    while (!l->done)
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    connect_free(d);
}

static void malformed_frames(void **state)
{
    struct both b;

    (void)state;
    begin(&b);
    for (int what = 0; what < 6; what++) {
        struct link l = { 0 };
        const struct c10d_request push = { .op = C10D_QUEUE_PUSH,
                                           .key = span_str(LANES_KEY),
                                           .value =
                                               span_str(what ? LANES_VERSION : "0") };
        struct buf out;
        uint8_t byte;
        ssize_t n;

        link_up(&b, &l);
        buf_init(&out, SIZE_MAX);
        assert_int_equal(
            c10d_encode_request(
                &out, &(struct c10d_request){ .op = C10D_VALIDATE, .word = C10D_MAGIC },
                NULL),
            0);
        assert_int_equal(c10d_encode_request(&out, &push, NULL), 0);
        const size_t push_size = buf_len(&out);
        uint8_t push_bytes[100];
        assert_true(push_size <= sizeof push_bytes);
        memcpy(push_bytes, buf_data(&out), push_size);
        put_frame(&out, LANE_OPEN, 0, "", 0);
        put_frame(&out, LANE_DATA, 7, "for nobody", 10); /* allowed */
        put_frame(&out, LANE_CLOSE, 8, "", 0);           /* so is this */
        switch (what) {
        case 1: /* opens a lane that is open */
            put_frame(&out, LANE_OPEN, 0, "", 0);
            break;
        case 2: /* reports more room than was used */
            put_frame(&out, LANE_ROOM, 0, "", 1);
            break;
        case 3: /* an unknown kind of frame */
            assert_int_equal(buf_append(&out, "\0\0\0\0\0\0\0\xff", 8), 0);
            break;
        case 4: /* a lane number that is too high */
            put_frame(&out, LANE_OPEN, LANES_MOST, "", 0);
            break;
        case 5: /* a lane of lanes: that one is closed, and then the connection is */
            put_frame(&out, LANE_DATA, 0, "", push_size);
            assert_int_equal(buf_append(&out, push_bytes, push_size), 0);
            put_frame(&out, LANE_OPEN, LANES_MOST - 1, "", 0);
            put_frame(&out, LANE_OPEN, LANES_MOST - 1, "", 0);
            break;
        default:
            break;
        }
        send_in(&b, &l, buf_span(&out));
        while ((n = tls_read(l.tls, &byte, 1)) > 0 || (n < 0 && errno == EAGAIN))
            (void)uv_run(&b.loop, UV_RUN_NOWAIT);
        buf_fini(&out);
        tls_end(l.tls);
        (void)close(l.fd);
        until_there_are(&b, 0);
    }
    int fd = come(&b);
    greet(&b, fd);
    assert_int_equal(add(&b, fd), 1);
    (void)close(fd);
    end(&b);
}

/* Hears frames until this lane has had so many bytes of DATA in all. */
static void hear(struct both *b, struct link *l, struct lanes_decoder *d, size_t had[2],
                 uint32_t lane, size_t until)
{
    uint8_t bytes[4096];

    while (had[lane] < until) {
        const ssize_t n = tls_read(l->tls, bytes, sizeof bytes);
        struct span now = span_of(bytes, n > 0 ? (size_t)n : 0);

        assert_true(n > 0 || (n < 0 && errno == EAGAIN));
        while (now.n) {
            struct lane_frame f;
            const int64_t took = lanes_decode(d, now, &f, NULL);

            assert_true(took >= 0);
            if (took == 0)
                break;
            now = span_of(now.p + took, now.n - (size_t)took);
            assert_true(f.kind == LANE_DATA && f.lane < 2);
            had[f.lane] += f.data.n;
        }
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
}

/* A lane is sent the window and what it makes room for, and not a byte more: the answer
 * in another lane, asked for later, comes behind it. */
static void exactly_the_window(void **state)
{
    enum { VALUES = 3 * LANES_WINDOW / VALUE };
    const struct c10d_request first[] = {
        { .op = C10D_VALIDATE, .word = C10D_MAGIC },
        { .op = C10D_QUEUE_PUSH,
          .key = span_str(LANES_KEY),
          .value = span_str(LANES_VERSION) },
    };
    uint8_t *value = calloc(1, VALUE);
    struct lanes_decoder d = { 0 };
    struct buf asks[2], out;
    struct link l = { 0 };
    size_t had[2] = { 0 };
    struct both b;

    (void)state;
    assert_non_null(value);
    begin(&b);
    link_up(&b, &l);
    buf_init(&out, SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(first); i++)
        assert_int_equal(c10d_encode_request(&out, &first[i], NULL), 0);
    for (uint32_t lane = 0; lane < 2; lane++) {
        buf_init(&asks[lane], SIZE_MAX);
        assert_int_equal(c10d_encode_request(&asks[lane], &first[0], NULL), 0);
        put_frame(&out, LANE_OPEN, lane, "", 0);
    }
    assert_int_equal(
        c10d_encode_request(&asks[0],
                            &(struct c10d_request){ .op = C10D_SET,
                                                    .key = span_str("/k"),
                                                    .value = span_of(value, VALUE) },
                            NULL),
        0);
    for (size_t i = 0; i < VALUES; i++)
        assert_int_equal(
            c10d_encode_request(
                &asks[0],
                &(struct c10d_request){ .op = C10D_GET, .key = span_str("/k") }, NULL),
            0);
    assert_int_equal(c10d_encode_request(&asks[1],
                                         &(struct c10d_request){ .op = C10D_ADD,
                                                                 .key = span_str("/n"),
                                                                 .number = 1 },
                                         NULL),
                     0);
    for (uint32_t lane = 0; lane < 2; lane++) {
        put_frame(&out, LANE_DATA, lane, "", buf_len(&asks[lane]));
        assert_int_equal(buf_append_span(&out, buf_span(&asks[lane])), 0);
        send_in(&b, &l, buf_span(&out));
        buf_clear(&out);
        hear(&b, &l, &d, had, lane, lane ? 8 : LANES_WINDOW);
    }
    assert_int_equal(had[0], LANES_WINDOW);
    put_frame(&out, LANE_ROOM, 0, "", 1000);
    buf_consume(&asks[1], 5); /* VALIDATE is for the first time only. */
    put_frame(&out, LANE_DATA, 1, "", buf_len(&asks[1]));
    assert_int_equal(buf_append_span(&out, buf_span(&asks[1])), 0);
    send_in(&b, &l, buf_span(&out));
    hear(&b, &l, &d, had, 1, 16);
    assert_int_equal(had[0], LANES_WINDOW + 1000);
    tls_end(l.tls);
    (void)close(l.fd);
    until_there_are(&b, 0);
    for (uint32_t lane = 0; lane < 2; lane++)
        buf_fini(&asks[lane]);
    buf_fini(&out);
    free(value);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_worker_has_its_own_connection),
        cmocka_unit_test(a_worker_that_does_not_read),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(a_crowd_leaves_the_loop_time),
        cmocka_unit_test(without_descriptors),
        cmocka_unit_test(malformed_frames),
        cmocka_unit_test(exactly_the_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

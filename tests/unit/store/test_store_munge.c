/* test_store_munge.c - strangers who ask a store for credentials: munge's daemon,
 * played here by a socket, hears of so many at a time and no more, and all have their
 * turn. */
#include "testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include "auth/munge_dl.h"
#include "auth/secret.h"
#include "store/core/wire.h"
#include "store/server.h"

#define STRANGERS 160
#define AT_ONCE   32          /* as SECURITY.md has it */
#define MUNGE_NS  5000000000u /* a daemon that takes longer is given up */

struct daemon {
    char dir[64], path[80];
    int fd;
    int open[8 * STRANGERS];
    int count;
};

static void daemon_begin(struct daemon *d)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    *d = (struct daemon){ .dir = "/tmp/muster-munge.XXXXXX" };
    assert_non_null(mkdtemp(d->dir));
    (void)snprintf(d->path, sizeof d->path, "%s/socket", d->dir);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", d->path);
    d->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(d->fd >= 0);
    assert_int_equal(bind(d->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(d->fd, 1000), 0);
    assert_int_equal(setenv("MUSTER_MUNGE_SOCKET", d->path, 1), 0);
}

static void daemon_take(struct daemon *d)
{
    for (int fd; d->count < (int)ARRAY_LEN(d->open) &&
                 (fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        d->open[d->count++] = fd;
}

/* It has no answer for anybody. */
static void daemon_hang_up(struct daemon *d)
{
    while (d->count)
        (void)close(d->open[--d->count]);
}

static void daemon_end(struct daemon *d)
{
    daemon_hang_up(d);
    (void)close(d->fd);
    (void)unlink(d->path);
    (void)rmdir(d->dir);
}

static int come_from(const char *address, uint16_t port, const struct auth *auth,
                     uint8_t number)
{
    const uint8_t nonce[AUTH_NONCE] = { number };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    struct sockaddr_in from = { .sin_family = AF_INET };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t open[AUTH_MESSAGE];
    struct auth_side side;
    struct buf b;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, address, &from.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    buf_init(&b, SIZE_MAX);
    const struct c10d_request asks[] = {
        { .op = C10D_VALIDATE, .word = C10D_MAGIC },
        { .op = C10D_QUEUE_PUSH,
          .key = span_str(AUTH_KEY),
          .value = span_of(open, auth_client_open(&side, &auth->settings, nonce,
                                                  span_str("stranger"), open)) },
    };
    for (size_t i = 0; i < ARRAY_LEN(asks); i++)
        assert_int_equal(c10d_encode_request(&b, &asks[i], NULL), 0);
    assert_int_equal(write(fd, buf_data(&b), buf_len(&b)), buf_len(&b));
    buf_fini(&b);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* True once it has been hung up on; what it was told is in `told`. */
static bool is_over(int fd, char *told, size_t size)
{
    const ssize_t n = read(fd, told, size - 1);

    if (n > 0)
        told[n] = '\0';
    return n == 0 || (n < 0 && errno != EAGAIN);
}

struct crowd {
    struct daemon d;
    uv_loop_t loop;
    struct auth *auth;
    struct store_server *s;
    int fds[STRANGERS], left; /* of one address */
    char told[AUTH_MESSAGE];
};

static void begin(struct crowd *c)
{
    const struct secret_opts secret = { .run_id = "run", .munge = 1 };
    struct store_server_opts opts;
    struct muster_error err;

    *c = (struct crowd){ .left = STRANGERS };
    (void)unsetenv("MUSTER_TOKEN");
    daemon_begin(&c->d);
    if (munge_available(&err) < 0) {
        daemon_end(&c->d);
        print_message("%s\n", err.text);
        skip();
    }
    assert_int_equal(secret_load(&secret, &c->auth, &err), 0);
    assert_int_equal(uv_loop_init(&c->loop), 0);
    store_server_opts_init(&opts);
    opts.bind = "127.0.0.1";
    opts.auth = c->auth;
    assert_int_equal(store_server_open(&c->loop, &opts, &c->s, &err), 0);
    for (int i = 0; i < STRANGERS; i++)
        c->fds[i] =
            come_from("127.0.0.2", store_server_port(c->s), c->auth, (uint8_t)i);
    while (c->d.count < AT_ONCE) {
        (void)uv_run(&c->loop, UV_RUN_NOWAIT);
        daemon_take(&c->d);
    }
}

/* The daemon hangs up on all whom it has taken. */
static void go_on(struct crowd *c)
{
    (void)uv_run(&c->loop, UV_RUN_NOWAIT);
    daemon_take(&c->d);
    daemon_hang_up(&c->d);
    for (int i = 0; i < STRANGERS; i++)
        if (c->fds[i] >= 0 && is_over(c->fds[i], c->told, sizeof c->told)) {
            (void)close(c->fds[i]);
            c->fds[i] = -1;
            c->left--;
        }
}

static void end(struct crowd *c)
{
    while (c->left) /* Each has its turn, and is told what came of it. */
        go_on(c);
    assert_non_null(memmem(c->told, sizeof c->told, "munge", 5));
    store_server_close(c->s, NULL, NULL);
    (void)uv_run(&c->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&c->loop), 0);
    auth_unref(c->auth);
    daemon_end(&c->d);
}

static void a_few_at_a_time(void **state)
{
    const uint64_t began = uv_hrtime();
    struct crowd c;

    (void)state;
    begin(&c);
    for (int i = 0; i < 100; i++) { /* The others do not come as well. */
        (void)uv_run(&c.loop, UV_RUN_NOWAIT);
        (void)usleep(2000);
        daemon_take(&c.d);
    }
    if (uv_hrtime() - began < MUNGE_NS)
        assert_int_equal(c.d.count, AT_ONCE);
    end(&c);
}

/* A crowd of one address does not keep others waiting: theirs is the next turn. */
static void addresses_take_turns(void **state)
{
    const uint64_t began = uv_hrtime();
    struct crowd c;
    int node;

    (void)state;
    begin(&c);
    node = come_from("127.0.0.3", store_server_port(c.s), c.auth, 0);
    while (!is_over(node, c.told, sizeof c.told))
        go_on(&c);
    if (uv_hrtime() - began < MUNGE_NS)
        assert_true(c.left > STRANGERS - 3 * AT_ONCE);
    (void)close(node);
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_at_a_time),
        cmocka_unit_test(addresses_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

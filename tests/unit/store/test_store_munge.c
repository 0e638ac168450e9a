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

#define STRANGERS 60
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

static int come(uint16_t port, const struct auth *auth, uint8_t number)
{
    const uint8_t nonce[AUTH_NONCE] = { number };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t open[AUTH_MESSAGE];
    struct auth_side side;
    struct buf b;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
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

static void a_few_at_a_time(void **state)
{
    const struct secret_opts secret = { .run_id = "run", .munge = 1 };
    struct store_server_opts opts;
    struct store_server *s;
    struct muster_error err;
    struct auth *auth;
    struct daemon d;
    uv_loop_t loop;
    int fds[STRANGERS], left = STRANGERS;
    char told[AUTH_MESSAGE] = "";

    (void)state;
    (void)unsetenv("MUSTER_TOKEN");
    daemon_begin(&d);
    if (munge_available(&err) < 0) {
        daemon_end(&d);
        print_message("%s\n", err.text);
        skip();
    }
    assert_int_equal(secret_load(&secret, &auth, &err), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    store_server_opts_init(&opts);
    opts.bind = "127.0.0.1";
    opts.auth = auth;
    assert_int_equal(store_server_open(&loop, &opts, &s, &err), 0);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = come(store_server_port(s), auth, (uint8_t)i);

    const uint64_t began = uv_hrtime();
    while (d.count < AT_ONCE) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        daemon_take(&d);
    }
    for (int i = 0; i < 100; i++) { /* The others do not come as well. */
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)usleep(2000);
        daemon_take(&d);
    }
    if (uv_hrtime() - began < MUNGE_NS)
        assert_int_equal(d.count, AT_ONCE);
    while (left) { /* Each has its turn, and is told what came of it. */
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        daemon_take(&d);
        daemon_hang_up(&d);
        for (int i = 0; i < STRANGERS; i++)
            if (fds[i] >= 0 && is_over(fds[i], told, sizeof told)) {
                (void)close(fds[i]);
                fds[i] = -1;
                left--;
            }
    }
    assert_non_null(memmem(told, sizeof told, "munge", 5));
    store_server_close(s, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    auth_unref(auth);
    daemon_end(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_at_a_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

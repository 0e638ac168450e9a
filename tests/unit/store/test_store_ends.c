/* test_store_ends.c - how stores end: from many threads at once, in a child of fork(),
 * before they were open.
 * Also built with the thread sanitizer: see tests/interop/test_threads.py. */
#include "testing.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/store.h"

#define LONG_MS 60000
#define CLOSERS 8
#ifdef __SANITIZE_THREAD__
#define ROUNDS 100 /* It sees what might have happened; the others need luck. */
#else
#define ROUNDS 1500
#endif

struct closer {
    pthread_t thread;
    pthread_barrier_t *all;
    struct muster_store *store;
};

static void *close_mine(void *arg)
{
    const struct closer *c = arg;

    (void)pthread_barrier_wait(c->all);
    muster_store_close(c->store);
    return NULL;
}

/* Any of them may be the last, while another still drives the loop they share. */
static void close_at_once(struct muster_store *first)
{
    struct closer closers[CLOSERS] = { { .store = first } };
    pthread_barrier_t all;

    assert_int_equal(pthread_barrier_init(&all, NULL, CLOSERS), 0);
    for (int i = 1; i < CLOSERS; i++) {
        struct muster_store **out = &closers[i].store;

        assert_int_equal(i == 1 ? muster_store_open_prefix(first, "p", out, NULL)
                                : muster_store_clone(first, out, NULL),
                         0);
    }
    for (int i = 0; i < CLOSERS; i++) {
        closers[i].all = &all;
        assert_int_equal(
            pthread_create(&closers[i].thread, NULL, close_mine, &closers[i]), 0);
    }
    for (int i = 0; i < CLOSERS; i++)
        assert_int_equal(pthread_join(closers[i].thread, NULL), 0);
    (void)pthread_barrier_destroy(&all);
}

static struct muster_store *open_hash(void)
{
    struct muster_store *s = NULL;

    assert_int_equal(muster_store_open_hash(LONG_MS, &s, NULL), 0);
    return s;
}

static struct muster_store *serve(void)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;

    muster_store_options_init(&o);
    o.serve = true;
    o.bind = "127.0.0.1";
    o.timeout_ms = LONG_MS;
    assert_int_equal(muster_store_open_tcp(&o, &s, NULL), 0);
    return s;
}

static void stores_of_a_home_close_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        close_at_once(open_hash());
    for (int round = 0; round < ROUNDS / 30; round++)
        close_at_once(serve());
}

/* ---- fork ---- */

static struct muster_store *join(uint16_t port)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;

    muster_store_options_init(&o);
    o.host = "127.0.0.1";
    o.port = port;
    o.timeout_ms = LONG_MS;
    return muster_store_open_tcp(&o, &s, NULL) == 0 ? s : NULL;
}

static struct muster_store *open_file(void)
{
    struct muster_store *s = NULL;
    char path[64];

    (void)snprintf(path, sizeof path, "/tmp/muster-test-ends-%d", getpid());
    assert_int_equal(muster_store_open_file(path, 1, LONG_MS, &s, NULL), 0);
    return s;
}

static bool refused(int rc, const struct muster_error *err)
{
    return rc == MUSTER_EINVAL && err->code == MUSTER_EINVAL &&
           strstr(err->text, "fork()") && strstr(err->text, "open its own");
}

/* The child: returns what was wrong, NULL if nothing. cmocka is the parent's. */
static const char *use_inherited(struct muster_store *s)
{
    struct muster_store *other = NULL;
    struct muster_bytes value = { 0 };
    struct muster_error err = { 0 };

    if (!refused(muster_store_get(s, "k", &value, &err), &err) || value.data)
        return "get";
    if (!refused(muster_store_clone(s, &other, &err), &err) || other)
        return "clone";
    if (!refused(muster_store_open_prefix(s, "p", &other, &err), &err) || other)
        return "prefix";
    if (muster_store_port(s)) { /* The server is the parent's, and there. */
        other = join(muster_store_port(s));
        if (!other || muster_store_get(other, "k", &value, NULL) < 0)
            return "a store of its own";
        muster_bytes_free(&value);
        muster_store_close(other);
    }
    muster_store_close(s);
    return NULL;
}

/* Forks a child that uses and closes s, which goes on in the parent. */
static void fork_with(struct muster_store *s)
{
    const pid_t child = fork();
    struct muster_bytes value = { 0 };
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(PATIENCE_MS / 1000); /* Should it hang. */
        const char *wrong = use_inherited(s);

        if (wrong)
            (void)fprintf(stderr, "in the child: %s\n", wrong);
        _exit(wrong != NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(muster_store_get(s, "k", &value, NULL), 0);
    assert_string_equal(value.data, "v");
    muster_bytes_free(&value);
}

static void a_child_leaves_the_parents_store_alone(void **state)
{
    struct muster_store *server = serve();
    struct muster_store *const stores[] = { join(muster_store_port(server)), server,
                                            open_file(), open_hash() };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(stores); i++) {
        assert_non_null(stores[i]);
        assert_int_equal(muster_store_set(stores[i], "k", "v", 1, NULL), 0);
        fork_with(stores[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(stores); i++)
        muster_store_close(stores[i]);
}

static void *await_word(void *s)
{
    struct muster_bytes value = { 0 };

    if (muster_store_get(s, "word", &value, NULL) < 0)
        return NULL;
    muster_bytes_free(&value);
    return s;
}

/* In the child that thread, which drives the loop, is not there. */
static void a_child_of_many_threads(void **state)
{
    struct muster_store *s = serve(), *clone = NULL;
    pthread_t thread;
    void *got = NULL;

    (void)state;
    assert_int_equal(muster_store_set(s, "k", "v", 1, NULL), 0);
    assert_int_equal(muster_store_clone(s, &clone, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, await_word, s), 0);
    fork_with(clone);
    assert_int_equal(muster_store_set(clone, "word", "x", 1, NULL), 0);
    assert_int_equal(pthread_join(thread, &got), 0);
    assert_ptr_equal(got, s);
    muster_store_close(clone);
    muster_store_close(s);
}

/* ---- a socket of the caller's ---- */

static int bound_socket(void)
{
    const struct sockaddr_in any = { .sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&any, sizeof any), 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void a_socket_is_ours_on_success_only(void **state)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct muster_error err = { 0 };
    const int fd = bound_socket(), number_after = dup(fd);

    (void)state;
    (void)close(number_after);
    muster_store_options_init(&o);
    o.serve = true;
    o.listen_fd = fd;
    o.world_size = 2; /* The second one does not come. */
    o.timeout_ms = 50;
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_ETIMEDOUT);
    assert_true(is_open(fd));
    assert_false(is_open(number_after)); /* Nor is a copy left behind. */

    o.world_size = -1; /* The same socket again, and now it goes well. */
    o.timeout_ms = LONG_MS;
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), 0);
    assert_int_equal(muster_store_set(s, "k", "v", 1, NULL), 0);
    assert_false(is_open(fd));
    muster_store_close(s);

    o.listen_fd = 1 << 30; /* nothing */
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "listen_fd"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_of_a_home_close_at_once),
        cmocka_unit_test(a_child_leaves_the_parents_store_alone),
        cmocka_unit_test(a_child_of_many_threads),
        cmocka_unit_test(a_socket_is_ours_on_success_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_store_api.c - muster/store.h in one process: kinds, threads, order of closing.
 * Also built with the thread sanitizer: see tests/interop/test_threads.py. */
#include "testing.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "muster/store.h"

#define THREADS 6
#define ROUNDS  40
#define LONG_MS 60000

/* cmocka's asserts are for the main thread: others count what went wrong. */
static atomic_int wrong;

#define EXPECT(what)                                                                   \
    do {                                                                               \
        if (!(what)) {                                                                 \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);           \
            wrong++;                                                                   \
        }                                                                              \
    } while (0)

static struct muster_store *serve(void)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct muster_error err = { 0 };

    muster_store_options_init(&o);
    o.serve = true;
    o.bind = "127.0.0.1";
    o.timeout_ms = LONG_MS;
    if (muster_store_open_tcp(&o, &s, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static struct muster_store *join(uint16_t port)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;

    muster_store_options_init(&o);
    o.host = "127.0.0.1";
    o.port = port;
    o.timeout_ms = LONG_MS;
    EXPECT(muster_store_open_tcp(&o, &s, NULL) == 0);
    return s;
}

static struct muster_store *open_file(void)
{
    static atomic_int files;
    struct muster_store *s = NULL;
    char path[64];

    (void)snprintf(path, sizeof path, "/tmp/muster-test-%d-%d", getpid(), files++);
    assert_int_equal(muster_store_open_file(path, 1, LONG_MS, &s, NULL), 0);
    return s;
}

static struct muster_store *open_hash(void)
{
    struct muster_store *s = NULL;

    assert_int_equal(muster_store_open_hash(LONG_MS, &s, NULL), 0);
    return s;
}

static const struct {
    const char *kind;
    struct muster_store *(*open)(void);
} kinds[] = { { "tcp", serve }, { "file", open_file }, { "hash", open_hash } };

static void want_value(struct muster_store *s, const char *key, const char *want)
{
    struct muster_bytes got = { 0 };

    EXPECT(muster_store_get(s, key, &got, NULL) == 0);
    EXPECT(got.size == strlen(want) && memcmp(got.data, want, got.size) == 0);
    muster_bytes_free(&got);
}

/* Everybody counts, leaves a word, meets the others, and reads what they left. */
static void work(struct muster_store *s, int me)
{
    char key[32], word[32];

    for (int round = 0; round < ROUNDS; round++)
        EXPECT(muster_store_add(s, "sum", 1, NULL, NULL) == 0);
    (void)snprintf(key, sizeof key, "word/%d", me);
    (void)snprintf(word, sizeof word, "from %d", me);
    EXPECT(muster_store_set(s, key, word, strlen(word), NULL) == 0);
    EXPECT(muster_store_barrier(s, "met", THREADS, LONG_MS, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        (void)snprintf(key, sizeof key, "word/%d", i);
        (void)snprintf(word, sizeof word, "from %d", i);
        want_value(s, key, word);
    }
}

struct worker {
    pthread_t thread;
    struct muster_store *store;
    uint16_t port;
    int me;
};

static void *work_on_a_connection(void *arg)
{
    struct worker *w = arg;
    struct muster_store *s = join(w->port);

    if (s)
        work(s, w->me);
    muster_store_close(s);
    return NULL;
}

static void *work_on_a_clone(void *arg)
{
    struct worker *w = arg;
    struct muster_store *s = NULL;

    EXPECT(muster_store_clone(w->store, &s, NULL) == 0);
    if (s)
        work(s, w->me);
    muster_store_close(s);
    return NULL;
}

static void run_workers(void *(*what)(void *), struct muster_store *s)
{
    struct worker workers[THREADS];

    wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] =
            (struct worker){ .store = s, .port = muster_store_port(s), .me = i };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, what, &workers[i]),
                         0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    assert_int_equal(wrong, 0);
}

static void threads_have_a_connection_each(void **state)
{
    struct muster_store *s = serve();
    int64_t sum = 0;

    (void)state;
    run_workers(work_on_a_connection, s);
    assert_int_equal(muster_store_add(s, "sum", 0, &sum, NULL), 0);
    assert_int_equal(sum, THREADS * ROUNDS);
    muster_store_close(s);
}

static void threads_have_a_clone_each(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct muster_store *s = kinds[i].open();
        int64_t sum = 0;

        run_workers(work_on_a_clone, s);
        assert_int_equal(muster_store_add(s, "sum", 0, &sum, NULL), 0);
        assert_int_equal(sum, THREADS * ROUNDS);
        muster_store_close(s);
    }
}

static void *add_and_wait(void *arg)
{
    struct worker *w = arg;
    const char *never = "never";

    for (int round = 0; round < ROUNDS; round++) {
        EXPECT(muster_store_add(w->store, "sum", 1, NULL, NULL) == 0);
        if (round % 10 == w->me)
            EXPECT(muster_store_wait(w->store, &never, 1, 5, NULL) == MUSTER_ETIMEDOUT);
    }
    return NULL;
}

/* They share a connection: waits hold the others up, but nobody loses anything. */
static void threads_share_a_store(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct muster_store *s = kinds[i].open();
        int64_t sum = 0;

        run_workers(add_and_wait, s);
        assert_int_equal(muster_store_add(s, "sum", 0, &sum, NULL), 0);
        assert_int_equal(sum, THREADS * ROUNDS);
        muster_store_close(s);
    }
}

/* A view keeps what it looks at, and a clone keeps the server. */
static void stores_close_in_any_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        for (unsigned order = 0; order < 6; order++) {
            struct muster_store *s[3] = { kinds[i].open() };
            static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                              { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

            wrong = 0;
            assert_int_equal(muster_store_open_prefix(s[0], "p", &s[1], NULL), 0);
            assert_int_equal(muster_store_clone(s[1], &s[2], NULL), 0);
            assert_int_equal(muster_store_set(s[1], "k", "v", 1, NULL), 0);
            for (int k = 0; k < 3; k++) {
                for (int left = k; left < 3; left++)
                    want_value(s[orders[order][left]],
                               orders[order][left] ? "k" : "p/k", "v");
                muster_store_close(s[orders[order][k]]);
            }
            assert_int_equal(wrong, 0);
        }
    }
    muster_store_close(NULL);
}

static void a_server_ends_with_its_store(void **state)
{
    struct muster_store *s = serve(), *other = join(muster_store_port(s));
    struct muster_error err = { 0 };

    (void)state;
    assert_int_equal(muster_store_set(other, "k", "v", 1, NULL), 0);
    muster_store_close(s);
    assert_int_equal(muster_store_add(other, "n", 1, NULL, &err), MUSTER_EHANGUP);
    assert_non_null(strstr(err.text, "ADD of /n"));
    assert_non_null(strstr(err.text, "127.0.0.1"));
    muster_store_close(other);
}

static void results_are_the_callers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct muster_store *s = kinds[i].open();
        const char *keys[] = { "a", "b" };
        const struct muster_bytes values[] = { { (void *)(uintptr_t) "\0x", 2 },
                                               { 0 } };
        struct muster_bytes_list got = { 0 };
        bool ready = false;
        int64_t count = 0;

        assert_int_equal(muster_store_multi_set(s, keys, values, 2, NULL), 0);
        assert_int_equal(muster_store_multi_get(s, keys, 2, &got, NULL), 0);
        assert_int_equal(got.count, 2);
        assert_int_equal(got.items[0].size, 2);
        assert_memory_equal(got.items[0].data, "\0x", 3); /* with the NUL behind it */
        assert_int_equal(got.items[1].size, 0);
        assert_string_equal(got.items[1].data, "");
        muster_bytes_list_free(&got);
        assert_int_equal(muster_store_list_keys(s, &got, NULL), 0);
        assert_int_equal(got.count, 2);
        muster_bytes_list_free(&got);
        assert_int_equal(muster_store_check(s, keys, 2, &ready, NULL), 0);
        assert_true(ready);
        assert_int_equal(muster_store_num_keys(s, &count, NULL), 0);
        assert_true(count >= 2);
        assert_int_equal(muster_store_multi_get(s, NULL, 0, &got, NULL), 0);
        assert_int_equal(got.count, 0);
        muster_store_close(s);
    }
    muster_bytes_free(NULL);
    muster_bytes_list_free(NULL);
}

static void deadlines_hold(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct muster_store *s = kinds[i].open();
        struct muster_bytes got = { 0 };
        struct muster_error err = { 0 };

        muster_store_set_timeout(s, 0); /* now or never */
        assert_int_equal(muster_store_timeout(s), 0);
        assert_int_equal(muster_store_get(s, "k", &got, &err), MUSTER_ETIMEDOUT);
        assert_int_equal(err.code, MUSTER_ETIMEDOUT);
        assert_null(got.data);
        assert_int_equal(muster_store_barrier(s, "b", 2, 30, &err), MUSTER_ETIMEDOUT);
        assert_non_null(strstr(err.text, "barrier timeout after 30ms, key: b"));
        muster_store_set_timeout(s, LONG_MS);
        assert_int_equal(muster_store_set(s, "k", "v", 1, NULL), 0);
        assert_int_equal(muster_store_get(s, "k", &got, NULL), 0);
        muster_bytes_free(&got);
        muster_store_close(s);
    }
}

static void bad_arguments_are_refused(void **state)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct muster_error err = { 0 };

    (void)state;
    muster_store_options_init(&o);
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "host"));
    o.host = "127.0.0.1";
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "port"));
    o.port = 1;
    o.world_size = 0;
    assert_int_equal(muster_store_open_tcp(&o, &s, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "TCPStore world size cannot be 0");
    o.serve = true;
    o.world_size = -1;
    o.bind = "not an address";
    assert_true(muster_store_open_tcp(&o, &s, &err) < 0);
    assert_int_equal(muster_store_open_file("", 1, 0, &s, &err), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_file(NULL, 1, 0, &s, &err), MUSTER_EINVAL);
    assert_null(s);
}

/* The thread that asks the resolver is left behind when time is up, or is not. */
static void names_are_asked_for_elsewhere(void **state)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct muster_error err = { 0 };

    (void)state;
    muster_store_options_init(&o);
    o.host = "no-such-host.invalid";
    o.port = 1;
    for (o.timeout_ms = 0; o.timeout_ms < 20; o.timeout_ms += 2) {
        const int rc = muster_store_open_tcp(&o, &s, &err);

        assert_true(rc == MUSTER_ERESOLVE || rc == MUSTER_ETIMEDOUT);
        assert_non_null(strstr(err.text, "no-such-host.invalid"));
    }
}

/* A call is done, or says that memory ran out; what is left of the store can be used or
 * says why not, and can be closed. */
static void use_until_it_fails(struct muster_store *s)
{
    const char *keys[] = { "k", "e" };
    const struct muster_bytes values[] = { { (void *)(uintptr_t) "v", 1 }, { 0 } };
    struct muster_store *view = NULL, *clone = NULL;
    struct muster_bytes value = { 0 };
    struct muster_bytes_list list = { 0 };
    int rc = muster_store_set(s, "k", "v", 1, NULL);

    if (rc == 0)
        rc = muster_store_add(s, "n", 1, NULL, NULL);
    if (rc == 0)
        rc = muster_store_get(s, "k", &value, NULL);
    muster_bytes_free(&value);
    if (rc == 0)
        rc = muster_store_multi_set(s, keys, values, 2, NULL);
    if (rc == 0)
        rc = muster_store_multi_get(s, keys, 2, &list, NULL);
    muster_bytes_list_free(&list);
    if (rc == 0)
        rc = muster_store_list_keys(s, &list, NULL);
    muster_bytes_list_free(&list);
    if (rc == 0)
        rc = muster_store_append(s, "a", "b", 1, NULL);
    if (rc == 0)
        rc = muster_store_open_prefix(s, "p", &view, NULL);
    if (rc == 0)
        rc = muster_store_barrier(view, "b", 2, 1, NULL);
    if (rc == MUSTER_ETIMEDOUT) /* as it should: nobody else comes */
        rc = muster_store_clone(view, &clone, NULL);
    if (rc == 0)
        rc = muster_store_compare_set(clone, "c", "", 0, "d", 1, &value, NULL);
    muster_bytes_free(&value);
    if (rc != 0 && rc != MUSTER_ENOMEM)
        fail_msg("memory ran out, and a call said %s", muster_code_name(rc));
    if (rc == MUSTER_ENOMEM) { /* It is final, or only that call was too large. */
        mem_fail_from(0);
        rc = muster_store_set(s, "k", "v", 1, NULL);
        assert_true(rc == 0 || rc == MUSTER_ENOMEM);
        assert_int_equal(muster_store_set(s, "k", "v", 1, NULL), rc);
    }
    muster_store_close(clone);
    muster_store_close(view);
    muster_store_close(s);
}

static int open_again(size_t kind, struct muster_store *server,
                      struct muster_store **out)
{
    struct muster_store_options o;
    char path[64];

    if (kind == 1) {
        (void)snprintf(path, sizeof path, "/tmp/muster-test-%d-m", getpid());
        (void)unlink(path); /* Who had no memory could not count itself out. */
        return muster_store_open_file(path, 1, LONG_MS, out, NULL);
    }
    if (kind == 2)
        return muster_store_open_hash(LONG_MS, out, NULL);
    muster_store_options_init(&o);
    o.host = "127.0.0.1";
    o.port = muster_store_port(server);
    o.timeout_ms = LONG_MS;
    return muster_store_open_tcp(&o, out, NULL);
}

/* Only the memory of this thread fails: the server has one of its own. */
static void memory_may_run_out_anywhere(void **state)
{
    struct muster_store *server = serve();

    (void)state;
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind++)
        for (struct failing f = failing_first(); failing_next(&f);) {
            struct muster_store *s = NULL;
            const int rc = open_again(kind, server, &s);

            if (rc == 0)
                use_until_it_fails(s);
            else
                assert_int_equal(rc, MUSTER_ENOMEM);
        }
    muster_store_close(server);
}

/* They could be set and not got, and beyond 32 bits were something else. */
static void values_too_large_are_refused(void **state)
{
    static const size_t sizes[] = { ((size_t)1 << 30) + 1, ((size_t)4 << 30) + 1 };
    const size_t most = sizes[1];
    void *zeros =
        mmap(NULL, most, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct muster_store *s = open_hash();
    struct muster_bytes was = { 0 };
    struct muster_error err;

    (void)state;
    assert_true(zeros != MAP_FAILED);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        const size_t n = sizes[i];

        assert_int_equal(muster_store_set(s, "k", zeros, n, &err), MUSTER_EINVAL);
        assert_non_null(strstr(err.text, "at most 1073741824"));
        assert_int_equal(muster_store_append(s, "k", zeros, n, NULL), MUSTER_EINVAL);
        assert_int_equal(muster_store_queue_push(s, "q", zeros, n, NULL),
                         MUSTER_EINVAL);
        assert_int_equal(muster_store_compare_set(s, "k", "", 0, zeros, n, &was, NULL),
                         MUSTER_EINVAL);
        assert_int_equal(muster_store_compare_set(s, "k", zeros, n, "", 0, &was, NULL),
                         MUSTER_EINVAL);
    }
    muster_store_close(s);
    (void)munmap(zeros, most);
}

/* It used to look for a host of that name, for as long as it was given. */
static void an_own_address_in_brackets_is_reached(void **state)
{
    struct muster_store_options o;
    struct muster_store *s = NULL;
    struct muster_error err = { 0 };

    (void)state;
    muster_store_options_init(&o);
    o.serve = true;
    o.bind = "[::1]";
    o.timeout_ms = LONG_MS;
    if (muster_store_open_tcp(&o, &s, &err) < 0) {
        if (strstr(err.text, "no such address"))
            skip(); /* a machine without IPv6 */
        fail_msg("%s", err.text);
    }
    assert_int_equal(muster_store_set(s, "k", "v", 1, NULL), 0);
    muster_store_close(s);
}

static size_t open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}

static void nothing_stays_open(void **state)
{
    size_t before;

    (void)state;
    muster_store_close(serve()); /* libuv keeps a few for itself. */
    before = open_files();
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            struct muster_store *s = kinds[i].open(), *clone = NULL;

            assert_int_equal(muster_store_clone(s, &clone, NULL), 0);
            assert_int_equal(muster_store_set(clone, "k", "v", 1, NULL), 0);
            muster_store_close(s);
            muster_store_close(clone);
        }
    assert_int_equal(open_files(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_have_a_connection_each),
        cmocka_unit_test(threads_have_a_clone_each),
        cmocka_unit_test(threads_share_a_store),
        cmocka_unit_test(stores_close_in_any_order),
        cmocka_unit_test(a_server_ends_with_its_store),
        cmocka_unit_test(results_are_the_callers),
        cmocka_unit_test(deadlines_hold),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(values_too_large_are_refused),
        cmocka_unit_test(an_own_address_in_brackets_is_reached),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(nothing_stays_open), /* before threads are left behind */
        cmocka_unit_test(names_are_asked_for_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

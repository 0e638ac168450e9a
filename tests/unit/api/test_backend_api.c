/* test_backend_api.c - a state backend for callers that block: its state and tokens,
 * its store, several threads at once, and who ends first. The same with a real etcd is
 * in tests/wheel/test_contract.py, where torch's own handler runs on it. */
#include "testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/backend.h"

static int try_open(const char *name, const char *endpoint, const char *conf,
                    struct muster_backend **out, struct muster_error *err)
{
    struct muster_params *p;
    int rc;

    assert_int_equal(muster_params_new(name, endpoint, "job", 2, 2, "a", &p, err), 0);
    assert_int_equal(muster_params_parse(p, conf, err), 0);
    rc = muster_backend_open(p, out, err);
    muster_params_free(p);
    return rc;
}

static struct muster_backend *backend_at(const char *endpoint, const char *conf)
{
    struct muster_backend *b = NULL;
    struct muster_error err;

    if (try_open("c10d", endpoint, conf, &b, &err) < 0)
        fail_msg("%s", err.text);
    return b;
}

static struct muster_state write_state(struct muster_backend *b, const char *bytes,
                                       const struct muster_state *token)
{
    struct muster_state held = { 0 };
    struct muster_error err;

    if (muster_backend_set_state(b, bytes, strlen(bytes), token ? token->token : NULL,
                                 token ? token->token_size : 0, &held, &err) < 0)
        fail_msg("%s", err.text);
    return held;
}

static void holds(const struct muster_state *s, const char *bytes, int won)
{
    assert_int_equal(s->size, strlen(bytes));
    assert_memory_equal(s->bytes, bytes, s->size);
    assert_int_equal(s->won, won);
}

static void a_state_and_its_token(void **state)
{
    char path[] = "/tmp/muster-backend-XXXXXX";
    const int fd = mkstemp(path);
    struct muster_state held = { 0 }, first, second, third;
    struct muster_backend *a, *b;
    struct muster_store *store;
    struct muster_error err;

    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    a = backend_at(path, "store_type=file");
    b = backend_at(path, "store_type=file");
    assert_int_equal(muster_backend_get_state(a, &held, &err), 0);
    assert_null(held.bytes);
    first = write_state(a, "one", NULL);
    holds(&first, "one", 1);
    second = write_state(b, "uninvited", NULL);
    holds(&second, "one", 0);
    third = write_state(b, "two", &second);
    holds(&third, "two", 1);
    muster_state_free(&second);
    second = write_state(a, "late", &first);
    holds(&second, "two", 0);
    assert_int_equal(muster_backend_get_state(a, &held, &err), 0);
    holds(&held, "two", 0);

    /* Torch's words for bytes that no node has written. */
    assert_int_equal(muster_backend_store(b, &store, &err), 0);
    assert_int_equal(muster_store_set(store, "torch.rendezvous.job", "YQ=", 3, &err),
                     0);
    assert_int_equal(muster_backend_get_state(a, &second, &err), MUSTER_ESTATE);
    assert_non_null(strstr(err.text, "The state object is corrupt"));
    muster_store_close(store);
    muster_state_free(&first);
    muster_state_free(&second);
    muster_state_free(&third);
    muster_state_free(&held);
    muster_state_free(&held);
    muster_state_free(NULL);
    muster_backend_free(a);
    muster_backend_free(b);
    (void)unlink(path);
}

#define ROUNDS 8

struct writer {
    struct muster_backend *b;
    int number;
    pthread_t thread;
};

/* Raises the number that is held, ROUNDS times. Signed, as equal bytes are one. */
static void *raise_number(void *arg)
{
    const struct writer *w = arg;

    for (int wins = 0; wins < ROUNDS;) {
        struct muster_state before = { 0 }, after;
        struct muster_error err;
        char next[64];

        if (muster_backend_get_state(w->b, &before, &err) < 0)
            return "get failed";
        (void)snprintf(next, sizeof next, "%d by %d",
                       before.bytes ? atoi(before.bytes) + 1 : 1, w->number);
        after = write_state(w->b, next, before.bytes ? &before : NULL);
        wins += after.won;
        muster_state_free(&before);
        muster_state_free(&after);
    }
    return NULL;
}

static void threads_take_turns(void **state)
{
    struct muster_backend *b = backend_at("localhost:0", "");
    struct muster_state held = { 0 };
    struct muster_error err;
    struct writer w[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        w[i] = (struct writer){ .b = b, .number = i };
        assert_int_equal(pthread_create(&w[i].thread, NULL, raise_number, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;

        assert_int_equal(pthread_join(w[i].thread, &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(muster_backend_get_state(b, &held, &err), 0);
    assert_int_equal(atoi(held.bytes), 4 * ROUNDS);
    muster_state_free(&held);
    muster_backend_free(b);
}

static void a_store_outlives_its_backend(void **state)
{
    struct muster_backend *b = backend_at("localhost:0", "read_timeout=20");
    struct muster_store *store, *clone;
    struct muster_bytes value;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_backend_store(b, &store, &err), 0);
    assert_int_equal(muster_store_timeout(store), 20000);
    muster_backend_free(b);
    assert_int_equal(muster_store_set(store, "key", "value", 5, &err), 0);
    assert_int_equal(muster_store_clone(store, &clone, &err), 0);
    muster_store_close(store);
    assert_int_equal(muster_store_get(clone, "key", &value, &err), 0);
    assert_string_equal(value.data, "value");
    muster_bytes_free(&value);
    muster_store_close(clone);
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *name, *endpoint, *conf;
        int code;
        const char *says;
    } rows[] = {
        { "static", "localhost:1", "", MUSTER_EINVAL,
          "the rendezvous backend 'static' keeps no state of its own" },
        { "etcd", "localhost:1", "", MUSTER_EINVAL, "'etcd' keeps no state" },
        { "c10d", "localhost:0", "read_timeout=x", MUSTER_EINVAL, "read_timeout" },
        { "c10d", "localhost:x", "", MUSTER_EINVAL, "port number" },
        { "c10d", "localhost:0", "token_file=/nowhere/token", MUSTER_EINVAL,
          "/nowhere/token" },
        { "c10d", "127.0.0.1:1", "is_host=0,read_timeout=1", MUSTER_ECONN,
          "The connection to the C10d store has failed" },
        { "etcd-v2", "127.0.0.1:1", "read_timeout=1", MUSTER_ECONN,
          "The connection to etcd has failed" },
        { "etcd-v3", "127.0.0.1:1", "read_timeout=1", MUSTER_ECONN,
          "The connection to etcd has failed" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct muster_backend *b = NULL;
        struct muster_error err;
        const int rc = try_open(rows[i].name, rows[i].endpoint, rows[i].conf, &b, &err);

        if (rc != rows[i].code || !strstr(err.text, rows[i].says) || b)
            fail_msg("%s at %s, %s: %s: %s", rows[i].name, rows[i].endpoint,
                     rows[i].conf, muster_code_name(rc), err.text);
    }
}

static void nulls(void **state)
{
    struct muster_backend *b = backend_at("localhost:0", "");
    struct muster_state held = { 0 };
    struct muster_store *store;
    struct muster_params *p;
    struct muster_error err;

    (void)state;
    assert_int_equal(muster_params_new("c10d", "", "r", 1, 1, NULL, &p, NULL), 0);
    assert_int_equal(muster_backend_open(NULL, &b, &err), MUSTER_EINVAL);
    assert_int_equal(muster_backend_open(p, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_backend_get_state(NULL, &held, &err), MUSTER_EINVAL);
    assert_int_equal(muster_backend_get_state(b, NULL, &err), MUSTER_EINVAL);
    assert_int_equal(muster_backend_set_state(NULL, "x", 1, NULL, 0, &held, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_backend_set_state(b, NULL, 1, NULL, 0, &held, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_backend_set_state(b, "x", 1, NULL, 0, NULL, &err),
                     MUSTER_EINVAL);
    assert_int_equal(muster_backend_set_state(b, NULL, 0, NULL, 0, &held, &err),
                     MUSTER_EINVAL);
    assert_string_equal(err.text, "a state has at least one byte");
    assert_int_equal(muster_backend_store(NULL, &store, &err), MUSTER_EINVAL);
    assert_int_equal(muster_backend_store(b, NULL, &err), MUSTER_EINVAL);
    muster_params_free(p);
    muster_backend_free(b);
    muster_backend_free(NULL);
}

static void a_child_of_fork(void **state)
{
    struct muster_backend *b = backend_at("localhost:0", "");
    struct muster_state held = { 0 };
    struct muster_error err;
    pid_t child;
    int status;

    (void)state;
    child = fork();
    if (child == 0) {
        const int rc = muster_backend_get_state(b, &held, &err);

        muster_backend_free(b);
        _exit(rc == MUSTER_EINVAL ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(muster_backend_get_state(b, &held, &err), 0);
    muster_backend_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_and_its_token),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(a_store_outlives_its_backend),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(nulls),
        cmocka_unit_test(a_child_of_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_store_ends.c - how stores end: from many threads at once.
 * Also built with the thread sanitizer: see tests/interop/test_threads.py. */
#include "testing.h"

#include <pthread.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_of_a_home_close_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

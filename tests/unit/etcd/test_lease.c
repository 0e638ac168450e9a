/* test_lease.c - a lease: asked for, kept alive, late, run out, asked for again.
 */
#include "etcd_said.h"

#include "etcd/core/lease.h"

static const char *told_name(enum lease_grant_outcome t)
{
    static const char *const names[] = {
        [ETCD_GRANT_KEPT] = "KEPT", [ETCD_GRANT_NEW] = "NEW",
        [ETCD_GRANT_NONE] = "NONE", [ETCD_GRANT_RAN_OUT] = "RAN_OUT",
        [ETCD_GRANT_LATE] = "LATE",
    };
    return names[t];
}

/* The id in the request that is sent now: of a grant (*grant), or of a beat. */
static int64_t asks(const char *says, struct lease_grant *g, long long ttl_s,
                    bool *grant)
{
    char want[128];
    struct etcd_msg m;
    int64_t id;

    etcd_msg_init(&m);
    assert_int_equal(lease_grant_encode(g, &m), 0);
    *grant = g->id == 0;
    id = *grant ? g->asked : g->id;
    if (*grant)
        (void)snprintf(want, sizeof want,
                       "POST /v3/lease/grant {\"ID\":\"%lld\",\"TTL\":\"%lld\"}",
                       (long long)id, ttl_s);
    else
        (void)snprintf(want, sizeof want, "POST /v3/lease/keepalive {\"ID\":\"%lld\"}",
                       (long long)id);
    msg_is(says, &m, want);
    etcd_msg_fini(&m);
    assert_true(id > 0); /* 0 would let the server choose, and a repeat make two */
    return id;
}

/* One life of a lease of 9 s. */
static void life(void **state)
{
    static const struct {
        const char *says;
        bool grant; /* what is asked for */
        uint64_t timeout_ms;
        const char *said; /* the answer, or ... */
        int status;       /* ... of nobody */
        enum lease_grant_outcome want;
        uint64_t pause_ms;
        bool have; /* we have a lease then */
    } story[] = {
        { "nobody there yet", true, 2000, NULL, MUSTER_ETIMEDOUT, ETCD_GRANT_NONE, 500,
          false },
        { "no right to", true, 4000, "=v3-auth-denied", 0, ETCD_GRANT_NONE, 500,
          false },
        { "granted", true, 8000, "=v3-lease-grant", 0, ETCD_GRANT_NEW, 2250, true },
        { "kept", false, 4500, "=v3-lease-keepalive", 0, ETCD_GRANT_KEPT, 2250, true },
        { "a beat that nobody takes: again, soon", false, 4500, NULL, MUSTER_ECONN,
          ETCD_GRANT_LATE, 200, true },
        { "nor the next", false, 4500, NULL, MUSTER_ETIMEDOUT, ETCD_GRANT_LATE, 200,
          true },
        { "still there", false, 4500, "=3.4/v3-lease-keepalive", 0, ETCD_GRANT_KEPT,
          2250, true },
        { "run out, or revoked: another at once", false, 4500, "=v3-lease-gone", 0,
          ETCD_GRANT_RAN_OUT, 0, false },
        { "the database is full", true, 2000,
          "500 0 {\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}",
          0, ETCD_GRANT_NONE, 500, false },
        { "no answer in time", true, 4000, NULL, MUSTER_ETIMEDOUT, ETCD_GRANT_NONE, 500,
          false },
        { "nor with more patience", true, 8000, NULL, MUSTER_ETIMEDOUT, ETCD_GRANT_NONE,
          500, false },
        { "which has its limits", true, 9000, NULL, MUSTER_ETIMEDOUT, ETCD_GRANT_NONE,
          500, false },
        { "granted by a try whose answer got lost: a beat is due", true, 9000,
          "=v3-lease-exists", 0, ETCD_GRANT_NEW, 0, true },
        { "kept", false, 4500, "=v3-lease-keepalive", 0, ETCD_GRANT_KEPT, 2250, true },
        { "a time to live below zero", false, 4500,
          "200 0 {\"result\":{\"header\":{},\"ID\":\"7\",\"TTL\":\"-1\"}}", 0,
          ETCD_GRANT_RAN_OUT, 0, false },
    };
    struct lease_grant g;
    int64_t before = 0;
    bool failed = false;

    (void)state;
    lease_grant_init(&g, 9, 4711);
    for (size_t i = 0; i < ARRAY_LEN(story); i++) {
        const char *says = story[i].says;
        struct said said = { .text = NULL };
        struct etcd3_reply r = { .error = 0 };
        const struct etcd_answer answer = { .v3 = &r };
        int status = story[i].status;
        uint64_t pause = 1;
        bool grant;
        const int64_t id = asks(says, &g, 9, &grant);

        number_is(says, "grant", grant, story[i].grant);
        number_is(says, "timeout", (long long)lease_grant_timeout_ms(&g),
                  (long long)story[i].timeout_ms);
        if (story[i].said) {
            said = said_of(story[i].said);
            assert_int_equal(etcd3_decode(&said.http, ETCD3_EXPECT_LEASE, &r, NULL), 0);
            status = r.error ? etcd3_error(&r, NULL) : 0;
        }
        const enum lease_grant_outcome told =
            lease_grant_answer(&g, status, story[i].said ? &answer : NULL, &pause);

        if (told != story[i].want)
            fail_msg("%s: %s, not %s", says, told_name(told), told_name(story[i].want));
        number_is(says, "pause", (long long)pause, (long long)story[i].pause_ms);
        number_is(says, "the lease", g.id, story[i].have ? id : 0);
        /* A lease that may have been granted after all is the one asked for again. One
         * that we had, and lost, is not: what hung on it must not come back to life. */
        if (grant)
            number_is(says, "the same", id == before, failed);
        failed = told == ETCD_GRANT_NONE;
        before = id;
        etcd3_reply_fini(&r);
        said_fini(&said);
    }
}

/* Every beat can be tried at several endpoints before the lease runs out. */
static void times(void **state)
{
    static const struct {
        uint64_t ttl_s, grant_ms, grant_attempt_ms;
        uint64_t last_ms, last_attempt_ms; /* of a grant that failed often */
        uint64_t beat_ms, attempt_ms;
    } leases[] = {
        { 1, 1000, 500, 1000, 500, 500, 500 },
        { 3, 2000, 1000, 3000, 1500, 1500, 500 },
        { 9, 2000, 1500, 9000, 4500, 4500, 1500 },
        { 15, 2000, 2500, 10000, 5000, 7500, 2500 },
        { 30, 2000, 3000, 10000, 5000, 15000, 3000 },
        { 300, 2000, 3000, 10000, 5000, 150000, 3000 },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(leases); i++) {
        struct lease_grant g;
        char says[32];

        (void)snprintf(says, sizeof says, "a lease of %d s", (int)leases[i].ttl_s);
        lease_grant_init(&g, leases[i].ttl_s, 1);
        number_is(says, "grant", (long long)lease_grant_timeout_ms(&g),
                  (long long)leases[i].grant_ms);
        number_is(says, "its attempt", (long long)lease_grant_attempt_ms(&g),
                  (long long)leases[i].grant_attempt_ms);
        g.failed = 1000;
        number_is(says, "the last grant", (long long)lease_grant_timeout_ms(&g),
                  (long long)leases[i].last_ms);
        number_is(says, "its attempt", (long long)lease_grant_attempt_ms(&g),
                  (long long)leases[i].last_attempt_ms);
        g.id = 5;
        number_is(says, "attempt", (long long)lease_grant_attempt_ms(&g),
                  (long long)leases[i].attempt_ms);
        number_is(says, "beat", (long long)lease_grant_timeout_ms(&g),
                  (long long)leases[i].beat_ms);
    }
}

/* Two nodes that start at once must not take one lease for their own. */
static void seeds(void **state)
{
    struct lease_grant a, b;
    bool grant;

    (void)state;
    lease_grant_init(&a, 9, 1);
    lease_grant_init(&b, 9, 2);
    for (int i = 0; i < 100; i++) {
        assert_true(asks("a", &a, 9, &grant) != asks("b", &b, 9, &grant));
        a.asked = b.asked = 0;
    }
}

static void out_of_memory(void **state)
{
    (void)state;
    for (int64_t id = 0; id < 2; id++) {
        for (struct failing f = failing_first(); failing_next(&f);) {
            struct lease_grant g;
            struct etcd_msg m;

            lease_grant_init(&g, 9, 1);
            g.id = id;
            etcd_msg_init(&m);
            const int rc = lease_grant_encode(&g, &m);

            assert_int_equal(rc, failing_rc(&f));
            assert_int_equal(g.id, id);
            etcd_msg_fini(&m);
        }
    }
}

/* When whoever holds a lease of 8 s is cut off: a quarter of it before the end, counted
 * from the sending of what was granted last. */
static void fence_of_a_lease(void **state)
{
    static const struct {
        const char *says;
        uint64_t sent_ms;
        int status;
        long long ttl;   /* in the answer */
        uint64_t due_ms; /* 0: never */
    } rows[] = {
        { "a grant that nobody answers", 1000, MUSTER_ETIMEDOUT, 0, 0 },
        { "granted after all, to the first: that is when it began", 4000, MUSTER_EEXIST,
          0, 7000 },
        { "kept", 5000, 0, 8, 11000 },
        { "nobody takes it", 7000, MUSTER_ECONN, 0, 11000 },
        { "kept: the one that was lost does not count", 9500, 0, 8, 15500 },
        { "it has run out", 11500, 0, 0, 0 },
        { "another", 12000, 0, 8, 18000 },
    };
    struct lease_grant g;

    (void)state;
    lease_grant_init(&g, 8, 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct etcd3_reply r = { .lease_ttl = rows[i].ttl };
        const struct etcd_answer answer = { .v3 = &r };
        struct etcd_msg m;
        uint64_t pause;

        etcd_msg_init(&m);
        assert_int_equal(lease_grant_encode(&g, &m), 0);
        etcd_msg_fini(&m);
        lease_grant_sent(&g, rows[i].sent_ms);
        (void)lease_grant_answer(&g, rows[i].status, rows[i].status ? NULL : &answer,
                                 &pause);
        number_is(rows[i].says, "cut off at", (long long)fence_due(&g.fence),
                  (long long)(rows[i].due_ms ? rows[i].due_ms : MONO_NEVER));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fence_of_a_lease),
        cmocka_unit_test(life),
        cmocka_unit_test(times),
        cmocka_unit_test(seeds),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

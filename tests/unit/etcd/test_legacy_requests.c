/* test_legacy_requests.c - between torch's first state machine and an etcd client: how
 * its requests are sent, what an answer is to it, and the keys that it keeps alive. */
#include "etcd_said.h"

#include "base/err.h"
#include "etcd/legacy/core/machine.h"

#define PATH "/torchelastic/p2p/run_job/rdzv/v_1/rank_0"

/* ---- How a request is sent ---- */

static void manners(void **state)
{
    static const struct {
        const char *says;
        struct etcd2_request request;
        uint64_t timeout_ms;
        struct legacy_manner want;
    } rows[] = {
        { "a read may be repeated", { ETCD2_GET }, 0, { 10000, 0, false } },
        { "nobody could tell whose rank it is", { ETCD2_PUT }, 0, { 10000, 0, true } },
        { "nor who has deleted", { ETCD2_DELETE }, 0, { 10000, 0, true } },
        { "a short wait", { ETCD2_GET, .wait = true }, 7000, { 7000, 20000, true } },
        { "a long one, a poll at a time",
          { ETCD2_GET, .wait = true },
          600000,
          { 20000, 20000, true } },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct legacy_effect e = { .kind = LEGACY_FX_REQUEST,
                                         .request = rows[i].request,
                                         .timeout_ms = rows[i].timeout_ms };
        const struct legacy_manner m = legacy_manner_of(&e);

        number_is(rows[i].says, "timeout", (long long)m.timeout_ms,
                  (long long)rows[i].want.timeout_ms);
        number_is(rows[i].says, "attempt", (long long)m.attempt_ms,
                  (long long)rows[i].want.attempt_ms);
        number_is(rows[i].says, "once", m.once, rows[i].want.once);
    }
}

/* ---- What an answer is to it ---- */

static void replies(void **state)
{
    static const struct {
        const char *says;
        bool waiting;
        const char *said;
        int status; /* of nobody */
        bool hiccup;
        int code;
        bool fatal;
        const char *text, *value;
        uint64_t modified, index;
        size_t count;
    } rows[] = {
        { "a value", false, "=v2-get", .value = "gASV=", .modified = 4, .index = 4 },
        { "a listing", false, "=v2-list", .modified = 4, .index = 5, .count = 1 },
        { "a change that was waited for, with an index from when the wait began", true,
          "200 40 {\"node\":{\"key\":\"/k\",\"value\":\"x\",\"modifiedIndex\":42}}",
          .value = "x", .modified = 42, .index = 42 },
        { "no such key", false, "=v2-get-missing", .code = MUSTER_ENOENT,
          .text = "etcd says: Key not found (/torch), error 100", .index = 3 },
        { "a compare lost", false, "=v2-swap-lost", .code = MUSTER_EEXIST,
          .text = "etcd says: Compare failed ([4 != 5]), error 101", .index = 5 },
        { "history is cleared: an answer, also to a wait", true, "=v2-watch-cleared",
          .code = MUSTER_ESTATE,
          .text = "etcd says: The event in requested index is outdated and cleared "
                  "(the requested history has been cleared [107/2]), error 401",
          .index = 1106 },
        { "no right to", false,
          "401 0 {\"errorCode\":110,\"message\":\"The request requires user "
          "authentication\",\"cause\":\"Insufficient credentials\",\"index\":7}",
          .code = MUSTER_EACCES, .fatal = true,
          .text = "etcd says: The request requires user authentication (Insufficient "
                  "credentials), error 110. Give a user who may read and write this "
                  "key",
          .index = 7 },
        { "nobody there", false, NULL, MUSTER_EREFUSED, .code = MUSTER_EREFUSED,
          .text = "why" },
        { "no v2", false, NULL, MUSTER_ENOTSUP, .code = MUSTER_ENOTSUP, .fatal = true,
          .text = "why" },
        { "a web page", false, NULL, MUSTER_ENOTSTORE, .code = MUSTER_ENOTSTORE,
          .fatal = true, .text = "why" },
        { "a wait without an event", true, NULL, MUSTER_ETIMEDOUT,
          .code = MUSTER_ETIMEDOUT, .text = "why" },
        { "a wait that broke: read what it waited for", true, NULL, MUSTER_EHANGUP,
          .hiccup = true, .code = MUSTER_ETIMEDOUT },
        { "a wait that nobody takes", true, NULL, MUSTER_EREFUSED, .hiccup = true,
          .code = MUSTER_ETIMEDOUT },
        { "cut off", true, NULL, MUSTER_EPROTO, .hiccup = true,
          .code = MUSTER_ETIMEDOUT },
        { "a wait that will never be taken", true, NULL, MUSTER_ENOTSTORE,
          .code = MUSTER_ENOTSTORE, .fatal = true, .text = "why" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *says = rows[i].says;
        struct said said = { .text = NULL };
        struct etcd2_reply r = { .error = 0 };
        const struct etcd_answer answer = { .v2 = &r };
        struct muster_error err = { 0 };
        struct legacy_event ev;
        int status = rows[i].status;

        if (rows[i].said) {
            said = said_of(rows[i].said);
            assert_int_equal(etcd2_decode(&said.http, &r, NULL), 0);
            status = r.error ? etcd2_error(&r, &err) : 0;
        } else {
            err_set(&err, status, "why");
        }
        number_is(says, "hiccup",
                  legacy_reply(&ev, rows[i].waiting, status,
                               rows[i].said ? &answer : NULL, &err),
                  rows[i].hiccup);
        number_is(says, "kind", ev.kind, LEGACY_EV_REPLY);
        code_is(says, ev.code, rows[i].code);
        number_is(says, "fatal", ev.fatal, rows[i].fatal);
        text_is(says, ev.text ? ev.text : "", rows[i].text ? rows[i].text : "");
        span_is(says, "value", ev.value, rows[i].value);
        number_is(says, "modified", (long long)ev.modified_index,
                  (long long)rows[i].modified);
        number_is(says, "index", (long long)ev.index, (long long)rows[i].index);
        number_is(says, "count", (long long)ev.count, (long long)rows[i].count);
        number_is(says, "nodes", ev.nodes != NULL, rows[i].count > 0);
        etcd2_reply_fini(&r);
        said_fini(&said);
    }
}

/* ---- A key that lives as long as it is refreshed ---- */

static void keeps(void **state)
{
    static const struct {
        const char *says;
        int status;
        uint64_t next_ms;
        bool on;
    } story[] = {
        { "refreshed: again at half of its life", 0, 5000, true },
        { "nobody there: soon", MUSTER_ECONN, 1000, true },
        { "no answer: soon", MUSTER_ETIMEDOUT, 1000, true },
        { "in time after all", 0, 5000, true },
        { "gone: there is nothing to refresh", MUSTER_ENOENT, MONO_NEVER, false },
    };
    const struct legacy_effect e = { .kind = LEGACY_FX_KEEP,
                                     .path = span_str(PATH),
                                     .ttl_s = 10 };
    struct legacy_keep k;
    struct etcd_msg m;

    (void)state;
    legacy_keep_init(&k);
    assert_false(k.on);
    for (int life = 0; life < 2; life++) { /* and once more, after it was gone */
        assert_int_equal(legacy_keep_start(&k, &e), 0);
        assert_true(k.on);
        etcd_msg_init(&m);
        assert_int_equal(legacy_keep_encode(&k, &m), 0);
        msg_is("a refresh: no value, no event", &m,
               "PUT /v2/keys" PATH " ttl=10&refresh=true&prevExist=true");
        etcd_msg_fini(&m);
        assert_int_equal(legacy_keep_timeout_ms(&k), 5000);
        for (size_t i = 0; i < ARRAY_LEN(story); i++) {
            const uint64_t next = legacy_keep_answer(&k, story[i].status);

            if (next != story[i].next_ms)
                fail_msg("%s: again in %llu ms", story[i].says,
                         (unsigned long long)next);
            number_is(story[i].says, "on", k.on, story[i].on);
        }
    }
    legacy_keep_fini(&k);
}

/* Another key after a first one: if there is no memory for it, neither is kept. */
static void out_of_memory(void **state)
{
    char longer[400];
    const struct legacy_effect first = { .path = span_str("/k"), .ttl_s = 10 };
    const struct legacy_effect second = { .path = span_of(longer, sizeof longer),
                                          .ttl_s = 20 };

    (void)state;
    memset(longer, 'x', sizeof longer);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct legacy_keep k;
        struct etcd_msg m;
        int rc;

        legacy_keep_init(&k);
        etcd_msg_init(&m);
        rc = legacy_keep_start(&k, &first);
        assert_int_equal(rc, failing_rc(&f));
        assert_int_equal(k.on, rc == 0);
        rc = legacy_keep_start(&k, &second);
        assert_int_equal(rc, failing_rc(&f));
        assert_int_equal(k.on, rc == 0);
        if (rc == 0) {
            rc = legacy_keep_encode(&k, &m);
            assert_int_equal(rc, failing_rc(&f));
        }
        etcd_msg_fini(&m);
        legacy_keep_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manners),
        cmocka_unit_test(replies),
        cmocka_unit_test(keeps),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

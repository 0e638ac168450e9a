/* test_rdzv_state.c - the state of a rendezvous in etcd: its keys, its compare-and-set,
 * what the rendezvous is told, and when what it was told is old. */
#include "etcd_said.h"

#include "etcd/core/rdzv_state.h"

#define BELL "/muster/job/bell"

/* ---- Keys ---- */

static void names(void **state)
{
    static const struct {
        const char *says;
        enum etcd_api api;
        const char *prefix, *id;
        const char *key, *dir, *nodes, *change_key;
    } rows[] = {
        { "v2: torch's own keys", ETCD_V2, "/ignored", "job",
          "/torch/elastic/rendezvous/job", "/torch/elastic/store/", NULL, NULL },
        { "v2: torch does not escape either", ETCD_V2, NULL, "a/b c",
          "/torch/elastic/rendezvous/a/b c", "/torch/elastic/store/", NULL, NULL },
        { "v3", ETCD_V3, "/muster", "job", "/muster/job/state", "/muster/job/store/",
          "/muster/job/nodes/", BELL },
        { "v3: a slash must not lead into another run", ETCD_V3, "/muster", "job/state",
          "/muster/job%2Fstate/state", "/muster/job%2Fstate/store/",
          "/muster/job%2Fstate/nodes/", "/muster/job%2Fstate/bell" },
        { "v3: nor a percent sign", ETCD_V3, "/muster", "job%2F",
          "/muster/job%252F/state", "/muster/job%252F/store/",
          "/muster/job%252F/nodes/", "/muster/job%252F/bell" },
        { "v3: no name at all", ETCD_V3, "", "", "//state", "//store/", "//nodes/",
          "//bell" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct etcd_names n;

        assert_int_equal(etcd_names_init(&n, rows[i].api, rows[i].prefix, rows[i].id),
                         0);
        text_is(rows[i].says, n.key, rows[i].key);
        text_is(rows[i].says, n.dir, rows[i].dir);
        text_is(rows[i].says, n.nodes ? n.nodes : "none",
                rows[i].nodes ? rows[i].nodes : "none");
        text_is(rows[i].says, n.change_key ? n.change_key : "none",
                rows[i].change_key ? rows[i].change_key : "none");
        etcd_names_fini(&n);
        etcd_names_fini(&n);
    }
}

static void no_memory_for_names(void **state)
{
    (void)state;
    for (enum etcd_api api = ETCD_V2; api <= ETCD_V3; api++) {
        for (struct failing f = failing_first(); failing_next(&f);) {
            struct etcd_names n;
            const int rc = etcd_names_init(&n, api, "/muster", "a/b");

            assert_int_equal(rc, failing_rc(&f));
            etcd_names_fini(&n);
        }
    }
}

/* ---- Patience ---- */

/* Two members that hang, one after the other, and a beat's rest before them, leave time
 * enough to be heard elsewhere. */
static void patience(void **state)
{
    static const struct {
        int64_t interval_s, attempts;
        uint64_t want;
    } rows[] = {
        { 5, 3, 2500 }, { 2, 3, 1000 },  { 1, 1, 500 },
        { 0, 3, 500 },  { 60, 3, 3000 }, { INT64_MAX, INT64_MAX, 3000 },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rdzv_settings s;

        rdzv_settings_init(&s, 1, 2);
        s.keep_alive_interval_s = rows[i].interval_s;
        s.keep_alive_max_attempt = rows[i].attempts;
        assert_int_equal(etcd_patience_ms(&s), rows[i].want);
        if (rows[i].attempts == 3 && rows[i].interval_s > 0)
            assert_true(rdzv_interval_ms(&s) + 2 * etcd_patience_ms(&s) <
                        rdzv_dead_after_ms(&s));
    }
}

/* ---- Writing ---- */

static void puts_state(void **state)
{
    static const struct {
        const char *says;
        enum etcd_api api;
        const char *token; /* NULL: none */
        bool quiet;
        enum etcd_cond cond;
        uint64_t number;
        const char *change_key;
    } rows[] = {
        { "v2: the first", ETCD_V2, NULL, false, ETCD_IF_ABSENT, 0, "" },
        { "v2: the next", ETCD_V2, "42", false, ETCD_IF_TOKEN, 42, "" },
        { "v3: the first", ETCD_V3, NULL, false, ETCD_IF_ABSENT, 0, BELL },
        { "v3: the next", ETCD_V3, "9223372036854775807", false, ETCD_IF_TOKEN,
          INT64_MAX, BELL },
        { "v3: no token of etcd's", ETCD_V3, "4x2", false, ETCD_IF_TOKEN, UINT64_MAX,
          BELL },
        { "v3: 0 would mean that nothing is there", ETCD_V3, "0", false, ETCD_IF_TOKEN,
          UINT64_MAX, BELL },
        { "v2: beyond all numbers", ETCD_V2, "18446744073709551616", false,
          ETCD_IF_TOKEN, UINT64_MAX, "" },
        { "v3: a heartbeat wakes nobody", ETCD_V3, "42", true, ETCD_IF_TOKEN, 42, "" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct etcd_names n;

        assert_int_equal(etcd_names_init(&n, rows[i].api, "/muster", "job"), 0);
        const struct etcd_put put = etcd_state_put(
            &n, span_str("value"), rows[i].token != NULL,
            rows[i].token ? span_str(rows[i].token) : (struct span){ NULL, 0 },
            rows[i].quiet, 7);

        span_is(rows[i].says, "path", put.path, n.key);
        span_is(rows[i].says, "value", put.value, "value");
        span_is(rows[i].says, "change_key", put.change_key, rows[i].change_key);
        number_is(rows[i].says, "condition", put.cond, rows[i].cond);
        number_is(rows[i].says, "token", (long long)put.token,
                  (long long)rows[i].number);
        number_is(rows[i].says, "time to live", (long long)put.ttl_s, 7200);
        number_is(rows[i].says, "lease", put.lease, 7);
        assert_true(put.unique); /* so it may be repeated after a lost answer */
        etcd_names_fini(&n);
    }
}

/* ---- What the rendezvous is told ---- */

static void events(void **state)
{
    static const struct {
        const char *says;
        bool write, won;
        struct etcd_held held;
        const char *token;
    } rows[] = {
        { "read", false, false, { .present = true, .token = 42 }, "42" },
        { "nothing there", false, false, { .present = false }, "0" },
        { "written", true, true, { .present = true, .token = 43 }, "43" },
        { "lost",
          true,
          false,
          { .present = true, .token = UINT64_MAX },
          "18446744073709551615" },
        { "lost, and expired", true, false, { .present = false }, "0" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct etcd_held held = rows[i].held;
        char token[ETCD_TOKEN_SIZE];
        struct rdzv_event ev;

        held.value = span_str("value");
        etcd_state_event(&ev, rows[i].write, rows[i].won, &held, token);
        number_is(rows[i].says, "kind", ev.kind,
                  rows[i].write ? RDZV_EV_WROTE : RDZV_EV_STATE);
        number_is(rows[i].says, "won", ev.won, rows[i].won);
        number_is(rows[i].says, "present", ev.present, held.present);
        span_is(rows[i].says, "value", ev.value, "value");
        span_is(rows[i].says, "token", ev.token, rows[i].token);
        /* ... and back: the token that a put is given is the one that came. */
        struct etcd_names n = { .key = (char *)"/k" };

        if (held.present)
            assert_true(etcd_state_put(&n, ev.value, true, ev.token, true, 0).token ==
                        held.token);
    }
}

static void failures(void **state)
{
    static const struct {
        int code;
        bool again;
        int told;
    } rows[] = {
        { MUSTER_ECONN, true, MUSTER_ECONN },
        { MUSTER_ETIMEDOUT, true, MUSTER_ETIMEDOUT },
        { MUSTER_EREFUSED, true, MUSTER_ECONN },
        { MUSTER_EUNREACH, true, MUSTER_ECONN },
        { MUSTER_ERESOLVE, true, MUSTER_ECONN },
        { MUSTER_EHANGUP, true, MUSTER_ECONN },
        { MUSTER_ENOENT, true, MUSTER_ECONN }, /* the lease: another is on its way */
        { MUSTER_EACCES, false, MUSTER_EACCES },
        { MUSTER_EFULL, false, MUSTER_EFULL }, /* NOSPACE */
        { MUSTER_EINVAL, false, MUSTER_EINVAL },
        { MUSTER_ENOTSTORE, false, MUSTER_ENOTSTORE },
        { MUSTER_ENOTSUP, false, MUSTER_ENOTSUP },
        { MUSTER_EPROTO, false, MUSTER_EPROTO },
        { MUSTER_ENOMEM, false, MUSTER_ENOMEM },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *says = muster_code_name(rows[i].code);
        struct rdzv_event ev;

        etcd_state_failed(&ev, rows[i].code);
        number_is(says, "kind", ev.kind, RDZV_EV_FAILED);
        number_is(says, "transient", etcd_is_transient(rows[i].code), rows[i].again);
        number_is(says, "again", ev.again, rows[i].again);
        code_is(says, ev.code, rows[i].told);
    }
}

/* ---- What was told, and what came after ---- */

/* T: the state is told, at that revision of the store; B: the change_key rang; K:
 * another key changed; M: changes may have been missed. */
static void staleness(void **state)
{
    static const struct {
        const char *says;
        struct {
            char what;
            int64_t revision;
        } steps[4];
        bool stale;
    } rows[] = {
        { "nothing yet", { { 0 } }, false },
        { "just told", { { 'T', 5 } }, false },
        { "it rang since", { { 'T', 5 }, { 'B', 6 } }, true },
        { "our own write rang before its answer", { { 'B', 6 }, { 'T', 6 } }, false },
        { "... or after it", { { 'T', 6 }, { 'B', 6 } }, false },
        { "another one's rang meanwhile", { { 'B', 7 }, { 'T', 6 } }, true },
        { "read again", { { 'T', 5 }, { 'B', 6 }, { 'T', 8 } }, false },
        { "another key", { { 'T', 5 }, { 'K', 6 } }, false },
        { "an old ring after a new one", { { 'T', 5 }, { 'B', 7 }, { 'B', 4 } }, true },
        { "some were missed", { { 'T', 5 }, { 'M' } }, true },
        { "missed, and read again", { { 'T', 5 }, { 'M' }, { 'T', 5 } }, false },
        { "restored: the ring was of what has not happened",
          { { 'T', 50 }, { 'B', 60 }, { 'T', 4 } },
          false },
        { "restored, known from the stream",
          { { 'T', 50 }, { 'B', 60 }, { 'M' }, { 'T', 4 } },
          false },
        { "restored, and changed since",
          { { 'T', 50 }, { 'M' }, { 'T', 4 }, { 'B', 5 } },
          true },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct etcd_seen s = { .revision = 0 };

        for (size_t k = 0; k < ARRAY_LEN(rows[i].steps) && rows[i].steps[k].what; k++) {
            const char what = rows[i].steps[k].what;
            const int64_t revision = rows[i].steps[k].revision;
            const struct etcd_held held = { .revision = (uint64_t)revision };
            struct etcd3_event ev = { .kv = { .key = span_str(what == 'B' ? BELL
                                                                          : BELL "s"),
                                              .mod_revision = revision } };
            const struct etcd3_reply reply = { .events = &ev, .event_count = 1 };

            if (what == 'T')
                etcd_seen_notified(&s, &held);
            else
                etcd_seen_events(&s, BELL, what == 'M' ? NULL : &reply);
        }
        number_is(rows[i].says, "stale", etcd_is_stale(&s), rows[i].stale);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),     cmocka_unit_test(no_memory_for_names),
        cmocka_unit_test(patience),  cmocka_unit_test(puts_state),
        cmocka_unit_test(events),    cmocka_unit_test(failures),
        cmocka_unit_test(staleness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_legacy_progress.c - what a node of the backend "etcd" tells while it waits, for
 * each document that etcd may answer with: etcd/legacy/core/machine.c. */
#include "testing.h"

#include "etcd/legacy/core/machine.h"

#define NOW_MS     5000u
#define TIMEOUT_MS 60000u
#define CALL_MS    30000u

static struct legacy *l;
static bool asked, polls; /* a request is under way, and is a wait */

static void feed(struct legacy_event ev, uint64_t now_ms)
{
    struct legacy_fx fx;

    ev.now = (struct now){ now_ms, 0 };
    assert_int_equal(legacy_step(l, &ev, &fx), 0);
    for (size_t i = 0; i < fx.count; i++)
        if (fx.at[i].kind == LEGACY_FX_REQUEST) {
            asked = true;
            polls = fx.at[i].request.wait;
        }
}

static void answer(int code, const char *value, uint64_t now_ms)
{
    assert_true(asked);
    asked = false;
    feed((struct legacy_event){ .kind = LEGACY_EV_REPLY,
                                .code = code,
                                .text = code == MUSTER_ECONN ? "re\033fused" : NULL,
                                .value = span_str(value),
                                .index = 7 },
         now_ms);
}

static void tick(uint64_t now_ms)
{
    feed((struct legacy_event){ .kind = LEGACY_EV_TIMER }, now_ms);
}

static void open_node(void)
{
    const struct legacy_config cfg = { .prefix = "/p",
                                       .run_id = "job",
                                       .min_nodes = 2,
                                       .max_nodes = 4,
                                       .timeout_ms = TIMEOUT_MS,
                                       .last_call_ms = CALL_MS };

    asked = false;
    assert_int_equal(legacy_new(&cfg, &l, NULL), 0);
    feed((struct legacy_event){ .kind = LEGACY_EV_JOIN }, NOW_MS);
}

/* Until the document is read for the first time: the tree and a version are there. */
static void look(const char *doc)
{
    for (int i = 0; i < 5; i++)
        answer(MUSTER_EEXIST, "", NOW_MS);
    answer(0, doc, NOW_MS);
}

#define V "\"version\": \"3\", "

static const struct row {
    const char *says;
    const char *look, *join; /* as first read; as read when we take a place, or NULL */
    const char *after;       /* as read when we have it */
    bool nothing;            /* nothing to tell */
    enum rdzv_stage stage;
    int64_t here, min, max;
    uint64_t start_by_ms;
} rows[] = {
    { .says = "somebody sets a version up",
      .look = "{\"status\": \"setup\"}",
      .stage = RDZV_AT_ROUND,
      .min = 2,
      .max = 4 },
    { .says = "a version completes without us",
      .look = "{\"status\": \"frozen\", " V
              "\"participants\": [0, 1], \"keep_alives\": [\"/a\"]}",
      .stage = RDZV_AT_NEXT,
      .min = 2,
      .max = 4 },
    { .says = "a version runs without us",
      .look =
          "{\"status\": \"final\", " V
          "\"participants\": [0], \"keep_alives\": [\"/a\"], \"num_workers_waiting\": "
          "0}",
      .stage = RDZV_AT_NEXT,
      .min = 2,
      .max = 4 },
    { .says = "we are the first",
      .look = "{\"status\": \"joinable\", " V "\"participants\": []}",
      .join = "{\"status\": \"joinable\", " V "\"participants\": []}",
      .after = "{\"status\": \"joinable\", " V "\"participants\": [0]}",
      .stage = RDZV_AT_ROUND,
      .here = 1,
      .min = 2,
      .max = 4 },
    { .says = "the last call is ours",
      .look = "{\"status\": \"joinable\", " V "\"participants\": [0]}",
      .join = "{\"status\": \"joinable\", " V "\"participants\": [0]}",
      .after = "{\"status\": \"joinable\", " V "\"participants\": [0, 1]}",
      .stage = RDZV_AT_ROUND,
      .here = 2,
      .min = 2,
      .max = 4,
      .start_by_ms = NOW_MS + 200 + CALL_MS },
    { .says = "the last call is another's",
      .look = "{\"status\": \"joinable\", " V "\"participants\": [0, 1]}",
      .join = "{\"status\": \"joinable\", " V "\"participants\": [0, 1]}",
      .after = "{\"status\": \"joinable\", " V "\"participants\": [0, 1, 2]}",
      .stage = RDZV_AT_ROUND,
      .here = 3,
      .min = 2,
      .max = 4,
      .start_by_ms = NOW_MS + CALL_MS },
    { .says = "all have come, one has confirmed",
      .look = "{\"status\": \"joinable\", " V "\"participants\": [0, 1]}",
      .join = "{\"status\": \"joinable\", " V "\"participants\": [0, 1]}",
      .after = "{\"status\": \"frozen\", " V
               "\"participants\": [0, 1, 2], \"keep_alives\": [\"/a\"]}",
      .stage = RDZV_AT_ROUND,
      .here = 1,
      .min = 3,
      .max = 3 },
    { .says = "the run is closed",
      .look = "{\"status\": \"closed\"}",
      .nothing = true },
};

static void test_documents(void **state)
{
    struct rdzv_progress p;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];

        open_node();
        assert_true(legacy_progress(l, &p)); /* not reached yet */
        assert_int_equal(p.stage, RDZV_AT_STORE);
        look(r->look);
        if (r->join) {
            tick(NOW_MS + 200);
            answer(0, r->join, NOW_MS + 200);
            answer(0, "", NOW_MS + 200);
            answer(0, r->after, NOW_MS + 200);
        }
        if (legacy_progress(l, &p) == r->nothing)
            fail_msg("%s: want %s to tell", r->says, r->nothing ? "nothing" : "that");
        if (!r->nothing &&
            (p.stage != r->stage || p.here != r->here || p.min_nodes != r->min ||
             p.max_nodes != r->max || p.by_ms != NOW_MS + TIMEOUT_MS ||
             p.start_by_ms != (r->start_by_ms ? r->start_by_ms : MONO_NEVER)))
            fail_msg("%s: got stage %d, %lld here, %lld to %lld, by %llu, start %llu",
                     r->says, (int)p.stage, (long long)p.here, (long long)p.min_nodes,
                     (long long)p.max_nodes, (unsigned long long)p.by_ms,
                     (unsigned long long)p.start_by_ms);
        legacy_free(l);
    }
}

/* etcd that goes and comes: a wait that ends without an event says nothing of it. */
static void test_etcd_is_away(void **state)
{
    struct rdzv_progress p;

    (void)state;
    open_node();
    answer(MUSTER_ECONN, "", NOW_MS);
    assert_true(legacy_progress(l, &p));
    assert_int_equal(p.stage, RDZV_AT_STORE);
    assert_string_equal(p.why, "re?fused");
    assert_false(p.dialled);
    tick(NOW_MS + 1000);
    answer(MUSTER_EEXIST, "", NOW_MS + 1000);
    assert_false(legacy_progress(l, &p)); /* there, but what is in it? */
    for (int i = 0; i < 4; i++)
        answer(MUSTER_EEXIST, "", NOW_MS + 1000);
    answer(0, "{\"status\": \"setup\"}", NOW_MS + 1000);
    assert_true(polls);
    answer(MUSTER_ETIMEDOUT, "", NOW_MS + 2000);
    assert_true(legacy_progress(l, &p));
    assert_int_equal(p.stage, RDZV_AT_ROUND);
    assert_non_null(strstr(p.why, "setting up"));
    tick(NOW_MS + 3000);
    answer(MUSTER_ETIMEDOUT, "", NOW_MS + 13000); /* of a request that is no wait */
    assert_true(legacy_progress(l, &p));
    assert_int_equal(p.stage, RDZV_AT_STORE);
    feed((struct legacy_event){ .kind = LEGACY_EV_LEAVE }, NOW_MS + 14000);
    assert_false(legacy_progress(l, &p));
    legacy_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_etcd_is_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

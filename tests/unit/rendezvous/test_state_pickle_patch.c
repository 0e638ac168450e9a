/* test_state_pickle_patch.c - reading and writing only the changed heartbeats must give
 * the same result as reading and writing everything. */
#include "state_vectors.h"

#include "base/base64.h"
#include "base/rng.h"
#include "rendezvous/core/state_pickle.h"

static void text_of(struct rdzv_state *s, struct buf *out)
{
    buf_init(out, SIZE_MAX);
    assert_int_equal(pickle_write_text(s, out), 0);
}

/* Equal states have equal canonical texts. */
static bool same(struct rdzv_state *a, struct rdzv_state *b)
{
    struct rdzv_state ca, cb;
    struct buf ta, tb;
    bool equal;

    assert_int_equal(rdzv_state_copy(&ca, a), 0);
    assert_int_equal(rdzv_state_copy(&cb, b), 0);
    text_of(&ca, &ta);
    text_of(&cb, &tb);
    equal = span_eq(buf_span(&ta), buf_span(&tb));
    buf_fini(&ta);
    buf_fini(&tb);
    rdzv_state_fini(&ca);
    rdzv_state_fini(&cb);
    return equal;
}

static bool same_but_beats(const struct rdzv_state *a, const struct rdzv_state *b)
{
    struct rdzv_state ca, cb;
    bool equal;

    assert_int_equal(rdzv_state_copy(&ca, a), 0);
    assert_int_equal(rdzv_state_copy(&cb, b), 0);
    for (struct participant *m = rdzv_first(&ca, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS])
        m->beat_us = 0;
    for (struct participant *m = rdzv_first(&cb, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS])
        m->beat_us = 0;
    equal = same(&ca, &cb);
    rdzv_state_fini(&ca);
    rdzv_state_fini(&cb);
    return equal;
}

static void on_beat(void *ctx, struct participant *m, int64_t beat_us)
{
    size_t *count = ctx;

    (*count)++;
    assert_true(m->beat_us != beat_us);
    m->beat_us = beat_us;
}

/* Whatever pickle_only_beats() accepts, pickle_read_text() must accept with the same
 * result. Returns whether it was accepted. */
static bool compare(const struct rdzv_state *s, struct span was, struct span text)
{
    struct rdzv_state quick, full;
    struct muster_error err;
    const int rc = pickle_read_text(text, &full, &err);
    size_t count = 0;
    bool taken;

    assert_int_equal(rdzv_state_copy(&quick, s), 0);
    taken = pickle_only_beats(&quick, was, text, on_beat, &count);
    if (taken) {
        assert_int_equal(rc, 0);
        assert_true(same(&quick, &full));
    } else {
        assert_int_equal(count, 0);
        assert_true(same(&quick, (struct rdzv_state *)(uintptr_t)s));
    }
    rdzv_state_fini(&quick);
    if (rc == 0)
        rdzv_state_fini(&full);
    return taken;
}

/* Changes every character of every state that torch wrote in several ways. */
static void every_character(void **state)
{
    static const char others[] = "A/9+=\n";
    json_t *all = json_object_get(vectors, "vectors"), *v;
    size_t i, taken = 0;

    (void)state;
    json_array_foreach(all, i, v)
    {
        const char *b64 = json_string_value(json_object_get(v, "base64"));
        struct rdzv_state s;
        struct buf text;

        assert_non_null(b64);
        if (pickle_read_text(span_str(b64), &s, NULL) < 0)
            continue; /* the one whose times have no zone */
        buf_init(&text, SIZE_MAX);
        assert_int_equal(buf_append_str(&text, b64), 0);
        assert_true(compare(&s, span_str(b64), buf_span(&text)));
        for (size_t at = 0; at < buf_len(&text) && at < 6000; at++) {
            uint8_t *c = text.mem + text.head + at;
            const uint8_t was = *c;

            for (const char *o = others; *o; o++) {
                *c = (uint8_t)*o;
                taken += compare(&s, span_str(b64), buf_span(&text));
            }
            *c = was == 'z' ? 'y' : (uint8_t)(was + 1);
            taken += compare(&s, span_str(b64), buf_span(&text));
            *c = was;
        }
        buf_fini(&text);
        rdzv_state_fini(&s);
    }
    assert_true(taken > 100);
}

static void fill(struct rdzv_state *s, struct rng *r, size_t nodes)
{
    rdzv_state_init(s);
    s->round = (int64_t)rng_below(r, 1000);
    s->complete = rng_below(r, 2);
    if (rng_below(r, 2))
        s->deadline_us = 1767323045000000ll + (int64_t)rng_below(r, 1000000000);
    for (size_t i = 0; i < nodes; i++) {
        char addr[32];
        struct rdzv_node n = { .pid = (int64_t)rng_below(r, 100000) };
        struct participant *m;

        (void)snprintf(addr, sizeof addr, "node%zu.%llu", i,
                       (unsigned long long)rng_below(r, 100));
        n.addr = span_str(addr);
        m = rdzv_state_put(s, &n, rng_below(r, 4) ? RDZV_PLACES : RDZV_WAITS);
        assert_non_null(m);
        m->rank = (int64_t)i;
        assert_non_null(rdzv_state_put(s, &n, RDZV_BEATS));
        m->beat_us = 1767323045000000ll + (int64_t)rng_below(r, 1000000000);
    }
}

/* States that we write ourselves: after each write pickle_only_beats() works for the
 * next reader. */
static void our_own_states(void **state)
{
    struct rng r;

    (void)state;
    rng_init(&r, 7);
    for (size_t round = 0; round < 300; round++) {
        const size_t nodes = 1 + rng_below(&r, round % 50 == 0 ? 1200 : 12);
        struct rdzv_state s, later;
        struct buf was, text, again;

        fill(&s, &r, nodes);
        text_of(&s, &was);
        assert_int_equal(rdzv_state_copy(&later, &s), 0);
        for (struct participant *m = rdzv_first(&later, RDZV_BEATS); m;
             m = m->next[RDZV_BEATS]) {
            if (rng_below(&r, 3) == 0)
                m->beat_us += 1 + (int64_t)rng_below(&r, 5000000);
        }
        text_of(&later, &text);
        assert_true(compare(&s, buf_span(&was), buf_span(&text)));
        later.closed = true;
        assert_false(same_but_beats(&s, &later));
        buf_fini(&text);
        text_of(&later, &text);
        assert_false(compare(&s, buf_span(&was), buf_span(&text)));

        /* Writing one heartbeat into a text gives the same as writing it all again. */
        struct participant *m = rdzv_first(&s, RDZV_BEATS);

        for (size_t i = rng_below(&r, nodes); i-- > 0 && m->next[RDZV_BEATS];)
            m = m->next[RDZV_BEATS];
        m->beat_us += 5000000;
        buf_init(&again, SIZE_MAX);
        assert_int_equal(pickle_write_beat(&s, m, buf_span(&was), &again), 1);
        buf_fini(&text);
        text_of(&s, &text);
        assert_true(span_eq(buf_span(&again), buf_span(&text)));
        buf_fini(&again);
        buf_fini(&text);
        buf_fini(&was);
        rdzv_state_fini(&s);
        rdzv_state_fini(&later);
    }
}

/* A node that came after the text was read is not in it, and two that share their time
 * cannot be told apart. */
static void what_the_text_does_not_tell(void **state)
{
    const struct rdzv_node late = { span_str("z"), 1, 0 };
    struct participant *m;
    struct rdzv_state s;
    struct buf was, out;
    struct rng r;

    (void)state;
    rng_init(&r, 9);
    fill(&s, &r, 3);
    text_of(&s, &was);
    buf_init(&out, SIZE_MAX);
    m = rdzv_first(&s, RDZV_BEATS);
    m->next[RDZV_BEATS]->beat_at = m->beat_at;
    assert_int_equal(pickle_write_beat(&s, m, buf_span(&was), &out), 0);
    assert_false(pickle_only_beats(&s, buf_span(&was), buf_span(&was), on_beat, NULL));
    m = rdzv_state_put(&s, &late, RDZV_BEATS);
    assert_non_null(m);
    assert_int_equal(pickle_write_beat(&s, m, buf_span(&was), &out), 0);
    assert_false(pickle_only_beats(&s, buf_span(&was), buf_span(&was), on_beat, NULL));
    assert_int_equal(buf_len(&out), 0);
    buf_fini(&out);
    buf_fini(&was);
    rdzv_state_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character),
        cmocka_unit_test(our_own_states),
        cmocka_unit_test(what_the_text_does_not_tell),
    };

    return cmocka_run_group_tests(tests, load, unload);
}

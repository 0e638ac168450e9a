/* test_state_pickle.c - states that real torch wrote, and malformed ones. */
#include "state_vectors.h"

#include "base/err.h"
#include "base/py/datetime.h"
#include "base/rng.h"
#include "rendezvous/core/state_pickle.h"

static const char *text_of(json_t *v, const char *name)
{
    return json_string_value(json_object_get(v, name));
}

static void unhex(struct buf *b, const char *hex)
{
    buf_init(b, SIZE_MAX);
    for (; *hex; hex += 2) {
        const char byte[3] = { hex[0], hex[1], 0 };

        assert_int_equal(buf_u8(b, (uint8_t)strtoul(byte, NULL, 16)), 0);
    }
}

static struct rdzv_node node_of(json_t *j)
{
    return (struct rdzv_node){ span_str(text_of(j, "addr")),
                               json_integer_value(json_object_get(j, "pid")),
                               json_integer_value(json_object_get(j, "local_id")) };
}

static void check_list(const struct rdzv_state *s, json_t *want, enum rdzv_list list)
{
    const struct participant *m = rdzv_first(s, list);
    json_t *j;
    size_t i;

    assert_int_equal(rdzv_count(s, list), json_array_size(want));
    json_array_foreach(want, i, j)
    {
        const struct rdzv_node n = node_of(j);

        assert_int_equal(rdzv_node_cmp(&m->node, &n), 0);
        if (list == RDZV_PLACES)
            assert_int_equal(m->rank, json_integer_value(json_object_get(j, "rank")));
        if (list == RDZV_BEATS)
            assert_int_equal(m->beat_us,
                             json_integer_value(json_object_get(j, "epoch_us")));
        m = m->next[list];
    }
    assert_null(m);
}

static void check_state(const struct rdzv_state *s, json_t *want)
{
    json_t *deadline = json_object_get(want, "deadline");

    assert_int_equal(s->round, json_integer_value(json_object_get(want, "round")));
    assert_int_equal(s->complete, json_is_true(json_object_get(want, "complete")));
    assert_int_equal(s->closed, json_is_true(json_object_get(want, "closed")));
    assert_int_equal(s->deadline_us,
                     json_is_null(deadline)
                         ? WALL_NEVER
                         : json_integer_value(json_object_get(deadline, "epoch_us")));
    check_list(s, json_object_get(want, "participants"), RDZV_PLACES);
    check_list(s, json_object_get(want, "wait_list"), RDZV_WAITS);
    check_list(s, json_object_get(want, "redundancy_list"), RDZV_SPARES);
    check_list(s, json_object_get(want, "last_heartbeats"), RDZV_BEATS);
}

static bool is_bad(json_t *v)
{
    return strcmp(text_of(v, "name"), "extra_naive_reject") == 0;
}

static void vectors_come_out_as_described(void **state)
{
    json_t *v;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(vectors, "vectors")), 8);
    json_array_foreach(json_object_get(vectors, "vectors"), i, v)
    {
        const char *canonical = text_of(v, "canonical_hex_if_different");
        struct rdzv_state s;
        struct muster_error err;
        struct buf bytes, want, out;

        if (is_bad(v))
            continue;
        unhex(&bytes, text_of(v, "hex"));
        unhex(&want, canonical ? canonical : text_of(v, "hex"));
        buf_init(&out, SIZE_MAX);
        assert_int_equal(pickle_read(buf_span(&bytes), &s, &err), 0);
        check_state(&s, json_object_get(v, "state"));
        assert_int_equal(pickle_write(&s, &out), 0);
        assert_true(span_eq(buf_span(&out), buf_span(&want)));
        rdzv_state_fini(&s);

        assert_int_equal(pickle_read_text(span_str(text_of(v, "base64")), &s, &err), 0);
        check_state(&s, json_object_get(v, "state"));
        if (!canonical) {
            buf_clear(&out);
            assert_int_equal(pickle_write_text(&s, &out), 0);
            assert_true(span_eq(buf_span(&out), span_str(text_of(v, "base64"))));
        }
        rdzv_state_fini(&s);
        buf_fini(&bytes);
        buf_fini(&want);
        buf_fini(&out);
    }
}

static void naive_times_are_refused(void **state)
{
    json_t *v;
    size_t i, found = 0;

    (void)state;
    json_array_foreach(json_object_get(vectors, "vectors"), i, v)
    {
        struct rdzv_state s;
        struct muster_error err;

        if (!is_bad(v))
            continue;
        found++;
        assert_int_equal(pickle_read_text(span_str(text_of(v, "base64")), &s, &err),
                         MUSTER_ESTATE);
        assert_non_null(strstr(err.text, "torch <= 2.5"));
    }
    assert_int_equal(found, 1);
}

/* Every vector is cut at every byte, and has every byte replaced by every other value.
 * The result is an error that says where, or a state, and never anything else. */
static void damage_is_reported(void **state)
{
    json_t *v;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(vectors, "vectors"), i, v)
    {
        struct rdzv_state s;
        struct muster_error err;
        struct buf bytes;

        unhex(&bytes, text_of(v, "hex"));
        for (size_t n = 0; n < buf_len(&bytes); n++) {
            uint8_t *cut = malloc(n ? n : 1); /* so that ASan sees a byte too many */

            memcpy(cut, buf_data(&bytes), n);
            assert_int_equal(pickle_read(span_of(cut, n), &s, &err), MUSTER_ESTATE);
            assert_non_null(strstr(err.text, "offset"));
            free(cut);
        }
        for (size_t at = 0; at < buf_len(&bytes); at++) {
            uint8_t *p = bytes.mem + bytes.head + at;
            const uint8_t good = *p;

            for (unsigned b = 0; b < 256; b++) {
                *p = (uint8_t)b;
                if (pickle_read(buf_span(&bytes), &s, &err) == 0)
                    rdzv_state_fini(&s);
                else
                    assert_int_equal(err.code, MUSTER_ESTATE);
            }
            *p = good;
        }
        buf_fini(&bytes);
    }
}

struct refusal {
    const char *says, *hex, *word;
};

#define PROTO "8004"
#define STATE_                                                                         \
    "8c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75"       \
    "732e64796e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174"     \
    "659493942981"

static void refusals_say_where(void **state)
{
    static const struct refusal rows[] = {
        { "nothing at all", "", "not a pickle" },
        { "another protocol", "80064e2e", "protocol 6" },
        { "the header twice", "800480044e2e", "at the start" },
        { "no object", PROTO "4e2e", "exactly one object" },
        { "a foreign global", PROTO "8c026f738c0673797374656d93", "os.system" },
        { "the text opcode GLOBAL", PROTO "636f730a73797374656d0a",
          "offset 2, opcode 0x63" },
        { "bytes after the end", PROTO "4e2e2e", "after the end" },
        { "a memo that is not there", PROTO "6807", "memo 7 of 0" },
        { "marks without end", PROTO "282828282828282828", "nested too deeply" },
        { "a frame too long", PROTO "95ff00000000000000", "frame" },
        { "an unfilled state", PROTO STATE_ "2e", "not a rendezvous state" },
        { "a state without fields", PROTO STATE_ "7d622e", "without round" },
        { "a call of a class", PROTO STATE_ "52", "needs a type" },
        { "an integer that is too large", PROTO "8a09", "9 bytes" },
        { "items for nothing", PROTO "2875", "nothing to put" },
        { "a map that is used twice", PROTO "7d946800", "two places" },
        { "an odd number of items", PROTO "7d288c0161752e", "without a value" },
        { "a number as key", PROTO "7d284b014b0275", "neither a node nor a name" },
        { "a string without end", PROTO "58ffffff7f", "string of" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rdzv_state s;
        struct muster_error err = { 0 };
        struct buf b;

        unhex(&b, rows[i].hex);
        if (pickle_read(buf_span(&b), &s, &err) != MUSTER_ESTATE ||
            !strstr(err.text, rows[i].word))
            fail_msg("%s: %s", rows[i].says, err.text);
        buf_fini(&b);
    }
}

static void text_must_be_base64(void **state)
{
    struct rdzv_state s;
    struct muster_error err;

    (void)state;
    assert_int_equal(pickle_read_text(span_str("Y2FuaW1hZGFt"), &s, &err),
                     MUSTER_ESTATE);
    assert_int_equal(pickle_read_text(span_str("gASV="), &s, &err), MUSTER_ESTATE);
    assert_non_null(strstr(err.text, "base64"));
    assert_int_equal(pickle_read_text(span_of("", 0), &s, NULL), MUSTER_ESTATE);
}

static void random_state(struct rdzv_state *s, struct rng *r, size_t nodes)
{
    rdzv_state_init(s);
    s->round = (int64_t)(rng_u64(r) >> (2 + rng_below(r, 60)));
    s->complete = rng_below(r, 2);
    s->closed = rng_below(r, 2);
    if (rng_below(r, 2))
        s->deadline_us = (int64_t)rng_below(r, 1u << 30) * 100000;
    for (size_t i = 0; i < nodes; i++) {
        char addr[400];
        struct rdzv_node n = { .pid = (int64_t)(rng_u64(r) >> rng_below(r, 64)),
                               .local_id = -(int64_t)rng_below(r, 3) };
        struct participant *m;

        (void)snprintf(addr, sizeof addr, "n%0*zu", (int)rng_below(r, 300), i);
        n.addr = span_str(addr);
        m = rdzv_state_put(s, &n, (enum rdzv_list)rng_below(r, 3));
        m->rank = (int64_t)rng_below(r, 70000);
        m = rdzv_state_put(s, &n, RDZV_BEATS);
        m->beat_us = (int64_t)rng_below(r, 1ull << 60) - (1ll << 54);
        m->beat_us = MIN_OF(MAX_OF(m->beat_us, PYTIME_MIN_US), PYTIME_MAX_US);
    }
}

static void what_is_written_is_read(void **state)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 7, 40, 999, 1000, 1001, 2300 };
    struct rng r;

    (void)state;
    rng_init(&r, 11);
    for (size_t i = 0; i < 40; i++) {
        struct rdzv_state s, t, c;
        struct buf a, b;

        random_state(&s, &r, sizes[i % ARRAY_LEN(sizes)]);
        buf_init(&a, SIZE_MAX);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(pickle_write_text(&s, &a), 0);
        assert_int_equal(pickle_read_text(buf_span(&a), &t, NULL), 0);
        assert_int_equal(rdzv_state_copy(&c, &t), 0);
        assert_int_equal(pickle_write_text(&c, &b), 0);
        assert_true(span_eq(buf_span(&a), buf_span(&b)));
        buf_fini(&a);
        buf_fini(&b);
        rdzv_state_fini(&s);
        rdzv_state_fini(&t);
        rdzv_state_fini(&c);
    }
}

static void failing_memory_is_reported(void **state)
{
    struct rng r;
    struct rdzv_state whole;
    struct buf text;

    (void)state;
    rng_init(&r, 5);
    random_state(&whole, &r, 150);
    buf_init(&text, SIZE_MAX);
    assert_int_equal(pickle_write_text(&whole, &text), 0);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct rdzv_state s, c;
        struct buf out;
        int rc = pickle_read_text(buf_span(&text), &s, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc < 0)
            continue;
        rc = rdzv_state_copy(&c, &s);
        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0) {
            buf_init(&out, SIZE_MAX);
            rc = pickle_write_text(&c, &out);
            assert_int_equal(rc, failing_rc(&f));
            buf_fini(&out);
            rdzv_state_fini(&c);
        }
        rdzv_state_fini(&s);
    }
    buf_fini(&text);
    rdzv_state_fini(&whole);
}

static void times_cover_python_years(void **state)
{
    static const int64_t edges[] = {
        PYTIME_MIN_US,   PYTIME_MAX_US,   0, -1, 951782400000000,
        951868799999999, 1767323045678901
    };
    static const uint8_t bad[][PYTIME_BYTES] = {
        { 0, 0, 1, 1 },
        { 0x27, 0x10, 1, 1 },
        { 7, 0xea, 0, 1 },
        { 7, 0xea, 13, 1 },
        { 7, 0xea, 2, 29 },
        { 7, 0xea, 1, 0 },
        { 7, 0xea, 1, 1, 24 },
        { 7, 0xea, 1, 1, 0, 60 },
        { 7, 0xea, 1, 1, 0, 0, 60 },
        { 7, 0xea, 1, 1, 0, 0, 0, 15, 66, 64 },
        { 7, 0xea, 0x81, 1 },
    };
    struct rng r;
    uint8_t b[PYTIME_BYTES];
    int64_t us;

    (void)state;
    rng_init(&r, 1);
    for (size_t i = 0; i < ARRAY_LEN(edges); i++) {
        py_datetime_write(b, edges[i]);
        assert_true(py_datetime_read(b, &us) && us == edges[i]);
    }
    for (size_t i = 0; i < 20000; i++) {
        const int64_t t =
            PYTIME_MIN_US + (int64_t)rng_below(&r, PYTIME_MAX_US - PYTIME_MIN_US);

        py_datetime_write(b, t);
        assert_true(py_datetime_read(b, &us) && us == t);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(py_datetime_read(bad[i], &us));
    py_datetime_write(b, INT64_MAX);
    assert_true(py_datetime_read(b, &us) && us == PYTIME_MAX_US);
}

static void states_keep_order_and_drop_nodes(void **state)
{
    const struct rdzv_node a = { span_str("a"), 1, 0 }, b = { span_str("b"), 1, 0 };
    struct rdzv_state s;
    struct participant *m;
    char text[40];

    (void)state;
    rdzv_state_init(&s);
    assert_non_null(rdzv_state_put(&s, &b, RDZV_BEATS));
    assert_non_null(rdzv_state_put(&s, &a, RDZV_BEATS));
    assert_non_null(rdzv_state_put(&s, &a, RDZV_WAITS));
    m = rdzv_state_put(&s, &b, RDZV_BEATS); /* an update keeps its place */
    assert_ptr_equal(rdzv_first(&s, RDZV_BEATS), m);
    rdzv_state_drop(&s, m, RDZV_WAITS); /* it is not in the list: nothing happens */
    rdzv_state_drop(&s, m, RDZV_BEATS);
    assert_null(rdzv_state_find(&s, &b));
    assert_int_equal(rdzv_count(&s, RDZV_BEATS), 1);
    m = rdzv_state_find(&s, &a);
    assert_string_equal(rdzv_node_text(&m->node, text, sizeof text), "a_1_0");
    rdzv_state_forget(&s, m);
    assert_int_equal(s.nodes.count, 0);
    assert_int_equal(rdzv_count(&s, RDZV_WAITS), 0);
    assert_true(rdzv_node_cmp(&a, &b) < 0);
    rdzv_state_fini(&s);
    rdzv_state_fini(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_come_out_as_described),
        cmocka_unit_test(naive_times_are_refused),
        cmocka_unit_test(damage_is_reported),
        cmocka_unit_test(refusals_say_where),
        cmocka_unit_test(text_must_be_base64),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(failing_memory_is_reported),
        cmocka_unit_test(times_cover_python_years),
        cmocka_unit_test(states_keep_order_and_drop_nodes),
    };

    return cmocka_run_group_tests(tests, load, unload);
}

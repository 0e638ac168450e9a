/* test_wire.c - the c10d wire: golden bytes, pieces of every size, limits, nonsense. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "store/core/wire.h"

#define HELLO  "\x00\xce\xf7\x85\x3c"
#define U64_1  "\1\0\0\0\0\0\0\0"
#define LIT(s) span_of("" s, sizeof(s) - 1)
#define ROW(s)                                                                         \
    {                                                                                  \
        (const uint8_t *)("" s), sizeof(s) - 1                                         \
    } /* the same in a table */

static struct span decode_one(struct c10d_decoder *d, struct span in,
                              struct c10d_request *req)
{
    struct muster_error err = { 0 };
    const int64_t used = c10d_decode_request(d, in.p, in.n, req, &err);

    if (used <= 0)
        fail_msg("decode said %lld: %s", (long long)used, err.text);
    return span_of(in.p + used, in.n - (size_t)used);
}

static struct c10d_decoder greeted(void)
{
    struct c10d_decoder d;
    struct c10d_request req;

    c10d_decoder_init(&d);
    assert_int_equal(decode_one(&d, LIT(HELLO), &req).n, 0);
    assert_int_equal(req.op, C10D_VALIDATE);
    assert_int_equal(d.dialect, C10D_DIALECT_C);
    return d;
}

/* Bytes captured from a real client, and what they say. */
static const struct golden {
    struct span bytes;
    struct c10d_request req;
} golden[] = {
    { ROW("\x0d\x98\x02\0\0"), { .op = C10D_PING, .word = 664 } },
    { ROW("\1\2\0\0\0\0\0\0\0/k\1\0\0\0\0\0\0\0v"),
      { .op = C10D_SET, .key = ROW("/k"), .value = ROW("v") } },
    { ROW("\1\1\0\0\0\0\0\0\0/\0\0\0\0\0\0\0\0"),
      { .op = C10D_SET, .key = ROW("/"), .value = ROW("") } },
    { ROW("\6" U64_1 "\2\0\0\0\0\0\0\0/k"),
      { .op = C10D_WAIT, .list = { ROW("\2\0\0\0\0\0\0\0/k"), 1 } } },
    { ROW("\3\2\0\0\0\0\0\0\0/k"), { .op = C10D_GET, .key = ROW("/k") } },
    { ROW("\4\2\0\0\0\0\0\0\0/n\5\0\0\0\0\0\0\0"),
      { .op = C10D_ADD, .key = ROW("/n"), .number = 5 } },
    { ROW("\4\2\0\0\0\0\0\0\0/n\xf9\xff\xff\xff\xff\xff\xff\xff"),
      { .op = C10D_ADD, .key = ROW("/n"), .number = -7 } },
    { ROW("\4\5\0\0\0\0\0\0\0init/" U64_1),
      { .op = C10D_ADD, .key = ROW("init/"), .number = 1 } },
    { ROW("\2\3\0\0\0\0\0\0\0/cs\0\0\0\0\0\0\0\0" U64_1 "A"),
      { .op = C10D_COMPARE_SET, .key = ROW("/cs"), .value = ROW("A") } },
    { ROW("\2\3\0\0\0\0\0\0\0/cs" U64_1 "X" U64_1 "C"),
      { .op = C10D_COMPARE_SET,
        .key = ROW("/cs"),
        .expected = ROW("X"),
        .value = ROW("C") } },
    { ROW("\5\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/k\3\0\0\0\0\0\0\0/cs"),
      { .op = C10D_CHECK,
        .list = { ROW("\2\0\0\0\0\0\0\0/k\3\0\0\0\0\0\0\0/cs"), 2 } } },
    { ROW("\5\0\0\0\0\0\0\0\0"), { .op = C10D_CHECK } },
    { ROW("\x0c"), { .op = C10D_CANCEL_WAIT } },
    { ROW("\7"), { .op = C10D_GETNUMKEYS } },
    { ROW("\x08\2\0\0\0\0\0\0\0/k"), { .op = C10D_DELETE_KEY, .key = ROW("/k") } },
    { ROW("\x09\3\0\0\0\0\0\0\0/ap\2\0\0\0\0\0\0\0"
          "ab"),
      { .op = C10D_APPEND, .key = ROW("/ap"), .value = ROW("ab") } },
    { ROW("\x0b\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0/m1" U64_1
          "x\3\0\0\0\0\0\0\0/m2\2\0\0\0\0\0\0\0yy"),
      { .op = C10D_MULTI_SET,
        .list = { ROW("\3\0\0\0\0\0\0\0/m1" U64_1
                      "x\3\0\0\0\0\0\0\0/m2\2\0\0\0\0\0\0\0yy"),
                  2 } } },
    { ROW("\x0a\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0/m1\3\0\0\0\0\0\0\0/m2"),
      { .op = C10D_MULTI_GET,
        .list = { ROW("\3\0\0\0\0\0\0\0/m1\3\0\0\0\0\0\0\0/m2"), 2 } } },
    { ROW("\x0e\2\0\0\0\0\0\0\0/q\5\0\0\0\0\0\0\0item1"),
      { .op = C10D_QUEUE_PUSH, .key = ROW("/q"), .value = ROW("item1") } },
    { ROW("\x10\2\0\0\0\0\0\0\0/q"), { .op = C10D_QUEUE_LEN, .key = ROW("/q") } },
    { ROW("\x0f\2\0\0\0\0\0\0\0/q"), { .op = C10D_QUEUE_POP, .key = ROW("/q") } },
    { ROW("\x11"), { .op = C10D_LIST_KEYS } },
    { ROW("\x12\4\0\0\0\0\0\0\0/bar" U64_1),
      { .op = C10D_BARRIER, .key = ROW("/bar"), .number = 1 } },
    { ROW("\x12\5\0\0\0\0\0\0\0/bar2\2\0\0\0\0\0\0\0"),
      { .op = C10D_BARRIER, .key = ROW("/bar2"), .number = 2 } },
};

static void assert_same(const struct c10d_request *got, const struct c10d_request *want)
{
    assert_string_equal(c10d_op_name(got->op), c10d_op_name(want->op));
    assert_true(span_eq(got->key, want->key));
    assert_true(span_eq(got->value, want->value));
    assert_true(span_eq(got->expected, want->expected));
    assert_int_equal(got->number, want->number);
    assert_int_equal(got->word, want->word);
    assert_true(span_eq(got->list.bytes, want->list.bytes));
    assert_int_equal(got->list.count, want->list.count);
}

static void requests_match_the_golden_bytes(void **state)
{
    bool seen[C10D_OP_COUNT] = { [C10D_VALIDATE] = true };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        const struct golden *g = &golden[i];
        struct c10d_decoder d = greeted();
        struct c10d_request req;
        struct buf out;

        assert_int_equal(decode_one(&d, g->bytes, &req).n, 0);
        assert_same(&req, &g->req);
        assert_int_equal(d.offset, 5 + g->bytes.n);
        seen[req.op] = true;

        buf_init(&out, SIZE_MAX);
        assert_int_equal(c10d_encode_request(&out, &g->req, NULL), 0);
        assert_true(span_eq(buf_span(&out), g->bytes));
        buf_fini(&out);
    }
    for (size_t op = 0; op < C10D_OP_COUNT; op++)
        if (!seen[op])
            fail_msg("no golden bytes for %s", c10d_op_name((enum c10d_op)op));
}

/* Exactly sized copies, so that ASan sees a look past the end. */
static void requests_come_byte_by_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        const struct golden *g = &golden[i];
        struct c10d_decoder d = greeted();
        struct c10d_request req = { .number = 77 };

        for (size_t n = 0; n <= g->bytes.n; n++) {
            uint8_t *copy = malloc(n + !n);
            int64_t used;

            memcpy(copy, g->bytes.p, n);
            used = c10d_decode_request(&d, copy, n, &req, NULL);
            assert_int_equal(used, n == g->bytes.n ? (int64_t)n : 0);
            if (used)
                assert_same(&req, &g->req);
            else
                assert_int_equal(req.number, 77);
            free(copy);
        }
    }
}

static void requests_come_in_one_piece(void **state)
{
    struct c10d_decoder d;
    struct c10d_request req;
    struct buf all;
    struct span in;

    (void)state;
    buf_init(&all, SIZE_MAX);
    assert_int_equal(buf_append_span(&all, LIT(HELLO)), 0);
    for (size_t i = 0; i < ARRAY_LEN(golden); i++)
        assert_int_equal(buf_append_span(&all, golden[i].bytes), 0);
    c10d_decoder_init(&d);
    in = decode_one(&d, buf_span(&all), &req);
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        in = decode_one(&d, in, &req);
        assert_same(&req, &golden[i].req);
    }
    assert_int_equal(in.n, 0);
    assert_int_equal(d.offset, buf_len(&all));
    buf_fini(&all);
}

static void lists_are_read_in_order(void **state)
{
    struct c10d_list list = { LIT(U64_1 "a\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0bc"), 3 };
    struct span s;

    (void)state;
    assert_true(c10d_list_next(&list, &s) && span_eq(s, LIT("a")));
    assert_true(c10d_list_next(&list, &s) && s.n == 0);
    assert_true(c10d_list_next(&list, &s) && span_eq(s, LIT("bc")));
    assert_false(c10d_list_next(&list, &s));
}

/* A list of the largest allowed size, fed in small pieces: linear, so a moment. */
static void long_lists_are_linear(void **state)
{
    struct c10d_decoder d = greeted();
    struct c10d_request req = { .op = C10D_WAIT };
    struct buf list, wire;
    size_t n = 0;
    int64_t used = 0;

    (void)state;
    buf_init(&list, SIZE_MAX);
    buf_init(&wire, SIZE_MAX);
    for (unsigned i = 0; i < C10D_MAX_KEYS; i++)
        assert_int_equal(c10d_list_add(&list, LIT("/key")), 0);
    req.list = (struct c10d_list){ buf_span(&list), C10D_MAX_KEYS };
    assert_int_equal(c10d_encode_request(&wire, &req, NULL), 0);
    while (used == 0 && n < buf_len(&wire)) {
        n = MIN_OF(n + 7, buf_len(&wire));
        used = c10d_decode_request(&d, buf_data(&wire), n, &req, NULL);
    }
    assert_int_equal(used, buf_len(&wire));
    assert_int_equal(req.list.count, C10D_MAX_KEYS);

    assert_int_equal(c10d_list_add(&list, LIT("/one too many")), 0);
    req.list = (struct c10d_list){ buf_span(&list), C10D_MAX_KEYS + 1 };
    assert_int_equal(c10d_encode_request(&wire, &req, NULL), MUSTER_EINVAL);
    buf_fini(&list);
    buf_fini(&wire);
}

/* Each row: bytes with a length or count at the limit, and one above. Nothing follows
 * the number: excess must be seen at once, the limit itself must ask for more. */
static void limits_are_checked_at_once(void **state)
{
    static const struct {
        struct span before;
        uint64_t limit;
        const char *text;
    } rows[] = {
        { ROW("\1"), C10D_MAX_KEY, "SET announces a key" },
        { ROW("\1" U64_1 "k"), C10D_MAX_VALUE, "SET announces a value" },
        { ROW("\2" U64_1 "k"), C10D_MAX_VALUE, "COMPARE_SET announces an expected" },
        { ROW("\2" U64_1 "k" U64_1 "e"), C10D_MAX_VALUE,
          "COMPARE_SET announces a val" },
        { ROW("\3"), C10D_MAX_KEY, "GET announces a key" },
        { ROW("\4"), C10D_MAX_KEY, "ADD announces a key" },
        { ROW("\5"), C10D_MAX_KEYS, "CHECK announces a number of keys" },
        { ROW("\5" U64_1), C10D_MAX_KEY, "CHECK announces a key" },
        { ROW("\6"), C10D_MAX_KEYS, "WAIT announces a number of keys" },
        { ROW("\6" U64_1), C10D_MAX_KEY, "WAIT announces a key" },
        { ROW("\x08"), C10D_MAX_KEY, "DELETE_KEY announces a key" },
        { ROW("\x09" U64_1 "k"), C10D_MAX_VALUE, "APPEND announces a value" },
        { ROW("\x0a"), C10D_MAX_KEYS, "MULTI_GET announces a number of keys" },
        { ROW("\x0b"), C10D_MAX_KEYS, "MULTI_SET announces a number of keys" },
        { ROW("\x0b" U64_1), C10D_MAX_KEY, "MULTI_SET announces a key" },
        { ROW("\x0b" U64_1 U64_1 "k"), C10D_MAX_VALUE, "MULTI_SET announces a value" },
        { ROW("\x0e" U64_1 "q"), C10D_MAX_VALUE, "QUEUE_PUSH announces a value" },
        { ROW("\x0f"), C10D_MAX_KEY, "QUEUE_POP announces a key" },
        { ROW("\x10"), C10D_MAX_KEY, "QUEUE_LEN announces a key" },
        { ROW("\x12"), C10D_MAX_KEY, "BARRIER announces a key" },
    };
    static const uint64_t above[] = { UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX,
                                      UINT64_MAX - 7 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (size_t k = 0; k < 2 + ARRAY_LEN(above); k++) {
            struct c10d_decoder d = greeted();
            struct c10d_request req;
            struct muster_error err = { 0 };
            uint8_t in[64];
            const uint64_t len = k < 2 ? rows[i].limit + k : above[k - 2];
            const size_t n = rows[i].before.n + 8;
            int64_t rc;

            memcpy(in, rows[i].before.p, rows[i].before.n);
            put_u64(in + rows[i].before.n, len);
            assert_int_equal(c10d_decode_request(&d, in, n - 1, &req, &err), 0);
            rc = c10d_decode_request(&d, in, n, &req, &err);
            if (rc != (k == 0 ? 0 : MUSTER_EPROTO))
                fail_msg("%s of %llu: got %lld", rows[i].text, (unsigned long long)len,
                         (long long)rc);
            if (k && !strstr(err.text, rows[i].text))
                fail_msg("wanted \"%s\" in \"%s\"", rows[i].text, err.text);
        }
    }
}

static void errors_name_the_offset(void **state)
{
    struct c10d_decoder d = greeted();
    struct c10d_request req;
    struct muster_error err;
    struct span in = LIT("\7\1\2\0\0\0\0\0\0\0/k\xff\xff\xff\xff\xff\xff\xff\xff");

    (void)state;
    in = decode_one(&d, in, &req);
    assert_int_equal(c10d_decode_request(&d, in.p, in.n, &req, &err), MUSTER_EPROTO);
    assert_string_equal(err.text, "at byte 17: SET announces a value of "
                                  "18446744073709551615, the limit is 8388608");
}

static void strangers_are_turned_away(void **state)
{
    static const struct {
        struct span bytes;
        const char *text;
    } rows[] = {
        { ROW("GET / HTTP/1.1\r\n"), "looks like HTTP" },
        { ROW("G"), "the first byte is 0x47" },
        { ROW("\x16\3\1\2\0\1\0\1\xfc\3\3"), "looks like TLS" },
        { ROW("\xff"), "the first byte is 0xff" },
        { ROW("\0\x3c\x85\xf7\xce"), "another byte order" },
        { ROW("\0\xcf\xf7\x85\x3c"), "wrong magic 0x3c85f7cf" },
        { ROW(HELLO HELLO), "a second VALIDATE" },
        { ROW(HELLO "\x13"), "unknown opcode 0x13" },
        { ROW(HELLO "\xff"), "unknown opcode 0xff" },
        { ROW("\3\5\0\0\0\0\0\0\0init/" U64_1 "\x0c"), "unknown opcode 0x0c" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct c10d_decoder d;
        struct c10d_request req;
        struct muster_error err = { 0 };
        struct span in = rows[i].bytes;
        int64_t rc;

        c10d_decoder_init(&d);
        while ((rc = c10d_decode_request(&d, in.p, in.n, &req, &err)) > 0)
            in = span_of(in.p + rc, in.n - (size_t)rc);
        assert_int_equal(rc, MUSTER_EPROTO);
        if (!strstr(err.text, rows[i].text))
            fail_msg("wanted \"%s\" in \"%s\"", rows[i].text, err.text);
    }
}

static void half_a_magic_waits(void **state)
{
    struct c10d_decoder d;
    struct c10d_request req;

    (void)state;
    c10d_decoder_init(&d);
    for (size_t n = 0; n < 5; n++)
        assert_int_equal(c10d_decode_request(&d, (const uint8_t *)HELLO, n, &req, NULL),
                         0);
    assert_int_equal(c10d_decode_request(&d, (const uint8_t *)HELLO, 5, &req, NULL), 5);
    assert_int_equal(req.word, C10D_MAGIC);
}

/* Old clients have no handshake, and opcodes one below ours. */
static void old_dialects_are_recognised(void **state)
{
    static const struct {
        struct span bytes;
        enum c10d_dialect old, dialect;
        enum c10d_op op; /* of the last request */
    } rows[] = {
        { ROW("\3\5\0\0\0\0\0\0\0init/" U64_1), 0, C10D_DIALECT_B, C10D_ADD },
        { ROW("\0\2\0\0\0\0\0\0\0/k" U64_1 "v"), 0, C10D_DIALECT_B, C10D_SET },
        { ROW("\0\0\0\0\0\0\0\0\0" U64_1 "v"), 0, C10D_DIALECT_B, C10D_SET },
        { ROW("\7" U64_1 "k"), 0, C10D_DIALECT_B, C10D_DELETE_KEY },
        { ROW("\x08" U64_1 "k" U64_1 "v"), 0, C10D_DIALECT_B, C10D_APPEND },
        { ROW("\x08" U64_1 "k"), C10D_DIALECT_A, C10D_DIALECT_A, C10D_DELETE_KEY },
        { ROW("\6"), C10D_DIALECT_A, C10D_DIALECT_A, C10D_GETNUMKEYS },
        { ROW("\6\x0b"), C10D_DIALECT_A, C10D_DIALECT_B, C10D_CANCEL_WAIT },
        { ROW("\x09" U64_1 U64_1 "k"), C10D_DIALECT_A, C10D_DIALECT_B, C10D_MULTI_GET },
    };
    struct c10d_decoder d;
    struct c10d_request req;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct span in = rows[i].bytes;

        c10d_decoder_init(&d);
        if (rows[i].old)
            d.old = rows[i].old;
        while (in.n)
            in = decode_one(&d, in, &req);
        assert_int_equal(d.dialect, rows[i].dialect);
        assert_string_equal(c10d_op_name(req.op), c10d_op_name(rows[i].op));
    }
    c10d_decoder_init(&d);
    d.old = C10D_DIALECT_A; /* There 7 is WATCH_KEY, which must not delete. */
    assert_int_equal(
        c10d_decode_request(&d, (const uint8_t *)"\7" U64_1 "k", 10, &req, NULL),
        MUSTER_EPROTO);
}

static void encoding_checks_limits(void **state)
{
    static uint8_t big[C10D_MAX_VALUE + 1];
    const struct c10d_request bad[] = {
        { .op = C10D_GET, .key = span_of(big, C10D_MAX_KEY + 1) },
        { .op = C10D_SET, .value = span_of(big, C10D_MAX_VALUE + 1) },
        { .op = C10D_COMPARE_SET, .expected = span_of(big, C10D_MAX_VALUE + 1) },
        { .op = C10D_WAIT, .list = { ROW(U64_1 "k"), 2 } },
        { .op = C10D_WAIT, .list = { ROW(U64_1 "k" U64_1 "k"), 1 } },
        { .op = C10D_MULTI_SET, .list = { ROW(U64_1 "k"), 1 } },
        { .op = C10D_WAIT, .list = { ROW("\1\x20\0\0\0\0\0\0"), 1 } },
    };
    const struct c10d_request most = { .op = C10D_SET,
                                       .key = span_of(big, C10D_MAX_KEY),
                                       .value = span_of(big, C10D_MAX_VALUE) };
    struct buf out;

    (void)state;
    buf_init(&out, SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct muster_error err = { 0 };

        assert_int_equal(c10d_encode_request(&out, &bad[i], &err), MUSTER_EINVAL);
        assert_non_null(strstr(err.text, c10d_op_name(bad[i].op)));
        assert_int_equal(buf_len(&out), 0);
    }
    assert_int_equal(c10d_encode_request(&out, &most, NULL), 0);
    assert_int_equal(buf_len(&out), 17 + C10D_MAX_KEY + C10D_MAX_VALUE);
    buf_fini(&out);

    buf_init(&out, 20); /* A full buffer is said to be full, and nothing is written. */
    assert_int_equal(c10d_encode_request(&out, &most, NULL), MUSTER_EFULL);
    assert_int_equal(buf_len(&out), 0);
    buf_fini(&out);
}

static const struct {
    struct span bytes;
    size_t expect;
    struct c10d_reply reply;
} replies[] = {
    { ROW("\x98\2\0\0"), 0, { .op = C10D_PING, .word = 664 } },
    { ROW("\0"), 0, { .op = C10D_WAIT } },
    { ROW("\0"), 0, { .op = C10D_BARRIER } },
    { ROW("\1"), 0, { .op = C10D_CANCEL_WAIT, .number = 1 } },
    { ROW("\0"), 0, { .op = C10D_CHECK } },
    { ROW("\1"), 0, { .op = C10D_CHECK, .number = 1 } },
    { ROW(U64_1 "v"), 0, { .op = C10D_GET, .value = ROW("v") } },
    { ROW("\0\0\0\0\0\0\0\0"), 0, { .op = C10D_GET } },
    { ROW(U64_1 "A"), 0, { .op = C10D_COMPARE_SET, .value = ROW("A") } },
    { ROW("\xfe\xff\xff\xff\xff\xff\xff\xff"), 0, { .op = C10D_ADD, .number = -2 } },
    { ROW("\4\0\0\0\0\0\0\0"), 0, { .op = C10D_GETNUMKEYS, .number = 4 } },
    { ROW(U64_1), 0, { .op = C10D_DELETE_KEY, .number = 1 } },
    { ROW("\2\0\0\0\0\0\0\0"), 0, { .op = C10D_QUEUE_LEN, .number = 2 } },
    { ROW("\2\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0item1"),
      0,
      { .op = C10D_QUEUE_POP, .number = 2, .value = ROW("item1") } },
    { ROW("\0\0\0\0\0\0\0\0"), 0, { .op = C10D_QUEUE_POP } },
    { ROW(U64_1 "x\2\0\0\0\0\0\0\0yy"),
      2,
      { .op = C10D_MULTI_GET, .list = { ROW(U64_1 "x\2\0\0\0\0\0\0\0yy"), 2 } } },
    { ROW("\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/k\5\0\0\0\0\0\0\0init/"),
      0,
      { .op = C10D_LIST_KEYS,
        .list = { ROW("\2\0\0\0\0\0\0\0/k\5\0\0\0\0\0\0\0init/"), 2 } } },
    { ROW("\0\0\0\0\0\0\0\0"), 0, { .op = C10D_LIST_KEYS } },
};

static void replies_match_the_golden_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        const struct c10d_reply *want = &replies[i].reply;
        const size_t size = replies[i].bytes.n;
        struct c10d_reply_decoder d;
        struct buf out;

        c10d_reply_decoder_init(&d, want->op, replies[i].expect, 1000);
        for (size_t n = 0; n <= size; n++) {
            uint8_t *copy = malloc(n + !n);
            struct c10d_reply got;
            bool whole;

            memcpy(copy, replies[i].bytes.p, n);
            assert_int_equal(c10d_decode_reply(&d, copy, n, &got, &whole, NULL),
                             n == size ? (int64_t)n : 0);
            assert_int_equal(whole, n == size);
            if (whole) {
                assert_int_equal(got.op, want->op);
                assert_int_equal(got.number, want->number);
                assert_int_equal(got.word, want->word);
                assert_true(span_eq(got.value, want->value));
                assert_true(span_eq(got.list.bytes, want->list.bytes));
                assert_int_equal(got.list.count, want->list.count);
            }
            free(copy);
        }
        buf_init(&out, SIZE_MAX);
        assert_int_equal(c10d_encode_reply(&out, want), 0);
        assert_true(span_eq(buf_span(&out), replies[i].bytes));
        buf_fini(&out);
    }
}

static void empty_replies_are_whole(void **state)
{
    struct c10d_reply_decoder d;
    struct c10d_reply got;
    bool whole = false;

    (void)state;
    c10d_reply_decoder_init(&d, C10D_MULTI_GET, 0, 1000);
    assert_int_equal(c10d_decode_reply(&d, NULL, 0, &got, &whole, NULL), 0);
    assert_true(whole);
    for (size_t op = 0; op < C10D_OP_COUNT; op++) {
        struct c10d_reply reply = { .op = (enum c10d_op)op };
        struct buf out;

        if (c10d_has_reply(reply.op))
            continue;
        buf_init(&out, SIZE_MAX);
        assert_int_equal(c10d_encode_reply(&out, &reply), 0);
        assert_int_equal(buf_len(&out), 0);
        buf_fini(&out);
    }
}

static void nonsense_replies_are_refused(void **state)
{
    static const struct {
        enum c10d_op op;
        size_t expect;
        struct span bytes;
        const char *text;
    } rows[] = {
        { C10D_WAIT, 0, ROW("\1"), "Stop_waiting response is expected" },
        { C10D_BARRIER, 0, ROW("H"), "Stop_waiting response is expected" },
        { C10D_CANCEL_WAIT, 0, ROW("\0"), "wait_canceled response is expected" },
        { C10D_CHECK, 0, ROW("\2"), "ready or not_ready response expected" },
        { C10D_GET, 0, ROW("\xe9\3\0\0\0\0\0\0"), "announces 1001 bytes" },
        { C10D_GET, 0, ROW("\xff\xff\xff\xff\xff\xff\xff\xff"), "limit is 1000 bytes" },
        { C10D_QUEUE_POP, 0, ROW("\xff\xff\xff\xff\xff\xff\xff\xff"), "length of -1" },
        { C10D_QUEUE_POP, 0, ROW(U64_1 "\0\0\0\0\0\0\0\x80"), "limit is 1000 bytes" },
        { C10D_LIST_KEYS, 0, ROW("\xff\xff\xff\xff\xff\xff\xff\xff"), "elements" },
        { C10D_LIST_KEYS, 0, ROW(U64_1 "\0\0\0\0\0\0\0\x80"), "limit is 1000 bytes" },
        { C10D_MULTI_GET, 2, ROW("\0\0\0\0\0\1\0\0"), "limit is 1000 bytes" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct c10d_reply_decoder d;
        struct c10d_reply got;
        struct muster_error err = { 0 };
        bool whole;

        c10d_reply_decoder_init(&d, rows[i].op, rows[i].expect, 1000);
        assert_int_equal(
            c10d_decode_reply(&d, rows[i].bytes.p, rows[i].bytes.n, &got, &whole, &err),
            MUSTER_EPROTO);
        assert_false(whole);
        if (!strstr(err.text, rows[i].text))
            fail_msg("wanted \"%s\" in \"%s\"", rows[i].text, err.text);
    }
}

/* Many small elements add up: the sum is bounded too. */
static void long_replies_are_bounded(void **state)
{
    struct c10d_reply_decoder d;
    struct c10d_reply got;
    struct buf in;
    bool whole;

    (void)state;
    buf_init(&in, SIZE_MAX);
    for (int i = 0; i < 100; i++)
        assert_int_equal(c10d_list_add(&in, LIT("0123456789")), 0);
    c10d_reply_decoder_init(&d, C10D_MULTI_GET, 100, 1800);
    assert_int_equal(
        c10d_decode_reply(&d, buf_data(&in), buf_len(&in), &got, &whole, NULL), 1800);
    c10d_reply_decoder_init(&d, C10D_MULTI_GET, 100, 1799);
    assert_int_equal(
        c10d_decode_reply(&d, buf_data(&in), buf_len(&in), &got, &whole, NULL),
        MUSTER_EPROTO);
    buf_fini(&in);
}

static void encoders_survive_failing_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct buf out;
        int rc = 0;

        buf_init(&out, SIZE_MAX);
        for (size_t i = 0; i < ARRAY_LEN(golden) && rc == 0; i++) {
            const size_t before = buf_len(&out);

            rc = c10d_encode_request(&out, &golden[i].req, NULL);
            assert_true(rc == 0 || (rc == MUSTER_ENOMEM && buf_len(&out) == before));
        }
        for (size_t i = 0; i < ARRAY_LEN(replies) && rc == 0; i++) {
            rc = c10d_encode_reply(&out, &replies[i].reply);
            assert_int_equal(rc, failing_rc(&f));
        }
        if (rc == 0)
            rc = c10d_list_add(&out, LIT("a key of a list"));
        assert_int_equal(rc, failing_rc(&f));
        buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_match_the_golden_bytes),
        cmocka_unit_test(requests_come_byte_by_byte),
        cmocka_unit_test(requests_come_in_one_piece),
        cmocka_unit_test(lists_are_read_in_order),
        cmocka_unit_test(long_lists_are_linear),
        cmocka_unit_test(limits_are_checked_at_once),
        cmocka_unit_test(errors_name_the_offset),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(half_a_magic_waits),
        cmocka_unit_test(old_dialects_are_recognised),
        cmocka_unit_test(encoding_checks_limits),
        cmocka_unit_test(replies_match_the_golden_bytes),
        cmocka_unit_test(empty_replies_are_whole),
        cmocka_unit_test(nonsense_replies_are_refused),
        cmocka_unit_test(long_replies_are_bounded),
        cmocka_unit_test(encoders_survive_failing_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

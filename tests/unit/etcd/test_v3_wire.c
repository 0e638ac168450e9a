/* test_v3_wire.c - the v3 codec against what etcd 3.4 and 3.5 really answered, and
 * against what nobody should answer. */
#include "golden.h"

#include "etcd/core/v3_wire.h"

static const char *const versions[] = { "3.4", "3.5" };

struct answer {
    char *text;
    struct etcd_http http;
};

static struct answer load(const char *version, const char *name)
{
    struct answer a = { .text = NULL };
    char path[128];
    int at = 0;
    size_t n;

    (void)snprintf(path, sizeof path, "etcd/%s/%s", version, name);
    a.text = golden_read(path, &n);
    assert_int_equal(sscanf(a.text, "%ld %*u%n", &a.http.status, &at), 1);
    a.http.body = span_of(a.text + at + 1, n - (size_t)at - 1);
    return a;
}

static struct etcd3_reply decode(struct answer *a, const char *version,
                                 const char *name, enum etcd3_expect expect)
{
    struct muster_error err = { 0 };
    struct etcd3_reply r;

    *a = load(version, name);
    if (etcd3_decode(&a->http, expect, &r, &err) < 0)
        fail_msg("%s %s: %s", version, name, err.text);
    return r;
}

static void body_is(const struct etcd_msg *m, const char *path, const char *body)
{
    assert_string_equal(m->method, "POST");
    assert_string_equal((const char *)buf_data(&m->path), path);
    if (!span_eq(buf_span(&m->body), span_str(body)))
        fail_msg("body is %.*s, not %s", (int)buf_len(&m->body),
                 (const char *)buf_data(&m->body), body);
}

static void requests(void **state)
{
    const struct etcd3_compare compare = { ETCD3_MOD, span_str("k"), 7, { NULL, 0 } };
    const struct etcd3_op put = {
        .kind = ETCD3_PUT, .key = span_str("k"), .value = span_str("v"), .lease = 9
    };
    const struct etcd3_op range = { .kind = ETCD3_RANGE,
                                    .key = span_str("k"),
                                    .end = span_str("l"),
                                    .limit = 2,
                                    .keys_only = true };
    struct etcd_msg m;

    (void)state;
    etcd_msg_init(&m);
    assert_int_equal(
        etcd3_encode_txn(&m, &(struct etcd3_txn){ &compare, 1, &put, 1, &range, 1 }),
        0);
    body_is(
        &m, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"aw==\",\"target\":\"MOD\",\"result\":\"EQUAL\","
        "\"mod_revision\":\"7\"}],\"success\":[{\"request_put\":{\"key\":\"aw==\","
        "\"value\":\"dg==\",\"lease\":\"9\"}}],\"failure\":[{\"request_range\":{"
        "\"key\":\"aw==\",\"range_end\":\"bA==\",\"limit\":\"2\",\"keys_only\":true}}"
        "]}");
    etcd_msg_fini(&m);
    etcd_msg_init(&m);
    assert_int_equal(etcd3_encode_auth(&m, span_str("a\"b"), span_str("\\\n")), 0);
    body_is(&m, "/v3/auth/authenticate",
            "{\"name\":\"a\\\"b\",\"password\":\"\\\\\\u000a\"}");
    etcd_msg_fini(&m);
    etcd_msg_init(&m);
    assert_int_equal(etcd3_encode_watch(&m, span_str("k"), span_str("l"), true, 12), 0);
    body_is(&m, "/v3/watch",
            "{\"create_request\":{\"key\":\"aw==\",\"range_end\":\"bA==\","
            "\"filters\":[\"NOPUT\"],\"start_revision\":\"12\"}}");
    etcd_msg_fini(&m);
}

static void prefix_ends(void **state)
{
    static const struct {
        const char *prefix, *end;
        size_t n;
    } rows[] = { { "/a/", "/a0", 3 },
                 { "a\xff\xff", "b", 1 },
                 { "\xff", "\0", 1 },
                 { "", "\0", 1 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(etcd3_prefix_end(&b, span_str(rows[i].prefix)), 0);
        assert_true(span_eq(buf_span(&b), span_of(rows[i].end, rows[i].n)));
        buf_fini(&b);
    }
}

static void transactions(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(versions); v++) {
        struct answer a;
        struct etcd3_reply r = decode(&a, versions[v], "v3-create", ETCD3_EXPECT_TXN);

        assert_true(r.succeeded);
        assert_int_equal(r.revision, 2);
        etcd3_reply_fini(&r);
        free(a.text);

        r = decode(&a, versions[v], "v3-create-lost", ETCD3_EXPECT_TXN);
        assert_false(r.succeeded);
        assert_int_equal(r.count, 1);
        assert_int_equal(r.results[0].kind, ETCD3_RANGE);
        assert_int_equal(r.results[0].count, 1);
        assert_int_equal(r.results[0].kvs[0].mod_revision, 2);
        assert_true(span_eq(r.results[0].kvs[0].key, span_str("/muster/job/state")));
        assert_true(span_eq(r.results[0].kvs[0].value, span_str("one")));
        etcd3_reply_fini(&r);
        free(a.text);

        r = decode(&a, versions[v], "v3-range-missing", ETCD3_EXPECT_RANGE);
        assert_int_equal(r.count, 1);
        assert_int_equal(r.results[0].count, 0);
        etcd3_reply_fini(&r);
        free(a.text);

        r = decode(&a, versions[v], "v3-range-lease", ETCD3_EXPECT_RANGE);
        assert_true(r.results[0].kvs[0].lease != 0);
        assert_int_equal(r.results[0].total, 1);
        etcd3_reply_fini(&r);
        free(a.text);

        r = decode(&a, versions[v], "v3-delete", ETCD3_EXPECT_TXN);
        assert_int_equal(r.results[0].kind, ETCD3_DELETE);
        assert_int_equal(r.results[0].deleted, 0);
        etcd3_reply_fini(&r);
        free(a.text);
    }
}

static void leases(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(versions); v++) {
        static const struct {
            const char *name;
            int64_t ttl;
        } rows[] = { { "v3-lease-grant", 60 },
                     { "v3-lease-keepalive", 60 },
                     { "v3-lease-gone", 0 } };

        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            struct answer a;
            struct etcd3_reply r =
                decode(&a, versions[v], rows[i].name, ETCD3_EXPECT_LEASE);

            assert_int_equal(r.lease_ttl, rows[i].ttl);
            assert_true(r.lease_id != 0);
            etcd3_reply_fini(&r);
            free(a.text);
        }
    }
}

/* Feeds the stream byte by byte, as a network may, and counts what comes out. */
static void stream_of(const char *version, const char *name, size_t *created,
                      size_t *puts, size_t *deletes, int64_t *compacted)
{
    struct answer a = load(version, name);
    struct buf in;
    size_t seen = 0;

    *created = *puts = *deletes = 0;
    *compacted = 0;
    buf_init(&in, SIZE_MAX);
    for (size_t i = 0; i < a.http.body.n; i++) {
        struct span line;

        assert_int_equal(buf_u8(&in, a.http.body.p[i]), 0);
        while (etcd3_next_line(buf_span(&in), &seen, &line)) {
            const struct etcd_http http = { 200, 0, line };
            struct etcd3_reply r;

            assert_int_equal(etcd3_decode(&http, ETCD3_EXPECT_WATCH, &r, NULL), 0);
            *created += r.created;
            if (r.canceled)
                *compacted = r.compact_revision;
            for (size_t e = 0; e < r.event_count; e++)
                *(r.events[e].deleted ? deletes : puts) += 1;
            etcd3_reply_fini(&r);
            buf_consume(&in, line.n + 1);
        }
    }
    assert_int_equal(buf_len(&in), 0);
    buf_fini(&in);
    free(a.text);
}

static void streams(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(versions); v++) {
        size_t created, puts, deletes;
        int64_t compacted;

        stream_of(versions[v], "v3-watch", &created, &puts, &deletes, &compacted);
        assert_int_equal(created, 1);
        assert_int_equal(puts, 2);
        assert_int_equal(deletes, 1);
        stream_of(versions[v], "v3-watch-compacted", &created, &puts, &deletes,
                  &compacted);
        assert_int_equal(compacted, 4);
    }
}

static void errors(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *says;
    } rows[] = {
        { "v3-auth-denied", MUSTER_EACCES, "Grant" },
        { "v3-auth-none", MUSTER_EACCES, "asks for a user" },
        { "v3-auth-off", MUSTER_EACCES, "Leave user" },
        { "v3-auth-wrong", MUSTER_EACCES, "Check user" },
        { "v3-auth-stale", MUSTER_EACCES, "token" },
        { "v3-bad-json", MUSTER_EPROTO, "base64" },
        { "v3-too-large", MUSTER_EINVAL, "--max-request-bytes" },
        { "v3-lease-exists", MUSTER_EEXIST, "already exists" },
        { "v3-lease-revoke-unknown", MUSTER_ENOENT, "not found" },
        { "v3-put-no-lease", MUSTER_ENOENT, "lease" },
    };
    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(versions); v++)
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            struct answer a;
            struct muster_error err = { 0 };
            struct etcd3_reply r =
                decode(&a, versions[v], rows[i].name, ETCD3_EXPECT_TXN);
            const int code = etcd3_error(&r, &err);

            if (code != rows[i].code || !strstr(err.text, rows[i].says))
                fail_msg("%s: %d, %s", rows[i].name, code, err.text);
            etcd3_reply_fini(&r);
            free(a.text);
        }
}

/* Texts of etcd that the recording has no way to provoke in a moment. */
static void rare_errors(void **state)
{
    static const struct {
        const char *body;
        int code;
        const char *says;
    } rows[] = {
        { "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}",
          MUSTER_EFULL, "alarm disarm" },
        { "{\"error\":\"etcdserver: no leader\",\"code\":14}", MUSTER_ECONN, "quorum" },
        { "{\"error\":\"etcdserver: request timed out\",\"code\":14}", MUSTER_ECONN,
          "quorum" },
        { "{\"error\":\"etcdserver: leader changed\",\"code\":2}", MUSTER_ECONN, "" },
        { "{\"error\":\"etcdserver: too many requests\",\"code\":8}", MUSTER_ECONN,
          "" },
        { "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"no leader\"}}",
          MUSTER_ECONN, "no leader" },
        { "{\"error\":\"raft proposal dropped\",\"code\":2}", MUSTER_ECONN, "quorum" },
        { "{\"error\":\"raft: stopped\",\"code\":2}", MUSTER_ECONN, "" },
        { "{\"error\":\"grpc: the client connection is closing\",\"code\":1}",
          MUSTER_ECONN, "going down" },
        { "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}",
          MUSTER_EACCES, "old" },
        { "{\"error\":\"auth: revision in header is old\",\"code\":2}", MUSTER_EACCES,
          "old" },
        { "{\"error\":\"?\",\"code\":-3}", MUSTER_EPROTO, "?" },
        /* Since 3.6: of a request, and in a stream. */
        { "{\"code\":5,\"message\":\"etcdserver: requested lease not found\","
          "\"details\":[]}",
          MUSTER_ENOENT, "lease not found" },
        { "{\"code\":16,\"message\":\"etcdserver: invalid auth token\",\"details\":[]}",
          MUSTER_EACCES, "token" },
        { "{\"code\":9,\"message\":\"etcdserver: lease already "
          "exists\",\"details\":[]}",
          MUSTER_EEXIST, "exists" },
        { "{\"error\":{\"code\":14,\"message\":\"etcdserver: no leader\",\"details\":["
          "]}}",
          MUSTER_ECONN, "no leader" },
        { "{\"error\":{\"code\":16,\"message\":\"etcdserver: invalid auth token\"}}",
          MUSTER_EACCES, "token" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct etcd_http http = { 503, 0, span_str(rows[i].body) };
        struct muster_error err = { 0 };
        struct etcd3_reply r;

        assert_int_equal(etcd3_decode(&http, ETCD3_EXPECT_TXN, &r, &err), 0);
        const int code = etcd3_error(&r, &err);
        if (code != rows[i].code || !strstr(err.text, rows[i].says))
            fail_msg("%s: %d, %s", rows[i].body, code, err.text);
        etcd3_reply_fini(&r);
    }
}

static void strangers(void **state)
{
    static const struct {
        long status;
        const char *body;
        enum etcd3_expect expect;
        int code;
    } rows[] = {
        { 404, "404 page not found\n", ETCD3_EXPECT_TXN, MUSTER_ENOTSUP },
        { 503, "<html>no</html>", ETCD3_EXPECT_TXN, MUSTER_ENOTSTORE },
        { 200, "{", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":1}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{\"revision\":\"-4\"}}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{\"revision\":\"99999999999999999999\"}}", ETCD3_EXPECT_TXN,
          MUSTER_EPROTO },
        { 200, "{\"header\":{},\"succeeded\":1}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"responses\":{}}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"responses\":[1]}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"responses\":[{}]}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"kvs\":[{\"key\":\"*\"}]}", ETCD3_EXPECT_RANGE,
          MUSTER_EPROTO },
        { 200, "{\"header\":{},\"kvs\":[[]]}", ETCD3_EXPECT_RANGE, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"ID\":[]}", ETCD3_EXPECT_LEASE, MUSTER_EPROTO },
        { 200, "{\"header\":{},\"token\":1}", ETCD3_EXPECT_TOKEN, MUSTER_EPROTO },
        { 200, "{\"result\":{\"header\":{},\"events\":[{}]}}", ETCD3_EXPECT_WATCH,
          MUSTER_EPROTO },
        { 200, "{\"result\":{\"header\":{},\"events\":[{\"type\":\"X\",\"kv\":{}}]}}",
          ETCD3_EXPECT_WATCH, MUSTER_EPROTO },
        { 500, "{\"header\":{}}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 503, "{\"message\":\"no upstream\"}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 200, "{\"code\":5,\"message\":\"?\"}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
        { 404, "{\"code\":5,\"message\":[]}", ETCD3_EXPECT_TXN, MUSTER_EPROTO },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct etcd_http http = { rows[i].status, 0, span_str(rows[i].body) };
        struct muster_error err = { 0 };
        struct etcd3_reply r;
        const int rc = etcd3_decode(&http, rows[i].expect, &r, &err);

        if (rc != rows[i].code)
            fail_msg("%s: %d, %s", rows[i].body, rc, err.text);
    }
}

static void memory(void **state)
{
    struct answer a = load("3.4", "v3-create-lost");

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct etcd3_op op = { .key = span_str("key") };
        struct etcd3_reply r;
        struct etcd_msg m;
        int rc = etcd3_decode(&a.http, ETCD3_EXPECT_TXN, &r, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            etcd3_reply_fini(&r);
        etcd_msg_init(&m);
        rc = etcd3_encode_range(&m, &op);
        assert_int_equal(rc, failing_rc(&f));
        etcd_msg_fini(&m);
    }
    free(a.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),     cmocka_unit_test(prefix_ends),
        cmocka_unit_test(transactions), cmocka_unit_test(leases),
        cmocka_unit_test(streams),      cmocka_unit_test(errors),
        cmocka_unit_test(rare_errors),  cmocka_unit_test(strangers),
        cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

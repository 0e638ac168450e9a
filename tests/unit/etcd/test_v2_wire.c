/* test_v2_wire.c - the v2 codec against what etcd 3.4 and 3.5 really answered, and
 * against what nobody should answer. */
#include "golden.h"

#include "etcd/core/v2_wire.h"

static const char *const versions[] = { "3.4", "3.5" };

struct answer {
    char *text;
    struct etcd_http http;
};

static struct answer load(const char *version, const char *name)
{
    struct answer a = { .text = NULL };
    unsigned long long index;
    char path[128];
    int at = 0;
    size_t n;

    (void)snprintf(path, sizeof path, "etcd/%s/%s", version, name);
    a.text = golden_read(path, &n);
    assert_int_equal(sscanf(a.text, "%ld %llu%n", &a.http.status, &index, &at), 2);
    a.http.index = index;
    a.http.body = span_of(a.text + at + 1, n - (size_t)at - 1);
    return a;
}

static void encode_is(const struct etcd2_request *req, const char *method,
                      const char *path, const char *body)
{
    struct etcd_msg m;

    etcd_msg_init(&m);
    assert_int_equal(etcd2_encode(&m, req), 0);
    assert_string_equal(m.method, method);
    assert_string_equal((const char *)buf_data(&m.path), path);
    if (!span_eq(buf_span(&m.body), span_str(body)))
        fail_msg("body is %.*s, not %s", (int)buf_len(&m.body),
                 (const char *)buf_data(&m.body), body);
    etcd_msg_fini(&m);
}

static void requests(void **state)
{
    const struct span key = span_str("/torch/elastic/rendezvous/job");

    (void)state;
    encode_is(&(struct etcd2_request){ .key = key }, "GET",
              "/v2/keys/torch/elastic/rendezvous/job", "");
    encode_is(&(struct etcd2_request){ .verb = ETCD2_PUT,
                                       .key = key,
                                       .value = span_str("gA+/SV=="),
                                       .ttl_s = 7200,
                                       .prev_exist = ETCD2_MUST_NOT_EXIST },
              "PUT", "/v2/keys/torch/elastic/rendezvous/job",
              "value=gA%2B%2FSV%3D%3D&ttl=7200&prevExist=false");
    encode_is(&(struct etcd2_request){ .verb = ETCD2_PUT,
                                       .key = key,
                                       .value = span_str("x"),
                                       .ttl_s = 7200,
                                       .prev_index = 17 },
              "PUT", "/v2/keys/torch/elastic/rendezvous/job",
              "value=x&ttl=7200&prevIndex=17");
    encode_is(&(struct etcd2_request){ .verb = ETCD2_PUT,
                                       .key = span_str("/p/run_J/"),
                                       .ttl_s = 7200,
                                       .refresh = true,
                                       .prev_exist = ETCD2_MUST_EXIST },
              "PUT", "/v2/keys/p/run_J/", "ttl=7200&refresh=true&prevExist=true");
    encode_is(&(struct etcd2_request){ .verb = ETCD2_DELETE,
                                       .key = span_str("/a"),
                                       .prev_value = span_str("{\"s\": 1}") },
              "DELETE", "/v2/keys/a?prevValue=%7B%22s%22%3A%201%7D", "");
    encode_is(&(struct etcd2_request){ .key = span_str("/a b?#"),
                                       .wait = true,
                                       .wait_index = 8,
                                       .recursive = true },
              "GET", "/v2/keys/a%20b%3F%23?wait=true&waitIndex=8&recursive=true", "");
    encode_is(&(struct etcd2_request){ .verb = ETCD2_PUT,
                                       .key = span_str("a"),
                                       .value = span_of("", 0) },
              "PUT", "/v2/keys/a", "value=");
}

static void answers(void **state)
{
    static const struct {
        const char *name, *action, *value;
        uint64_t modified;
        int error, code;
    } rows[] = {
        { "v2-create", "create", "gASV=", 4, 0, 0 },
        { "v2-get", "get", "gASV=", 4, 0, 0 },
        { "v2-swap", "compareAndSwap", "gASW", 5, 0, 0 },
        { "v2-delete", "compareAndDelete", NULL, 6, 0, 0 },
        { "v2-get-missing", NULL, NULL, 0, ETCD2_KEY_NOT_FOUND, MUSTER_ENOENT },
        { "v2-create-again", NULL, NULL, 0, ETCD2_EXISTS, MUSTER_EEXIST },
        { "v2-swap-lost", NULL, NULL, 0, ETCD2_COMPARE_FAILED, MUSTER_EEXIST },
        { "v2-not-a-dir", NULL, NULL, 0, ETCD2_NOT_A_DIR, MUSTER_EPROTO },
        { "v2-not-a-file", NULL, NULL, 0, ETCD2_NOT_A_FILE, MUSTER_EPROTO },
        { "v2-bad-ttl", NULL, NULL, 0, 202, MUSTER_EPROTO },
        { "v2-watch-cleared", NULL, NULL, 0, ETCD2_CLEARED, MUSTER_ESTATE },
    };
    (void)state;
    for (size_t v = 0; v < ARRAY_LEN(versions); v++)
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            struct answer a = load(versions[v], rows[i].name);
            struct muster_error err = { 0 };
            struct etcd2_reply r;

            if (etcd2_decode(&a.http, &r, &err) < 0)
                fail_msg("%s: %s", rows[i].name, err.text);
            assert_int_equal(r.error, rows[i].error);
            if (r.error) {
                assert_int_equal(etcd2_error(&r, &err), rows[i].code);
            } else {
                assert_true(span_eq(r.action, span_str(rows[i].action)));
                assert_int_equal(r.node.modified_index, rows[i].modified);
                assert_int_equal(r.index, rows[i].modified);
                assert_true(rows[i].value
                                ? span_eq(r.node.value, span_str(rows[i].value))
                                : !r.node.value.p);
            }
            etcd2_reply_fini(&r);
            free(a.text);
        }
}

static void listing(void **state)
{
    struct answer a = load("3.4", "v2-list");
    struct etcd2_reply r;

    (void)state;
    assert_int_equal(etcd2_decode(&a.http, &r, NULL), 0);
    assert_true(r.node.dir);
    assert_int_equal(r.count, 1);
    assert_true(r.nodes[0].dir);
    assert_true(span_eq(r.nodes[0].key, span_str("/torch/elastic/rendezvous")));
    etcd2_reply_fini(&r);
    free(a.text);
}

static void machines(void **state)
{
    struct span list = span_str("http://h1:2379, h, https://h2:2379,ftp://h3, http:/"),
                url;

    (void)state;
    assert_true(etcd2_machines_next(&list, &url));
    assert_true(span_eq(url, span_str("http://h1:2379")));
    assert_true(etcd2_machines_next(&list, &url));
    assert_true(span_eq(url, span_str("https://h2:2379")));
    assert_false(etcd2_machines_next(&list, &url));
    /* A page may well name URLs. */
    const struct etcd_http page = {
        200, 0, span_str("<!DOCTYPE html>\n<p>Go to http://h1:2379 now</p>")
    };
    struct muster_error err = { 0 };

    assert_int_equal(etcd2_check_machines(&page, &err), MUSTER_ENOTSTORE);
    assert_non_null(strstr(err.text, "a web page came back"));
}

static void strangers(void **state)
{
    static const struct {
        long status;
        const char *body;
        int code;
        const char *says;
    } rows[] = {
        { 404, "404 page not found\n", MUSTER_ENOTSUP, "--enable-v2" },
        { 502, "<html><body>Bad Gateway</body></html>", MUSTER_ENOTSTORE, "proxy" },
        { 200, "\n <!DOCTYPE html>", MUSTER_ENOTSTORE, "proxy" },
        { 200, "-ERR unknown command", MUSTER_ENOTSTORE, "host and port" },
        { 200, "", MUSTER_EPROTO, "empty" },
        { 200, "{\"action\":\"get\",\"node\":{\"ke", MUSTER_EPROTO, "whole JSON" },
        { 200, "{}", MUSTER_EPROTO, "neither" },
        { 200, "[]", MUSTER_ENOTSTORE, "not etcd's" },
        { 500, "{\"node\":{}}", MUSTER_EPROTO, "status 500" },
        { 200, "{\"node\":[]}", MUSTER_EPROTO, "node" },
        { 200, "{\"node\":{\"key\":1}}", MUSTER_EPROTO, "key" },
        { 200, "{\"node\":{\"value\":{}}}", MUSTER_EPROTO, "value" },
        { 200, "{\"node\":{\"modifiedIndex\":-1}}", MUSTER_EPROTO, "negative" },
        { 200, "{\"node\":{\"modifiedIndex\":\"x\"}}", MUSTER_EPROTO, "number" },
        { 200, "{\"node\":{\"modifiedIndex\":1.5}}", MUSTER_EPROTO, "number" },
        { 200, "{\"node\":{\"nodes\":[1]}}", MUSTER_EPROTO, "not an object" },
        { 200, "{\"node\":{},\"node\":{}}", MUSTER_EPROTO, "JSON" },
        { 400, "{\"errorCode\":0}", MUSTER_EPROTO, "error code 0" },
        { 400, "{\"errorCode\":\"many\"}", MUSTER_EPROTO, "number" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct etcd_http http = { rows[i].status, 0, span_str(rows[i].body) };
        struct muster_error err = { 0 };
        struct etcd2_reply r;
        const int rc = etcd2_decode(&http, &r, &err);

        if (rc != rows[i].code || !strstr(err.text, rows[i].says))
            fail_msg("%s: %d, %s", rows[i].body, rc, err.text);
    }
}

static void truncated(void **state)
{
    struct answer a = load("3.5", "v2-swap");
    size_t whole = a.http.body.n;

    (void)state;
    while (whole > 0 && a.http.body.p[whole - 1] != '}')
        whole--;
    for (size_t n = 0; n < whole; n++) {
        struct etcd_http cut = a.http;
        struct etcd2_reply r;

        cut.body.n = n;
        assert_true(etcd2_decode(&cut, &r, NULL) < 0);
    }
    free(a.text);
}

static void memory(void **state)
{
    struct answer a = load("3.4", "v2-list");

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct etcd2_reply r;
        struct etcd_msg m;
        int rc = etcd2_decode(&a.http, &r, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            etcd2_reply_fini(&r);
        etcd_msg_init(&m);
        rc = etcd2_encode(
            &m, &(struct etcd2_request){ .key = span_str("/k"), .wait = true });
        assert_int_equal(rc, failing_rc(&f));
        etcd_msg_fini(&m);
    }
    free(a.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),  cmocka_unit_test(answers),
        cmocka_unit_test(listing),   cmocka_unit_test(machines),
        cmocka_unit_test(strangers), cmocka_unit_test(truncated),
        cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

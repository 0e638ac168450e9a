/* test_params.c - params, endpoint, conf: torch's rules and words. */
#include "testing.h"

#include <stdio.h>

#include "base/py/text.h"
#include "muster/error.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/params.h"
#include "rendezvous/core/settings.h"

#define PORT                                                                           \
    "The port number of the rendezvous endpoint '%s' must be an integer between 0 "    \
    "and 65536."
#define HOST                                                                           \
    "The hostname of the rendezvous endpoint '%s' must be a dot-separated list of "    \
    "labels, an IPv4 address, or an IPv6 address."

static void endpoints_as_torch_reads_them(void **state)
{
    static const struct {
        const char *in, *host;
        int32_t port;
    } rows[] = {
        { "", "localhost", 7 },
        { " \t\n", "localhost", 7 },
        { "host", "host", 7 },
        { "host:0", "host", 0 },
        { " host:1 ", "host", 1 },
        { "localhost:00080", "localhost", 80 },
        { "h:1:2", "h:1", 2 },
        { "[::1]", "::1", 7 },
        { "[::1]:123", "::1", 123 },
        { "::1", ":", 1 }, /* as torch misreads it: brackets are needed */
        { "fe80::1:29400", "fe80::1", 29400 },
        { "b\xc3\xbc"
          "cher:1",
          "b\xc3\xbc"
          "cher",
          1 },
        { "\xe2\x80\x83h:1\xc2\xa0", "h", 1 }, /* em space, no-break space */
        { "a_b-c.d:65535", "a_b-c.d", 65535 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct endpoint e;
        struct muster_error err;

        if (endpoint_parse(rows[i].in, 7, &e, &err) < 0)
            fail_msg("'%s': %s", rows[i].in, err.text);
        assert_string_equal(e.host, rows[i].host);
        assert_int_equal(e.port, rows[i].port);
    }
}

static void bad_endpoints_are_refused_in_torchs_words(void **state)
{
    static const struct {
        const char *in, *text;
    } rows[] = {
        { "host:", PORT },
        { "host:65536", PORT },
        { "host:12a", PORT },
        { "host:-1", PORT },
        { "host:000080", PORT },
        { "a b:1", HOST },
        { "http://h:1", HOST },
        { "[]", HOST },
        { "[fe80::1%eth0]:1", HOST },
        { ":1", HOST },
        { "\xff:1", HOST },
        { "a\xe2\x80\xa6"
          "b:1",
          HOST },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct endpoint e = { .port = 99 };
        struct muster_error err;
        char want[300];

        (void)snprintf(want, sizeof want, rows[i].text[4] == 'p' ? PORT : HOST,
                       rows[i].in);
        assert_int_equal(endpoint_parse(rows[i].in, 7, &e, &err), MUSTER_EINVAL);
        assert_string_equal(err.text, want);
        assert_int_equal(e.port, 99);
    }
}

static void a_host_has_a_length(void **state)
{
    char text[1100];
    struct endpoint e;

    (void)state;
    memset(text, 'a', sizeof text);
    text[1024] = '\0';
    assert_int_equal(endpoint_parse(text, 1, &e, NULL), 0);
    text[1024] = 'a';
    text[1025] = '\0';
    assert_int_equal(endpoint_parse(text, 1, &e, NULL), MUSTER_EINVAL);
}

static void constructor_checks(void **state)
{
    static const struct {
        const char *backend;
        int64_t min, max;
        const char *text;
    } rows[] = {
        { "", 1, 1, "The rendezvous backend name must be a non-empty string." },
        { "x", 0, 1,
          "The minimum number of rendezvous nodes (0) must be greater than zero." },
        { "x", 3, 2,
          "The maximum number of rendezvous nodes (2) must be greater than or equal to "
          "the minimum number of rendezvous nodes (3)." },
        { "", 0, -1, "The rendezvous backend name must be a non-empty string." },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rdzv_params p;
        struct muster_error err;

        assert_int_equal(params_init(&p, rows[i].backend, "", "id", rows[i].min,
                                     rows[i].max, NULL, &err),
                         MUSTER_EINVAL);
        assert_string_equal(err.text, rows[i].text);
    }
}

static void options_have_kinds(void **state)
{
    struct rdzv_params p;
    struct muster_error err;
    int64_t n = 0;
    int b = 0;

    (void)state;
    assert_int_equal(params_init(&p, "c10d", NULL, NULL, 1, 2, "", &err), 0);
    assert_null(p.local_addr);
    assert_int_equal(params_int(&p, "k", 5, &n, &err), 0);
    assert_int_equal(n, 5);
    assert_int_equal(params_bool(&p, "k", -1, &b, &err), 0);
    assert_int_equal(b, -1);
    assert_int_equal(params_set_str(&p, "k", "Yes", &err), 0);
    assert_int_equal(params_bool(&p, "k", -1, &b, &err), 0);
    assert_int_equal(b, 1);
    assert_int_equal(params_int(&p, "k", 5, &n, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "The rendezvous configuration option 'k' does not "
                                  "represent a valid integer value.");
    assert_int_equal(params_set_str(&p, "k", " yes", &err), 0);
    assert_int_equal(params_bool(&p, "k", -1, &b, &err), MUSTER_EINVAL);
    assert_string_equal(err.text, "The rendezvous configuration option 'k' does not "
                                  "represent a valid boolean value.");
    assert_int_equal(params_set_int(&p, "k", 2, &err), 0);
    assert_int_equal(params_bool(&p, "k", -1, &b, &err), MUSTER_EINVAL);
    assert_int_equal(params_set_bool(&p, "k", true, &err), 0);
    assert_int_equal(params_int(&p, "k", 5, &n, &err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(p.count, 1);
    params_fini(&p);
    params_fini(&p);
}

static void numbers_as_python_reads_them(void **state)
{
    static const struct {
        const char *in;
        bool ok;
        int64_t want;
    } rows[] = {
        { "5", true, 5 },
        { " -5\n", true, -5 },
        { "+007", true, 7 },
        { "1_000", true, 1000 },
        { "1__0", false, 0 },
        { "_1", false, 0 },
        { "1_", false, 0 },
        { "5.0", false, 0 },
        { "", false, 0 },
        { "- 5", false, 0 },
        { "0x10", false, 0 },
        { "-", false, 0 },
        { "9223372036854775807", true, INT64_MAX },
        { "9223372036854775808", false, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int64_t got = 0;

        if (py_int(span_str(rows[i].in), &got) != rows[i].ok || got != rows[i].want)
            fail_msg("'%s' gave %lld", rows[i].in, (long long)got);
    }
}

static void configuration_strings(void **state)
{
    struct rdzv_params p;
    struct muster_error err;

    (void)state;
    assert_int_equal(params_init(&p, "c10d", "", "id", 1, 2, NULL, &err), 0);
    assert_int_equal(conf_parse(&p, "  ", &err), 0);
    assert_int_equal(p.count, 0);
    assert_int_equal(conf_parse(&p, " a = b=c , d=e,a= f", &err), 0);
    assert_int_equal(p.count, 2);
    assert_string_equal(params_str(&p, "a", ""), "f");
    assert_string_equal(params_str(&p, "d", ""), "e");
    for (const char *const *bad =
             (const char *const[]){ "a=b,", "=b", "a=b,,c=d", ",", NULL };
         *bad; bad++) {
        assert_int_equal(conf_parse(&p, *bad, &err), MUSTER_EINVAL);
        assert_string_equal(err.text, "The rendezvous configuration string must be in "
                                      "format <key1>=<value1>,...,<keyN>=<valueN>.");
    }
    for (const char *const *bad = (const char *const[]){ "x", "a=b,x=", "x= ", NULL };
         *bad; bad++) {
        assert_int_equal(conf_parse(&p, *bad, &err), MUSTER_EINVAL);
        assert_string_equal(err.text,
                            "The rendezvous configuration option 'x' must have a "
                            "value specified.");
    }
    params_fini(&p);
}

static void failing_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct rdzv_params p = { 0 }, q = { 0 };
        int rc = params_init(&p, "c10d", "h:1", "id", 1, 2, "addr", NULL);

        if (rc == 0)
            rc = conf_parse(&p, "a=1,b=2,a=3", NULL);
        if (rc == 0)
            rc = params_copy(&q, &p, NULL);
        if (rc == 0)
            assert_string_equal(params_str(&q, "a", ""), "3");
        assert_int_equal(rc, failing_rc(&f));
        params_fini(&p);
        params_fini(&q);
    }
}

static void cas_backoff_as_torch_reads_it(void **state)
{
    static const struct {
        const char *value;
        uint64_t ms;
        const char *text; /* NULL: taken */
    } rows[] = {
        { NULL, 0, NULL },
        { "0.0", 0, NULL },
        { "0.25", 250, NULL },
        { "2", 2000, NULL },
        { "x", 0, "cas_backoff_max_seconds('x') is not a valid float value." },
        { "-1", 0, "cas_backoff_max_seconds (-1.0) must be finite and non-negative." },
        { "inf", 0, "cas_backoff_max_seconds (inf) must be finite and non-negative." },
        { "nan", 0, "cas_backoff_max_seconds (nan) must be finite and non-negative." },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct rdzv_params p;
        struct rdzv_settings s;
        struct muster_error err = { 0 };
        int rc;

        assert_int_equal(params_init(&p, "c10d", "", "r", 1, 1, NULL, NULL), 0);
        rdzv_settings_init(&s, 1, 1);
        if (rows[i].value)
            assert_int_equal(
                params_set_str(&p, "cas_backoff_max_seconds", rows[i].value, NULL), 0);
        rc = rdzv_settings_read(&s, &p, &err);
        assert_int_equal(rc, rows[i].text ? MUSTER_EINVAL : 0);
        assert_string_equal(err.text, rows[i].text ? rows[i].text : "");
        assert_int_equal(s.cas_backoff_ms, rows[i].ms);
        params_fini(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endpoints_as_torch_reads_them),
        cmocka_unit_test(bad_endpoints_are_refused_in_torchs_words),
        cmocka_unit_test(a_host_has_a_length),
        cmocka_unit_test(constructor_checks),
        cmocka_unit_test(options_have_kinds),
        cmocka_unit_test(numbers_as_python_reads_them),
        cmocka_unit_test(configuration_strings),
        cmocka_unit_test(failing_memory),
        cmocka_unit_test(cas_backoff_as_torch_reads_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

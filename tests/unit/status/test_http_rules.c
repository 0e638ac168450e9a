/* test_http_rules.c - where the page is, and who may see it. */
#include "testing.h"

#include "status/core/http_rules.h"

static void reads_addresses(void **state)
{
    static const struct {
        const char *text, *host; /* NULL: refused */
        uint16_t port;
    } rows[] = {
        { "8080", "127.0.0.1", 8080 },
        { ":0", "127.0.0.1", 0 },
        { "localhost:80", "127.0.0.1", 80 },
        { "0.0.0.0:9100", "0.0.0.0", 9100 },
        { "[::1]:65535", "::1", 65535 },
        { "[::]:1", "::", 1 },
        { "", NULL, 0 },
        { ":", NULL, 0 },
        { "::1:80", NULL, 0 },
        { "127.0.0.1", NULL, 0 },
        { "127.0.0.1:65536", NULL, 0 },
        { "127.0.0.1:-1", NULL, 0 },
        { "127.0.0.1:8o", NULL, 0 },
        { "node1:80", NULL, 0 },
        { "[::1", NULL, 0 },
        { "11111111111111111111111111111111111111111111111111111111111111111111:1",
          NULL, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct muster_error err = { 0 };
        struct http_address a;
        const int rc = http_address_parse(rows[i].text, &a, &err);

        if (rows[i].host ? rc != 0 : rc != MUSTER_EINVAL)
            fail_msg("\"%s\": %d %s", rows[i].text, rc, err.text);
        if (!rows[i].host)
            continue;
        assert_string_equal(a.host, rows[i].host);
        assert_int_equal(a.port, rows[i].port);
    }
}

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void lets_in_whom_it_should(void **state)
{
    static const struct {
        const char *says;
        struct http_visit v;
        bool key, want;
    } rows[] = {
        { "the user", { true, "localhost:80", NULL, NULL }, true, true },
        { "the user, numeric", { true, "127.0.0.1:80", NULL, NULL }, true, true },
        { "the user, IPv6", { true, "[::1]:80", NULL, NULL }, true, true },
        { "the user of a job without key",
          { true, "127.0.0.1", NULL, NULL },
          false,
          true },
        { "a page that rebinds its name",
          { true, "evil.example:80", NULL, NULL },
          true,
          false },
        { "the same, disguised",
          { true, "127.0.0.1.evil.example", NULL, NULL },
          true,
          false },
        { "a port that is a name",
          { true, "[::1]:evil.example", NULL, NULL },
          true,
          false },
        { "no name at all", { true, NULL, NULL, NULL }, true, false },
        { "another user", { false, "127.0.0.1", NULL, NULL }, true, false },
        { "another user with the key", { false, "node1:80", KEY, NULL }, true, true },
        { "the key as a header",
          { false, "node1:80", NULL, "Bearer " KEY },
          true,
          true },
        { "another scheme", { false, "node1:80", NULL, "Basic " KEY }, true, false },
        { "a part of the key",
          { false, "node1", "0123456789abcdef", NULL },
          true,
          false },
        { "an empty key", { false, "node1", "", NULL }, true, false },
        { "an empty key for a job that has none",
          { false, "n", "", "Bearer " },
          false,
          false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (http_may_see(&rows[i].v, rows[i].key ? KEY : "") != rows[i].want)
            fail_msg("%s: want %d", rows[i].says, rows[i].want);
}

static void knows_other_sites(void **state)
{
    static const char host[] = "127.0.0.1:80", firefox[] = "Mozilla/5.0 (X11; ...)";
    static const struct {
        const char *says;
        struct http_origin o;
        bool want;
    } rows[] = {
        { "curl", { host, NULL, NULL, "curl/7.88", false }, false },
        { "a program without a name", { host, NULL, NULL, NULL, false }, false },
        { "our page", { host, "same-origin", NULL, firefox, true }, false },
        { "the address bar", { host, "none", NULL, firefox, false }, false },
        { "another page", { host, "cross-site", NULL, firefox, false }, true },
        { "another port of this machine",
          { host, "same-site", NULL, firefox, false },
          true },
        { "our page in an old browser", { host, NULL, NULL, firefox, true }, false },
        { "anything else in an old browser",
          { host, NULL, NULL, firefox, false },
          true },
        { "another origin", { host, NULL, "http://evil.example", "x", false }, true },
        { "an origin without a name", { host, NULL, "null", "x", false }, true },
        { "our origin", { host, NULL, "http://127.0.0.1:80", "x", false }, false },
        { "a header that only claims to be of our page",
          { host, "cross-site", NULL, firefox, true },
          true },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (http_is_cross_site(&rows[i].o) != rows[i].want)
            fail_msg("%s: want %d", rows[i].says, rows[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_addresses),
        cmocka_unit_test(lets_in_whom_it_should),
        cmocka_unit_test(knows_other_sites),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

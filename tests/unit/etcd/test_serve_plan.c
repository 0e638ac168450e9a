/* test_serve_plan.c - how a host of --rdzv-serve becomes a member of the job's etcd. */
#include "testing.h"

#include <stdio.h>

#include "base/mem.h"
#include "etcd/serve/core/serve_plan.h"

/* As etcd 3.4 answered GET /members: ids have no sign and may be larger than 2^63. */
static const char three[] =
    "[{\"id\":2453526331227236350,\"peerURLs\":[\"http://h1:2380\"],\"name\":\"m0\","
    "\"clientURLs\":[\"http://h1:2379\"]},"
    "{\"id\":12345678901234567890,\"peerURLs\":[\"http://h2:2380\"],\"name\":\"m1\","
    "\"clientURLs\":[\"http://h2:2379\"]},"
    "{\"id\":7,\"peerURLs\":[\"http://h3:2380\"],\"name\":\"m2\"}]\n";

static void hosts(void **state)
{
    static const struct {
        const char *text;
        int64_t peer;
        size_t count;
        uint16_t port, peer_port; /* of the last */
        const char *says;
    } rows[] = {
        { "h1", 0, 1, 2379, 2380, NULL },
        { "h1,h2:4000,h3:5000", 0, 3, 5000, 5001, NULL },
        { "[::1]:2379", 7000, 1, 2379, 7000, NULL },
        { "", 0, 0, 0, 0, "needs --rdzv-endpoint" },
        { "h1,h1", 0, 0, 0, 0, "twice" },
        { "h1:65535", 0, 0, 0, 0, "another for its peers" },
        { "h1:2379", 2379, 0, 0, 0, "another for its peers" },
        { "h1", 70000, 0, 0, 0, "peer_port" },
        { "a,b,c,d,e,f,g,h,i,j", 0, 0, 0, 0, "at most 9" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct serve_hosts h = { 0 };
        struct muster_error err = { 0 };
        const int rc = serve_hosts_parse(&h, rows[i].text, rows[i].peer, &err);

        if (rows[i].says) {
            assert_int_equal(rc, MUSTER_EINVAL);
            if (!strstr(err.text, rows[i].says))
                fail_msg("'%s': %s", rows[i].text, err.text);
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(h.count, rows[i].count);
        assert_int_equal(h.items[h.count - 1].port, rows[i].port);
        assert_int_equal(h.items[h.count - 1].peer_port, rows[i].peer_port);
        serve_hosts_fini(&h);
    }
}

/* Members are written "h1+" if they have run, "h1" if not, "h1!" if another job's. */
static void make_members(struct serve_members *m, const char *text)
{
    struct buf b;
    char copy[64], *save = NULL;
    int id = 10;

    buf_init(&b, SIZE_MAX);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        const char kind = w[2];

        w[2] = '\0';
        buf_printf(&b,
                   "%c{\"id\":%d,\"peerURLs\":[\"http://%s:2380\"],\"name\":\"%s%s\"",
                   buf_len(&b) ? ',' : '[', id++, w,
                   kind == '+'   ? "ours-"
                   : kind == '!' ? "theirs-"
                                 : "",
                   kind ? w : "");
        buf_printf(&b, "%s}", kind ? ",\"clientURLs\":[\"http://x\"]" : "");
    }
    buf_u8(&b, ']');
    assert_int_equal(serve_members_parse(m, buf_span(&b), NULL), 0);
    buf_fini(&b);
}

static void plans(void **state)
{
    static const struct {
        const char *says, *told; /* NULL: nobody answered */
        size_t hosts, refused;
        const char *own;
        enum serve_action want;
        uint64_t old;
    } rows[] = {
        { "the first of three", NULL, 3, 2, "h1", SERVE_NEW, 0 },
        { "alone", NULL, 1, 0, "h1", SERVE_NEW, 0 },
        { "one is off, the other has no etcd yet", NULL, 3, 1, "h1", SERVE_NEW, 0 },
        { "two are silent: there may be a cluster", NULL, 3, 0, "h1", SERVE_WAIT, 0 },
        { "three of five are silent", NULL, 5, 1, "h1", SERVE_WAIT, 0 },
        { "two of five are silent", NULL, 5, 2, "h1", SERVE_NEW, 0 },
        { "another has begun and waits", "h1 h2 h3", 3, 1, "h2", SERVE_NEW, 0 },
        { "one of three has run: it was with us", "h1+ h2 h3", 3, 1, "h3", SERVE_NEW,
          0 },
        { "two go on; we may have been one", "h1+ h2+ h3", 3, 0, "h3", SERVE_REPLACE,
          12 },
        { "two of five", "h1+ h2+ h3 h4 h5", 5, 0, "h3", SERVE_NEW, 0 },
        { "three of five", "h1+ h2+ h3+ h4 h5", 5, 0, "h5", SERVE_REPLACE, 14 },
        { "we have been in it", "h1+ h2+ h3+", 3, 0, "h1", SERVE_REPLACE, 10 },
        { "we have been removed from it", "h1+ h2+", 3, 0, "h3", SERVE_ADD, 0 },
        { "another job's", "h1! h2! h3", 3, 0, "h3", SERVE_FOREIGN, 0 },
        { "another job's, which has us", "h1! h2! h3!", 3, 0, "h3", SERVE_FOREIGN, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *url = mem_printf("http://%s:2380", rows[i].own);
        struct serve_members m = { 0 };
        const struct serve_view v = { rows[i].told ? &m : NULL, rows[i].hosts,
                                      rows[i].refused, url, "ours-" };
        uint64_t old = 0;

        if (rows[i].told)
            make_members(&m, rows[i].told);
        if (serve_plan(&v, &old) != rows[i].want || old != rows[i].old)
            fail_msg("%s: %d, %llu", rows[i].says, serve_plan(&v, &old),
                     (unsigned long long)old);
        serve_members_fini(&m);
        mem_free(url);
    }
}

/* Of h1, h2 ...: we are h1. */
static void leaving(void **state)
{
    static const struct {
        const char *says, *told;
        const char *answers; /* by host: '+' it answers, '-' it does not; ours is not
                                asked */
        size_t removed;      /* in told: already; 99: none */
        bool left;
        size_t want;
    } rows[] = {
        { "all are well: we go", "h1+ h2+ h3+", "-++", 99, false, 0 },
        { "the dead go before us", "h1+ h2+ h3+", "-+-", 99, false, 2 },
        { "the dead one has gone: now we", "h1+ h2+ h3+", "-+-", 2, false, 0 },
        { "we have gone", "h1+ h2+ h3+", "-++", 0, true, SERVE_NOBODY },
        { "no majority is left", "h1+ h2+ h3+", "---", 99, false, SERVE_NOBODY },
        { "half are dead", "h1+ h2+", "--", 99, false, SERVE_NOBODY },
        { "two of five are dead", "h1+ h2+ h3+ h4+ h5+", "--+-+", 99, false, 3 },
        { "we are alone", "h1+", "-", 99, false, SERVE_NOBODY },
        { "we were never in", "h2+ h3+", "-++", 99, false, SERVE_NOBODY },
        { "one who is not listed stays", "h1+ h2+ h9+", "-++", 99, false, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct serve_members m = { 0 };
        struct serve_hosts h = { 0 };
        struct serve_leave_view v = { &m, &h, "http", { 0 }, 0, rows[i].left };
        static const char list[] = "h1,h2,h3,h4,h5";
        char hosts[sizeof list];

        snprintf(hosts, 3 * strlen(rows[i].answers), "%s", list);
        assert_int_equal(serve_hosts_parse(&h, hosts, 0, NULL), 0);
        make_members(&m, rows[i].told);
        for (size_t k = 0; k < h.count; k++)
            v.answers[k] = rows[i].answers[k] == '+';
        if (rows[i].removed < m.count)
            m.items[rows[i].removed].id = 0;
        if (serve_leave_next(&v) != rows[i].want)
            fail_msg("%s: %zu", rows[i].says, serve_leave_next(&v));
        serve_members_fini(&m);
        serve_hosts_fini(&h);
    }
}

static bool has(char *const *env, const char *line)
{
    while (*env && strcmp(*env, line) != 0)
        env++;
    return *env;
}

static void environment(void **state)
{
    char *inherited[] = { "PATH=/bin", "ETCD_NAME=the-users-own", "MUSTER_TOKEN=secret",
                          NULL };
    const struct serve_host host = { "h1", 2379, 2380 };
    struct serve_env_spec s = {
        .inherited = inherited,
        .host = &host,
        .scheme = "http",
        .address = "::1",
        .name = "t-0",
        .dir = "/d",
        .run_id = "job",
        .client_url = "http://h1:2379",
        .peer_url = "http://h1:2380",
        .cluster = "t-0=http://h1:2380",
    };
    char **env = serve_env_new(&s);

    (void)state;
    assert_non_null(env);
    assert_true(has(env, "PATH=/bin"));
    assert_true(has(env, "ETCD_NAME=t-0"));
    assert_false(has(env, "ETCD_NAME=the-users-own"));
    assert_false(has(env, "MUSTER_TOKEN=secret"));
    assert_true(has(env, "ETCD_LISTEN_CLIENT_URLS=http://[::1]:2379"));
    assert_true(has(env, "ETCD_INITIAL_CLUSTER_STATE=new"));
    assert_false(has(env, "ETCD_CLIENT_CERT_AUTH=true"));
    serve_env_free(env);
    s.existing = true;
    s.ca = "/d/ca", s.cert = "/d/cert", s.key = "/d/key";
    for (unsigned long n = 1;; n++) { /* each allocation fails once */
        mem_fail_from(n);
        env = serve_env_new(&s);
        mem_fail_from(0);
        if (env)
            break;
    }
    assert_true(has(env, "ETCD_INITIAL_CLUSTER_STATE=existing"));
    assert_true(has(env, "ETCD_CLIENT_CERT_AUTH=true"));
    assert_true(has(env, "ETCD_PEER_TRUSTED_CA_FILE=/d/ca"));
    serve_env_free(env);
}

static void ids(void **state)
{
    struct serve_members m = { 0 };

    (void)state;
    assert_int_equal(serve_members_parse(&m, span_str(three), NULL), 0);
    assert_int_equal(m.count, 3);
    assert_true(m.items[1].id == UINT64_C(12345678901234567890));
    assert_true(m.items[1].started && !m.items[2].started);
    serve_members_fini(&m);
}

/* As etcd 3.4 answered. */
static void turns(void **state)
{
    static const char lease[] = "{\"header\":{\"cluster_id\":\"14841639068965178418\"},"
                                "\"ID\":\"7587869134512345678\",\"TTL\":\"5\"}";
    static const char *const not_ours[] = {
        "{\"header\":{},\"responses\":[]}", /* what is false is left out */
        "{\"succeeded\":false}",
        "{\"succeeded\":\"true\"}",
        "[true]",
        "",
        "{",
    };
    static const char *const no_lease[] = { "{\"TTL\":\"5\"}", "{\"ID\":5}", "[]", "" };
    char body[SERVE_TURN_ROOM];
    uint64_t id = 0;

    (void)state;
    assert_true(serve_turn_lease(span_str(lease), &id));
    assert_true(id == UINT64_C(7587869134512345678));
    serve_turn_take(body, UINT64_MAX); /* It fits. */
    assert_non_null(strstr(body, "\"18446744073709551615\"}}]}"));
    serve_turn_give(body, id);
    assert_string_equal(body, "{\"ID\":\"7587869134512345678\"}");
    assert_true(serve_turn_is_ours(span_str("{\"header\":{},\"succeeded\":true}")));
    for (size_t i = 0; i < ARRAY_LEN(not_ours); i++)
        assert_false(serve_turn_is_ours(span_str(not_ours[i])));
    for (size_t i = 0; i < ARRAY_LEN(no_lease); i++)
        assert_false(serve_turn_lease(span_str(no_lease[i]), &id));
}

static void tags(void **state)
{
    char a[SERVE_TAG_SIZE], b[SERVE_TAG_SIZE];

    (void)state;
    serve_tag(a, "job-1");
    serve_tag(b, "job-2");
    assert_int_equal(strlen(a), 9);
    assert_string_not_equal(a, b);
    serve_tag(b, "job-1");
    assert_string_equal(a, b);
}

static void clusters(void **state)
{
    static const char added[] =
        "{\"member\":{\"ID\":\"9\",\"peerURLs\":[\"http://h2:2380\"]},\"members\":["
        "{\"ID\":\"1\",\"name\":\"m0\",\"peerURLs\":[\"http://h1:2380\"],"
        "\"clientURLs\":[\"http://h1:2379\"]},"
        "{\"ID\":\"8\",\"peerURLs\":[\"http://h3:2380\"]},"
        "{\"ID\":\"9\",\"peerURLs\":[\"http://h2:2380\"]}]}";
    struct serve_members m = { 0 };
    struct serve_hosts h = { 0 };
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(serve_members_parse(&m, span_str(added), NULL), 0);
    assert_int_equal(m.items[2].id, 9);
    assert_int_equal(serve_cluster_existing(&b, &m, "m1", "http://h2:2380"), 0);
    assert_true(span_eq(
        buf_span(&b),
        span_str("m0=http://h1:2380,to-come-1=http://h3:2380,m1=http://h2:2380")));
    buf_clear(&b);
    assert_int_equal(serve_hosts_parse(&h, "h1,[::1]:99", 0, NULL), 0);
    assert_int_equal(serve_cluster_new(&b, &h, "http", "t-"), 0);
    assert_true(
        span_eq(buf_span(&b), span_str("t-0=http://h1:2380,t-1=http://[::1]:100")));
    buf_fini(&b);
    serve_members_fini(&m);
    serve_hosts_fini(&h);
}

static void nonsense(void **state)
{
    static const char *const bodies[] = {
        "", "{}", "[{}]", "[{\"peerURLs\":[7]}]", "<html>", "[\"id\":", "[[]]",
    };
    struct serve_members m = { 0 };
    struct muster_error err;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
        assert_true(serve_members_parse(&m, span_str(bodies[i]), &err) < 0);
    assert_null(m.items);
}

static void versions(void **state)
{
    int major = 0, minor = 0;

    (void)state;
    assert_true(serve_version_parse(
        span_str("{\"etcdserver\":\"3.4.23\",\"etcdcluster\":\"3.4.0\"}"), &major,
        &minor));
    assert_int_equal(major, 3);
    assert_int_equal(minor, 4);
    assert_false(serve_version_parse(span_str("404 page not found"), &major, &minor));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts),    cmocka_unit_test(plans),
        cmocka_unit_test(leaving),  cmocka_unit_test(environment),
        cmocka_unit_test(ids),      cmocka_unit_test(turns),
        cmocka_unit_test(tags),     cmocka_unit_test(clusters),
        cmocka_unit_test(nonsense), cmocka_unit_test(versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

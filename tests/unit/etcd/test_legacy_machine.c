/* test_legacy_machine.c - nodes of the legacy etcd rendezvous against a model of etcd's
 * v2 keys, on a virtual clock: compare-and-swap, lifetimes, waits, and nodes that die
 * at any moment. What must hold: whoever is told JOINED for a version is told the same
 * world, and no rank twice. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/rng.h"
#include "etcd/legacy/core/document.h"
#include "etcd/legacy/core/machine.h"

/* ---- A model of etcd ---- */

#define KEYS  64
#define NODES 5

struct key {
    char path[200], value[2000];
    uint64_t modified, expires_ms; /* MONO_NEVER */
    bool used, dir;
};

static struct key keys[KEYS];
static uint64_t clock_ms, etcd_index, last_call_ms;
static struct {
    uint64_t index;
    char path[200];
} history[20000];
static size_t history_count;

static void note(const char *path)
{
    etcd_index++;
    assert_true(history_count < ARRAY_LEN(history));
    history[history_count].index = etcd_index;
    (void)snprintf(history[history_count].path, sizeof history[0].path, "%s", path);
    history_count++;
}

static void text_of(struct span s, char *out, size_t size)
{
    (void)snprintf(out, size, "%.*s", (int)s.n, s.p ? (const char *)s.p : "");
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = '\0';
}

static struct key *find(const char *path)
{
    for (size_t i = 0; i < KEYS; i++)
        if (keys[i].used && strcmp(keys[i].path, path) == 0)
            return &keys[i];
    return NULL;
}

static void expire(void)
{
    for (size_t i = 0; i < KEYS; i++)
        if (keys[i].used && keys[i].expires_ms <= clock_ms) {
            keys[i].used = false;
            note(keys[i].path);
        }
}

static struct key *make(const char *path)
{
    for (size_t i = 0; i < KEYS; i++)
        if (!keys[i].used) {
            keys[i] = (struct key){ .used = true };
            (void)snprintf(keys[i].path, sizeof keys[i].path, "%s", path);
            return &keys[i];
        }
    fail_msg("the model is full");
    return NULL;
}

static struct etcd2_node listing[KEYS];

static void get(const struct etcd2_request *r, const char *path,
                struct legacy_event *ev)
{
    struct key *k = find(path);
    const size_t n = strlen(path);

    (void)r;
    if (!k) {
        ev->code = MUSTER_ENOENT;
        return;
    }
    ev->value = span_str(k->value);
    ev->modified_index = k->modified;
    for (size_t i = 0; i < KEYS; i++)
        if (keys[i].used && strncmp(keys[i].path, path, n) == 0 &&
            keys[i].path[n] == '/')
            listing[ev->count++] = (struct etcd2_node){ .key = span_str(keys[i].path) };
    ev->nodes = listing;
}

static void put(const struct etcd2_request *r, const char *path,
                struct legacy_event *ev)
{
    struct key *k = find(path);

    if (k && (r->prev_exist == ETCD2_MUST_NOT_EXIST ||
              (r->prev_index && r->prev_index != k->modified) ||
              (r->prev_value.p && !span_eq(r->prev_value, span_str(k->value))))) {
        ev->code = MUSTER_EEXIST;
        return;
    }
    if (!k && (r->prev_value.p || r->prev_index)) {
        ev->code = MUSTER_ENOENT;
        return;
    }
    if (!k)
        k = make(path);
    k->dir = r->dir;
    text_of(r->value, k->value, sizeof k->value);
    k->expires_ms = r->ttl_s ? clock_ms + r->ttl_s * 1000 : MONO_NEVER;
    note(path);
    k->modified = etcd_index;
    ev->value = span_str(k->value);
    ev->modified_index = k->modified;
}

static void perform(const struct etcd2_request *r, struct legacy_event *ev)
{
    char path[200];
    struct key *k;

    expire();
    text_of(r->key, path, sizeof path);
    if (r->verb == ETCD2_GET) {
        get(r, path, ev);
    } else if (r->verb == ETCD2_PUT) {
        put(r, path, ev);
    } else if (!(k = find(path))) {
        ev->code = MUSTER_ENOENT;
    } else if (!span_eq(r->prev_value, span_str(k->value))) {
        ev->code = MUSTER_EEXIST;
    } else {
        k->used = false;
        note(path);
    }
    ev->index = etcd_index;
}

static bool happened(const struct etcd2_request *r)
{
    char path[200];
    size_t n;

    expire();
    text_of(r->key, path, sizeof path);
    n = strlen(path);
    for (size_t i = history_count; i-- > 0 && history[i].index >= r->wait_index;)
        if (strcmp(history[i].path, path) == 0 ||
            (r->recursive && strncmp(history[i].path, path, n) == 0 &&
             history[i].path[n] == '/'))
            return true;
    return false;
}

/* ---- Nodes ---- */

struct node {
    struct legacy *l;
    bool alive, pending;
    struct etcd2_request request;
    struct buf copy[3]; /* key, value, prev_value: the machine's are gone by then */
    uint64_t due_ms;    /* when the request is served, or the wait's time is over */
    char rank_path[200];
    uint64_t keep_ms; /* next refresh; MONO_NEVER */
    uint64_t version;
    int64_t rank, world;
    int refused;
    bool joined, closed, lost, waiting_news, starved;
};

static struct node nodes[NODES];
static struct rng dice;
/* The allocation in node 0's steps from which on they fail; 0: none. And how many there
 * were. */
static unsigned long starve_at, allocated;

static struct span keep_copy(struct buf *b, struct span s)
{
    buf_clear(b);
    if (!s.p)
        return s;
    assert_int_equal(buf_append_span(b, s), 0);
    assert_int_equal(buf_u8(b, 0), 0);
    return span_of(buf_data(b), s.n);
}

static void ask(struct node *n, const struct legacy_effect *e)
{
    assert_false(n->pending); /* one at a time */
    n->pending = true;
    n->request = e->request;
    n->request.key = keep_copy(&n->copy[0], e->request.key);
    n->request.value = keep_copy(&n->copy[1], e->request.value);
    n->request.prev_value = keep_copy(&n->copy[2], e->request.prev_value);
    n->due_ms = clock_ms + (e->request.wait ? e->timeout_ms : 1 + rng_below(&dice, 30));
}

static void effects(struct node *n, const struct legacy_fx *fx)
{
    for (size_t i = 0; i < fx->count; i++) {
        const struct legacy_effect *e = &fx->at[i];

        switch (e->kind) {
        case LEGACY_FX_REQUEST:
            ask(n, e);
            break;
        case LEGACY_FX_CANCEL:
            n->pending = false;
            break;
        case LEGACY_FX_KEEP:
            if (e->rank) {
                text_of(e->path, n->rank_path, sizeof n->rank_path);
                n->keep_ms = clock_ms;
            }
            break;
        case LEGACY_FX_DROP:
            n->keep_ms = MONO_NEVER;
            break;
        case LEGACY_FX_JOINED:
            n->joined = true;
            n->version = e->version;
            n->rank = e->node_rank;
            n->world = e->world;
            break;
        case LEGACY_FX_REFUSED:
            n->refused = e->code;
            break;
        case LEGACY_FX_CLOSED:
            n->closed = e->code == 0;
            break;
        case LEGACY_FX_NEWS:
            n->lost = n->lost || e->news == RDZV_NEWS_LOST;
            n->waiting_news = n->waiting_news || e->news == RDZV_NEWS_WAITING;
            break;
        }
    }
}

/* Without memory a step has no effects, and neither has any that comes after it. */
static void starved(struct node *n)
{
    const struct legacy_event join = { .kind = LEGACY_EV_JOIN };
    struct legacy_fx fx;

    assert_int_equal(legacy_step(n->l, &join, &fx), MUSTER_ENOMEM);
    assert_int_equal(fx.count, 0);
    assert_true(legacy_deadline(n->l) == MONO_NEVER);
    n->starved = true;
}

static void feed(struct node *n, struct legacy_event ev)
{
    const bool hungry = n == &nodes[0] && starve_at;
    const unsigned long before = mem_count();
    struct legacy_fx fx;
    int rc;

    if (n->starved)
        return;
    ev.now = (struct now){ clock_ms, 0 };
    if (hungry)
        mem_fail_from(starve_at - allocated);
    rc = legacy_step(n->l, &ev, &fx);
    mem_fail_from(0);
    if (hungry)
        allocated += mem_count() - before;
    assert_int_equal(rc, hungry && allocated >= starve_at ? MUSTER_ENOMEM : 0);
    if (rc < 0)
        starved(n);
    else
        effects(n, &fx);
}

static void start(size_t i, int64_t min, int64_t max, uint64_t timeout_ms)
{
    const struct legacy_config cfg = { .prefix = "/p",
                                       .run_id = "job",
                                       .min_nodes = min,
                                       .max_nodes = max,
                                       .timeout_ms = timeout_ms,
                                       .last_call_ms = last_call_ms,
                                       .seed = rng_u64(&dice) };
    struct node *n = &nodes[i];

    *n = (struct node){ .alive = true, .keep_ms = MONO_NEVER };
    for (size_t k = 0; k < 3; k++)
        buf_init(&n->copy[k], SIZE_MAX);
    assert_int_equal(legacy_new(&cfg, &n->l, NULL), 0);
    feed(n, (struct legacy_event){ .kind = LEGACY_EV_JOIN });
}

static void kill_node(size_t i)
{
    legacy_free(nodes[i].l);
    nodes[i].l = NULL;
    for (size_t k = 0; k < 3; k++)
        buf_fini(&nodes[i].copy[k]);
    nodes[i].alive = nodes[i].pending = false;
}

/* One millisecond of one node's life. */
static void live(struct node *n)
{
    struct key *k;

    if (n->keep_ms <= clock_ms) {
        k = find(n->rank_path);
        if (k)
            k->expires_ms = clock_ms + 10000;
        n->keep_ms = clock_ms + 5000;
    }
    if (n->pending) {
        struct legacy_event ev = { .kind = LEGACY_EV_REPLY };
        const bool event = n->request.wait && happened(&n->request);

        if (!event && n->due_ms > clock_ms)
            return;
        if (!n->request.wait)
            perform(&n->request, &ev);
        else if (!event)
            ev.code = MUSTER_ETIMEDOUT;
        n->pending = false;
        feed(n, ev);
    } else if (legacy_deadline(n->l) <= clock_ms) {
        feed(n, (struct legacy_event){ .kind = LEGACY_EV_TIMER });
    }
}

static void check(void)
{
    for (size_t i = 0; i < NODES; i++)
        for (size_t j = 0; j < i; j++) {
            if (!nodes[i].joined || !nodes[j].joined ||
                nodes[i].version != nodes[j].version)
                continue;
            assert_int_equal(nodes[i].world, nodes[j].world);
            assert_int_not_equal(nodes[i].rank, nodes[j].rank);
        }
}

static void run(uint64_t ms)
{
    for (const uint64_t end = clock_ms + ms; clock_ms < end; clock_ms++) {
        for (size_t i = 0; i < NODES; i++)
            if (nodes[i].alive)
                live(&nodes[i]);
        if (clock_ms % 64 == 0)
            check();
    }
    check();
}

static void reset(uint64_t seed)
{
    memset(keys, 0, sizeof keys);
    memset(nodes, 0, sizeof nodes);
    history_count = 0;
    clock_ms = 1000;
    last_call_ms = 3000;
    etcd_index = 3;
    rng_init(&dice, seed);
}

static void end(void)
{
    for (size_t i = 0; i < NODES; i++)
        if (nodes[i].alive)
            kill_node(i);
}

/* ---- Tests ---- */

static void all_come(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        reset(seed);
        for (size_t i = 0; i < 4; i++)
            start(i, 4, 4, 60000);
        run(15000);
        for (size_t i = 0; i < 4; i++) {
            assert_true(nodes[i].joined);
            assert_int_equal(nodes[i].world, 4);
            assert_int_equal(nodes[i].version, nodes[0].version);
        }
        end();
    }
}

static void last_call_ends(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        reset(seed);
        start(0, 2, 4, 60000);
        start(1, 2, 4, 60000);
        run(1500);
        start(2, 2, 4, 60000); /* within the last call */
        assert_false(nodes[0].joined);
        run(20000);
        for (size_t i = 0; i < 3; i++) {
            assert_true(nodes[i].joined);
            assert_int_equal(nodes[i].world, 3);
        }
        end();
    }
}

/* Who meets a version that another is setting up does not sleep past its last call. */
static void short_last_call(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        reset(seed);
        last_call_ms = 1000;
        for (size_t i = 0; i < 3; i++)
            start(i, 2, 3, 60000);
        run(5000);
        for (size_t i = 0; i < 3; i++) {
            assert_true(nodes[i].joined);
            assert_int_equal(nodes[i].world, 3);
        }
        end();
    }
}

/* A newcomer makes the members come again, and all are in the next version. */
static void late_joiner(void **state)
{
    (void)state;
    reset(1);
    start(0, 1, 3, 60000);
    run(10000);
    assert_true(nodes[0].joined);
    assert_int_equal(nodes[0].world, 1);
    start(1, 1, 3, 60000);
    run(3000);
    assert_true(nodes[0].waiting_news);
    assert_int_equal(legacy_waiting(nodes[0].l), 1);
    nodes[0].joined = false;
    feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_JOIN });
    run(40000);
    assert_true(nodes[0].joined && nodes[1].joined);
    assert_int_equal(nodes[0].world, 2);
    assert_int_equal(nodes[0].version, 2);
    end();
}

static void killed_member(void **state)
{
    (void)state;
    reset(2);
    for (size_t i = 0; i < 3; i++)
        start(i, 2, 3, 60000);
    run(12000);
    assert_int_equal(nodes[0].world, 3);
    kill_node(1);
    nodes[1].joined = false;
    run(16000); /* its key lives ten seconds at most */
    for (size_t i = 0; i < 3; i += 2) {
        assert_true(nodes[i].lost);
        nodes[i].joined = false;
        feed(&nodes[i], (struct legacy_event){ .kind = LEGACY_EV_JOIN });
    }
    run(40000);
    assert_true(nodes[0].joined && nodes[2].joined);
    assert_int_equal(nodes[0].world, 2);
    end();
}

static void closing(void **state)
{
    (void)state;
    reset(3);
    start(0, 1, 2, 60000);
    run(8000);
    assert_true(nodes[0].joined);
    feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_CLOSE });
    run(1000);
    assert_true(nodes[0].closed && legacy_closed(nodes[0].l));
    start(1, 1, 2, 60000);
    run(3000);
    assert_int_equal(nodes[1].refused, MUSTER_ECLOSED);
    end();
    reset(4); /* and one that was never begun */
    start(0, 2, 2, 60000);
    run(3000);
    feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_LEAVE });
    assert_int_equal(nodes[0].refused, MUSTER_ECANCELED);
    find("/p/run_job/rdzv/active_version")->used = false;
    feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_CLOSE });
    run(1000);
    assert_true(nodes[0].closed);
    end();
}

/* Whoever leaves in the middle of it is told of the end all the same. */
static void leaving_while_closing(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 200; ms += 7) { /* at each of its requests and pauses */
        reset(ms);
        start(0, 1, 2, 60000);
        run(8000);
        assert_true(nodes[0].joined && nodes[0].keep_ms != MONO_NEVER);
        feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_CLOSE });
        run(ms);
        feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_LEAVE });
        assert_true(nodes[0].keep_ms == MONO_NEVER);
        run(1000);
        assert_true(nodes[0].closed && legacy_closed(nodes[0].l));
        /* A join, and another close, are answered. */
        feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_JOIN });
        run(3000);
        assert_int_equal(nodes[0].refused, MUSTER_ECLOSED);
        nodes[0].closed = false;
        feed(&nodes[0], (struct legacy_event){ .kind = LEGACY_EV_CLOSE });
        run(1000);
        assert_true(nodes[0].closed);
        end();
    }
}

static void alone_for_too_long(void **state)
{
    (void)state;
    reset(5);
    start(0, 2, 2, 8000);
    run(10500);
    assert_int_equal(nodes[0].refused, MUSTER_ETIMEDOUT);
    end();
}

/* Nodes die and come at any moment; those that live on get together in the end. */
static void chaos(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 115; seed++) {
        reset(seed);
        for (size_t i = 0; i < NODES; i++)
            start(i, 2, NODES, 600000);
        for (size_t k = 0; k < 4; k++) {
            const size_t i = (size_t)rng_below(&dice, NODES);

            run(rng_below(&dice, 9000));
            if (nodes[i].alive)
                kill_node(i);
            nodes[i].joined = false;
            run(rng_below(&dice, 2000));
            start(i, 2, NODES, 600000);
            for (size_t j = 0; j < NODES; j++)
                if (nodes[j].joined && (nodes[j].lost || nodes[j].waiting_news)) {
                    nodes[j].joined = nodes[j].lost = nodes[j].waiting_news = false;
                    feed(&nodes[j], (struct legacy_event){ .kind = LEGACY_EV_JOIN });
                }
        }
        for (size_t k = 0; k < 12; k++) {
            run(10000);
            for (size_t j = 0; j < NODES; j++)
                if (nodes[j].joined && (nodes[j].lost || nodes[j].waiting_news)) {
                    nodes[j].joined = nodes[j].lost = nodes[j].waiting_news = false;
                    feed(&nodes[j], (struct legacy_event){ .kind = LEGACY_EV_JOIN });
                }
        }
        for (size_t i = 0; i < NODES; i++)
            if (!nodes[i].joined || nodes[i].world != NODES)
                fail_msg("seed %llu: node %zu, joined %d, world %lld",
                         (unsigned long long)seed, i, nodes[i].joined,
                         (long long)nodes[i].world);
        end();
    }
}

/* Memory runs out for one node at its n-th allocation, for each n until it is enough.
 * The other goes on without it, and nothing is leaked. */
static void a_node_without_memory(void **state)
{
    bool was_starved = true;

    (void)state;
    for (starve_at = 1; was_starved; starve_at++) {
        allocated = 0;
        reset(2);
        start(0, 1, 1, 60000);
        run(6000);
        was_starved = nodes[0].starved;
        assert_true(nodes[0].joined || was_starved);
        kill_node(0);
        nodes[0] = (struct node){ 0 };
        start(1, 1, 1, 60000);
        run(30000);
        assert_true(nodes[1].joined);
        end();
    }
    starve_at = 0;
}

static void documents(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"status\": \"lost\"}",
        "{\"status\": \"joinable\"}",
        "{\"status\": \"joinable\", \"version\": 1, \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"-1\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": 3}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], "
        "\"keep_alives\": [1]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [], "
        "\"keep_alives\": [\"a\"]}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], "
        "\"keep_alives\": [\"a\"], \"num_workers_waiting\": \"x\"}",
        /* nobody writes these: they could be changed into what nobody reads */
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], "
        "\"keep_alives\": [\"a\"]}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [0], "
        "\"keep_alives\": [true]}",
        "{\"status\": \"setup\", \"version\": \"1x\"}",
        "{\"status\": \"closed\", \"participants\": 1}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], "
        "\"keep_alives\": [\"a\"], \"num_workers_waiting\": 9223372036854775807}",
    };
    struct legacy_doc d;
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (legacy_doc_read(&d, span_str(bad[i]), NULL) != MUSTER_ESTATE)
            fail_msg("taken for a document: %s", bad[i]);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(legacy_doc_new(&d, 7), 0);
    assert_int_equal(legacy_doc_join(&d), 0);
    assert_int_equal(legacy_doc_join(&d), 0);
    assert_int_equal(legacy_doc_freeze(&d), 0);
    assert_int_equal(legacy_doc_confirm(&d, "/a"), 0);
    assert_int_equal(legacy_doc_confirm(&d, "/b"), 0);
    assert_int_equal(legacy_doc_wait(&d), 0);
    assert_int_equal(legacy_doc_print(&d, &b), 0);
    assert_true(span_eq(buf_span(&b),
                        span_str("{\"status\": \"final\", \"version\": \"7\", "
                                 "\"participants\": [0, 1], \"keep_alives\": "
                                 "[\"/a\", \"/b\"], \"num_workers_waiting\": 1}")));
    buf_fini(&b);
    legacy_doc_fini(&d);
}

static void prefix(void **state)
{
    const struct legacy_config cfg = { .prefix = "custom", .run_id = "r" };
    struct muster_error err = { 0 };
    struct legacy *l;

    (void)state;
    assert_int_equal(legacy_new(&cfg, &l, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "etcd_prefix=/custom"));

    static const struct legacy_config odd[] = { { .prefix = "/p", .run_id = "r\xe9" },
                                                { .prefix = "/\xe9", .run_id = "r" } };
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        assert_int_equal(legacy_new(&odd[i], &l, &err), MUSTER_EINVAL);
        assert_non_null(strstr(err.text, "is not UTF-8"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_come),
        cmocka_unit_test(last_call_ends),
        cmocka_unit_test(short_last_call),
        cmocka_unit_test(late_joiner),
        cmocka_unit_test(killed_member),
        cmocka_unit_test(closing),
        cmocka_unit_test(leaving_while_closing),
        cmocka_unit_test(alone_for_too_long),
        cmocka_unit_test(chaos),
        cmocka_unit_test(a_node_without_memory),
        cmocka_unit_test(documents),
        cmocka_unit_test(prefix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

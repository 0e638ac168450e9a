/* report.c - see report.h. Ranks with equal exit codes are ranges, and every list that
 * could grow with the size or the age of the job has a limit. For nodes and rounds the
 * report says how many were left out. */
#include "job/core/report.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/escape.h"
#include "base/mem.h"
#include "policy/core/policy.h"

/* How many of each are listed. If the report is too large, it is made again with half
 * of each. */
struct limits {
    size_t nodes, rounds, failures, phases;
    size_t ranges, last_ranges; /* of a round; of the last one */
    size_t words;               /* bytes of any text, last words included */
};

static const struct limits whole = { .nodes = 3000,
                                     .rounds = 200,
                                     .failures = 64,
                                     .phases = 24,
                                     .ranges = 64,
                                     .last_ranges = 1000,
                                     .words = 2048 };

static struct limits half_of(const struct limits *l)
{
    return (struct limits){ l->nodes / 2,  l->rounds / 2, l->failures / 2,
                            l->phases / 2, l->ranges / 2, l->last_ranges / 2,
                            l->words / 2 };
}

/* Our own nodes publish clean texts, but another program might publish anything. */
static json_t *text(struct span s, const struct limits *l)
{
    struct buf b;
    json_t *j;

    buf_init(&b, 2 * RECORD_BODY_MAX);
    (void)escape_append(&b, span_of(s.p, MIN_OF(s.n, l->words)), ESCAPE_LINES);
    j = json_stringn((const char *)buf_data(&b), buf_len(&b));
    buf_fini(&b);
    return j ? j : json_string("");
}

static json_t *number(int64_t n)
{
    return json_integer((json_int_t)n);
}

static void add(json_t *to, const char *key, json_t *value)
{
    (void)json_object_set_new(to, key, value);
}

/* ---- nodes ---- */

static const char *state_of(const struct record *r, uint32_t node)
{
    bool blamed = false; /* the verdict says that it was lost */

    for (size_t i = r->count; i-- > 0;) {
        const struct record_entry e = record_at(r, i);

        if (e.node != node)
            continue;
        if (e.kind == RECORD_LOST)
            return "lost";
        if (e.kind == RECORD_LEFT)
            return "left";
        blamed = blamed || (e.kind == RECORD_VERDICT && e.cause == CAUSE_NODE_LOST);
    }
    return blamed ? "lost" : "here";
}

#define NUMBERS 65536u /* of nodes that are listed once; a peer may send any number */

/* A new coordinator announces again the nodes that the one before had announced. */
static bool seen_before(uint8_t *seen, uint32_t number)
{
    if (!seen || number >= NUMBERS)
        return false;
    const uint8_t bit = (uint8_t)(1u << number % 8);
    const bool before = seen[number / 8] & bit;
    seen[number / 8] |= bit;
    return before;
}

static json_t *nodes(const struct record *r, const struct limits *l, int64_t *omitted)
{
    uint8_t *seen = mem_calloc(NUMBERS / 8, 1);
    json_t *list = json_array();

    *omitted = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        struct span body = e.body;
        struct record_node n;

        if (e.kind != RECORD_NODES)
            continue;
        while (record_nodes_next(&body, &n)) {
            json_t *j;

            if (seen_before(seen, n.number))
                continue;
            if (json_array_size(list) >= l->nodes) {
                ++*omitted;
                continue;
            }
            j = json_object();
            add(j, "node", number(n.number));
            add(j, "host", text(n.host, l));
            add(j, "address", text(n.addr, l));
            add(j, "agent_pid", number(n.pid));
            add(j, "workers", number(n.nproc));
            add(j, "joined_us", number(e.at_us));
            add(j, "clock_ahead_us", number(n.offset_us));
            add(j, "clock_unsure_us", number(n.unsure_us));
            add(j, "state",
                json_string(r->lost || r->count < 512 ? state_of(r, n.number)
                                                      : "here"));
            (void)json_array_append_new(list, j);
        }
    }
    assert(json_array_size(list) <= l->nodes && *omitted >= 0);
    mem_free(seen);
    return list;
}

/* ---- failures ---- */

static json_t *failure(const struct record_entry *e, const struct limits *l)
{
    json_t *j = json_object();

    add(j, "cause", json_string(record_cause_name(e->cause)));
    add(j, "text", text(e->text, l));
    add(j, "time_us", number(e->at_us));
    add(j, "unsure_us", number(e->unsure_us));
    add(j, "round", number(e->round));
    add(j, "node", number(e->node));
    add(j, "host", text(e->host, l));
    if (e->rank >= 0) {
        add(j, "rank", number(e->rank));
        add(j, "local_rank", number(e->local_rank));
        add(j, "pid", number(e->pid));
        add(j, "exit_code", number(e->code));
    }
    if (e->place.n)
        add(j, "place", text(e->place, l));
    if (e->path.n)
        add(j, "log", text(e->path, l));
    if (e->body.n)
        add(j, "last_words", text(e->body, l));
    if (e->reason && e->kind != RECORD_FAILED) {
        add(j, "decided", json_string(policy_reason_name(e->reason)));
        add(j, "rule", text(e->rule, l));
        if (e->left >= 0)
            add(j, "left", number(e->left));
        add(j, "wait_us", number(e->wait_us));
    }
    return j;
}

static size_t count_of(const struct record *r, enum record_kind kind)
{
    size_t count = 0;

    for (size_t i = 0; i < r->count; i++)
        count += record_at(r, i).kind == kind;
    return count;
}

/* Whether the i-th of so many is listed: where there are too many the first ones are,
 * up to a quarter of the list, and the last. */
static bool is_listed(size_t i, size_t count, size_t most)
{
    return count <= most || i < most / 4 || i >= count - (most - most / 4);
}

/* Lists those of a kind, the oldest first. */
static json_t *failures(const struct record *r, enum record_kind kind, bool counts,
                        const struct limits *l)
{
    const size_t count = count_of(r, kind);
    json_t *list = json_array();
    size_t seen = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        json_t *j;

        if (e.kind != kind || !is_listed(seen++, count, l->failures))
            continue;
        j = failure(&e, l);
        if (counts) {
            add(j, "restart", number(e.count));
            add(j, "allowed", number(e.total));
        }
        (void)json_array_append_new(list, j);
    }
    return list;
}

/* Lists what --hang has found, even if nothing was stopped for it. */
static json_t *hangs(const struct record *r, const struct limits *l)
{
    const size_t count = count_of(r, RECORD_NOTE);
    json_t *list = json_array();
    size_t seen = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        json_t *j;

        if (e.kind != RECORD_NOTE || !is_listed(seen++, count, l->failures) ||
            e.cause != CAUSE_HANG)
            continue;
        j = json_object();
        add(j, "text", text(e.text, l));
        add(j, "time_us", number(e.at_us));
        add(j, "round", number(e.round));
        if (e.rank >= 0) {
            add(j, "rank", number(e.rank));
            add(j, "host", text(e.host, l));
            add(j, "pid", number(e.pid));
        }
        if (e.path.n)
            add(j, "stacks", text(e.path, l));
        add(j, "lines", text(e.body, l));
        (void)json_array_append_new(list, j);
    }
    return list;
}

/* ---- rounds ---- */

/* Lists a body of three numbers a line, in which equal neighbours are one line. */
static json_t *ranges(struct span body, const char *a, const char *b, const char *c,
                      size_t most)
{
    json_t *list = json_array();
    char *copy = mem_strndup((const char *)body.p, body.n), *at = copy;

    while (at && *at && json_array_size(list) < most) {
        json_t *j = json_object();

        add(j, a, number(strtoll(at, &at, 10)));
        add(j, b, number(strtoll(at, &at, 10)));
        add(j, c, number(strtoll(at, &at, 10)));
        (void)json_array_append_new(list, j);
        at = *at == '\n' ? at + 1 : NULL;
    }
    assert(json_array_size(list) <= most);
    mem_free(copy);
    return list;
}

/* How long each phase of the start of this round took on its nodes. */
static json_t *phases(const struct record *r, int64_t round, const struct limits *l)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        struct span body = e.body;
        struct record_phase p;

        if (e.kind != RECORD_PHASES || e.round != round)
            continue;
        while (json_array_size(list) < l->phases && record_phases_next(&body, &p)) {
            json_t *j = json_object();

            add(j, "phase", text(p.name, l));
            add(j, "min_us", number(p.min_us));
            add(j, "median_us", number(p.median_us));
            add(j, "max_us", number(p.max_us));
            add(j, "slowest_node", number(p.slowest));
            (void)json_array_append_new(list, j);
        }
    }
    return list;
}

static json_t *round_of(const struct record *r, const struct record_entry *e, bool last,
                        const struct limits *l)
{
    const size_t count = last ? l->last_ranges : l->ranges;
    struct record_entry ended;
    json_t *j = json_object();

    add(j, "round", number(e->round));
    add(j, "began_us", number(e->at_us));
    add(j, "nodes", number(e->count));
    add(j, "ranks", number(e->total));
    add(j, "phases", phases(r, e->round, l));
    add(j, "placement", ranges(e->body, "node", "first_rank", "count", count));
    if (!record_find(r, RECORD_ENDED, e->round, &ended))
        return j;
    add(j, "ended_us", number(ended.at_us));
    add(j, "seconds", json_real((double)(ended.at_us - e->at_us) / 1e6));
    add(j, "cause", json_string(record_cause_name(ended.cause)));
    add(j, "failed", number(ended.count));
    add(j, "exit_codes", ranges(ended.body, "first_rank", "count", "code", count));
    return j;
}

static json_t *rounds(const struct record *r, const struct limits *l, int64_t *omitted)
{
    const size_t count = count_of(r, RECORD_ROUND);
    json_t *list = json_array();
    size_t seen = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);

        if (e.kind != RECORD_ROUND || !is_listed(seen++, count, l->rounds))
            continue;
        (void)json_array_append_new(list, round_of(r, &e, seen == count, l));
    }
    assert(seen == count && json_array_size(list) <= l->rounds);
    *omitted = r->rounds - (int64_t)json_array_size(list);
    return list;
}

/* ---- all of it ---- */

/* Whether every node of the last round has left, which means that somebody stopped the
 * job. */
static bool all_left(const struct record *r)
{
    struct record_entry round;
    struct record_ranks place;
    int64_t nodes = 0;

    if (!record_find(r, RECORD_ROUND, -1, &round))
        return false;
    for (; record_ranks_next(&round.body, &place); nodes++)
        if (strcmp(state_of(r, place.node), "left") != 0)
            return false;
    return nodes > 0 && nodes == round.count;
}

static int64_t last_left_us(const struct record *r)
{
    int64_t at_us = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);

        if (e.kind == RECORD_LEFT)
            at_us = MAX_OF(at_us, e.at_us);
    }
    return at_us;
}

static const char *outcome(const struct record *r, struct record_entry *v)
{
    if (!record_find(r, RECORD_VERDICT, -1, v))
        return all_left(r) ? "stopped" : "running";
    return v->cause == CAUSE_SUCCEEDED ? "succeeded"
           : v->cause == CAUSE_STOPPED ? "stopped"
                                       : "failed";
}

static json_t *story(const struct record *r, const char *run_id, const char *version,
                     const struct limits *l)
{
    struct record_entry v = { 0 }, ended;
    const char *how = outcome(r, &v);
    int64_t nodes_left_out, rounds_left_out;
    json_t *j = json_object();

    add(j, "schema", json_integer(1));
    add(j, "muster", json_string(version));
    add(j, "run_id", text(span_str(run_id), l));
    add(j, "outcome", json_string(how));
    add(j, "began_us", number(r->began_us));
    if (v.kind == RECORD_VERDICT)
        add(j, "ended_us",
            number(record_find(r, RECORD_ENDED, v.round, &ended) ? ended.at_us
                                                                 : v.at_us));
    else if (all_left(r))
        add(j, "ended_us", number(last_left_us(r)));
    add(j, "restarts", number(r->restarts));
    add(j, "nodes", nodes(r, l, &nodes_left_out));
    add(j, "nodes_omitted", number(nodes_left_out));
    add(j, "rounds", rounds(r, l, &rounds_left_out));
    add(j, "rounds_omitted", number(MAX_OF(rounds_left_out, 0)));
    add(j, "restart_causes", failures(r, RECORD_RESTART, true, l));
    add(j, "failures", failures(r, RECORD_FAILED, false, l));
    add(j, "hangs", hangs(r, l));
    add(j, "verdict",
        v.kind == RECORD_VERDICT && v.cause != CAUSE_SUCCEEDED ? failure(&v, l)
                                                               : json_null());
    return j;
}

int report_json(struct buf *out, const struct record *r, const char *run_id,
                const char *version)
{
    struct limits l = whole;
    int rc = MUSTER_ENOMEM;

    for (size_t size = REPORT_MAX; size >= REPORT_MAX && l.nodes > 0; l = half_of(&l)) {
        json_t *j = story(r, run_id, version, &l);
        char *printed = j ? json_dumps(j, JSON_INDENT(1)) : NULL;

        json_decref(j);
        size = printed ? strlen(printed) : 0;
        if (size < REPORT_MAX)
            rc = printed ? buf_append_str(out, printed) : MUSTER_ENOMEM;
        free(printed);
    }
    return rc ? rc : buf_append_str(out, "\n");
}

int report_event_json(struct buf *out, const struct record_entry *e, const char *event,
                      const char *run_id, struct span words)
{
    const struct limits l = whole;
    json_t *j = json_object();
    int rc = MUSTER_ENOMEM;

    add(j, "event", json_string(event));
    add(j, "run_id", text(span_str(run_id), &l));
    add(j, "text", text(words, &l)); /* what chat services take */
    add(j, "entry", failure(e, &l));
    char *printed = json_dumps(j, JSON_COMPACT);

    if (printed)
        rc = buf_append_str(out, printed);
    free(printed);
    json_decref(j);
    return rc;
}

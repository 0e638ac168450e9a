/* report.c - see report.h. Equal ranks are told as ranges, and what could grow with the
 * size of the job or its age has a limit; how many were left out is told. */
#include "record/core/report.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/escape.h"
#include "base/mem.h"

#define NODES_MAX    3000u
#define ROUNDS_MAX   200u
#define FAILURES_MAX 64u
#define RANGES_MAX   64u /* of a round; of the last one: */
#define LAST_RANGES  1000u
#define WORDS_MAX    2048u
#define PHASES_MAX   24u /* of a round */

/* Texts are clean when they come from our own nodes; what a stranger published may be
 * anything. */
static json_t *text(struct span s)
{
    struct buf b;
    json_t *j;

    buf_init(&b, 2 * RECORD_BODY_MAX);
    (void)escape_append(&b, s, ESCAPE_LINES);
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
    for (size_t i = r->count; i-- > 0;) {
        const struct record_entry e = record_at(r, i);

        if (e.node == node && e.kind == RECORD_LOST)
            return "lost";
        if (e.node == node && e.kind == RECORD_LEFT)
            return "left";
    }
    return "here";
}

static json_t *nodes(const struct record *r, int64_t *omitted)
{
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

            if (json_array_size(list) >= NODES_MAX) {
                ++*omitted;
                continue;
            }
            j = json_object();
            add(j, "node", number(n.number));
            add(j, "host", text(n.host));
            add(j, "address", text(n.addr));
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
    return list;
}

/* ---- failures ---- */

static json_t *failure(const struct record_entry *e)
{
    json_t *j = json_object();

    add(j, "cause", json_string(record_cause_name(e->cause)));
    add(j, "text", text(e->text));
    add(j, "time_us", number(e->at_us));
    add(j, "unsure_us", number(e->unsure_us));
    add(j, "round", number(e->round));
    add(j, "node", number(e->node));
    add(j, "host", text(e->host));
    if (e->rank >= 0) {
        add(j, "rank", number(e->rank));
        add(j, "local_rank", number(e->local_rank));
        add(j, "pid", number(e->pid));
        add(j, "exit_code", number(e->code));
    }
    if (e->place.n)
        add(j, "place", text(e->place));
    if (e->path.n)
        add(j, "log", text(e->path));
    if (e->body.n)
        add(j, "last_words", text(span_of(e->body.p, MIN_OF(e->body.n, WORDS_MAX))));
    return j;
}

/* The newest of a kind, oldest of them first. */
static json_t *failures(const struct record *r, enum record_kind kind, bool counts)
{
    json_t *list = json_array();
    size_t skip = 0;

    for (size_t i = 0; i < r->count; i++)
        skip += record_at(r, i).kind == kind;
    skip = skip > FAILURES_MAX ? skip - FAILURES_MAX : 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        json_t *j;

        if (e.kind != kind || (skip && skip--))
            continue;
        j = failure(&e);
        if (counts) {
            add(j, "restart", number(e.count));
            add(j, "allowed", number(e.total));
        }
        (void)json_array_append_new(list, j);
    }
    return list;
}

/* ---- rounds ---- */

/* Three numbers a line; equal neighbours are one line already. */
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
    mem_free(copy);
    return list;
}

/* How long each part of the way to this round took, over its nodes. */
static json_t *phases(const struct record *r, int64_t round)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);
        struct span body = e.body;
        struct record_phase p;

        if (e.kind != RECORD_PHASES || e.round != round)
            continue;
        while (json_array_size(list) < PHASES_MAX && record_phases_next(&body, &p)) {
            json_t *j = json_object();

            add(j, "phase", text(p.name));
            add(j, "min_us", number(p.min_us));
            add(j, "median_us", number(p.median_us));
            add(j, "max_us", number(p.max_us));
            add(j, "slowest_node", number(p.slowest));
            (void)json_array_append_new(list, j);
        }
    }
    return list;
}

static json_t *round_of(const struct record *r, const struct record_entry *e, bool last)
{
    const size_t most = last ? LAST_RANGES : RANGES_MAX;
    struct record_entry ended;
    json_t *j = json_object();

    add(j, "round", number(e->round));
    add(j, "began_us", number(e->at_us));
    add(j, "nodes", number(e->count));
    add(j, "ranks", number(e->total));
    add(j, "phases", phases(r, e->round));
    add(j, "placement", ranges(e->body, "node", "first_rank", "count", most));
    if (!record_find(r, RECORD_ENDED, e->round, &ended))
        return j;
    add(j, "ended_us", number(ended.at_us));
    add(j, "seconds", json_real((double)(ended.at_us - e->at_us) / 1e6));
    add(j, "cause", json_string(record_cause_name(ended.cause)));
    add(j, "failed", number(ended.count));
    add(j, "exit_codes", ranges(ended.body, "first_rank", "count", "code", most));
    return j;
}

static json_t *rounds(const struct record *r, int64_t *omitted)
{
    json_t *list = json_array();
    size_t count = 0, seen = 0;

    for (size_t i = 0; i < r->count; i++)
        count += record_at(r, i).kind == RECORD_ROUND;
    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry e = record_at(r, i);

        if (e.kind != RECORD_ROUND || count - seen++ > ROUNDS_MAX)
            continue;
        (void)json_array_append_new(list, round_of(r, &e, seen == count));
    }
    *omitted = r->rounds - (int64_t)json_array_size(list);
    return list;
}

/* ---- all of it ---- */

static const char *outcome(const struct record *r, struct record_entry *v)
{
    if (!record_find(r, RECORD_VERDICT, -1, v))
        return "running";
    return v->cause == CAUSE_SUCCEEDED ? "succeeded"
           : v->cause == CAUSE_STOPPED ? "stopped"
                                       : "failed";
}

int report_json(struct buf *out, const struct record *r, const char *run_id,
                const char *version)
{
    struct record_entry v = { 0 }, ended;
    const char *how = outcome(r, &v);
    int64_t nodes_left_out, rounds_left_out;
    json_t *j = json_object();
    char *printed;
    int rc;

    add(j, "schema", json_integer(1));
    add(j, "muster", json_string(version));
    add(j, "run_id", text(span_str(run_id)));
    add(j, "outcome", json_string(how));
    add(j, "began_us", number(r->began_us));
    if (v.kind == RECORD_VERDICT)
        add(j, "ended_us",
            number(record_find(r, RECORD_ENDED, v.round, &ended) ? ended.at_us
                                                                 : v.at_us));
    add(j, "restarts", number(r->restarts));
    add(j, "nodes", nodes(r, &nodes_left_out));
    add(j, "nodes_omitted", number(nodes_left_out));
    add(j, "rounds", rounds(r, &rounds_left_out));
    add(j, "rounds_omitted", number(MAX_OF(rounds_left_out, 0)));
    add(j, "restart_causes", failures(r, RECORD_RESTART, true));
    add(j, "failures", failures(r, RECORD_FAILED, false));
    add(j, "verdict",
        v.kind == RECORD_VERDICT && v.cause != CAUSE_SUCCEEDED ? failure(&v)
                                                               : json_null());
    printed = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
    json_decref(j);
    rc = printed ? buf_append_str(out, printed) : MUSTER_ENOMEM;
    free(printed);
    return rc ? rc : buf_append_str(out, "\n");
}

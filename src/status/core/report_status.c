/* report_status.c - see report_status.h. */
#include "status/core/report_status.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "policy/core/policy.h"

#define EVENTS_MAX 4096u

/* ---- JSON of any origin ---- */

static struct span text_of(const json_t *object, const char *key)
{
    const json_t *text = json_object_get(object, key);

    return json_is_string(text)
               ? span_of(json_string_value(text), json_string_length(text))
               : span_of(NULL, 0);
}

static bool is_text(const json_t *object, const char *key, const char *text)
{
    return span_eq(text_of(object, key), span_str(text));
}

/* Numbers that no report has would overflow sums of them: they count as missing. */
static int64_t number_of(const json_t *object, const char *key, int64_t otherwise)
{
    const json_t *n = json_object_get(object, key);
    const double v = json_is_number(n) ? json_number_value(n) : 1e18;

    return v > -9e15 && v < 9e15 ? (int64_t)v : otherwise;
}

static enum record_cause cause_of(const json_t *object)
{
    for (int i = 0; i < RECORD_CAUSE_COUNT; i++)
        if (is_text(object, "cause", record_cause_name((enum record_cause)i)))
            return (enum record_cause)i;
    return CAUSE_NONE;
}

static enum job_state outcome_of(const json_t *report)
{
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        if (is_text(report, "outcome", job_state_word((enum job_state)i)))
            return (enum job_state)i;
    return JOB_FAILED;
}

/* ---- what happened ---- */

/* Adds an entry, unless it has no time or there are too many; NULL then. */
static struct record_entry *add_entry(struct job_status *j, enum record_kind kind,
                                      const json_t *from, const char *time)
{
    struct record_entry *e = &j->entries[j->entry_count];

    if (!json_is_number(json_object_get(from, time)) || j->entry_count == EVENTS_MAX)
        return NULL;
    *e = (struct record_entry){ .number = ++j->entry_count, /* in order of coming */
                                .kind = kind,
                                .cause = cause_of(from),
                                .at_us = number_of(from, time, 0),
                                .round = number_of(from, "round", -1),
                                .rank = -1,
                                .local_rank = -1,
                                .pid = -1 };
    return e;
}

static void add_failure(struct job_status *j, enum record_kind kind, const json_t *f)
{
    struct record_entry *e = add_entry(j, kind, f, "time_us");

    if (!e)
        return;
    e->rank = number_of(f, "rank", -1);
    e->local_rank = number_of(f, "local_rank", -1);
    e->pid = number_of(f, "pid", -1);
    e->code = number_of(f, "exit_code", 0);
    e->node = (uint32_t)number_of(f, "node", 0);
    e->host = text_of(f, "host");
    e->text = text_of(f, "text");
    e->place = text_of(f, "place");
    e->path = text_of(f, "log");
    e->body = text_of(f, json_object_get(f, "lines") ? "lines" : "last_words");
    e->count = number_of(f, "restart", 0);
    e->total = number_of(f, "allowed", 0);
    for (uint32_t reason = 1; reason < POLICY_REASONS; reason++)
        if (span_eq(text_of(f, "decided"), span_str(policy_reason_name(reason))))
            e->reason = reason;
    e->rule = text_of(f, "rule");
    e->left = number_of(f, "left", -1);
    e->wait_us = number_of(f, "wait_us", 0);
}

static void add_failures(struct job_status *j, enum record_kind kind,
                         const json_t *failures)
{
    const json_t *f;
    size_t i;

    json_array_foreach(failures, i, f) add_failure(j, kind, f);
}

static int add_round(struct job_status *j, const json_t *round)
{
    struct record_entry *e = add_entry(j, RECORD_ROUND, round, "began_us");
    const json_t *p;
    struct buf b;
    size_t i;

    buf_init(&b, SIZE_MAX);
    json_array_foreach(json_object_get(round, "placement"), i, p)
    {
        const struct record_ranks line = { (uint32_t)number_of(p, "node", 0),
                                           number_of(p, "first_rank", 0),
                                           number_of(p, "count", 0) };

        buf_fail(&b, record_ranks_print(&b, &line));
    }
    const char *body = buf_error(&b) ? NULL : arena_text(&j->arena, buf_span(&b));
    buf_fini(&b);
    if (!body)
        return MUSTER_ENOMEM;
    if (e) {
        e->cause = CAUSE_NONE; /* The round's cause is that of its end. */
        e->count = number_of(round, "nodes", 0);
        e->total = number_of(round, "ranks", 0);
        e->body = span_str(body);
    }
    (void)add_entry(j, RECORD_ENDED, round, "ended_us");
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const struct record_entry *x = a, *y = b;

    if (x->at_us != y->at_us)
        return x->at_us < y->at_us ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* In the order of their times, numbered from 1. */
static int read_history(struct job_status *j, const json_t *report)
{
    const json_t *rounds = json_object_get(report, "rounds"), *r;
    size_t i;

    j->entries = arena_alloc(&j->arena, EVENTS_MAX + 1, sizeof *j->entries);
    if (!j->entries)
        return MUSTER_ENOMEM;
    json_array_foreach(rounds, i, r) if (add_round(j, r) != 0) return MUSTER_ENOMEM;
    add_failures(j, RECORD_FAILED, json_object_get(report, "failures"));
    add_failures(j, RECORD_RESTART, json_object_get(report, "restart_causes"));
    add_failures(j, RECORD_NOTE, json_object_get(report, "hangs"));
    add_failure(j, RECORD_VERDICT, json_object_get(report, "verdict"));
    qsort(j->entries, j->entry_count, sizeof *j->entries, by_time);
    for (i = 0; i < j->entry_count; i++) {
        j->entries[i].number = i + 1;
        if (j->entries[i].kind != RECORD_VERDICT)
            continue;
        j->have_verdict = true;
        j->verdict = j->entries[i];
    }
    if (j->state != JOB_SUCCEEDED)
        return 0;
    j->have_verdict = true;
    j->verdict = (struct record_entry){ .kind = RECORD_VERDICT,
                                        .cause = CAUSE_SUCCEEDED,
                                        .at_us = number_of(report, "ended_us", 0),
                                        .round = -1,
                                        .rank = -1 };
    return 0;
}

/* ---- nodes and ranks, as of the last round ---- */

/* The exit code of a rank; false: it is not known. */
static bool code_of(const json_t *round, int64_t rank, int32_t *code)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(round, "exit_codes"), i, c)
    {
        const int64_t first = number_of(c, "first_rank", 0);

        if (rank < first || rank - first >= number_of(c, "count", 0))
            continue;
        *code = (int32_t)number_of(c, "code", 0);
        return true;
    }
    return false;
}

static bool has_failed(const struct job_status *j, int64_t rank)
{
    for (size_t i = 0; i < j->entry_count; i++) {
        const struct record_entry *e = &j->entries[i];

        if (e->kind == RECORD_FAILED && e->rank == rank && e->round == j->round)
            return true;
    }
    return false;
}

static int read_workers(struct job_status *j, struct job_node *n, const json_t *round)
{
    const size_t count = (size_t)MIN_OF(n->ranks, (int64_t)JOB_WORKERS_LISTED);
    struct worker_status *workers = arena_alloc(&j->arena, count + 1, sizeof *workers);

    if (!workers)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        struct worker_status *w = &workers[i];
        const int64_t rank = n->first_rank + (int64_t)i;

        if (code_of(round, rank, &w->code))
            w->state = w->code == 0          ? WORKER_SUCCEEDED
                       : has_failed(j, rank) ? WORKER_FAILED
                                             : WORKER_ENDED;
    }
    n->workers = workers;
    n->worker_count = count;
    return 0;
}

static int read_node(struct job_status *j, struct job_node *n, const json_t *node,
                     const json_t *round)
{
    const json_t *p;
    size_t i;

    *n = (struct job_node){ .number = (uint32_t)number_of(node, "node", 0),
                            .host = text_of(node, "host"),
                            .addr = text_of(node, "address"),
                            .agent_pid = number_of(node, "agent_pid", 0),
                            .state = is_text(node, "state", "lost")   ? NODE_LOST
                                     : is_text(node, "state", "left") ? NODE_LEFT
                                                                      : NODE_ENDED,
                            .first_rank = -1 };
    j->lost += n->state == NODE_LOST;
    json_array_foreach(json_object_get(round, "placement"), i, p)
    {
        if (number_of(p, "node", -1) != n->number)
            continue;
        n->first_rank = MAX_OF(number_of(p, "first_rank", 0), (int64_t)0);
        n->ranks = MAX_OF(number_of(p, "count", 0), (int64_t)0);
        return read_workers(j, n, round);
    }
    return 0;
}

static int read_nodes(struct job_status *j, const json_t *report, const json_t *round)
{
    const json_t *nodes = json_object_get(report, "nodes"), *n;
    size_t i;

    j->nodes = mem_calloc(json_array_size(nodes) + 1, sizeof *j->nodes);
    if (!j->nodes)
        return MUSTER_ENOMEM;
    json_array_foreach(nodes, i, n) if (read_node(j, &j->nodes[j->count++], n, round) !=
                                        0) return MUSTER_ENOMEM;
    return 0;
}

int report_status(const json_t *report, struct job_status *j, struct muster_error *err)
{
    const json_t *rounds = json_object_get(report, "rounds"),
                 *causes = json_object_get(report, "restart_causes"),
                 *round = json_array_get(rounds, json_array_size(rounds) - 1),
                 *restart = json_array_get(causes, json_array_size(causes) - 1);

    if (!json_object_get(report, "run_id") || !json_is_array(rounds))
        return err_set(err, MUSTER_EINVAL,
                       "it is not a report of a job\n"
                       "`muster run --report=FILE` writes one.");
    if (number_of(report, "schema", 0) != 1)
        return err_set(err, MUSTER_EINVAL,
                       "its schema is %lld, and this version knows 1",
                       (long long)number_of(report, "schema", 0));
    *j = (struct job_status){
        .version = text_of(report, "muster"),
        .run_id = text_of(report, "run_id"),
        .state = outcome_of(report),
        .began_us = number_of(report, "began_us", 0),
        .round = round ? number_of(round, "round", 0) : -1,
        .ranks = number_of(round, "ranks", 0),
        .nodes_in = number_of(round, "nodes", 0),
        .restarts = number_of(report, "restarts", 0),
        .max_restarts = number_of(restart, "allowed", 0),
        .rounds = (int64_t)json_array_size(rounds),
    };
    if (read_history(j, report) != 0 || read_nodes(j, report, round) != 0) {
        job_status_fini(j);
        return err_nomem(err);
    }
    const int64_t last = j->entry_count ? j->entries[j->entry_count - 1].at_us : 0;
    j->now_us = number_of(report, "ended_us", last);
    return 0;
}

/* job_trace.c - the history of the job in Chrome's trace format, which Perfetto and
 * chrome://tracing open. It has a process for each node, with a slice for each round
 * that the node was in, and one for the job, with its rounds and the waits between
 * them; marks show failures, losses and restarts. */
#include "status/core/job_status.h"
#include "status/core/put.h"

#define OPEN_MAX 4096u /* nodes with tracks of their own */

struct tracks {
    struct buf *out;
    const struct job_status *j;
    bool first;
    int64_t zero_us; /* Times count from here, as viewers truncate larger numbers. */
};

static void begin_event(struct tracks *t, const char *phase, struct span name,
                        uint32_t node, int64_t at_us)
{
    put_str(t->out, t->first ? "\n{\"ph\": \"" : ",\n{\"ph\": \"");
    t->first = false;
    put_str(t->out, phase);
    put_str(t->out, "\", \"name\": ");
    put_json(t->out, name);
    put_str(t->out, ", \"pid\": ");
    put_int(t->out, node);
    put_str(t->out, ", \"tid\": 0, \"ts\": ");
    put_int(t->out, MAX_OF(at_us - t->zero_us, 0));
}

static void put_slice(struct tracks *t, const char *name, int64_t number, uint32_t node,
                      int64_t from_us, int64_t to_us, const char *color)
{
    char text[64];
    struct buf b;

    buf_init(&b, sizeof text);
    if (number >= 0)
        (void)buf_printf(&b, "%s %lld", name, (long long)number);
    else
        put_str(&b, name);
    begin_event(t, "X", buf_span(&b), node, from_us);
    buf_fini(&b);
    put_str(t->out, ", \"dur\": ");
    put_int(t->out, MAX_OF(to_us - from_us, 0));
    put_str(t->out, ", \"cname\": \"");
    put_str(t->out, color);
    put_str(t->out, "\"}");
}

static void put_mark(struct tracks *t, const struct record_entry *e)
{
    struct buf b;

    buf_init(&b, 4096);
    put_str(&b, record_kind_name(e->kind));
    if (e->kind == RECORD_FAILED || e->kind == RECORD_RESTART) {
        put_str(&b, ": rank ");
        put_int(&b, e->rank);
    }
    begin_event(t, "i", buf_span(&b), e->node, e->at_us);
    buf_fini(&b);
    put_str(t->out, ", \"s\": \"");
    put_str(t->out, e->kind == RECORD_FAILED ? "p" : "g");
    put_str(t->out, "\", \"args\": {\"cause\": ");
    put_json(t->out, span_str(record_cause_name(e->cause)));
    put_str(t->out, ", \"text\": ");
    put_json(t->out, e->text);
    put_str(t->out, ", \"host\": ");
    put_json(t->out, e->host);
    put_str(t->out, "}}");
}

static void put_names(struct tracks *t)
{
    const struct job_status *j = t->j;

    begin_event(t, "M", span_str("process_name"), 0, t->zero_us);
    put_str(t->out, ", \"args\": {\"name\": ");
    put_json(t->out, j->run_id);
    put_str(t->out, "}}");
    for (size_t i = 0; i < j->count && i < OPEN_MAX; i++) {
        if (!j->nodes[i].number)
            continue;
        begin_event(t, "M", span_str("process_name"), j->nodes[i].number, t->zero_us);
        put_str(t->out, ", \"args\": {\"name\": ");
        put_json(t->out, j->nodes[i].host);
        put_str(t->out, "}}");
    }
}

/* The rounds of the job itself are on track 0, the first one. */
static void put_members(struct tracks *t, const struct record_entry *round,
                        int64_t to_us)
{
    struct span body = round->body;
    struct record_ranks line;

    put_slice(t, "round", round->round, 0, round->at_us, to_us, "thread_state_running");
    while (record_ranks_next(&body, &line))
        if (line.node)
            put_slice(t, "round", round->round, line.node, round->at_us, to_us,
                      "thread_state_running");
}

static void put_rounds(struct tracks *t)
{
    struct record_entry open = { 0 };
    int64_t waited_since_us = t->zero_us;
    bool in_round = false;

    for (size_t i = 0; i < t->j->entry_count; i++) {
        const struct record_entry e = job_entry(t->j, i);
        const bool starts =
            e.kind == RECORD_ROUND && !(in_round && open.round == e.round);
        const bool ends = e.kind == RECORD_ENDED || e.kind == RECORD_VERDICT;

        if (in_round && (ends || starts)) {
            put_members(t, &open, e.at_us);
            in_round = false;
            waited_since_us = e.at_us;
        }
        if (starts) {
            if (e.at_us > waited_since_us)
                put_slice(t, "rendezvous", -1, 0, waited_since_us, e.at_us,
                          "thread_state_uninterruptible");
            open = e;
            in_round = true;
        }
        if (e.kind == RECORD_FAILED || e.kind == RECORD_LOST ||
            e.kind == RECORD_RESTART || e.kind == RECORD_VERDICT)
            put_mark(t, &e);
    }
    if (in_round)
        put_members(t, &open, t->j->now_us);
}

void job_status_trace(struct buf *out, const struct job_status *j)
{
    struct tracks t = { out, j, true, j->began_us };

    put_str(out, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"run_id\": ");
    put_json(out, j->run_id);
    put_str(out, ", \"began\": ");
    put_seconds(out, t.zero_us);
    put_str(out, "}, \"traceEvents\": [");
    put_names(&t);
    put_rounds(&t);
    put_str(out, "\n]}\n");
}

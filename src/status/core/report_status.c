/* report_status.c - see report_status.h. */
#include "status/core/report_status.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "status/core/job_status.h"
#include "status/core/status_text.h"

#define EVENTS_MAX 4096u

/* A member of an object under another name; nothing if there is none. */
static void copy(json_t *to, const char *key, const json_t *from, const char *name)
{
    json_t *value = json_object_get(from, name);

    if (value)
        (void)json_object_set(to, key, value);
}

static void copy_time(json_t *to, const char *key, const json_t *from, const char *name)
{
    if (json_is_number(json_object_get(from, name)))
        (void)json_object_set_new(to, key, json_real(json_num(from, name, 0) / 1e6));
}

/* ---- what happened ---- */

static json_t *add_event(json_t *list, const char *kind, const json_t *from,
                         const char *time)
{
    json_t *e = json_object();

    (void)json_object_set_new(e, "kind", json_string(kind));
    copy_time(e, "at", from, time);
    copy(e, "round", from, "round");
    copy(e, "cause", from, "cause");
    if (json_object_get(e, "at") && json_array_size(list) < EVENTS_MAX)
        (void)json_array_append(list, e);
    json_decref(e);
    return json_array_get(list, json_array_size(list) - 1);
}

static void add_failures(json_t *list, const char *kind, const json_t *failures)
{
    const json_t *f;
    size_t i;

    json_array_foreach(failures, i, f)
    {
        json_t *e = add_event(list, kind, f, "time_us");

        copy(e, "rank", f, "rank");
        copy(e, "local_rank", f, "local_rank");
        copy(e, "pid", f, "pid");
        copy(e, "code", f, "exit_code");
        copy(e, "node", f, "node");
        copy(e, "host", f, "host");
        copy(e, "text", f, "text");
        copy(e, "place", f, "place");
        copy(e, "path", f, "log");
        copy(e, "lines", f, json_object_get(f, "lines") ? "lines" : "last_words");
        copy(e, "count", f, "restart");
        copy(e, "total", f, "allowed");
    }
}

static void add_rounds(json_t *list, const json_t *rounds)
{
    const json_t *r, *p;
    size_t i, k;

    json_array_foreach(rounds, i, r)
    {
        json_t *e = add_event(list, "ROUND", r, "began_us"), *members = json_array();

        copy(e, "count", r, "nodes");
        copy(e, "total", r, "ranks");
        (void)json_object_del(e, "cause"); /* That is how it ended. */
        json_array_foreach(json_object_get(r, "placement"), k, p)(void)
            json_array_append_new(
                members, json_pack("[I, I, I]", (json_int_t)json_count(p, "node"),
                                   (json_int_t)json_count(p, "first_rank"),
                                   (json_int_t)json_count(p, "count")));
        (void)json_object_set_new(e, "members", members);
        (void)add_event(list, "ENDED", r, "ended_us");
    }
}

static int by_time(const void *a, const void *b)
{
    const double x = json_num(*(json_t *const *)a, "at", 0),
                 y = json_num(*(json_t *const *)b, "at", 0);

    return (x > y) - (x < y);
}

/* In the order of their times, numbered from 1. */
static json_t *history(const json_t *report)
{
    json_t *list = json_array(), *sorted = json_array();
    json_t *verdict = json_pack("[O?]", json_object_get(report, "verdict"));

    add_rounds(list, json_object_get(report, "rounds"));
    add_failures(list, "FAILED", json_object_get(report, "failures"));
    add_failures(list, "RESTART", json_object_get(report, "restart_causes"));
    add_failures(list, "NOTE", json_object_get(report, "hangs"));
    if (json_is_object(json_array_get(verdict, 0)))
        add_failures(list, "VERDICT", verdict);
    const size_t n = json_array_size(list);
    json_t **order = mem_calloc(n + 1, sizeof *order);
    for (size_t i = 0; order && i < n; i++)
        order[i] = json_array_get(list, i);
    if (order)
        qsort(order, n, sizeof *order, by_time);
    for (size_t i = 0; order && i < n; i++) {
        (void)json_object_set_new(order[i], "number", json_integer((json_int_t)i + 1));
        (void)json_array_append(sorted, order[i]);
    }
    mem_free(order);
    json_decref(verdict);
    json_decref(list);
    return sorted;
}

/* ---- nodes and ranks, as of the last round ---- */

static const json_t *last_round(const json_t *report)
{
    const json_t *rounds = json_object_get(report, "rounds");

    return json_array_get(rounds, json_array_size(rounds) - 1);
}

/* The exit code of a rank; false: it is not known. */
static bool code_of(const json_t *round, uint64_t rank, int64_t *code)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(round, "exit_codes"), i, c)
    {
        const uint64_t first = json_count(c, "first_rank");

        if (rank >= first && rank - first < json_count(c, "count")) {
            *code = (int64_t)json_num(c, "code", 0);
            return true;
        }
    }
    return false;
}

static bool has_failed(const json_t *report, uint64_t rank, double round)
{
    const json_t *f;
    size_t i;

    json_array_foreach(json_object_get(report, "failures"), i,
                       f) if (json_count(f, "rank") == rank &&
                              json_object_get(f, "rank") &&
                              json_num(f, "round", -1) == round) return true;
    return false;
}

static json_t *workers(const json_t *report, const json_t *round, uint64_t first,
                       uint64_t count)
{
    json_t *list = json_array();

    for (uint64_t i = 0; i < count && i < JOB_WORKERS_LISTED; i++) {
        json_t *w = json_pack("{s:I, s:I}", "rank", (json_int_t)first + (json_int_t)i,
                              "local_rank", (json_int_t)i);
        int64_t code = 0;
        const bool known = code_of(round, first + i, &code);
        const char *state =
            !known                                                        ? "none"
            : code == 0                                                   ? "succeeded"
            : has_failed(report, first + i, json_num(round, "round", -1)) ? "failed"
                                                                          : "ended";

        (void)json_object_set_new(w, "state", json_string(state));
        if (known)
            (void)json_object_set_new(w, "code", json_integer((json_int_t)code));
        (void)json_array_append_new(list, w);
    }
    return list;
}

/* Where the last round had its ranks on a node. */
static const json_t *placed(const json_t *round, const json_t *node)
{
    const json_t *p;
    size_t i;

    json_array_foreach(json_object_get(round, "placement"), i,
                       p) if (json_num(p, "node", -1) ==
                              json_num(node, "node", -2)) return p;
    return NULL;
}

static json_t *nodes(const json_t *report)
{
    const json_t *round = last_round(report), *n;
    json_t *list = json_array();
    size_t i;

    json_array_foreach(json_object_get(report, "nodes"), i, n)
    {
        const json_t *p = placed(round, n);
        const bool here = span_eq(json_span(n, "state"), span_str("here"));
        json_t *j = json_object();

        copy(j, "node", n, "node");
        copy(j, "name", n, "host");
        copy(j, "address", n, "address");
        copy(j, "pid", n, "agent_pid");
        (void)json_object_set_new(j, "state",
                                  here ? json_string("ended")
                                       : json_incref(json_object_get(n, "state")));
        (void)json_object_set_new(
            j, "first_rank",
            p ? json_integer((json_int_t)json_count(p, "first_rank")) : json_null());
        (void)json_object_set_new(j, "ranks",
                                  json_integer((json_int_t)json_count(p, "count")));
        if (p)
            (void)json_object_set_new(j, "workers",
                                      workers(report, round,
                                              json_count(p, "first_rank"),
                                              json_count(p, "count")));
        (void)json_array_append_new(list, j);
    }
    return list;
}

static uint64_t lost_nodes(const json_t *report)
{
    uint64_t count = 0;
    const json_t *n;
    size_t i;

    json_array_foreach(json_object_get(report, "nodes"), i, n) count +=
        span_eq(json_span(n, "state"), span_str("lost"));
    return count;
}

static json_t *job(const json_t *report)
{
    const json_t *round = last_round(report),
                 *causes = json_object_get(report, "restart_causes"),
                 *last = json_array_get(causes, json_array_size(causes) - 1);
    json_t *j = json_object();

    copy(j, "run_id", report, "run_id");
    copy(j, "state", report, "outcome");
    copy_time(j, "began", report, "began_us");
    (void)json_object_set_new(
        j, "round",
        round ? json_integer((json_int_t)json_count(round, "round")) : json_null());
    copy(j, "nodes", round, "nodes");
    copy(j, "ranks", round, "ranks");
    copy(j, "restarts", report, "restarts");
    copy(j, "max_restarts", last, "allowed");
    (void)json_object_set_new(j, "nodes_lost",
                              json_integer((json_int_t)lost_nodes(report)));
    return j;
}

json_t *report_status(const json_t *report, struct muster_error *err)
{
    if (!json_is_object(report) || !json_object_get(report, "run_id") ||
        !json_is_array(json_object_get(report, "rounds"))) {
        (void)err_set(err, MUSTER_EINVAL,
                      "it is not a report of a job\n"
                      "`muster run --report=FILE` writes one.");
        return NULL;
    }
    if (json_num(report, "schema", 0) != 1) {
        (void)err_set(err, MUSTER_EINVAL,
                      "its schema is %.0f, and this version knows 1",
                      json_num(report, "schema", 0));
        return NULL;
    }
    json_t *events = history(report);
    const json_t *last = json_array_get(events, json_array_size(events) - 1), *e;
    json_t *verdict = json_null();
    size_t i;
    json_array_foreach(events, i,
                       e) if (span_eq(json_span(e, "kind"), span_str("VERDICT")))
        verdict = json_deep_copy(e);
    if (span_eq(json_span(report, "outcome"), span_str("succeeded")))
        verdict = json_pack("{s:s, s:s, s:f}", "kind", "VERDICT", "cause", "succeeded",
                            "at", json_num(report, "ended_us", 0) / 1e6);
    const double end = json_object_get(report, "ended_us")
                           ? json_num(report, "ended_us", 0) / 1e6
                           : json_num(last, "at", 0);
    json_t *out =
        json_pack("{s:s, s:O?, s:f, s:s, s:o, s:b, s:o, s:o, s:o}", "schema",
                  "muster-status/1", "version", json_object_get(report, "muster"), "at",
                  end, "scope", "job", "job", job(report), "workers_listed", 1, "nodes",
                  nodes(report), "verdict", verdict, "history", events);
    if (!out)
        (void)err_nomem(err);
    return out;
}

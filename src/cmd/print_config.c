/* print_config.c - prints as JSON what a command line amounts to: first the options as
 * they were parsed (torchrun's `args`), then what was derived from them. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "cmd/cmd.h"
#include "launch/core/options.h"
#include "launch/core/worker_env.h"
#include "policy/core/policy.h"

static json_t *text_or_null(const char *text)
{
    /* Arguments may hold any bytes; JSON takes UTF-8 only. */
    json_t *j = text ? json_string(text) : json_null();

    return j ? j : json_stringn_nocheck(text, strlen(text));
}

static json_t *list_of(char *const *items, size_t count)
{
    json_t *a = json_array();

    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(a, text_or_null(items[i]));
    return a;
}

static json_t *option_value(const struct options *o, const struct option_spec *s)
{
    const void *field = (const char *)o + s->field;
    const struct option_int *number = field;

    switch (s->kind) {
    case OPTION_HELP:
    case OPTION_FLAG:
        return json_boolean(*(const bool *)field);
    case OPTION_INT:
        return number->given ? json_integer(number->value) : json_null();
    case OPTION_FLOAT:
        return json_real(*(const double *)field);
    case OPTION_TEXT:
    case OPTION_OPTIONAL:
    case OPTION_CHOICE:
    case OPTION_PRINT:
    case OPTION_LIST:
    case OPTION_EACH: /* ours: not printed here */
        return text_or_null(*(const char *const *)field);
    }
    return NULL;
}

static json_t *options_json(const struct options *o, bool launch)
{
    json_t *j = json_object();

    for (size_t i = 0; i < options_count; i++) {
        const struct option_spec *s = &options_table[i];
        char name[64];

        (void)option_underscored(s, name, sizeof name);
        if (option_applies(s, launch) && s->owner != OWNER_MUSTER &&
            s->kind != OPTION_HELP && s->kind != OPTION_PRINT)
            (void)json_object_set_new(j, name, option_value(o, s));
    }
    (void)json_object_set_new(j, "training_script", text_or_null(o->script));
    (void)json_object_set_new(j, "training_script_args",
                              list_of(o->script_args, o->n_script_args));
    return j;
}

static json_t *streams_json(const struct stream_map *m)
{
    json_t *a;

    if (!m->each)
        return json_integer(m->all);
    a = json_array();
    for (size_t i = 0; i < ARRAY_LEN(m->by_rank); i++)
        (void)json_array_append_new(a, json_integer(m->by_rank[i]));
    return a;
}

static json_t *rdzv_json(const struct rdzv_params *p)
{
    json_t *options = json_object();

    for (size_t i = 0; i < p->count; i++) {
        const struct rdzv_option *o = &p->options[i];

        (void)json_object_set_new(options, o->key,
                                  o->kind == RDZV_STR ? text_or_null(o->text)
                                                      : json_integer(o->number));
    }
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "backend",
                     text_or_null(p->backend), "endpoint", text_or_null(p->endpoint),
                     "run_id", text_or_null(p->run_id), "min_nodes",
                     (json_int_t)p->min_nodes, "max_nodes", (json_int_t)p->max_nodes,
                     "local_addr", text_or_null(p->local_addr), "options", options);
}

static json_t *argv_json(const struct launch_config *c)
{
    json_t *all = json_array();
    struct text_list argv;

    for (int64_t i = 0; i < c->nproc && i < 1024; i++) {
        if (worker_argv(&argv, c, &(struct worker_place){ .local_rank = i }, NULL))
            break;
        (void)json_array_append_new(all, list_of(argv.items, argv.count));
        text_list_fini(&argv);
    }
    return all;
}

/* What happens for each cause, a sentence each; null: as with torchrun. */
static json_t *policy_json(const struct launch_config *c)
{
    json_t *list = c->policy ? json_array() : json_null();
    struct policy p;
    struct span rest;
    struct buf b;

    if (!c->policy || policy_scan(&p, span_str(c->policy), NULL) < 0)
        return list;
    buf_init(&b, SIZE_MAX);
    policy_explain(&b, &p, c->max_restarts);
    for (rest = buf_span(&b); rest.n;) {
        const struct span line = span_take_line(&rest);

        (void)json_array_append_new(list, json_stringn((const char *)line.p, line.n));
    }
    buf_fini(&b);
    policy_fini(&p);
    return list;
}

static json_t *config_json(const struct launch_config *c)
{
    json_t *ranks = c->filter.on ? json_array() : json_null();

    for (size_t i = 0; i < c->filter.count; i++)
        (void)json_array_append_new(ranks, json_integer(c->filter.ranks[i]));
    return json_pack(
        "{s:o, s:I, s:o, s:I, s:f, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, "
        "s:o, "
        "s:o, "
        "s:o, s:b, s:b, s:s, s:o, s:s, s:o, s:o, s:s, s:o, s:s, s:o, s:f, s:I, s:o, "
        "s:o, s:o, s:s, s:o, s:o, s:o}",
        "rdzv", rdzv_json(&c->rdzv), "nproc", (json_int_t)c->nproc, "role",
        text_or_null(c->role), "max_restarts", (json_int_t)c->max_restarts,
        "monitor_interval", c->monitor_interval_s, "start_method",
        text_or_null(c->start_method), "event_log_handler",
        text_or_null(c->event_handler), "metrics_handler",
        text_or_null(c->metrics_handler), "status_http", text_or_null(c->status_http),
        "signals_to_handle", text_or_null(c->signals), "shutdown_timeout",
        (json_int_t)c->shutdown_timeout_s, "log_dir", text_or_null(c->log_dir),
        "redirects", streams_json(&c->redirects), "tee", streams_json(&c->tee),
        "local_ranks_filter", ranks, "duplicate_stdout_filters",
        list_of(c->stdout_needles.items, c->stdout_needles.count),
        "duplicate_stderr_filters",
        list_of(c->stderr_needles.items, c->stderr_needles.count),
        "log_line_prefix_template", text_or_null(c->prefix_template),
        "set_omp_num_threads", c->set_omp, "virtual_local_rank", c->virtual_local_rank,
        "numa_binding", numa_mode_word(c->numa), "argv", argv_json(c), "report_name",
        worker_report_name(c), "warm", text_or_null(c->warm), "hang",
        text_or_null(c->hang), "hang_action", hang_action_name(c->hang_action),
        "progress_file", text_or_null(c->progress_file), "on_failure",
        c->on_failure_finish ? "finish" : "stop", "report", text_or_null(c->report),
        "restart_grace", (double)c->restart_grace_ms / 1000, "log_attempts",
        (json_int_t)c->log_attempts, "net", text_or_null(c->net), "failure",
        text_or_null(c->failure), "restart_policy", policy_json(c), "exit_codes",
        c->exit_by_cause ? "cause" : "torch", "notice", text_or_null(c->notice),
        "on_notice", text_or_null(c->on_notice), "notify",
        list_of(c->notify.items, c->notify.count));
}

/* The fewest digits that give this number back: 0.1, not 0.10000000000000001. */
static size_t digits_of(double v)
{
    char text[40];

    for (int digits = 1; digits < 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            return (size_t)digits;
    }
    return 17;
}

int print_config(const struct options *o, const struct launch_config *c, bool launch,
                 struct muster_error *err)
{
    json_t *j = json_pack("{s:o, s:o}", "options", options_json(o, launch), "config",
                          config_json(c));
    int rc = j ? json_dumpf(j, stdout,
                            JSON_INDENT(2) |
                                JSON_REAL_PRECISION(digits_of(o->monitor_interval)))
               : -1;

    json_decref(j);
    if (rc == 0)
        rc = putchar('\n') == '\n' && fflush(stdout) == 0 ? 0 : -1;
    return rc ? err_set(err, MUSTER_EIO, "cannot print the configuration") : 0;
}

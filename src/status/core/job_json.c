/* job_json.c - the job's status as JSON; see job_status.h and docs/status.schema.json.
 * It is written directly and not through a tree of values, as a job may have ten
 * thousand nodes. */
#include "policy/core/policy.h"
#include "status/core/job_status.h"
#include "status/core/put.h"

static void put_key_text(struct buf *out, const char *key, struct span text)
{
    put_str(out, key);
    put_json(out, text);
}

static void put_key_int(struct buf *out, const char *key, int64_t n)
{
    put_str(out, key);
    put_int(out, n);
}

static void put_key_time(struct buf *out, const char *key, int64_t us)
{
    put_str(out, key);
    if (us > 0)
        put_seconds(out, us);
    else
        put_str(out, "null");
}

/* Writes null for a number below least, which stands for one that is missing. */
static void put_key_maybe(struct buf *out, const char *key, int64_t n, int64_t least)
{
    put_str(out, key);
    if (n >= least)
        put_int(out, n);
    else
        put_str(out, "null");
}

/* Separates what comes next from what is there, unless a bracket was just opened. */
static void put_comma(struct buf *out)
{
    const struct span s = buf_span(out);

    if (s.n && s.p[s.n - 1] != '{' && s.p[s.n - 1] != '[')
        put_str(out, ", ");
}

static void put_job(struct buf *out, const struct job_status *j)
{
    struct span rest = j->spares, name;

    put_key_text(out, ", \"job\": {\"run_id\": ", j->run_id);
    put_key_text(out, ", \"state\": ", span_str(job_state_word(j->state)));
    put_key_time(out, ", \"since\": ", j->since_us);
    put_key_time(out, ", \"began\": ", j->began_us);
    put_key_maybe(out, ", \"round\": ", j->round, 0);
    put_key_int(out, ", \"nodes\": ", j->nodes_in);
    put_key_int(out, ", \"min_nodes\": ", j->min_nodes);
    put_key_int(out, ", \"max_nodes\": ", j->max_nodes);
    put_key_int(out, ", \"torch_nodes\": ", j->torch_nodes);
    put_key_int(out, ", \"ranks\": ", j->ranks);
    put_key_int(out, ", \"restarts\": ", j->restarts);
    put_key_int(out, ", \"max_restarts\": ", j->max_restarts);
    if (j->reason) {
        put_key_maybe(out, ", \"restarts_left\": ", j->restarts_left, 0);
        if (j->backoff_us)
            put_key_time(out, ", \"backoff_until\": ", j->backoff_us);
        put_key_text(out, ", \"decided\": ", span_str(policy_reason_name(j->reason)));
        put_key_text(out, ", \"rule\": ", j->rule);
    }
    put_key_int(out, ", \"rounds\": ", j->rounds);
    put_key_int(out, ", \"failures\": ", j->failures);
    put_key_int(out, ", \"nodes_lost\": ", j->lost);
    put_str(out, ", \"spares\": [");
    while (job_spare_next(j, &rest, &name)) {
        put_comma(out);
        put_json(out, name);
    }
    put_key_text(out, "], \"backend\": ", j->backend);
    put_key_text(out, ", \"endpoint\": ", j->endpoint);
    put_str(out, "}");
}

static void put_store(struct buf *out, const struct store_status *s)
{
    if (!s->present)
        return;
    put_key_int(out, ", \"store\": {\"requests\": ", (int64_t)s->requests);
    put_key_int(out, ", \"answers\": ", (int64_t)s->answers);
    put_key_int(out, ", \"bytes_in\": ", (int64_t)s->bytes_in);
    put_key_int(out, ", \"bytes_out\": ", (int64_t)s->bytes_out);
    put_key_int(out, ", \"connections\": ", (int64_t)s->connections);
    put_key_int(out, ", \"keys\": ", (int64_t)s->keys);
    put_key_int(out, ", \"requests_per_second\": ", s->rate);
    put_str(out, "}");
}

static void put_key_percent(struct buf *out, const char *key, uint64_t thousandths)
{
    put_key_int(out, key, (int64_t)(thousandths / 10));
    put_key_int(out, ".", (int64_t)(thousandths % 10));
}

static void put_workers(struct buf *out, const struct job_node *n)
{
    const size_t count = job_worker_count(n);

    put_str(out, ", \"workers\": [");
    for (size_t i = 0; i < count; i++) {
        const struct worker_status *w = i < n->worker_count ? &n->workers[i] : NULL;
        const enum worker_state state = job_worker_state(n, i);

        put_key_maybe(out, i ? ", {\"rank\": " : "{\"rank\": ", job_rank(n, i), 0);
        put_key_int(out, ", \"local_rank\": ", (int64_t)i);
        put_key_text(out, ", \"state\": ", span_str(worker_state_word(state)));
        put_key_maybe(out, ", \"pid\": ", w ? w->pid : 0, 1);
        if (job_worker_has_code(state))
            put_key_int(out, ", \"code\": ", w ? w->code : 0);
        if (w && n->reported) {
            put_key_percent(out, ", \"cpu\": ", w->cpu);
            put_key_int(out, ", \"memory\": ", (int64_t)w->memory);
        }
        put_str(out, "}");
    }
    put_str(out, "]");
}

static void put_counts(struct buf *out, const struct job_node *n)
{
    size_t counts[WORKER_STATE_COUNT] = { 0 };

    for (size_t i = 0; i < n->worker_count; i++)
        counts[job_worker_state(n, i)]++;
    if (!n->reported && !n->worker_count && n->ranks > 0) /* all in the same state */
        counts[job_worker_state(n, 0)] = (size_t)n->ranks;
    put_str(out, ", \"worker_states\": {");
    for (size_t s = 0; s < WORKER_STATE_COUNT; s++) {
        if (!counts[s])
            continue;
        put_comma(out);
        put_json(out, span_str(worker_state_word((enum worker_state)s)));
        put_key_int(out, ": ", (int64_t)counts[s]);
    }
    put_str(out, "}");
}

static void put_gpus(struct buf *out, const struct job_node *n)
{
    for (size_t i = 0; i < n->gpu_count; i++) {
        const struct gpu_status *g = &n->gpus[i];

        put_key_int(out,
                    i ? ", {\"index\": " : ", \"gpus\": [{\"index\": ", (int64_t)i);
        put_key_text(out, ", \"name\": ", g->name);
        put_key_int(out, ", \"utilization\": ", g->busy);
        put_key_int(out, ", \"temperature\": ", g->celsius);
        put_key_int(out, ", \"memory\": ", (int64_t)g->memory);
        put_key_int(out, ", \"memory_total\": ", (int64_t)g->memory_total);
        put_str(out, "}");
    }
    if (n->gpu_count)
        put_str(out, "]");
}

static void put_node(struct buf *out, const struct job_node *n, bool workers)
{
    put_key_int(out, "{\"node\": ", n->number);
    put_key_text(out, ", \"name\": ", n->host);
    put_key_text(out, ", \"address\": ", n->addr);
    put_key_maybe(out, ", \"pid\": ", n->agent_pid, 1);
    put_key_text(out, ", \"state\": ", span_str(node_state_word(n->state)));
    put_key_time(out, ", \"since\": ", n->since_us);
    put_key_maybe(out, ", \"first_rank\": ", n->first_rank, 0);
    put_key_int(out, ", \"ranks\": ", n->ranks);
    if (n->self)
        put_str(out, ", \"self\": true");
    if (n->coordinates)
        put_str(out, ", \"coordinator\": true");
    if (n->why.n)
        put_key_text(out, ", \"why\": ", n->why);
    if (n->reported) {
        put_key_text(out, ", \"version\": ", n->version);
        if (n->wait.n)
            put_key_text(out, ", \"waiting\": ", n->wait);
        put_key_time(out, ", \"heard\": ", n->heard_us);
        put_key_int(out, ", \"restarts\": ", n->attempt);
        put_key_int(out, ", \"alive\": ", n->alive);
        put_key_percent(out, ", \"cpu\": ", n->cpu);
        put_key_int(out, ", \"memory\": ", (int64_t)n->memory);
        put_key_int(out, ", \"agent_memory\": ", (int64_t)n->agent_memory);
        put_gpus(out, n);
        put_store(out, &n->store);
    }
    put_counts(out, n);
    if (workers)
        put_workers(out, n);
    put_str(out, "}");
}

static void put_nodes(struct buf *out, const struct job_status *j, uint32_t only)
{
    const bool workers = only || j->ranks <= JOB_WORKERS_LISTED;

    put_str(out, ", \"workers_listed\": ");
    put_str(out, workers ? "true" : "false");
    put_str(out, ", \"nodes\": [");
    for (size_t i = 0; i < j->count; i++) {
        if (only && j->nodes[i].number != only)
            continue;
        put_comma(out);
        put_node(out, &j->nodes[i], workers);
    }
    put_str(out, "]");
}

static void put_ranks(struct buf *out, const struct record_entry *e)
{
    struct span body = e->body;
    struct record_ranks line;

    put_str(out, ", \"members\": [");
    while (record_ranks_next(&body, &line)) {
        put_comma(out);
        put_key_int(out, "[", line.node);
        put_key_int(out, ", ", line.first);
        put_key_int(out, ", ", line.count);
        put_str(out, "]");
    }
    put_str(out, "]");
}

static void put_entry(struct buf *out, const struct job_status *j,
                      const struct record_entry *e)
{
    put_key_int(out, "{\"number\": ", (int64_t)e->number);
    put_key_text(out, ", \"kind\": ", span_str(record_kind_name(e->kind)));
    put_key_time(out, ", \"at\": ", e->at_us);
    if (e->unsure_us > 0)
        put_key_time(out, ", \"unsure\": ", e->unsure_us);
    if (e->round >= 0)
        put_key_int(out, ", \"round\": ", e->round);
    if (e->node)
        put_key_int(out, ", \"node\": ", e->node);
    if (e->host.n)
        put_key_text(out, ", \"host\": ", e->host);
    if (e->rank >= 0 && (e->kind == RECORD_FAILED || e->kind == RECORD_RESTART ||
                         e->kind == RECORD_ENDED || e->kind == RECORD_VERDICT)) {
        put_key_int(out, ", \"rank\": ", e->rank);
        put_key_int(out, ", \"local_rank\": ", e->local_rank);
        put_key_int(out, ", \"pid\": ", e->pid);
        put_key_int(out, ", \"code\": ", e->code);
    }
    if (e->cause != CAUSE_NONE)
        put_key_text(out, ", \"cause\": ", span_str(record_cause_name(e->cause)));
    if (e->count || e->total) {
        put_key_int(out, ", \"count\": ", e->count);
        put_key_int(out, ", \"total\": ", e->total);
    }
    if (e->reason) {
        put_key_text(out, ", \"decided\": ", span_str(policy_reason_name(e->reason)));
        put_key_text(out, ", \"rule\": ", e->rule);
        put_key_int(out, ", \"left\": ", e->left);
        put_key_int(out, ", \"wait_us\": ", e->wait_us);
    }
    if (e->text.n)
        put_key_text(out, ", \"text\": ", e->text);
    if (e->place.n)
        put_key_text(out, ", \"place\": ", e->place);
    if (e->path.n)
        put_key_text(out, ", \"path\": ", e->path);
    if (e->body.n && (e->kind == RECORD_FAILED || e->kind == RECORD_RESTART ||
                      e->kind == RECORD_VERDICT || e->kind == RECORD_PHASES ||
                      e->kind == RECORD_NOTE))
        put_key_text(out, ", \"lines\": ", e->body);
    if (e->kind == RECORD_ROUND && j->nodes_in <= (int64_t)JOB_NODES_RANKED)
        put_ranks(out, e);
    put_str(out, "}");
}

static void put_history(struct buf *out, const struct job_status *j)
{
    put_str(out, ", \"history\": [");
    for (size_t i = 0; i < j->entry_count; i++) {
        const struct record_entry e = job_entry(j, i);

        if (e.kind == RECORD_NODES)
            continue; /* "nodes" lists them. */
        put_comma(out);
        put_entry(out, j, &e);
    }
    put_str(out, "]");
}

void job_status_json(struct buf *out, const struct job_status *j, uint32_t node,
                     bool history)
{
    put_key_text(out, "{\"schema\": \"muster-status/1\", \"version\": ", j->version);
    put_key_time(out, ", \"at\": ", j->now_us);
    put_key_text(out, ", \"scope\": ",
                 span_str(job_is_store(j) ? "store"
                          : j->alone.n    ? "node"
                                          : "job"));
    if (j->alone.n)
        put_key_text(out, ", \"alone\": ", j->alone);
    put_key_text(out, ", \"host\": ", j->host);
    put_key_int(out, ", \"pid\": ", j->pid);
    put_job(out, j);
    put_nodes(out, j, node);
    put_store(out, &j->store);
    put_str(out, ", \"verdict\": ");
    if (j->have_verdict)
        put_entry(out, j, &j->verdict);
    else
        put_str(out, "null");
    if (history)
        put_history(out, j);
    put_str(out, "}");
}

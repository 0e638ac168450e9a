/* job_metrics.c - the job's status as metrics; see job_status.h. There are series for
 * the job, for each node unless there are too many, and for this node's workers. */
#include "policy/core/policy.h"
#include "status/core/job_status.h"
#include "status/core/put.h"

#define NODE_SERIES_MAX 256u /* Each series costs the database memory. */

struct printer {
    struct buf *out;
    bool open; /* OpenMetrics */
    const char *name;
};

/* Begins a family with HELP and TYPE. In OpenMetrics the name of a counter's family
 * lacks the suffix that its sample has, and there are types that the older format does
 * not know. */
static void family(struct printer *p, const char *name, const char *type,
                   const char *unit, const char *help)
{
    const bool counter = strcmp(type, "counter") == 0;
    const bool known = counter || strcmp(type, "gauge") == 0;
    const char *suffix = p->open                     ? ""
                         : counter                   ? "_total"
                         : strcmp(type, "info") == 0 ? "_info"
                                                     : "";

    p->name = name;
    (void)buf_printf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help,
                     name, suffix, p->open || known ? type : "gauge");
    if (p->open && unit)
        (void)buf_printf(p->out, "# UNIT %s %s\n", name, unit);
}

static void sample(struct printer *p, const char *suffix)
{
    put_str(p->out, p->name);
    put_str(p->out, suffix);
}

static void value(struct printer *p, int64_t n)
{
    put_str(p->out, " ");
    put_int(p->out, n);
    put_str(p->out, "\n");
}

static void thousandths(struct printer *p, uint64_t n)
{
    (void)buf_printf(p->out, " %llu.%03u\n", (unsigned long long)(n / 1000),
                     (unsigned)(n % 1000));
}

static void label(struct printer *p, const char *before, struct span text)
{
    put_str(p->out, before);
    put_label(p->out, text);
    put_str(p->out, "\"");
}

static void gauge(struct printer *p, const char *name, const char *unit,
                  const char *help, int64_t n)
{
    family(p, name, "gauge", unit, help);
    sample(p, "");
    value(p, n);
}

static void counter(struct printer *p, const char *name, const char *unit,
                    const char *help, int64_t n)
{
    family(p, name, "counter", unit, help);
    sample(p, "_total");
    value(p, n);
}

static void put_info(struct printer *p, const struct job_status *j)
{
    family(p, "muster_build", "info", NULL, "The version of muster that answers.");
    sample(p, "_info");
    label(p, "{version=\"", span_str(muster_version()));
    put_str(p->out, "}");
    value(p, 1);
    if (!j->own)
        return;
    family(p, "muster_job", "info", NULL, "The job that this agent is part of.");
    sample(p, "_info");
    label(p, "{run_id=\"", j->run_id);
    label(p, ",backend=\"", j->backend);
    put_str(p->out, "}");
    value(p, 1);
}

static void put_job(struct printer *p, const struct job_status *j)
{
    size_t counts[NODE_STATE_COUNT] = { 0 };

    family(p, "muster_job_state", "stateset", NULL, "What the job is doing.");
    for (size_t s = 0; s < JOB_SERVING; s++) {
        sample(p, "");
        label(p, "{muster_job_state=\"", span_str(job_state_word((enum job_state)s)));
        put_str(p->out, "}");
        value(p, j->state == (enum job_state)s);
    }
    for (size_t i = 0; i < j->count; i++)
        counts[j->nodes[i].state]++;
    family(p, "muster_job_nodes", "gauge", NULL, "Nodes of the job by state.");
    for (size_t s = NODE_JOINING; s < NODE_STATE_COUNT; s++) {
        sample(p, "");
        label(p, "{state=\"", span_str(node_state_word((enum node_state)s)));
        put_str(p->out, "}");
        value(p, (int64_t)counts[s]);
    }
    family(p, "muster_job_start_time_seconds", "gauge", "seconds",
           "When the job began, since 1970.");
    sample(p, "");
    put_str(p->out, " ");
    put_seconds(p->out, j->began_us);
    put_str(p->out, "\n");
    gauge(p, "muster_job_round", NULL, "Number of the newest round; -1: none yet.",
          j->round);
    gauge(p, "muster_job_ranks", NULL, "Workers in the newest round.", j->ranks);
    gauge(p, "muster_job_torchrun_nodes", NULL,
          "Nodes in the newest round that are not muster's.", j->torch_nodes);
    gauge(p, "muster_job_max_restarts", NULL, "Restarts that the job may use.",
          j->max_restarts);
    if (j->reason) {
        gauge(p, "muster_job_restarts_left", NULL,
              "Restarts that were left at the last decision; -1: no limit.",
              j->restarts_left);
        gauge(p, "muster_job_backoff", NULL, "1 while the job waits before a restart.",
              j->backoff_us != 0);
        gauge(p, "muster_job_restart_refused", NULL,
              "1 if the policy has refused a restart.", j->reason > POLICY_BY_FREE);
    }
    counter(p, "muster_job_restarts", NULL, "Restarts after failures.", j->restarts);
    counter(p, "muster_job_rounds", NULL, "Rounds that began.", j->rounds);
    counter(p, "muster_job_worker_failures", NULL, "Workers that failed.", j->failures);
    counter(p, "muster_job_nodes_lost", NULL, "Nodes that were lost without leaving.",
            j->lost);
}

static void node_labels(struct printer *p, const struct job_node *n)
{
    sample(p, "");
    put_str(p->out, "{node=\"");
    put_int(p->out, n->number);
    label(p, "\",name=\"", n->host);
    put_str(p->out, "}");
}

enum node_series { UP, RANKS, ALIVE, CPU, MEMORY };

static void put_node(struct printer *p, const struct job_node *n, enum node_series s)
{
    if (s > RANKS && !n->reported)
        return;
    node_labels(p, n);
    switch (s) {
    case UP:
        value(p, n->state != NODE_LOST && n->state != NODE_LEFT);
        break;
    case RANKS:
        value(p, n->ranks);
        break;
    case ALIVE:
        value(p, n->alive);
        break;
    case CPU:
        thousandths(p, n->cpu);
        break;
    case MEMORY:
        value(p, (int64_t)n->memory);
        break;
    }
}

static void put_nodes(struct printer *p, const struct job_status *j)
{
    static const struct {
        const char *name, *unit, *help;
    } series[] = {
        [UP] = { "muster_node_up", NULL, "1: the node is there; 0: lost or left." },
        [RANKS] = { "muster_node_ranks", NULL, "Ranks of the node in the round." },
        [ALIVE] = { "muster_node_workers_alive", NULL, "Workers that run." },
        [CPU] = { "muster_node_cpu_ratio", "ratio",
                  "CPUs that the node's workers use, 1 for each." },
        [MEMORY] = { "muster_node_memory_bytes", "bytes",
                     "Memory of the node's workers." },
    };

    if (j->count > NODE_SERIES_MAX)
        return;
    for (size_t s = 0; s < ARRAY_LEN(series); s++) {
        family(p, series[s].name, "gauge", series[s].unit, series[s].help);
        for (size_t i = 0; i < j->count; i++)
            put_node(p, &j->nodes[i], (enum node_series)s);
    }
}

static void worker_labels(struct printer *p, const struct node_status *own, size_t i,
                          const char *suffix)
{
    sample(p, suffix);
    put_str(p->out, "{local_rank=\"");
    put_int(p->out, (int64_t)i);
    put_str(p->out, "\",rank=\"");
    if (own->first_rank >= 0)
        put_int(p->out, own->first_rank + (int64_t)i);
    put_str(p->out, "\"}");
}

static void put_own(struct printer *p, const struct node_status *own)
{
    gauge(p, "muster_agent_memory_bytes", "bytes", "Memory of this node's agent.",
          (int64_t)own->memory);
    family(p, "muster_worker_up", "gauge", NULL, "1: this node's worker runs.");
    for (size_t i = 0; i < own->worker_count; i++) {
        worker_labels(p, own, i, "");
        value(p, worker_is_alive(own->workers[i].state));
    }
    family(p, "muster_worker_memory_bytes", "gauge", "bytes",
           "Memory of this node's worker.");
    for (size_t i = 0; i < own->worker_count; i++) {
        worker_labels(p, own, i, "");
        value(p, (int64_t)own->workers[i].memory);
    }
    family(p, "muster_worker_cpu_seconds", "counter", "seconds",
           "CPU time of this node's worker.");
    for (size_t i = 0; i < own->worker_count; i++) {
        worker_labels(p, own, i, "_total");
        thousandths(p, own->workers[i].cpu_ms);
    }
}

static void put_store(struct printer *p, const struct store_status *s)
{
    counter(p, "muster_store_requests", NULL, "Requests to the store.",
            (int64_t)s->requests);
    counter(p, "muster_store_answers", NULL, "Answers of the store.",
            (int64_t)s->answers);
    counter(p, "muster_store_received_bytes", "bytes", "Bytes that the store has read.",
            (int64_t)s->bytes_in);
    counter(p, "muster_store_sent_bytes", "bytes", "Bytes that the store has written.",
            (int64_t)s->bytes_out);
    gauge(p, "muster_store_connections", NULL, "Open connections to the store.",
          (int64_t)s->connections);
    gauge(p, "muster_store_keys", NULL, "Keys in the store.", (int64_t)s->keys);
}

void job_status_metrics(struct buf *out, const struct job_status *j, bool open)
{
    const struct node_status *own = j->own;
    struct printer p = { out, open, "" };

    put_info(&p, j);
    if (own) {
        put_job(&p, j);
        put_nodes(&p, j);
        put_own(&p, own);
    }
    if (own && own->store.present)
        put_store(&p, &own->store);
    else if (j->store.present)
        put_store(&p, &j->store);
    if (open)
        put_str(out, "# EOF\n");
}

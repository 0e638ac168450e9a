/* telemetry.h - torch's event records, one JSON object a line; and its metrics
 * (torch.distributed.elastic.metrics): the names of what an agent measures, and one
 * measurement as a line. Pure. */
#ifndef AGENT_CORE_TELEMETRY_H
#define AGENT_CORE_TELEMETRY_H

#include "base/buf.h"

/* ---- events ---- */

/* Absent numbers print as null. */
struct event_number {
    bool given;
    int64_t value;
};

struct event {
    const char *state; /* "START"; or the whole name of a watchdog event */
    bool of_worker;    /* source WORKER rather than AGENT */
    const char *run_id, *role, *hostname, *backend, *entry_point;
    const char *raw_error; /* NULL: null */
    struct event_number group_rank, group_world_size;
    int64_t timestamp_s; /* torch's are 0 */
    int64_t agent_restarts, total_run_time_s;
    double duration_ms; /* negative: null */
    /* of a worker */
    int64_t rank, local_rank, role_rank, role_world_size;
    int worker_id; /* pid */
    struct event_number exit_code, worker_pid;
    /* of a worker that failed: what torch keeps to itself, for our own handler only */
    struct event_number
        failed_at;          /* seconds; not given: none of the three is printed */
    const char *error_file; /* NULL: it left none */
    bool first;             /* the failure that the report calls the root cause */
};

/* Without the newline. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int event_print(struct buf *out, const struct event *e);

/* What the watchdog did: "timer expired", "kill worker process", ... */
struct watchdog_event {
    const char *name;
    const struct event *base; /* run id, role and so on */
    bool of_timer;            /* the fields below count */
    int pid, sig;
    const char *scope;
    double expires;
};

int watchdog_event_print(struct buf *out, const struct watchdog_event *w);

/* ---- metrics ---- */

#define METRIC_GROUP "torchelastic"

/* What torch's agent profiles: the ending of each gives two metrics, <name>.success or
 * <name>.failure, and <name>.duration.ms. From the inside out: the order in which calls
 * that are under way end when something goes wrong. */
#define METRIC_CALLS(X)                                                                \
    X(CALL_ASSIGN, "SimpleElasticAgent._assign_worker_ranks")                          \
    X(CALL_RENDEZVOUS, "SimpleElasticAgent._rendezvous")                               \
    X(CALL_START, "LocalElasticAgent._start_workers")                                  \
    X(CALL_STOP, "LocalElasticAgent._stop_workers")                                    \
    X(CALL_MONITOR, "LocalElasticAgent._monitor_workers")                              \
    X(CALL_INITIALIZE, "SimpleElasticAgent._initialize_workers")                       \
    X(CALL_RESTART, "SimpleElasticAgent._restart_workers")                             \
    X(CALL_RUN, "SimpleElasticAgent.run")

enum metric_call {
#define METRIC_CALL_ENUM(name, word) name,
    METRIC_CALLS(METRIC_CALL_ENUM)
#undef METRIC_CALL_ENUM
        CALLS
};

const char *metric_call_name(enum metric_call call);

struct metric {
    double timestamp; /* seconds since 1970 */
    const char *name;
    int64_t value;
};

/* As torch's ConsoleMetricHandler prints it, newline included. */
int metric_print(struct buf *out, const struct metric *m);
/* The fields of torch's MetricData as a JSON object, newline included. */
int metric_print_json(struct buf *out, const struct metric *m);

/* workers.<role>.flakiness: the part of the restarts that were needed, in percent. */
int64_t metric_flakiness(bool failed, int64_t remaining, int64_t max_restarts);

#endif

/* event_json.h - torch's event records, one JSON object a line. Pure. */
#ifndef AGENT_CORE_EVENT_JSON_H
#define AGENT_CORE_EVENT_JSON_H

#include "base/buf.h"

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

#endif

/* metric_names.h - torch's metrics (torch.distributed.elastic.metrics): the names of
 * what an agent measures, and one measurement as a line. Pure. */
#ifndef AGENT_CORE_METRIC_NAMES_H
#define AGENT_CORE_METRIC_NAMES_H

#include "base/buf.h"

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

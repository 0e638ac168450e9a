/* numa.h - which CPUs a worker is bound to. Pure: the machine comes in as a table.
 *
 * The four modes choose as torch's numa binding does, which runs numactl; we only
 * compute the set, and the child sets it itself. */
#ifndef PROCESS_CORE_NUMA_H
#define PROCESS_CORE_NUMA_H

#include "launch/core/config.h"

/* One CPU (hardware thread) by its number in the system. */
struct numa_cpu {
    unsigned cpu;
    unsigned node;    /* NUMA node */
    unsigned package; /* socket */
    unsigned core;    /* lowest CPU of its core */
    unsigned cache;   /* lowest CPU that shares its highest cache */
    bool allowed;     /* by the agent's affinity mask */
};

struct numa_table {
    struct numa_cpu *cpus; /* owned; ascending by number */
    size_t count;
};

void numa_table_fini(struct numa_table *t);

/* Numbers the CPUs of one worker into chosen[] (room for t->count) and returns how
 * many, or a negative error. nodes[i] is the NUMA node of the i-th visible GPU; the
 * worker's GPU is number gpu. */
int numa_choose(const struct numa_table *t, enum numa_mode mode, const unsigned *nodes,
                size_t n_gpus, size_t gpu, unsigned *chosen, struct muster_error *err);

#endif

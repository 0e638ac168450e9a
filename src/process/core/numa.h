/* numa.h - which CPUs a worker is bound to. Pure: the machine comes in as a table.
 *
 * The four modes choose as torch's numa binding does, which runs numactl; we only
 * compute the set, and the child sets it itself. */
#ifndef PROCESS_CORE_NUMA_H
#define PROCESS_CORE_NUMA_H

#include "base/base.h"
#include "muster/error.h"

/* X(name, torch's word) */
#define NUMA_MODES(X)                                                                  \
    X(NUMA_NONE, "none")                                                               \
    X(NUMA_NODE, "node")                                                               \
    X(NUMA_SOCKET, "socket")                                                           \
    X(NUMA_EXCLUSIVE, "exclusive")                                                     \
    X(NUMA_CORE_COMPLEX, "core-complex")

enum numa_mode {
#define NUMA_MODE_ENUM(name, word) name,
    NUMA_MODES(NUMA_MODE_ENUM)
#undef NUMA_MODE_ENUM
};

const char *numa_mode_word(enum numa_mode mode);

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

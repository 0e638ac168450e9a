/* numa.h - --numa-binding without numactl: the machine's shape by hwloc, the GPU's node
 * from sysfs, the CPUs of each worker as a mask for sched_setaffinity. */
#ifndef PROCESS_NUMA_H
#define PROCESS_NUMA_H

#include "process/core/numa.h"
#include "process/devices.h"

struct cpu_mask {
    void *bits;  /* owned; a cpu_set_t of `size` bytes */
    size_t size; /* in bytes */
};

/* The CPUs for the worker of a local rank. MUSTER_EINVAL: no such GPU, no CPU left, or
 * more GPUs than cores; MUSTER_ENOTSUP: built without hwloc. */
int numa_mask(const struct devices_machine *machine, enum numa_mode mode,
              int64_t local_rank, struct cpu_mask *mask, struct muster_error *err);
void cpu_mask_fini(struct cpu_mask *m);

struct hwloc_topology;

/* For tests: the table of a topology that is loaded already. CPUs count as allowed if
 * allowed is NULL or says so. */
int numa_read(struct hwloc_topology *topology, bool (*allowed)(unsigned cpu),
              struct numa_table *out, struct muster_error *err);

/* The NUMA node of a PCI device; 0 if the system does not say. */
unsigned numa_node_of(const char *root, const char *pci);

#endif

/* cgroup.h - what the control group of this process says: of version 2, or of version
 * 1, which still holds the controllers on many machines. root goes before every path:
 * "" on a real machine, a tree of its own in tests. */
#ifndef PROCESS_CGROUP_H
#define PROCESS_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many processes in it the kernel has killed for want of memory; -1: unknown. */
int64_t cgroup_oom_kills(const char *root);

/* Bytes of memory: how much it may use (the least of its own limit and its parents', as
 * far as they can be seen), and the most it has used. -1: unknown, or no limit. */
enum cgroup_figure { CGROUP_LIMIT, CGROUP_PEAK };
int64_t cgroup_memory(const char *root, enum cgroup_figure what);

/* The group's own path, of the hierarchy that limits memory: "/user.slice/job_17". */
bool cgroup_name(const char *root, char *to, size_t size);

/* How many CPUs' time it may use, rounded up: the least of its own limit and its
 * parents', as far as they can be seen. 0: as much as there is, or unknown. */
int64_t cgroup_cpus(const char *root);

/* How many processes and threads it may have: the least of its own limit and its
 * parents', as far as they can be seen. 0: no limit, or unknown. */
int64_t cgroup_processes(const char *root);

#endif

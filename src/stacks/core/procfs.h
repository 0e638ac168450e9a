/* procfs.h - the texts of a process in /proc, read into a stack_process. Pure. */
#ifndef STACKS_CORE_PROCFS_H
#define STACKS_CORE_PROCFS_H

#include "stacks/core/sample.h"

/* /proc/PID/stat: parent, command and state. False if it is not such a text. */
bool procfs_stat(struct arena *a, struct stack_process *p, struct span text);

/* The same of the main thread's own file: CPU time, with ticks_per_s ticks a second. */
bool procfs_cpu(struct stack_process *p, struct span text, long ticks_per_s);

/* /proc/PID/task/PID/status: how often the thread has gone to sleep. */
bool procfs_switches(struct stack_process *p, struct span text);

/* /proc/PID/wchan and /proc/PID/syscall. "0" and "running" say nothing. */
bool procfs_wchan(struct arena *a, struct stack_process *p, struct span text);
bool procfs_syscall(struct arena *a, struct stack_process *p, struct span text);

#endif

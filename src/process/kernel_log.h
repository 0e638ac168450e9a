/* kernel_log.h - what the kernel's log knows of a process of ours. */
#ifndef PROCESS_KERNEL_LOG_H
#define PROCESS_KERNEL_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The library or program whose code a process was in when it crashed, with whatever is
 * unfit for a terminal escaped. It lived for alive_s seconds at most, up to now. False
 * if the log does not tell, or is not for us to read (kernel.dmesg_restrict,
 * containers). Takes one system call. */
bool kernel_log_crash(pid_t pid, double alive_s, char *name, size_t size);

#endif

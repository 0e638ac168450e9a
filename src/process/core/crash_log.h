/* crash_log.h - what the kernel's log says of a process that crashed: the library or
 * program whose code it was in. Pure; process/kernel_log.c reads the log. */
#ifndef PROCESS_CORE_CRASH_LOG_H
#define PROCESS_CORE_CRASH_LOG_H

#include "base/base.h"

/* Looks in the last part of the log, as syslog(2) gives it, for the newest message
 * about the process `pid` and the file that it names: "libfoo.so". A message that the
 * kernel has stamped with a time (seconds since the boot) before since_s is about
 * another process, which had that pid earlier. False: the log does not tell. *where
 * points into the log and may have any bytes in it. */
bool crash_log_find(struct span log, int64_t pid, double since_s, struct span *where);

#endif

/* proc_stat.h - parses /proc/PID/stat. The process chooses its own name in it, which
 * may have any bytes. Pure. */
#ifndef STATUS_CORE_PROC_STAT_H
#define STATUS_CORE_PROC_STAT_H

#include "base/base.h"

struct proc_stat {
    char state;     /* 'R', 'S', 'D', 'T', 'Z' ... */
    uint64_t ticks; /* CPU time in all, user and system */
    uint64_t rss_pages;
};

bool proc_stat_parse(struct span text, struct proc_stat *out);

#endif

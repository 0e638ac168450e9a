/* proc_stat.h - parses /proc/PID/stat and /proc/PID/status. The process chooses its own
 * name in it, which may have any bytes, parentheses and newlines included. Pure. */
#ifndef PROCESS_CORE_PROC_STAT_H
#define PROCESS_CORE_PROC_STAT_H

#include "base/base.h"

struct proc_stat {
    struct span command; /* points into the text */
    char state;          /* 'R', 'S', 'D', 'T', 'Z' ... */
    uint64_t parent;
    bool timed;     /* false: the text ends before what follows */
    uint64_t ticks; /* CPU time in all, user and system */
    uint64_t rss_pages;
};

/* False if the text is no such file. */
bool proc_stat_parse(struct span text, struct proc_stat *out);

/* Whether the mask of that name in a status file, such as "SigCgt", has the signal. */
bool proc_status_signal(struct span status, const char *mask, int sig);

#endif

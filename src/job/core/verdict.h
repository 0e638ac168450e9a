/* verdict.h - the end of a job, and each restart before it, in a few lines for people.
 * Pure. All of it comes from the record, so every node says the same. */
#ifndef JOB_CORE_VERDICT_H
#define JOB_CORE_VERDICT_H

#include "job/core/record.h"

struct verdict_style {
    bool colours;            /* on a terminal, unless NO_COLOR */
    const char *report_path; /* --report; NULL: not given */
    int64_t zone_s;          /* local time ahead of UTC */
    int exit_code;           /* of --exit-codes=cause; 0: not given */
};

/* Takes Python's 'File "/x/train.py", line 41, in load' apart: train.py and 41. False:
 * the place is something else. */
bool place_shorten(struct span place, struct span *file, struct span *line);

/* "rank 3 on node2 failed: RuntimeError: bad data shard 17 (train.py:41). Restart 1 of
 * 3." One line, without newline. */
int restart_print(struct buf *out, const struct record_entry *e);

/* What was said of restarts so far; zeroed at the start. */
struct restart_lines {
    uint64_t cause;   /* of the last restart, as a number; equal for equal causes */
    uint64_t equal;   /* restarts with this cause, one after the other */
    uint64_t skipped; /* since a line was shown */
    int64_t shown_us; /* when that was */
};

/* The same line, unless there have been several with the same cause within a minute:
 * then false. The next line says how many were left out. The last restart of those that
 * are allowed is always shown. */
bool restart_print_once(struct buf *out, struct restart_lines *l,
                        const struct record_entry *e);

/* The last lines of a job that failed, at most ten. False: the record has no verdict,
 * or the job did not fail. */
bool verdict_print(struct buf *out, const struct record *r,
                   const struct verdict_style *style);

#endif

/* verdict.h - the end of a job, and each restart before it, in a few lines for people.
 * Pure. All of it comes from the record, so every node says the same. */
#ifndef JOB_CORE_VERDICT_H
#define JOB_CORE_VERDICT_H

#include "job/core/record.h"

struct verdict_style {
    bool colours;            /* on a terminal, unless NO_COLOR */
    const char *report_path; /* --report; NULL: not given */
    int64_t zone_s;          /* local time ahead of UTC */
};

/* "rank 3 on node2 failed: RuntimeError: bad data shard 17 (train.py:41). Restart 1 of
 * 3." One line, without newline. */
int restart_print(struct buf *out, const struct record_entry *e);

/* The last lines of a job that failed, at most ten. False: the record has no verdict,
 * or the job did not fail. */
bool verdict_print(struct buf *out, const struct record *r,
                   const struct verdict_style *style);

#endif

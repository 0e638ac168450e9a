/* status_text.h - a job's status as text for people, as `muster status` prints it, and
 * the parts of it that `muster top` shows, too. Pure. Errors stay in the buffer. */
#ifndef STATUS_CORE_STATUS_TEXT_H
#define STATUS_CORE_STATUS_TEXT_H

#include "status/core/job_status.h"

struct status_style {
    size_t columns; /* of the terminal; 60 are enough */
    bool color;
    bool workers; /* also print a line for each rank */
};

void status_text(struct buf *out, const struct job_status *j,
                 const struct status_style *s);

/* Each of these is one line, without a newline. The headline names the job or the
 * store, a job by at most so many characters of its id; a restart is an entry of the
 * history. */
void status_headline(struct buf *out, const struct job_status *j, size_t id_max);
void status_restart(struct buf *out, const struct job_status *j,
                    const struct record_entry *e);
void status_ranks(struct buf *out, const struct job_node *n); /* "8-15" */
void status_remark(struct buf *out, const struct job_status *j,
                   const struct job_node *n, double median);

/* The CPU use of a rank in percent, as the median over all running nodes; -1 if there
 * are too few of them to compare. */
double status_median(const struct job_status *j);

#endif

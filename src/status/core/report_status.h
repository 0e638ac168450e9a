/* report_status.h - the report of a job that has ended (docs/report.schema.json) as the
 * job's status, so that status_text() and the page can show it. Pure. The report is a
 * file and may hold anything: what is missing or malformed is left out. */
#ifndef STATUS_CORE_REPORT_STATUS_H
#define STATUS_CORE_REPORT_STATUS_H

#include <jansson.h>

#include "status/core/job_status.h"

/* The caller calls job_status_fini; the texts are borrowed from the report.
 * MUSTER_EINVAL if it is not a report that this version can read; MUSTER_ENOMEM. */
int report_status(const json_t *report, struct job_status *out,
                  struct muster_error *err);

#endif

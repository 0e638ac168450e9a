/* report_status.h - the report of a job that has ended (docs/report.schema.json) in the
 * shape of its status (docs/status.schema.json), so that status_text() and the page can
 * show it. Pure. The report is a file and may hold anything: what is missing or
 * malformed is left out. */
#ifndef STATUS_CORE_REPORT_STATUS_H
#define STATUS_CORE_REPORT_STATUS_H

#include <jansson.h>

#include "muster/error.h"

/* The caller owns what is returned. NULL: err says why; MUSTER_EINVAL if it is not a
 * report that this version can read. */
json_t *report_status(const json_t *report, struct muster_error *err);

#endif

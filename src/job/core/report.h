/* report.h - the story of the job as JSON, for --report: docs/report.schema.json. Pure.
 * All of it comes from the record, so every node writes the same report. */
#ifndef JOB_CORE_REPORT_H
#define JOB_CORE_REPORT_H

#include "job/core/record.h"

#define REPORT_MAX (1u << 20) /* bytes, whatever the size of the job */

/* Appends the document with a newline at its end. 0 or MUSTER_ENOMEM. */
int report_json(struct buf *out, const struct record *r, const char *run_id,
                const char *version);

/* One entry, as a line for --notify: its event, run_id and text, and what the report
 * says of such an entry, without newlines. 0 or MUSTER_ENOMEM. */
int report_event_json(struct buf *out, const struct record_entry *e, const char *event,
                      const char *run_id, struct span words);

#endif

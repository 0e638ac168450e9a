/* failure_report.h - failed workers, and torch's report about them. Pure: what is in
 * error files comes in as bytes, times as text. */
#ifndef AGENT_CORE_FAILURE_REPORT_H
#define AGENT_CORE_FAILURE_REPORT_H

#include "base/buf.h"
#include "muster/error.h"

#define ERROR_FILE_MAX (4u << 20) /* A worker may write anything; we read so much. */

/* What an error file says. */
struct error_file {
    char *text; /* owned: what the report shows as traceback; "" if it has none */
    char *json; /* owned: the whole object, as Python prints it */
    int64_t time_s;
    bool object; /* the message is an object, so that errorCode can be added */
};

/* torch's rules. MUSTER_ESTATE with the reason if it is not JSON of either form. */
int error_file_parse(struct error_file *e, struct span bytes, struct muster_error *err);
void error_file_fini(struct error_file *e); /* zeroed is fine */

/* The same JSON with message.errorCode = code at its end, for the agent's parent. */
int error_file_for_parent(struct buf *out, const struct error_file *e, int code);

/* The form of torch's own error files, for an error of ours. */
int error_file_print(struct buf *out, const char *message, const char *detail,
                     int64_t now_s);

struct failure {
    int64_t local_rank, rank;
    int pid;
    int code;                /* negative: a signal */
    const char *signal_name; /* "SIGTERM"; NULL or "<N/A>" if there is none */
    int64_t time_s;
    char when[32];    /* time_s as local time: 2026-11-15_18:46:41 */
    char *error_file; /* owned path; NULL: none */
    char *words;      /* owned: what its stderr says, if there is no error file */
    struct error_file data;
};

void failure_fini(struct failure *f);

/* Index of the root cause: the smallest time, the first of equals. */
size_t failure_root(const struct failure *list, size_t count);

/* torch's block from its border to its border, with a newline at both ends, as after
 * "...ChildFailedError: ". In order of observation. */
int report_print(struct buf *out, const char *name, const char *host,
                 const struct failure *list, size_t count);

#endif

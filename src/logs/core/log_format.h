/* log_format.h - a log message in the shape that TORCH_LOGS_FORMAT asks for: Python's
 * %-style formats of its logging module, without Python. Pure. */
#ifndef LOGS_CORE_LOG_FORMAT_H
#define LOGS_CORE_LOG_FORMAT_H

#include "base/buf.h"
#include "muster/error.h"

/* What Python calls a LogRecord, as far as it is known here. */
struct log_record {
    const char *level; /* "WARNING" */
    int level_number;  /* 30 */
    const char
        *where; /* "site-packages/torch/distributed/run.py:874", "muster/agent" */
    const char *message; /* perhaps of several lines */
    const char *asctime; /* local time, "2026-11-15 23:49:08,823" */
    double created;      /* seconds since 1970 */
    double since_start;  /* milliseconds */
    int pid;
};

/* What the variable's text stands for: "short" and "basic" are names, "" is the message
 * alone. MUSTER_EINVAL: no format at all, in Python's words; torchrun dies of it.
 * MUSTER_ENOTSUP: Python would fail over each message. */
int logline_format(const char *text, const char **format, struct muster_error *err);

/* One message and its newline. The format has passed logline_format. */
int logline_print(struct buf *out, const char *format, const struct log_record *r);

#endif

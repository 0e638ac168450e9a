/* record_sink.h - where records for machines go, a line each: nowhere, the console, or
 * the end of a file. What --event-log-handler and --metrics-handler name. */
#ifndef AGENT_RECORD_SINK_H
#define AGENT_RECORD_SINK_H

#include "base/buf.h"
#include "muster/error.h"

struct record_sink {
    int fd; /* -1: nobody wants them */
    bool file;
};

/* name: null, console (console_fd, borrowed; -1: nowhere) or file:<path>. flag: for the
 * message. */
int record_sink_open(struct record_sink *s, const char *flag, const char *name,
                     int console_fd, struct muster_error *err);
void record_sink_close(struct record_sink *s);

/* One write a record, so that lines of several agents do not mix. rc: what printing
 * into b has returned; if it failed nothing is written. Ends b. A console that takes
 * nothing for a moment loses the record: it must not stop the agent. */
void record_sink_put(struct record_sink *s, struct buf *b, int rc);

#endif

/* sink.h - where records for machines go, a line each: nowhere, the console, or the end
 * of a file. What --event-log-handler and --metrics-handler name. */
#ifndef AGENT_RECORD_SINK_H
#define AGENT_RECORD_SINK_H

#include "base/buf.h"
#include "muster/error.h"

struct sink {
    int fd; /* -1: nobody wants them */
    bool file;
};

/* name: null, console (console_fd, borrowed; -1: nowhere) or file:<path>. flag: for the
 * message. */
int sink_open(struct sink *s, const char *flag, const char *name, int console_fd,
              struct muster_error *err);
void sink_close(struct sink *s);

/* One write a record, so that lines of several agents do not mix. rc: what printing
 * into b has returned; if it failed nothing is written. Ends b. A console that takes
 * nothing for a moment loses the record: it must not stop the agent. */
void sink_put(struct sink *s, struct buf *b, int rc);

#endif

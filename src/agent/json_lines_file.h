/* json_lines_file.h - where records for machines go, a line each: nowhere, the console,
 * or the end of a file. What --event-log-handler and --metrics-handler name. */
#ifndef AGENT_JSON_LINES_FILE_H
#define AGENT_JSON_LINES_FILE_H

#include "base/buf.h"
#include "muster/error.h"

struct json_lines_file {
    int fd; /* -1: nobody wants them */
    bool file;
};

/* name: null, console (console_fd, borrowed; -1: nowhere) or file:<path>. flag: for the
 * message. */
int json_lines_open(struct json_lines_file *s, const char *flag, const char *name,
                    int console_fd, struct muster_error *err);
void json_lines_close(struct json_lines_file *s);

/* One write a record, so that lines of several agents do not mix. rc: what printing
 * into b has returned; if it failed nothing is written. Ends b. A console that takes
 * nothing for a moment loses the record: it must not stop the agent. */
void json_lines_write(struct json_lines_file *s, struct buf *b, int rc);

#endif

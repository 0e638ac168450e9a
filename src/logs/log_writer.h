/* log_writer.h - our own messages on stderr, in torchrun's shape: every line begins
 * with `W1115 18:46:41.485000 27233 <where>] ` (see base/log_places.h). One write a
 * message, so that lines of several processes do not mix. Who speaks uses
 * base/log.h. */
#ifndef LOGS_LOG_WRITER_H
#define LOGS_LOG_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "muster/error.h"

/* What is special about a terminal; see status_line.c. */
struct log_screen {
    bool lines;   /* it can rewrite a line */
    bool colours; /* it has colours, and NO_COLOR is not set */
    bool shown;   /* the line of status_line() is there */
    bool brief; /* people read it: plain words, and no line that another one repeats */
    unsigned advices; /* that were said */
};

struct log_writer {
    struct log log;     /* for those who speak; its levels: LOGLEVEL and TORCH_LOGS */
    int fd;             /* -1: nothing is written */
    int copy_fd;        /* TORCH_LOGS_OUT: all of it once more; -1: nowhere */
    const char *format; /* TORCH_LOGS_FORMAT, borrowed from envp; NULL: the usual one */
    uint64_t began_ns;
    struct log_screen *screen; /* borrowed; NULL: no terminal */
};

/* Level from LOGLEVEL in envp, as torchrun reads it: DEBUG, INFO, WARNING, WARN, ERROR,
 * CRITICAL, FATAL, NOTSET in capitals. MUSTER_EINVAL: something else. Also what
 * TORCH_LOGS, TORCH_LOGS_FORMAT and TORCH_LOGS_OUT say; whoever sets the last wants the
 * file to be there, so that it cannot be opened is an error, as with torchrun. It stays
 * open until the process ends. *w must stay where it is. */
int log_writer_init(struct log_writer *w, char *const *envp, struct muster_error *err);

/* Finds out whether the log goes to a terminal; *screen must live as long as it
 * does. */
void log_writer_on_screen(struct log_writer *w, struct log_screen *screen,
                          char *const *envp);

/* Whether the log is for people: on a terminal, unless they asked for more of it, or as
 * --failure=short|torch says (NULL: not given). */
void log_writer_set_brief(struct log_writer *w, const char *failure);

/* One line at the bottom of a terminal, in the place of the one before; NULL takes it
 * away. A message takes it away too. Does nothing elsewhere. */
void status_line(const struct log_writer *w, const char *text);

#endif

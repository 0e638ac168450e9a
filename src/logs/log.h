/* log.h - the agent's own messages on stderr, in torchrun's shape: every line begins
 * with `W1115 18:46:41.485000 27233 <where>] ` (see log_places.h). One write a
 * message, so that lines of several processes do not mix. */
#ifndef LOGS_LOG_H
#define LOGS_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "logs/log_places.h"
#include "muster/error.h"

enum note_level { NOTE_DEBUG, NOTE_INFO, NOTE_WARN, NOTE_ERROR, NOTE_CRITICAL };

/* What is special about a terminal; see status_line.c. */
struct log_screen {
    bool lines;   /* it can rewrite a line */
    bool colours; /* it has colours, and NO_COLOR is not set */
    bool shown;   /* the line of status_line() is there */
    bool brief; /* people read it: plain words, and no line that another one repeats */
    unsigned advices; /* that were said */
};

struct log {
    int fd;
    enum note_level least;       /* LOGLEVEL */
    enum note_level torch_least; /* TORCH_LOGS, for the parts that follow it */
    int copy_fd;                 /* TORCH_LOGS_OUT: all of it once more; -1: nowhere */
    const char *format; /* TORCH_LOGS_FORMAT, borrowed from envp; NULL: the usual one */
    uint64_t began_ns;
    struct log_screen *screen; /* borrowed; NULL: no terminal */
};

/* Level from LOGLEVEL in envp, as torchrun reads it: DEBUG, INFO, WARNING, WARN, ERROR,
 * CRITICAL, FATAL, NOTSET in capitals. MUSTER_EINVAL: something else. Also what
 * TORCH_LOGS, TORCH_LOGS_FORMAT and TORCH_LOGS_OUT say; whoever sets the last wants the
 * file to be there, so that it cannot be opened is an error, as with torchrun. It stays
 * open until the process ends. */
int log_init(struct log *n, char *const *envp, struct muster_error *err);

/* A message, perhaps of several lines; the place says which part speaks. */
void note(const struct log *n, enum note_level level, enum log_place place,
          const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Finds out whether the log goes to a terminal; *screen must live as long as it does.
 */
void log_on_screen(struct log *n, struct log_screen *screen, char *const *envp);

/* Whether the log is for people: on a terminal, unless they asked for more of it, or as
 * --failure=short|torch says (NULL: not given). */
void log_set_brief(struct log *n, const char *failure);

/* One line at the bottom of a terminal, in the place of the one before; NULL takes it
 * away. A note takes it away too. Does nothing elsewhere. */
void status_line(const struct log *n, const char *text);

#endif

/* notes.h - the agent's own messages on stderr, in torchrun's shape: every line begins
 * with `W1115 18:46:41.485000 27233 <where>] ` (see where.h). One write a message, so
 * that lines of several processes do not mix. */
#ifndef IO_NOTES_H
#define IO_NOTES_H

#include "muster/error.h"

enum note_level { NOTE_DEBUG, NOTE_INFO, NOTE_WARN, NOTE_ERROR, NOTE_CRITICAL };

struct notes {
    int fd;
    enum note_level least;       /* LOGLEVEL */
    enum note_level torch_least; /* TORCH_LOGS, for the parts that follow it */
};

/* Level from LOGLEVEL in envp, as torchrun reads it: DEBUG, INFO, WARNING, WARN, ERROR,
 * CRITICAL, FATAL, NOTSET in capitals. MUSTER_EINVAL: something else. */
int notes_init(struct notes *n, char *const *envp, struct muster_error *err);

/* A message, perhaps of several lines; where says which part speaks. */
void note(const struct notes *n, enum note_level level, const char *where,
          const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif

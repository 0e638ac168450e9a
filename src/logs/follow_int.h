/* follow_int.h - one followed file (follow_file.c); follow.c gives each its turn. */
#ifndef LOGS_FOLLOW_INT_H
#define LOGS_FOLLOW_INT_H

#include "logs/console.h"
#include "logs/core/prefix_lines.h"
#include "logs/follow.h"

#define TAIL_CHUNK (64u << 10)

struct tail_file {
    struct tail_file *next;
    int fd;
    int copy_fd;             /* borrowed; -1: none, or it cannot be written any more */
    char *name;              /* owned */
    char *prefix;            /* owned */
    struct console *console; /* borrowed: where it is shown */
    bool given_up;           /* it cannot be read, or nobody is left to read it for */
    bool notified;           /* that its console is broken */
    struct tee tee;
    uint64_t partial_since; /* loop time of the first byte of an unfinished line */
};

/* What all files of a struct tails share. */
struct tail_common {
    struct tails_opts opts;
    struct buf copy; /* lines for the filter file, until they are written */
    uint8_t *chunk;  /* owned, TAIL_CHUNK bytes */
};

int tail_file_new(const struct tail_spec *spec, struct console *console,
                  struct tail_file **out, struct muster_error *err);
void tail_file_free(struct tail_file *f);

/* Reads what is new, up to a turn's worth; *any: something was. True if there may be
 * more, be it that the turn is over or that the console is full. */
bool tail_file_read(struct tail_common *s, struct tail_file *f, bool *any);

/* A line that has been unfinished for a while (or, with now, at all) is shown as it is.
 * Returns how long until that is due, or 0 if nothing is held. Only for a file that is
 * read to its end: else the rest of the line may be there. */
uint64_t tail_file_settle(struct tail_common *s, struct tail_file *f, bool now);

#endif

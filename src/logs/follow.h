/* follow.h - the files of teed streams, followed while the workers write them.
 *
 * The worker writes its file itself, so the file is exact whatever happens to us. We
 * are told of writes by inotify, read what is new, and print it by lines
 * (logs/core/prefix_lines.h). While output keeps coming we look every few milliseconds
 * instead, which costs less than an event for each write; where there is no inotify to
 * be had we look every 100 milliseconds. If a console is slow we stop reading what goes
 * there: the file is the queue. If it is gone we read on for the copy, as long as there
 * is one. */
#ifndef LOGS_FOLLOW_H
#define LOGS_FOLLOW_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct tails;

struct tails_opts {
    uv_loop_t *loop;
    /* A stream could not be shown or copied any more; name is that of tails_add. */
    void (*on_error)(void *ctx, const char *name, int errnum);
    /* No inotify, from now on the files are looked at every so often. At most once. */
    void (*on_blind)(void *ctx, unsigned every_ms, int errnum);
    void *ctx;
};

int tails_open(const struct tails_opts *opts, struct tails **out,
               struct muster_error *err);

struct tail_spec {
    const char *path;   /* exists already; copied, as is all below */
    const char *name;   /* "default0", for messages */
    struct span prefix; /* before each line */
    bool is_stderr;     /* to our stderr rather than stdout */
    char *const *needles;
    size_t needle_count; /* lines with one of them also go to copy_fd */
    int copy_fd;         /* borrowed until tails_drain is over; -1: none */
};

int tails_add(struct tails *t, const struct tail_spec *spec, struct muster_error *err);

/* The writers are gone: reads all files to their ends, prints it all, forgets the
 * files, then calls cb (never from within). The loop goes on meanwhile. */
void tails_drain(struct tails *t, void (*cb)(void *ctx), void *ctx);

void tails_close(struct tails *t); /* NULL is fine; the loop must run once more */

#endif

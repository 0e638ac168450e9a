/* file_timer.h - torch's file timer, server side: what workers wrote into the FIFO
 * becomes a table of deadlines. Pure. Times are seconds since 1970, as the workers'
 * clocks say. */
#ifndef AGENT_CORE_FILE_TIMER_H
#define AGENT_CORE_FILE_TIMER_H

#include "base/buf.h"
#include "muster/error.h"

#define TIMERS_MAX 65536u /* A worker that asks for more is not served. */

struct timer_entry {
    int64_t pid;
    char *scope; /* owned */
    double expires;
    int sig;
};

struct timers {
    struct timer_entry *list; /* owned */
    size_t count, size;
    struct buf line; /* of the FIFO, not yet whole */
};

void timers_init(struct timers *t);
void timers_fini(struct timers *t); /* zeroed is fine */

/* Takes in bytes of the FIFO: whole lines count, in order. MUSTER_EPROTO for a line
 * that is not a request (the others are still taken), MUSTER_EFULL, MUSTER_ENOMEM. */
int timers_feed(struct timers *t, struct span bytes, struct muster_error *err);

/* The earliest deadline; INFINITY if there is none. */
double timers_next(const struct timers *t);

/* Takes out all entries of a process of which one has expired at `now`: *out is the one
 * that decides (the first by time with a signal; sig 0 if none has one), its scope
 * owned by the caller. False if nothing has expired. */
bool timers_expire(struct timers *t, double now, struct timer_entry *out);

#endif

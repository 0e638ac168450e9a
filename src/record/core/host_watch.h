/* host_watch.h - is the coordinator's machine gone, or only our connection to it?
 *
 * Pure. A connection may break for many reasons, and a node that lives must not lose
 * its place for one of them: what counts is what comes of the attempts to reach the
 * coordinator again. Its store listens for as long as its agent lives, so a machine
 * that says "nobody listens there", twice, with a moment between, has lost that agent.
 * Silence proves nothing: the machine may be slow, or a cable is out, which the
 * rendezvous finds out by itself, later. */
#ifndef RECORD_CORE_HOST_WATCH_H
#define RECORD_CORE_HOST_WATCH_H

#include "base/base.h"

#define HOST_WATCH_REFUSALS 2u
#define HOST_WATCH_APART_MS 30u /* an agent may be about to listen, or fork */

struct host_watch {
    unsigned refusals;   /* since it was there last */
    uint64_t refused_ms; /* the last that counted */
    bool lost;           /* told */
};

/* It was reached, or another place is meant from now on. True if it had been told to be
 * lost. */
bool host_watch_there(struct host_watch *w);

/* An attempt to reach it failed with a code of store/connect.h, or a connection broke
 * (MUSTER_ECONN). True once: it is lost. */
bool host_watch_failed(struct host_watch *w, int code, uint64_t now_ms);

#endif

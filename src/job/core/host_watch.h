/* host_watch.h - is the coordinator's agent gone, or only our connection to it?
 *
 * Pure. A connection may break for many reasons, none of which may cost a living node
 * its place, so what counts is how the attempts to reach the coordinator again end. Its
 * store listens for as long as its agent lives. So once its machine has refused two
 * connections, some time apart, that agent is gone. Silence proves nothing: the machine
 * may be slow, or the network may be down, which the rendezvous finds out by itself
 * later. */
#ifndef JOB_CORE_HOST_WATCH_H
#define JOB_CORE_HOST_WATCH_H

#include "base/base.h"

#define HOST_WATCH_REFUSALS 2u

/* Refusals that are closer together count as one, since the agent may be about to
 * listen. */
#define HOST_WATCH_APART_MS 30u

struct host_watch {
    unsigned refusals;   /* since it was last reached */
    uint64_t refused_ms; /* when the last one that counted came */
    bool lost;           /* host_watch_failed() has said so */
};

/* The coordinator was reached, or a different one is watched from now on. True if
 * host_watch_failed() had said that it is lost. */
bool host_watch_reached(struct host_watch *w);

/* An attempt to reach it failed with a code of store/connect.h, or a connection broke.
 * True, once, when this means that it is lost. */
bool host_watch_failed(struct host_watch *w, int code, uint64_t now_ms);

#endif

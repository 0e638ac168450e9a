/* request_queue.h - requests that came while a step of the core was under way. The
 * agent may ask for anything while it is being told what a step has brought. Pure. */
#ifndef RENDEZVOUS_CORE_REQUEST_QUEUE_H
#define RENDEZVOUS_CORE_REQUEST_QUEUE_H

#include "rendezvous/core/cas_node.h"

/* Each kind at most once: the agent asks for one of each at a time. */
struct request_queue {
    unsigned bits; /* 1 << RDZV_EV_JOIN, and so on */
};

/* Returns true if the LEAVE took back a JOIN that waited: the caller refuses that JOIN
 * with MUSTER_ECANCELED. The LEAVE itself waits. */
bool request_put(struct request_queue *q, enum rdzv_event_kind kind);

/* LEAVE comes first, then CLOSE, then JOIN: an agent that leaves and then joins means
 * it in that order, and a LEAVE after a JOIN has removed that JOIN. Returns false if
 * none waits. */
bool request_take(struct request_queue *q, enum rdzv_event_kind *kind);

#endif

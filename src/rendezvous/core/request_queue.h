/* request_queue.h - requests for a core that came while a step of it was under way: the
 * agent may ask for anything while it is told what the step has brought. Pure. */
#ifndef RENDEZVOUS_CORE_REQUEST_QUEUE_H
#define RENDEZVOUS_CORE_REQUEST_QUEUE_H

#include "rendezvous/core/cas_node.h"

/* Each kind at most once: the agent asks for one of each at a time. */
struct request_queue {
    unsigned bits; /* 1 << RDZV_EV_JOIN, and so on */
};

/* True: a JOIN that waited was taken back by this LEAVE, and is to be refused with
 * MUSTER_ECANCELED; the LEAVE waits. */
bool request_put(struct request_queue *q, enum rdzv_event_kind kind);

/* LEAVE first, then CLOSE, then JOIN: those who leave and then join mean it in that
 * order, and a JOIN before a LEAVE is not in here any more. False: none waits. */
bool request_take(struct request_queue *q, enum rdzv_event_kind *kind);

#endif

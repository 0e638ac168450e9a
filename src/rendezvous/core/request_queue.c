/* request_queue.c - see request_queue.h. */
#include "rendezvous/core/request_queue.h"

#include <assert.h>

bool request_put(struct request_queue *q, enum rdzv_event_kind kind)
{
    const unsigned join = 1u << RDZV_EV_JOIN;
    const bool unjoined = kind == RDZV_EV_LEAVE && q->bits & join;

    assert(kind == RDZV_EV_JOIN || kind == RDZV_EV_LEAVE || kind == RDZV_EV_CLOSE);
    if (unjoined)
        q->bits &= ~join;
    q->bits |= 1u << kind;
    return unjoined;
}

bool request_take(struct request_queue *q, enum rdzv_event_kind *kind)
{
    static const enum rdzv_event_kind order[] = { RDZV_EV_LEAVE, RDZV_EV_CLOSE,
                                                  RDZV_EV_JOIN };

    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        if (!(q->bits & 1u << order[i]))
            continue;
        q->bits &= ~(1u << order[i]);
        *kind = order[i];
        return true;
    }
    assert(q->bits == 0);
    return false;
}

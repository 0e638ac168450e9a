/* c10d_state.c - what an answer of a c10d store means for the state; see rdzv.h. */
#include "rdzv/rdzv.h"

void rdzv_c10d_answer(struct rdzv_event *ev, bool write, struct span expected,
                      struct span sent, struct span answer)
{
    /* The store answers with `expected` and stores nothing if the key is missing: an
     * equal value would have been swapped. The host has started anew. */
    const bool missing = write && span_eq(answer, expected) && !span_eq(answer, sent);

    ev->kind = write ? RDZV_EV_WROTE : RDZV_EV_STATE;
    ev->won = write && span_eq(answer, sent);
    ev->present =
        !missing && answer.n > 0 && !span_eq(answer, span_str(RDZV_C10D_SENTINEL));
    ev->value = answer;
    ev->token = answer;
}

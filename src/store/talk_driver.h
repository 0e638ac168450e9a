/* talk_driver.h - runs a step machine that talks to a store (store/core/talk.h) on a uv
 * loop, over a connection that is made anew whenever it breaks or falls silent. */
#ifndef STORE_TALK_DRIVER_H
#define STORE_TALK_DRIVER_H

#include "store/async_store.h"
#include "store/core/talk.h"

struct talk_driver;

/* Every effect but ASK and NOTHING, borrowed for the call. Never from inside a call of
 * the functions below, except that an effect may come from inside talk_driver_answer.
 * DONE, FAILED and REJOIN are the last ones; the driver is still to be closed. */
typedef void (*talk_driver_cb)(void *ctx, const struct talk_fx *fx);

/* machine and store are borrowed until the driver is closed. BEGIN comes from the loop.
 */
int talk_driver_open(struct async_store *store, struct talk *machine, talk_step step,
                     talk_driver_cb cb, void *ctx, struct talk_driver **out,
                     struct muster_error *err);

/* Answers a DO. */
void talk_driver_answer(struct talk_driver *d, int status, int64_t number,
                        const char *text);

/* The machine is the caller's again at once; no callback comes any more. NULL is fine.
 */
void talk_driver_close(struct talk_driver *d);

#endif

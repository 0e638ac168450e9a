/* talk_driver.h - runs a step machine that talks to a store (store/core/talk.h) on a uv
 * loop. It connects again whenever the connection breaks or falls silent. */
#ifndef STORE_TALK_DRIVER_H
#define STORE_TALK_DRIVER_H

#include "store/async_store.h"
#include "store/core/talk.h"

struct talk_driver;

/* Gets every effect but ASK and NOTHING, borrowed for the call. Of the functions below
 * only talk_driver_answer may call it. After DONE, FAILED and REJOIN none comes any
 * more; the driver must still be closed. */
typedef void (*talk_driver_cb)(void *ctx, const struct talk_fx *fx);

/* machine and store are borrowed until the driver is closed. The machine gets BEGIN
 * from the loop. */
int talk_driver_open(struct async_store *store, struct talk *machine, talk_step step,
                     talk_driver_cb cb, void *ctx, struct talk_driver **out,
                     struct muster_error *err);

/* Answers a DO. */
void talk_driver_answer(struct talk_driver *d, int status, int64_t number,
                        const char *text);

/* Lets go of the machine at once; no callback comes any more. NULL is fine. */
void talk_driver_close(struct talk_driver *d);

#endif

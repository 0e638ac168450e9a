/* dialogue_driver.h - runs a step machine that talks to a store (store/core/dialogue.h)
 * on a uv loop. It connects again whenever the connection breaks or falls silent. */
#ifndef STORE_DIALOGUE_DRIVER_H
#define STORE_DIALOGUE_DRIVER_H

#include "store/async_store.h"
#include "store/core/dialogue.h"

struct dialogue_driver;

/* Gets every effect but ASK and NOTHING, borrowed for the call. Of the functions below
 * only dialogue_driver_answer may call it. Out of memory is FAILED. After DONE, FAILED
 * and REJOIN none comes any more; the driver must still be closed. */
typedef void (*dialogue_driver_cb)(void *ctx, const struct dialogue_fx *fx);

/* machine and store are borrowed until the driver is closed. The machine gets BEGIN
 * from the loop. */
int dialogue_driver_open(struct async_store *store, struct store_dialogue *machine,
                         dialogue_step step, dialogue_driver_cb cb, void *ctx,
                         struct dialogue_driver **out, struct muster_error *err);

/* Answers a DO. */
void dialogue_driver_answer(struct dialogue_driver *d, int status, int64_t number,
                            const char *text);

/* Lets go of the machine at once; no callback comes any more. NULL is fine. */
void dialogue_driver_close(struct dialogue_driver *d);

#endif

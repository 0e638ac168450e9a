/* store_twin.h - the store once more, as slow and as obvious as can be: arrays that are
 * searched from the front. The engine must answer the same, effect by effect. */
#ifndef TESTS_STORE_TWIN_H
#define TESTS_STORE_TWIN_H

#include "store/core/store.h"

#define TWIN_PEERS 6

struct twin *twin_new(void);
void twin_free(struct twin *t);

/* The effects of the event; borrowed until the next step. */
const struct store_effect *twin_step(struct twin *t, const struct store_event *ev,
                                     size_t *count);

/* Plays the steps that the bytes describe on both, with some allocations failing, and
 * aborts with a message where they differ. */
void twin_play(const uint8_t *data, size_t size);

#endif

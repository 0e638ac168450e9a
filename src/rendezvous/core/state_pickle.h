/* state_pickle.h - the shared rendezvous state as torch's nodes store it: the base64
 * text of a Python pickle <-> struct rdzv_state.
 *
 * The reader takes what torch 2.6 and later write under Python 3.8 to 3.15 and nothing
 * else: thirty opcodes, five globals. It creates no Python object and calls nothing.
 * Its work and memory are linear in the input. The writer always writes the same bytes
 * for the same state. */
#ifndef RENDEZVOUS_CORE_STATE_PICKLE_H
#define RENDEZVOUS_CORE_STATE_PICKLE_H

#include "base/buf.h"
#include "muster/error.h"
#include "rendezvous/core/state.h"

#define PICKLE_MAX_BYTES 8388608u /* as much as a store can hold */

/* Fills in *out, which is initialised here; or leaves it alone and returns
 * MUSTER_ESTATE, with offset and opcode in err, or MUSTER_ENOMEM. */
int pickle_read(struct span bytes, struct rdzv_state *out, struct muster_error *err);

/* Appends the canonical bytes: protocol 4, equal nodes shared. Uses `memo` of the
 * participants. Returns 0, MUSTER_EFULL or MUSTER_ENOMEM; out must then be thrown
 * away. */
int pickle_write(struct rdzv_state *s, struct buf *out);

/* If text differs only in heartbeats from the text that s was read from or written as,
 * calls beat() for each participant whose heartbeat has changed, and returns true. s
 * itself is not changed. Returns false, without a call, if anything else differs, or if
 * this cannot be told without reading everything. Nodes of a running round read little
 * else, and this costs a comparison of two texts and no allocation. */
typedef void (*pickle_beat_fn)(void *ctx, struct participant *m, int64_t beat_us);
bool pickle_only_beats(const struct rdzv_state *s, struct span was, struct span text,
                       pickle_beat_fn beat, void *ctx);

/* Appends `was`, the text that s was read from or written as, with the current
 * heartbeat of m, one of its participants, and returns 1. Returns 0, with nothing done,
 * if that cannot be done from the text; else MUSTER_EFULL or MUSTER_ENOMEM, and out
 * must be thrown away. */
int pickle_write_beat(const struct rdzv_state *s, const struct participant *m,
                      struct span was, struct buf *out);

/* Like pickle_read() and pickle_write(), for the text in the store. */
int pickle_read_text(struct span text, struct rdzv_state *out,
                     struct muster_error *err);
int pickle_write_text(struct rdzv_state *s, struct buf *out);

#endif

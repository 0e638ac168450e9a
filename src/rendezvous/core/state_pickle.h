/* state_pickle.h - the shared rendezvous state as torch nodes store it: the base64 text
 * of a Python pickle <-> struct rdzv_state.
 *
 * The reader takes what torch 2.6 and later write under Python 3.8 to 3.15 and nothing
 * else: thirty opcodes, five globals. It builds no object and calls nothing. Its work
 * and memory are linear in the input. The writer has one form for one state. */
#ifndef RENDEZVOUS_CORE_STATE_PICKLE_H
#define RENDEZVOUS_CORE_STATE_PICKLE_H

#include "base/buf.h"
#include "muster/error.h"
#include "rendezvous/core/state.h"

#define PICKLE_MAX_BYTES 8388608u /* what a store can hold */

/* Fills in *out, which is initialised here, or leaves it alone and returns
 * MUSTER_ESTATE with offset and opcode, or MUSTER_ENOMEM. */
int pickle_read(struct span bytes, struct rdzv_state *out, struct muster_error *err);

/* Appends the canonical bytes: protocol 4, nodes shared by value. Uses `memo` of the
 * members. 0, MUSTER_EFULL or MUSTER_ENOMEM; out is then to be thrown away. */
int pickle_write(struct rdzv_state *s, struct buf *out);

/* For a text that differs in nothing but heartbeats from the one that s was read from
 * or written as: calls beat() for each member whose heartbeat is another one, and
 * returns true. s is not changed here. False, without a call, if anything else differs,
 * or it cannot be told without reading it all. A group that runs reads little else:
 * this costs a comparison of two texts, and nothing is allocated. */
typedef void (*pickle_beat_fn)(void *ctx, struct participant *m, int64_t beat_us);
bool pickle_only_beats(const struct rdzv_state *s, struct span was, struct span text,
                       pickle_beat_fn beat, void *ctx);

/* Appends `was`, the text that s was read from or written as, with the heartbeat that
 * m, one of its members, has by now: 1. 0, with nothing done, if that cannot be told
 * from the text; else MUSTER_EFULL or MUSTER_ENOMEM, and out is to be thrown away. */
int pickle_write_beat(const struct rdzv_state *s, const struct participant *m,
                      struct span was, struct buf *out);

/* The same for the text in the store. */
int pickle_read_text(struct span text, struct rdzv_state *out,
                     struct muster_error *err);
int pickle_write_text(struct rdzv_state *s, struct buf *out);

#endif

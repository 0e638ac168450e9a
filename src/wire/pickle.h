/* pickle.h - the shared rendezvous state as torch nodes store it: the base64 text of a
 * Python pickle <-> struct rdzv_state.
 *
 * The reader takes what torch 2.6 and later write under Python 3.8 to 3.15 and nothing
 * else: thirty opcodes, five globals. It builds no object and calls nothing. Its work
 * and memory are linear in the input. The writer has one form for one state. */
#ifndef WIRE_PICKLE_H
#define WIRE_PICKLE_H

#include "base/buf.h"
#include "muster/error.h"
#include "rdzv/state.h"

#define PICKLE_MAX_BYTES 8388608u /* what a store can hold */

/* Fills in *out, which is initialised here, or leaves it alone and returns
 * MUSTER_ESTATE with offset and opcode, or MUSTER_ENOMEM. */
int pickle_read(struct span bytes, struct rdzv_state *out, struct muster_error *err);

/* Appends the canonical bytes: protocol 4, nodes shared by value. Uses `memo` of the
 * members. 0, MUSTER_EFULL or MUSTER_ENOMEM; out is then to be thrown away. */
int pickle_write(struct rdzv_state *s, struct buf *out);

/* The same for the text in the store. */
int pickle_read_text(struct span text, struct rdzv_state *out,
                     struct muster_error *err);
int pickle_write_text(struct rdzv_state *s, struct buf *out);

#endif

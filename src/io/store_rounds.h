/* store_rounds.h - what the agents of a round leave in the store, and its end. */
#ifndef IO_STORE_ROUNDS_H
#define IO_STORE_ROUNDS_H

#include "store/store.h"

/* Deletes the keys by which the nodes of a round told each other their ranks and the
 * workers' address. torch leaves them for ever; a job that restarts for weeks would
 * fill the store. run_key: as on the wire, "/torch.rendezvous.<run id>". */
void store_forget_round(struct store *s, struct store_fx *fx, struct span run_key,
                        int64_t round);

#endif

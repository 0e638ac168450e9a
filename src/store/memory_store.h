/* memory_store.h - a store in this process's memory, like torch's HashStore: the engine
 * of our server without the wire. Clones share the data and use one loop. */
#ifndef STORE_MEMORY_STORE_H
#define STORE_MEMORY_STORE_H

#include "store/async_store.h"

int store_hash_open(uv_loop_t *loop, struct async_store **out,
                    struct muster_error *err);

#endif

/* file_store.h - a store in a file that processes share, byte for byte as torch's
 * FileStore keeps it. See src/store/core/filelog.h for the file, file_store.c for
 * locks. */
#ifndef STORE_FILE_STORE_H
#define STORE_FILE_STORE_H

#include "store/async_store.h"

/* Counts itself in at once, or as soon as the file's lock is free. world_size: how many
 * stores will use the file; the last of them to close removes it. -1: nobody does. */
int store_file_open(uv_loop_t *loop, const char *path, int64_t world_size,
                    struct async_store **out, struct muster_error *err);

#endif

/* file_store.h - a store in a file that processes share, in the format of torch's
 * FileStore. See store/core/filelog.h for the format, locked_file.h for the lock. */
#ifndef STORE_FILE_STORE_H
#define STORE_FILE_STORE_H

#include "store/async_store.h"

/* Adds itself to the file's count of users at once, or as soon as the lock is free.
 * world_size is how many stores will use the file; the last of them to close removes
 * it. With -1 nobody removes it. */
int store_file_open(uv_loop_t *loop, const char *path, int64_t world_size,
                    struct async_store **out, struct muster_error *err);

#endif

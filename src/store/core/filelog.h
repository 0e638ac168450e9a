/* filelog.h - the contents of a file of torch's FileStore.
 *
 * The file is a log without a header. Record: u32 key length, key, u32 value length,
 * value; the last record of a key wins. "/k" is what users call "k"; a record "-/k"
 * removes "/k"; "refcount/" and "cleanup/" count the stores that use the file and that
 * have finished with it. Pure memory: store/file_store.c reads, locks and writes. */
#ifndef STORE_CORE_FILELOG_H
#define STORE_CORE_FILELOG_H

#include "base/buf.h"
#include "base/map.h"
#include "muster/error.h"

#define FILELOG_REFCOUNT "refcount/"
#define FILELOG_CLEANUP  "cleanup/"

struct filelog {
    struct map map;
};

void filelog_init(struct filelog *f, uint64_t seed); /* cannot fail */
void filelog_fini(struct filelog *f);
void filelog_clear(struct filelog *f); /* as if no record had been seen */

/* Applies the complete records among the n bytes p, in order. *used is how many bytes
 * they took, also on MUSTER_ENOMEM; the rest is an incomplete record. */
int filelog_feed(struct filelog *f, const uint8_t *p, size_t n, size_t *used);

/* The value, borrowed until the next feed; false if there is none. value may be NULL.
 */
bool filelog_get(const struct filelog *f, struct span key, struct span *value);

size_t filelog_count(const struct filelog *f); /* of all keys, counters included */

/* for (size_t i = 0; filelog_next(f, &i, &key);) ... in any order */
bool filelog_next(const struct filelog *f, size_t *i, struct span *key);

/* Appends a record: 0, MUSTER_ENOMEM, or MUSTER_EINVAL if key or value is too long. */
int filelog_record(struct buf *out, struct span key, struct span value);

#endif

/* warm_cache.h - what --warm=auto has learned of a script, in the user's cache
 * directory: a file for each pair of script and interpreter, one name a line (see
 * warm_core_learned); and one that the warm interpreter keeps for itself. */
#ifndef WARM_WARM_CACHE_H
#define WARM_WARM_CACHE_H

#include "base/buf.h"
#include "launch/core/config.h"
#include "warm/core/warm_core.h"

/* Appends what is there to out. Nothing there, or unreadable: nothing. */
void warm_cache_read(const struct launch_config *c, char *const *envp, struct buf *out);

struct warm_kept;

/* What there is to keep and where, for mem_free. MUSTER_ENOENT: nowhere, or no
 * memory. */
int warm_cache_prepare(const struct launch_config *c, char *const *envp,
                       const struct warm_core *core, struct warm_kept **out);

/* Replaces the file. What cannot be written is not kept. Blocks, and may be called from
 * any thread. kept: a struct warm_kept. */
void warm_cache_write(void *kept);

/* Where the warm interpreter notes the files that it has imported, to read them ahead
 * the next time. Owned by the caller; NULL: nowhere, or no memory. */
char *warm_cache_files(const struct launch_config *c, char *const *envp);

#endif

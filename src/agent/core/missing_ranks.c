/* missing_ranks.c - see missing_ranks.h. */
#include "agent/core/missing_ranks.h"

#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "base/mem.h"

#define RUNS_MAX 8 /* of ranks in one line */

int missing_ranks_init(struct missing_ranks *r, int64_t world, struct muster_error *err)
{
    uint8_t *here;

    assert(world > 0);
    here = mem_calloc((size_t)world, 1);
    if (!here)
        return err_nomem(err);
    *r = (struct missing_ranks){ here, world, 0 };
    return 0;
}

void missing_ranks_fini(struct missing_ranks *r)
{
    if (!r)
        return;
    mem_free(r->here);
    *r = (struct missing_ranks){ 0 };
}

void missing_ranks_mark(struct missing_ranks *r, int64_t rank)
{
    if (rank < 0 || rank >= r->world || r->here[rank])
        return;
    r->here[rank] = 1;
    r->count++;
    assert(r->count <= r->world);
}

int64_t missing_ranks_next(const struct missing_ranks *r, int64_t from)
{
    assert(from >= 0);
    for (; from < r->world; from++)
        if (!r->here[from])
            return from;
    return -1;
}

int missing_ranks_print(struct buf *b, const struct missing_ranks *r)
{
    const int64_t missing = r->world - r->count;
    int64_t named = 0, at = missing_ranks_next(r, 0);
    int rc = 0;

    assert(missing >= 0 && (missing > 0) == (at >= 0));
    if (missing > 0)
        rc = buf_append_str(b, missing == 1 ? "node rank " : "node ranks ");
    for (int i = 0; i < RUNS_MAX && rc == 0 && at >= 0; i++) {
        int64_t last = at;

        while (last + 1 < r->world && !r->here[last + 1])
            last++;
        rc = buf_printf(b, "%s%" PRId64, named ? ", " : "", at);
        if (rc == 0 && last > at)
            rc = buf_printf(b, "%s%" PRId64, last == at + 1 ? ", " : "-", last);
        named += last - at + 1;
        at = missing_ranks_next(r, last + 1);
    }
    return rc == 0 && named < missing
               ? buf_printf(b, " and %" PRId64 " more", missing - named)
               : rc;
}

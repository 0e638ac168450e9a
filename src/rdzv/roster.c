/* roster.c - the members of a completed round, in rank order. */
#include "base/mem.h"
#include "rdzv/rdzv_int.h"

void rdzv_roster_fini(struct rdzv_roster *r)
{
    mem_free(r->nodes);
    *r = (struct rdzv_roster){ 0 };
}

static bool ranks_are_whole(const struct rdzv_state *s,
                            const struct rdzv_member **by_rank)
{
    const size_t count = rdzv_count(s, RDZV_PLACES);

    for (const struct rdzv_member *m = rdzv_first(s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank < 0 || (uint64_t)m->rank >= count || by_rank[m->rank])
            return false;
        by_rank[m->rank] = m;
    }
    return true;
}

int rdzv_roster_make(struct rdzv_roster *out, const struct rdzv_state *s)
{
    const size_t count = rdzv_count(s, RDZV_PLACES);
    const struct rdzv_member **by_rank = mem_calloc(count + 1, sizeof *by_rank);
    struct rdzv_node *nodes = NULL;
    size_t bytes = 0;
    int rc = MUSTER_ENOMEM;

    if (!by_rank)
        return MUSTER_ENOMEM;
    if (!ranks_are_whole(s, by_rank)) {
        rc = MUSTER_ESTATE;
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        bytes += by_rank[i]->node.addr.n;
    nodes = mem_alloc(count * sizeof *nodes + bytes + 1);
    if (!nodes)
        goto done;
    for (size_t i = 0, at = 0; i < count; i++) {
        uint8_t *addr = (uint8_t *)(nodes + count) + at;

        nodes[i] = by_rank[i]->node;
        if (nodes[i].addr.n)
            memcpy(addr, nodes[i].addr.p, nodes[i].addr.n);
        at += nodes[i].addr.n;
        nodes[i].addr.p = addr;
    }
    *out = (struct rdzv_roster){ nodes, count, s->round };
    rc = 0;
done:
    mem_free(by_rank);
    return rc;
}

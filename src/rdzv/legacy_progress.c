/* legacy_progress.c - what a node of the backend "etcd" can tell a person while it
 * waits, from the document as it was last read. Torch's document has no names. */
#include "rdzv/legacy_int.h"

/* Whether etcd is there. A long poll that ended without an event says nothing. */
void legacy_heard(struct legacy *l, const struct legacy_event *ev)
{
    if (l->polling && ev->code == MUSTER_ETIMEDOUT)
        return;
    l->reached = ev->code == 0 || ev->code == MUSTER_ENOENT ||
                 ev->code == MUSTER_EEXIST || ev->code == MUSTER_ESTATE;
}

/* The node that holds the last call knows when it ends; the others know since when they
 * have seen enough nodes, which is as good for those who were there before. */
void legacy_seen(struct legacy *l)
{
    const bool called = l->doc.status == LEGACY_JOINABLE &&
                        (int64_t)l->doc.participants >= l->min_nodes;

    if (!called)
        l->call_since_ms = MONO_NEVER;
    else if (l->call_since_ms == MONO_NEVER || l->seen_version != l->doc.version)
        l->call_since_ms = l->now.mono_ms;
    l->seen = true;
    l->seen_version = l->doc.version;
}

/* From our place in the document to the end of its making; see LEGACY_PHASES. */
static bool has_place(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_FINAL_WAIT;
}

static bool has_last_call(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_CALL_DELAY;
}

static void gathering(const struct legacy *l, struct rdzv_progress *out)
{
    out->here = (int64_t)l->doc.participants;
    if (has_last_call(l))
        out->start_by_ms = l->call_by_ms;
    else if (l->call_since_ms != MONO_NEVER)
        out->start_by_ms = l->call_since_ms + l->last_call_ms;
}

bool legacy_progress(const struct legacy *l, struct rdzv_progress *out)
{
    if (!l->joining || (l->reached && !l->seen))
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ROUND,
                                   .min_nodes = l->min_nodes,
                                   .max_nodes = l->max_nodes,
                                   .by_ms = l->join_by_ms,
                                   .start_by_ms = MONO_NEVER };
    if (!l->reached || l->phase == LEGACY_PH_RETRY)
        progress_why(out, l->reason);
    if (!l->reached) {
        out->stage = RDZV_AT_STORE;
        return true;
    }
    switch (l->doc.status) {
    case LEGACY_SETUP:
    case LEGACY_CLOSED:
        break;
    case LEGACY_JOINABLE:
        gathering(l, out);
        break;
    case LEGACY_FROZEN: /* who is in is settled; each of them has to say so again */
        if (has_place(l)) {
            out->min_nodes = out->max_nodes = (int64_t)l->doc.participants;
            out->here = (int64_t)l->doc.keep_alives;
            break;
        }
        out->stage = RDZV_AT_NEXT;
        break;
    case LEGACY_FINAL:
        out->stage = RDZV_AT_NEXT;
        break;
    }
    return true;
}

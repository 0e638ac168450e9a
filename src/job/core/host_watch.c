/* host_watch.c - see host_watch.h. */
#include "job/core/host_watch.h"

#include "muster/error.h"

bool host_watch_reached(struct host_watch *w)
{
    const bool was_lost = w->lost;

    *w = (struct host_watch){ 0 };
    return was_lost;
}

bool host_watch_failed(struct host_watch *w, int code, uint64_t now_ms)
{
    if (w->lost || code != MUSTER_EREFUSED)
        return false;
    if (w->refusals && now_ms - w->refused_ms < HOST_WATCH_APART_MS)
        return false;
    w->refusals++;
    w->refused_ms = now_ms;
    w->lost = w->refusals >= HOST_WATCH_REFUSALS;
    return w->lost;
}

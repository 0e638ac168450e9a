/* legacy_member.c - beside a running version, in it, and its end: waiting for a version
 * that runs without us, taking away one that has lost a member, news for those in it,
 * and closing the run.
 *
 * Called by legacy_phases.c. The dead are known by their keep-alive keys, whose
 * lifetimes in etcd see to it that nobody waits for them. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "rdzv/legacy_int.h"

#define MEMBER_POLL_MS 15000u

/* ---- Waiting for a running version to end ---- */

int legacy_announce(struct legacy *l, struct legacy_fx *fx)
{
    if (l->doc.status != LEGACY_FINAL || l->doc.version != l->version)
        return legacy_again(l, fx);
    if (legacy_doc_wait(&l->doc) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_ANNOUNCE_PUT, 0);
}

/* The first confirmed member whose key is not in the listing, or NULL. */
static const char *missing(const struct legacy *l, const struct legacy_event *ev)
{
    for (size_t i = 0; i < l->doc.keep_alives; i++) {
        const char *path = legacy_doc_keep_alive(&l->doc, i);
        bool there = false;

        for (size_t k = 0; k < ev->count && !there; k++)
            there = span_eq(ev->nodes[k].key, span_str(path));
        if (!there)
            return path;
    }
    return NULL;
}

/* A running version that has lost a member is dead: whoever waits takes it away. */
int legacy_free_version(struct legacy *l, const struct legacy_event *ev,
                        struct legacy_fx *fx)
{
    const struct etcd2_request del = { .verb = ETCD2_DELETE,
                                       .key = span_str(l->active),
                                       .prev_value = buf_span(&l->text) };
    const char *gone = missing(l, ev);

    if (!gone)
        return legacy_wait(l, fx, LEGACY_PH_FREE_WAIT, true, UINT64_MAX);
    trace(l->trace, TRACE_INFO,
          "Keep-alive key %s is not renewed: rendezvous version %" PRIu64
          " is incomplete",
          gone, l->version);
    return legacy_request(l, fx, LEGACY_PH_FREE_DELETE, &del);
}

/* ---- Being a member ---- */

int legacy_member(struct legacy *l, struct legacy_fx *fx)
{
    if (l->doc.status == LEGACY_FINAL && l->doc.version == l->version) {
        l->waiting = l->doc.waiting;
        if (l->waiting > l->told_waiting)
            legacy_news(l, fx, RDZV_NEWS_WAITING, NULL);
        l->told_waiting = l->waiting;
        return legacy_list(l, fx, LEGACY_PH_MEMBER_LIST);
    }
    if (l->doc.status == LEGACY_CLOSED) {
        legacy_news(l, fx, RDZV_NEWS_CLOSED, NULL);
        l->phase = LEGACY_PH_IDLE; /* for good */
        return 0;
    }
    legacy_news(l, fx, RDZV_NEWS_LOST, "our version of the rendezvous was replaced");
    l->phase = LEGACY_PH_IDLE;
    return 0;
}

int legacy_member_list(struct legacy *l, const struct legacy_event *ev,
                       struct legacy_fx *fx)
{
    const char *gone = missing(l, ev);

    if (gone && !l->told_lost) {
        l->told_lost = true;
        (void)snprintf(l->reason, sizeof l->reason, "keep-alive key %s is not renewed",
                       gone);
        legacy_news(l, fx, RDZV_NEWS_LOST, l->reason);
    }
    return legacy_wait(l, fx, LEGACY_PH_MEMBER_WAIT, true, MEMBER_POLL_MS);
}

/* ---- Closing ---- */

int legacy_close_done(struct legacy *l, struct legacy_fx *fx, int code,
                      const char *text)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_CLOSED,
                                     .code = code,
                                     .text = text };

    l->close = false;
    l->closed = l->closed || code == 0;
    l->phase = LEGACY_PH_IDLE;
    if (code && l->member) /* not closed after all: we are as we were */
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    legacy_emit(fx, &e);
    return 0;
}

int legacy_close_put(struct legacy *l, struct legacy_fx *fx)
{
    if (l->doc.status == LEGACY_CLOSED)
        return legacy_close_done(l, fx, 0, NULL);
    if (legacy_doc_close(&l->doc) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_CLOSE_PUT, 0);
}

/* torch fails here; then nodes that come later would not learn that it is over. */
int legacy_close_nothing(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = span_str(l->active),
                                       .value = span_str("{\"status\": \"closed\"}"),
                                       .prev_exist = ETCD2_MUST_NOT_EXIST };

    return legacy_request(l, fx, LEGACY_PH_CLOSE_NEW, &req);
}

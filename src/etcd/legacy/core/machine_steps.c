/* machine_steps.c - the way into a version: the tree, a version of our own or the one
 * that is there, a place in it, the last call, and everybody's word that it is there.
 *
 * Called by machine_phases.c. The document is made where there is none, or swapped for
 * the one that was read: of two nodes that write, one reads again.
 * Like torch, an attempt that meets anything unexpected begins anew in a second. */
#include "base/err.h"
#include "etcd/legacy/core/machine_int.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SHORT_TTL_S  10u /* of a document that must not outlive its nodes */
#define RUN_TTL_S    7200u
#define CALL_POLL_MS (SHORT_TTL_S * 1000u / 2)

/* ---- The tree ---- */

int legacy_make_next(struct legacy *l, struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .dir = true,
                                 .prev_exist = ETCD2_MUST_NOT_EXIST };
    const struct legacy_effect keep = { .kind = LEGACY_FX_KEEP,
                                        .path = span_str(l->run),
                                        .ttl_s = RUN_TTL_S };

    switch ((int)l->phase) {
    case LEGACY_PH_MAKE_PREFIX:
        req.key = span_str(l->run);
        req.ttl_s = RUN_TTL_S;
        return legacy_request(l, fx, LEGACY_PH_MAKE_RUN, &req);
    case LEGACY_PH_MAKE_RUN:
        legacy_emit(fx, &keep);
        req.key = span_str(l->rdzv);
        return legacy_request(l, fx, LEGACY_PH_MAKE_RDZV, &req);
    case LEGACY_PH_MAKE_RDZV:
        req.dir = false;
        req.key = span_str(l->counter);
        req.value = span_str("0");
        return legacy_request(l, fx, LEGACY_PH_MAKE_COUNTER, &req);
    }
    l->made = true;
    return legacy_again(l, fx);
}

/* ---- A new version ---- */

int legacy_read_counter(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request req = { .key = span_str(l->counter), .quorum = true };

    return legacy_request(l, fx, LEGACY_PH_COUNTER_GET, &req);
}

int legacy_count_version(struct legacy *l, const struct legacy_event *ev,
                         struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .key = span_str(l->counter),
                                 .prev_exist = ETCD2_MUST_EXIST,
                                 .prev_index = ev->modified_index };
    char text[24] = "";
    char *end = text;

    if (ev->value.n < sizeof text)
        memcpy(text, ev->value.p ? ev->value.p : (const uint8_t *)"", ev->value.n);
    l->version = strtoull(text, &end, 10) + 1;
    if (end == text || *end != '\0') {
        legacy_refuse(l, fx, MUSTER_ESTATE,
                      "Unexpected state of EtcdRendezvousHandler: version_counter is "
                      "not a number");
        return 0;
    }
    buf_clear(&l->put);
    if (buf_printf(&l->put, "%" PRIu64, l->version) < 0)
        return MUSTER_ENOMEM;
    req.value = buf_span(&l->put);
    return legacy_request(l, fx, LEGACY_PH_COUNTER_PUT, &req);
}

int legacy_make_version(struct legacy *l, struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .dir = true,
                                 .prev_exist = ETCD2_MUST_NOT_EXIST };

    buf_clear(&l->path);
    if (buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version) < 0)
        return MUSTER_ENOMEM;
    req.key = buf_span(&l->path);
    return legacy_request(l, fx, LEGACY_PH_MAKE_VERSION, &req);
}

int legacy_publish(struct legacy *l, struct legacy_fx *fx)
{
    buf_clear(&l->text);
    legacy_doc_fini(&l->doc);
    if (buf_append_str(&l->text, "{\"status\": \"setup\"}") < 0 ||
        legacy_doc_new(&l->doc, l->version) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_PUBLISH, 0);
}

/* ---- Joining ---- */

int legacy_start_join(struct legacy *l)
{
    l->version = l->doc.version;
    legacy_delay(l, LEGACY_PH_JOIN_DELAY);
    return 0;
}

int legacy_join(struct legacy *l, struct legacy_fx *fx)
{
    uint64_t ttl_s = 0;

    if (l->doc.status != LEGACY_JOINABLE) {
        legacy_later(l, "the version became non-joinable before we could join");
        return 0;
    }
    if (l->doc.version != l->version)
        return legacy_again(l, fx);
    if (l->doc.participants >= (size_t)l->max_nodes) {
        legacy_later(l, "a joinable version has no place left: do all nodes have the "
                        "same --nnodes?");
        return 0;
    }
    l->rank = (int64_t)l->doc.participants;
    if (legacy_doc_join(&l->doc) < 0)
        return MUSTER_ENOMEM;
    assert(l->doc.participants == (size_t)l->rank + 1);
    if (l->doc.participants == (size_t)l->max_nodes) {
        if (legacy_doc_freeze(&l->doc) < 0)
            return MUSTER_ENOMEM;
        ttl_s = SHORT_TTL_S;
    } else if (l->doc.participants >= (size_t)l->min_nodes) {
        ttl_s = SHORT_TTL_S;
    }
    return legacy_swap(l, fx, LEGACY_PH_JOIN_PUT, ttl_s);
}

int legacy_joined(struct legacy *l, struct legacy_fx *fx)
{
    if (l->rank == l->min_nodes - 1 && l->doc.status == LEGACY_JOINABLE) {
        l->call_by_ms = l->now.mono_ms + l->last_call_ms;
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    }
    return legacy_get(l, fx, LEGACY_PH_PEERS_GET);
}

/* The last call is ours: keep the document alive until it is over, then freeze it. */
int legacy_last_call(struct legacy *l, struct legacy_fx *fx)
{
    const bool ours = l->doc.version == l->version;

    if (ours && l->doc.status == LEGACY_FROZEN) {
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
        return 0;
    }
    if (!ours || l->doc.status != LEGACY_JOINABLE) {
        legacy_later(l, "the version changed during its last call");
        return 0;
    }
    if (l->now.mono_ms < l->call_by_ms)
        return legacy_swap(l, fx, LEGACY_PH_CALL_KEEP, SHORT_TTL_S);
    if (legacy_doc_freeze(&l->doc) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_CALL_FREEZE, SHORT_TTL_S);
}

int legacy_hold_call(struct legacy *l, struct legacy_fx *fx)
{
    const uint64_t left =
        l->call_by_ms > l->now.mono_ms ? l->call_by_ms - l->now.mono_ms : 0;

    return legacy_wait(l, fx, LEGACY_PH_CALL_WAIT, false,
                       MIN_OF(CALL_POLL_MS, left + 1));
}

int legacy_peers(struct legacy *l, struct legacy_fx *fx)
{
    const bool ours = l->doc.version == l->version;

    if (ours && l->doc.status == LEGACY_JOINABLE)
        return legacy_wait(l, fx, LEGACY_PH_PEERS_WAIT, false, UINT64_MAX);
    if (ours && l->doc.status == LEGACY_FROZEN)
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
    else
        legacy_later(l, "the version changed before all had come");
    return 0;
}

/* ---- Confirming ---- */

int legacy_confirm(struct legacy *l, struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT, .ttl_s = SHORT_TTL_S };

    if (l->doc.status != LEGACY_FROZEN || l->doc.version != l->version)
        return legacy_again(l, fx);
    buf_clear(&l->rank_path);
    if (buf_printf(&l->rank_path, "%s/v_%" PRIu64 "/rank_%" PRId64, l->rdzv, l->version,
                   l->rank) < 0 ||
        buf_u8(&l->rank_path, 0) < 0)
        return MUSTER_ENOMEM;
    req.key = span_of(buf_data(&l->rank_path), buf_len(&l->rank_path) - 1);
    return legacy_request(l, fx, LEGACY_PH_CONFIRM_KEY, &req);
}

int legacy_confirm_put(struct legacy *l, struct legacy_fx *fx)
{
    if (legacy_doc_confirm(&l->doc, (const char *)buf_data(&l->rank_path)) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_CONFIRM_PUT,
                       l->doc.status == LEGACY_FINAL ? 0 : SHORT_TTL_S);
}

int legacy_confirmed(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect keep = {
        .kind = LEGACY_FX_KEEP,
        .path = span_of(buf_data(&l->rank_path), buf_len(&l->rank_path) - 1),
        .ttl_s = SHORT_TTL_S,
        .rank = true,
    };

    assert(buf_len(&l->rank_path) > 1);

    legacy_emit(fx, &keep);
    return legacy_get(l, fx, LEGACY_PH_FINAL_GET);
}

int legacy_final(struct legacy *l, struct legacy_fx *fx)
{
    const bool ours = l->doc.version == l->version;
    struct legacy_effect e = { .kind = LEGACY_FX_JOINED,
                               .version = l->version,
                               .node_rank = l->rank,
                               .world = (int64_t)l->doc.participants };

    if (ours && l->doc.status == LEGACY_FROZEN)
        return legacy_wait(l, fx, LEGACY_PH_FINAL_WAIT, false, UINT64_MAX);
    if (!ours || l->doc.status != LEGACY_FINAL ||
        l->rank >= (int64_t)l->doc.participants) {
        legacy_later(l, "the version changed before all had confirmed");
        return 0;
    }
    buf_clear(&l->path);
    if (buf_printf(&l->path, "%s/v_%" PRIu64 "/kv/", l->rdzv, l->version) < 0)
        return MUSTER_ENOMEM;
    e.path = buf_span(&l->path);
    legacy_emit(fx, &e);
    l->joining = false;
    l->member = true;
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, LEGACY_COALESCE_MS);
    return 0;
}

/* Beside a running version, in it, and its end: waiting for a version
 * that runs without us, taking away one that has lost a member, news for those in it,
 * and closing the run.
 *
 * Called by machine_phases.c. The dead are known by their keep-alive keys, whose
 * lifetimes in etcd see to it that nobody waits for them. */
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
    assert(l->member && !l->joining);
    if (l->doc.status == LEGACY_FINAL && l->doc.version == l->version) {
        l->waiting = l->doc.waiting;
        if (l->waiting > l->notified_waiting)
            legacy_news(l, fx, RDZV_NEWS_WAITING, NULL);
        l->notified_waiting = l->waiting;
        return legacy_list(l, fx, LEGACY_PH_MEMBER_LIST);
    }
    if (l->doc.status == LEGACY_CLOSED) {
        if (!l->notified_closed)
            legacy_news(l, fx, RDZV_NEWS_CLOSED, NULL);
        l->notified_closed = true;
        if (l->doc.version ==
            l->version) /* A node that is done waits for the others. */
            return legacy_list(l, fx, LEGACY_PH_MEMBER_LIST);
    }
    legacy_news(l, fx, RDZV_NEWS_EVICTED, "our version of the rendezvous was replaced");
    l->phase = LEGACY_PH_IDLE; /* for good */
    return 0;
}

int legacy_member_list(struct legacy *l, const struct legacy_event *ev,
                       struct legacy_fx *fx)
{
    const char *gone = missing(l, ev);

    if (gone && !l->notified_lost) {
        l->notified_lost = true;
        (void)snprintf(l->reason, sizeof l->reason, "keep-alive key %s is not renewed",
                       gone);
        legacy_news(l, fx, l->notified_closed ? RDZV_NEWS_DESERTED : RDZV_NEWS_LOST,
                    l->reason);
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

    assert(l->close && code <= 0);
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

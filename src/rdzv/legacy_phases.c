/* legacy_phases.c - what each phase makes of its answer: torch's state machine.
 *
 * Phases that read the document share take_doc(); then on_doc() decides by phase and
 * status. Like torch, an attempt that meets anything unexpected begins anew in a
 * second; the documents' lifetimes in etcd see to it that nobody waits for the dead. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "rdzv/legacy_int.h"

#define SHORT_TTL_S    10u /* of a document that must not outlive its nodes */
#define RUN_TTL_S      7200u
#define CALL_POLL_MS   (SHORT_TTL_S * 1000u / 2)
#define MEMBER_POLL_MS 15000u
#define COALESCE_MS    200u

static int on_doc(struct legacy *l, struct legacy_fx *fx);

/* ---- The tree ---- */

static int make_next(struct legacy *l, struct legacy_fx *fx)
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

static int count_version(struct legacy *l, const struct legacy_event *ev,
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
        legacy_refuse(
            l, fx, MUSTER_ESTATE,
            "Unexpected state of EtcdRendezvousHandler: version_counter is no "
            "number");
        return 0;
    }
    buf_clear(&l->put);
    if (buf_printf(&l->put, "%" PRIu64, l->version) < 0)
        return MUSTER_ENOMEM;
    req.value = buf_span(&l->put);
    return legacy_request(l, fx, LEGACY_PH_COUNTER_PUT, &req);
}

static int make_version(struct legacy *l, struct legacy_fx *fx)
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

static int publish(struct legacy *l, struct legacy_fx *fx)
{
    buf_clear(&l->text);
    legacy_doc_fini(&l->doc);
    if (buf_append_str(&l->text, "{\"status\": \"setup\"}") < 0 ||
        legacy_doc_new(&l->doc, l->version) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_PUBLISH, 0);
}

/* ---- Joining ---- */

static int start_join(struct legacy *l)
{
    l->version = l->doc.version;
    legacy_delay(l, LEGACY_PH_JOIN_DELAY);
    return 0;
}

static int join(struct legacy *l, struct legacy_fx *fx)
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
    if (l->doc.participants == (size_t)l->max_nodes) {
        if (legacy_doc_freeze(&l->doc) < 0)
            return MUSTER_ENOMEM;
        ttl_s = SHORT_TTL_S;
    } else if (l->doc.participants >= (size_t)l->min_nodes) {
        ttl_s = SHORT_TTL_S;
    }
    return legacy_swap(l, fx, LEGACY_PH_JOIN_PUT, ttl_s);
}

static int joined(struct legacy *l, struct legacy_fx *fx)
{
    if (l->rank == l->min_nodes - 1 && l->doc.status == LEGACY_JOINABLE) {
        l->call_by_ms = l->now.mono_ms + l->last_call_ms;
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    }
    return legacy_get(l, fx, LEGACY_PH_PEERS_GET);
}

/* The last call is ours: keep the document alive until it is over, then freeze it. */
static int last_call(struct legacy *l, struct legacy_fx *fx)
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

static int peers(struct legacy *l, struct legacy_fx *fx)
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

static int confirm(struct legacy *l, struct legacy_fx *fx)
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

static int confirm_doc(struct legacy *l, struct legacy_fx *fx)
{
    if (legacy_doc_confirm(&l->doc, (const char *)buf_data(&l->rank_path)) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_CONFIRM_PUT,
                       l->doc.status == LEGACY_FINAL ? 0 : SHORT_TTL_S);
}

static int confirmed(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect keep = {
        .kind = LEGACY_FX_KEEP,
        .path = span_of(buf_data(&l->rank_path), buf_len(&l->rank_path) - 1),
        .ttl_s = SHORT_TTL_S,
        .rank = true,
    };

    legacy_emit(fx, &keep);
    return legacy_get(l, fx, LEGACY_PH_FINAL_GET);
}

static int final(struct legacy *l, struct legacy_fx *fx)
{
    const bool ours = l->doc.version == l->version;
    struct legacy_effect e = { .kind = LEGACY_FX_JOINED,
                               .version = l->version,
                               .node_rank = l->rank,
                               .world = (int64_t)l->doc.participants };

    if (ours && l->doc.status == LEGACY_FROZEN)
        return legacy_wait(l, fx, LEGACY_PH_FINAL_WAIT, false, UINT64_MAX);
    if (!ours || l->doc.status != LEGACY_FINAL) {
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
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, COALESCE_MS);
    return 0;
}

/* ---- Waiting for a running version to end ---- */

static int announce(struct legacy *l, struct legacy_fx *fx)
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
static int free_version(struct legacy *l, const struct legacy_event *ev,
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

static int member(struct legacy *l, struct legacy_fx *fx)
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

static int member_list(struct legacy *l, const struct legacy_event *ev,
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

static int closed(struct legacy *l, struct legacy_fx *fx, int code, const char *text)
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

static int close_doc(struct legacy *l, struct legacy_fx *fx)
{
    if (l->doc.status == LEGACY_CLOSED)
        return closed(l, fx, 0, NULL);
    if (legacy_doc_close(&l->doc) < 0)
        return MUSTER_ENOMEM;
    return legacy_swap(l, fx, LEGACY_PH_CLOSE_PUT, 0);
}

/* torch fails here; then nodes that come later would not learn that it is over. */
static int close_nothing(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = span_str(l->active),
                                       .value = span_str("{\"status\": \"closed\"}"),
                                       .prev_exist = ETCD2_MUST_NOT_EXIST };

    return legacy_request(l, fx, LEGACY_PH_CLOSE_NEW, &req);
}

/* ---- Answers ---- */

/* A document has been read: what it means to the phase that asked. */
static int on_doc(struct legacy *l, struct legacy_fx *fx)
{
    l->closed = l->doc.status == LEGACY_CLOSED;
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK:
        break;
    case LEGACY_PH_JOIN_GET:
        return join(l, fx);
    case LEGACY_PH_CALL_GET:
        return last_call(l, fx);
    case LEGACY_PH_PEERS_GET:
        return peers(l, fx);
    case LEGACY_PH_CONFIRM_GET:
        return confirm(l, fx);
    case LEGACY_PH_FINAL_GET:
        return final(l, fx);
    case LEGACY_PH_ANNOUNCE_GET:
        return announce(l, fx);
    case LEGACY_PH_FREE_GET:
        if (l->doc.status == LEGACY_FINAL && l->doc.version == l->version)
            return legacy_list(l, fx, LEGACY_PH_FREE_LIST);
        return legacy_again(l, fx);
    case LEGACY_PH_MEMBER_GET:
        return member(l, fx);
    case LEGACY_PH_CLOSE_GET:
        return close_doc(l, fx);
    }
    switch (l->doc.status) {
    case LEGACY_CLOSED:
        legacy_refuse(l, fx, MUSTER_ECLOSED, "the run id was closed");
        return 0;
    case LEGACY_JOINABLE:
        return start_join(l);
    case LEGACY_FINAL:
        l->version = l->doc.version;
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return 0;
    case LEGACY_SETUP:
    case LEGACY_FROZEN:
        break;
    }
    return legacy_wait(l, fx, LEGACY_PH_LOOK_WAIT, false, UINT64_MAX);
}

static int take_doc(struct legacy *l, const struct legacy_event *ev,
                    struct legacy_fx *fx)
{
    struct muster_error err = { 0 };
    int rc;

    legacy_doc_fini(&l->doc);
    buf_clear(&l->text);
    if (buf_append_span(&l->text, ev->value) < 0)
        return MUSTER_ENOMEM;
    l->index = ev->index;
    rc = legacy_doc_read(&l->doc, ev->value, &err);
    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc == 0)
        return on_doc(l, fx);
    (void)snprintf(l->reason, sizeof l->reason, "%s", err.text);
    if (l->joining) {
        legacy_refuse(l, fx, MUSTER_ESTATE, l->reason);
    } else if (l->close) {
        return closed(l, fx, MUSTER_ESTATE, l->reason);
    } else {
        legacy_news(l, fx, RDZV_NEWS_BACKEND, l->reason);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
    return 0;
}

/* The request went wrong in a way that its phase has no answer to. */
static int on_failure(struct legacy *l, const struct legacy_event *ev,
                      struct legacy_fx *fx)
{
    const char *text = ev->text && ev->text[0] ? ev->text : "the request failed";

    if (l->close)
        return closed(l, fx, ev->code, text);
    if (l->joining && ev->fatal) {
        legacy_refuse(l, fx, ev->code, text);
        return 0;
    }
    if (l->joining) {
        legacy_later(l, text);
        return 0;
    }
    if (l->member) {
        if (ev->code == MUSTER_ENOENT && l->phase == LEGACY_PH_MEMBER_GET) {
            legacy_news(l, fx, RDZV_NEWS_LOST,
                        "our version of the rendezvous was taken down");
            l->phase = LEGACY_PH_IDLE;
            return 0;
        }
        if (ev->code != MUSTER_ENOENT)
            legacy_news(l, fx, RDZV_NEWS_BACKEND, text);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
    return 0;
}

/* Our write is done. */
static int on_done(struct legacy *l, const struct legacy_event *ev,
                   struct legacy_fx *fx)
{
    l->index = ev->index;
    switch ((int)l->phase) {
    case LEGACY_PH_CREATE: {
        const struct etcd2_request req = { .key = span_str(l->counter),
                                           .quorum = true };

        return legacy_request(l, fx, LEGACY_PH_COUNTER_GET, &req);
    }
    case LEGACY_PH_COUNTER_GET:
        return count_version(l, ev, fx);
    case LEGACY_PH_COUNTER_PUT:
        return make_version(l, fx);
    case LEGACY_PH_MAKE_VERSION:
        return publish(l, fx);
    case LEGACY_PH_PUBLISH:
        return start_join(l);
    case LEGACY_PH_JOIN_PUT:
        return joined(l, fx);
    case LEGACY_PH_CALL_KEEP: {
        const uint64_t left =
            l->call_by_ms > l->now.mono_ms ? l->call_by_ms - l->now.mono_ms : 0;

        return legacy_wait(l, fx, LEGACY_PH_CALL_WAIT, false,
                           MIN_OF(CALL_POLL_MS, left + 1));
    }
    case LEGACY_PH_CALL_FREEZE:
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
        return 0;
    case LEGACY_PH_CONFIRM_KEY:
        return confirm_doc(l, fx);
    case LEGACY_PH_CONFIRM_PUT:
        return confirmed(l, fx);
    case LEGACY_PH_ANNOUNCE_PUT:
        return legacy_get(l, fx, LEGACY_PH_FREE_GET);
    case LEGACY_PH_FREE_LIST:
        return free_version(l, ev, fx);
    case LEGACY_PH_FREE_DELETE:
        return legacy_again(l, fx);
    case LEGACY_PH_MEMBER_LIST:
        return member_list(l, ev, fx);
    case LEGACY_PH_CLOSE_PUT:
    case LEGACY_PH_CLOSE_NEW:
        return closed(l, fx, 0, NULL);
    }
    return 0;
}

/* Somebody else's write came first. */
static int on_lost(struct legacy *l, const struct legacy_event *ev,
                   struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_MAKE_PREFIX:
    case LEGACY_PH_MAKE_RUN:
    case LEGACY_PH_MAKE_RDZV:
    case LEGACY_PH_MAKE_COUNTER:
        return make_next(l, fx);
    case LEGACY_PH_CREATE:
        return legacy_get(l, fx, LEGACY_PH_LOOK);
    case LEGACY_PH_COUNTER_PUT:
        legacy_refuse(
            l, fx, MUSTER_ESTATE,
            "Unexpected state of EtcdRendezvousHandler, worker needs to die.");
        return 0;
    case LEGACY_PH_JOIN_PUT:
        legacy_delay(l, LEGACY_PH_JOIN_DELAY);
        return 0;
    case LEGACY_PH_CALL_KEEP:
    case LEGACY_PH_CALL_FREEZE:
        legacy_delay(l, LEGACY_PH_CALL_DELAY);
        return 0;
    case LEGACY_PH_CONFIRM_PUT:
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
        return 0;
    case LEGACY_PH_ANNOUNCE_PUT:
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return 0;
    case LEGACY_PH_FREE_DELETE:
        return legacy_again(l, fx);
    case LEGACY_PH_CLOSE_PUT:
    case LEGACY_PH_CLOSE_NEW:
        legacy_delay(l, LEGACY_PH_CLOSE_DELAY);
        return 0;
    }
    return on_failure(l, ev, fx);
}

/* A wait is over, with or without an event: read again. */
static int on_waited(struct legacy *l, struct legacy_fx *fx)
{
    if (l->joining && l->now.mono_ms > l->join_by_ms)
        return legacy_again(l, fx); /* which gives up */
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK_WAIT:
        legacy_later(l, "somebody else is setting up or completing a version");
        return 0;
    case LEGACY_PH_CALL_WAIT:
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    case LEGACY_PH_PEERS_WAIT:
        return legacy_get(l, fx, LEGACY_PH_PEERS_GET);
    case LEGACY_PH_FINAL_WAIT:
        return legacy_get(l, fx, LEGACY_PH_FINAL_GET);
    case LEGACY_PH_FREE_WAIT:
        return legacy_get(l, fx, LEGACY_PH_FREE_GET);
    case LEGACY_PH_MEMBER_WAIT:
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, COALESCE_MS);
        return 0;
    }
    return 0;
}

int legacy_on_reply(struct legacy *l, const struct legacy_event *ev,
                    struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK:
    case LEGACY_PH_JOIN_GET:
    case LEGACY_PH_CALL_GET:
    case LEGACY_PH_PEERS_GET:
    case LEGACY_PH_CONFIRM_GET:
    case LEGACY_PH_FINAL_GET:
    case LEGACY_PH_ANNOUNCE_GET:
    case LEGACY_PH_FREE_GET:
    case LEGACY_PH_MEMBER_GET:
        return ev->code == 0 ? take_doc(l, ev, fx) : on_failure(l, ev, fx);
    case LEGACY_PH_CLOSE_GET:
        if (ev->code == MUSTER_ENOENT)
            return close_nothing(l, fx);
        return ev->code == 0 ? take_doc(l, ev, fx) : on_failure(l, ev, fx);
    case LEGACY_PH_LOOK_WAIT:
    case LEGACY_PH_CALL_WAIT:
    case LEGACY_PH_PEERS_WAIT:
    case LEGACY_PH_FINAL_WAIT:
    case LEGACY_PH_FREE_WAIT:
    case LEGACY_PH_MEMBER_WAIT:
        if (ev->code == 0 || ev->code == MUSTER_ETIMEDOUT || ev->code == MUSTER_ESTATE)
            return on_waited(l, fx);
        return on_failure(l, ev, fx);
    case LEGACY_PH_MAKE_PREFIX:
    case LEGACY_PH_MAKE_RUN:
    case LEGACY_PH_MAKE_RDZV:
    case LEGACY_PH_MAKE_COUNTER:
        if (ev->code == 0)
            return make_next(l, fx);
        break;
    }
    if (ev->code == 0)
        return on_done(l, ev, fx);
    if (ev->code == MUSTER_EEXIST)
        return on_lost(l, ev, fx);
    if (ev->code == MUSTER_ENOENT && l->phase == LEGACY_PH_CREATE)
        l->made = false; /* The tree has expired: make it again. */
    return on_failure(l, ev, fx);
}

int legacy_on_timer(struct legacy *l, struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_RETRY:
        return legacy_again(l, fx);
    case LEGACY_PH_JOIN_DELAY:
        return legacy_get(l, fx, LEGACY_PH_JOIN_GET);
    case LEGACY_PH_CALL_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    case LEGACY_PH_CONFIRM_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CONFIRM_GET);
    case LEGACY_PH_ANNOUNCE_DELAY:
        return legacy_get(l, fx, LEGACY_PH_ANNOUNCE_GET);
    case LEGACY_PH_MEMBER_DELAY:
        return legacy_get(l, fx, LEGACY_PH_MEMBER_GET);
    case LEGACY_PH_CLOSE_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CLOSE_GET);
    }
    return 0;
}

/* machine_phases.c - torch's state machine: the steps, and the table of which one
 * follows which answer.
 *
 * The way into a version: the tree, a version of our own or the one that is there, a
 * place in it, the last call, and everybody's word that it is there. Beside a running
 * version: wait for its end, and take it away if it has lost a member. In it: news. And
 * closing the run.
 *
 * The document is made where there is none, or swapped for the one that was read: of
 * two nodes that write, one reads again. Like torch, an attempt that meets anything
 * unexpected begins anew in a second. The dead are known by their keep-alive keys,
 * whose lifetimes in etcd see to it that nobody waits for them. */
#include "base/err.h"
#include "etcd/legacy/core/machine_int.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SHORT_TTL_S    10u /* of a document that must not outlive its nodes */
#define RUN_TTL_S      7200u
#define CALL_POLL_MS   (SHORT_TTL_S * 1000u / 2)
#define MEMBER_POLL_MS 15000u

/* Whether the document is the version that we are in, or try to join. */
static bool legacy_is_ours(const struct legacy *l, enum legacy_status status)
{
    return l->doc.version == l->version && l->doc.status == status;
}

/* The keep-alive key of our rank; the NUL behind it is not part of the key. */
static struct span legacy_rank_key(const struct legacy *l)
{
    return span_of(buf_data(&l->rank_path), buf_len(&l->rank_path) - 1);
}

/* ---- The tree ---- */

static void legacy_make_next(struct legacy *l, struct legacy_fx *fx)
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
        legacy_request(l, fx, LEGACY_PH_MAKE_RUN, &req);
        return;
    case LEGACY_PH_MAKE_RUN:
        legacy_emit(fx, &keep);
        req.key = span_str(l->rdzv);
        legacy_request(l, fx, LEGACY_PH_MAKE_RDZV, &req);
        return;
    case LEGACY_PH_MAKE_RDZV:
        req.dir = false;
        req.key = span_str(l->counter);
        req.value = span_str("0");
        legacy_request(l, fx, LEGACY_PH_MAKE_COUNTER, &req);
        return;
    }
    l->made = true;
    legacy_again(l, fx);
}

/* ---- A new version ---- */

static void legacy_read_counter(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request req = { .key = span_str(l->counter), .quorum = true };

    legacy_request(l, fx, LEGACY_PH_COUNTER_GET, &req);
}

static void legacy_count_version(struct legacy *l, struct legacy_fx *fx)
{
    const struct span value = l->ev->value;
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .key = span_str(l->counter),
                                 .prev_exist = ETCD2_MUST_EXIST,
                                 .prev_index = l->ev->modified_index };
    char text[24] = "";
    char *end = text;

    if (value.n < sizeof text)
        memcpy(text, value.p ? value.p : (const uint8_t *)"", value.n);
    l->version = strtoull(text, &end, 10) + 1;
    if (end == text || *end != '\0') {
        legacy_refuse(l, fx, MUSTER_ESTATE,
                      "Unexpected state of EtcdRendezvousHandler: version_counter is "
                      "not a number");
        return;
    }
    buf_clear(&l->put);
    (void)buf_printf(&l->put, "%" PRIu64, l->version);
    req.value = buf_span(&l->put);
    legacy_request(l, fx, LEGACY_PH_COUNTER_PUT, &req);
}

/* We were away, and our setup document expired. */
static void legacy_counted_by_another(struct legacy *l, struct legacy_fx *fx)
{
    (void)fx;
    legacy_later(l, "somebody else has counted a version meanwhile");
}

static void legacy_make_version(struct legacy *l, struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .dir = true,
                                 .prev_exist = ETCD2_MUST_NOT_EXIST };

    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version);
    req.key = buf_span(&l->path);
    legacy_request(l, fx, LEGACY_PH_MAKE_VERSION, &req);
}

static void legacy_publish(struct legacy *l, struct legacy_fx *fx)
{
    buf_clear(&l->text);
    legacy_doc_fini(&l->doc);
    (void)buf_append_str(&l->text, "{\"status\": \"setup\"}");
    legacy_no_memory(l, legacy_doc_new(&l->doc, l->version));
    legacy_swap(l, fx, LEGACY_PH_PUBLISH, 0);
}

/* ---- Joining ---- */

static void legacy_start_join(struct legacy *l, struct legacy_fx *fx)
{
    (void)fx;
    l->version = l->doc.version;
    legacy_delay(l, LEGACY_PH_JOIN_DELAY);
}

static void legacy_look(struct legacy *l, struct legacy_fx *fx)
{
    switch (l->doc.status) {
    case LEGACY_CLOSED:
        legacy_refuse(l, fx, MUSTER_ECLOSED, "the run id was closed");
        return;
    case LEGACY_JOINABLE:
        legacy_start_join(l, fx);
        return;
    case LEGACY_FINAL:
        l->version = l->doc.version;
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return;
    case LEGACY_SETUP:
    case LEGACY_FROZEN:
        legacy_wait(l, fx, LEGACY_PH_LOOK_WAIT, false, UINT64_MAX);
        return;
    }
}

static void legacy_look_again(struct legacy *l, struct legacy_fx *fx)
{
    (void)fx;
    if (l->ev->code == 0) /* torch sleeps a second, and may sleep past a last call */
        legacy_delay(l, LEGACY_PH_RETRY);
    else
        legacy_later(l, "somebody else is setting up or completing a version");
}

static void legacy_join(struct legacy *l, struct legacy_fx *fx)
{
    uint64_t ttl_s = 0;

    if (l->doc.status != LEGACY_JOINABLE) {
        legacy_later(l, "the version became non-joinable before we could join");
        return;
    }
    if (l->doc.version != l->version) {
        legacy_again(l, fx);
        return;
    }
    if (l->doc.participants >= (size_t)l->max_nodes) {
        legacy_later(l, "a joinable version has no place left: do all nodes have the "
                        "same --nnodes?");
        return;
    }
    l->rank = (int64_t)l->doc.participants;
    legacy_no_memory(l, legacy_doc_join(&l->doc));
    if (l->doc.participants >= (size_t)l->min_nodes)
        ttl_s = SHORT_TTL_S;
    if (l->doc.participants == (size_t)l->max_nodes) {
        legacy_no_memory(l, legacy_doc_freeze(&l->doc));
        ttl_s = SHORT_TTL_S;
    }
    legacy_swap(l, fx, LEGACY_PH_JOIN_PUT, ttl_s);
}

static void legacy_joined(struct legacy *l, struct legacy_fx *fx)
{
    if (l->rank == l->min_nodes - 1 && l->doc.status == LEGACY_JOINABLE) {
        l->call_by_ms = l->now.mono_ms + l->last_call_ms;
        legacy_get(l, fx, LEGACY_PH_CALL_GET);
    } else {
        legacy_get(l, fx, LEGACY_PH_PEERS_GET);
    }
}

/* The last call is ours: keep the document alive until it is over, then freeze it. */
static void legacy_last_call(struct legacy *l, struct legacy_fx *fx)
{
    if (legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
    } else if (!legacy_is_ours(l, LEGACY_JOINABLE)) {
        legacy_later(l, "the version changed during its last call");
    } else if (l->now.mono_ms < l->call_by_ms) {
        legacy_swap(l, fx, LEGACY_PH_CALL_KEEP, SHORT_TTL_S);
    } else {
        legacy_no_memory(l, legacy_doc_freeze(&l->doc));
        legacy_swap(l, fx, LEGACY_PH_CALL_FREEZE, SHORT_TTL_S);
    }
}

static void legacy_hold_call(struct legacy *l, struct legacy_fx *fx)
{
    const uint64_t left =
        l->call_by_ms > l->now.mono_ms ? l->call_by_ms - l->now.mono_ms : 0;

    legacy_wait(l, fx, LEGACY_PH_CALL_WAIT, false, MIN_OF(CALL_POLL_MS, left + 1));
}

static void legacy_peers(struct legacy *l, struct legacy_fx *fx)
{
    if (legacy_is_ours(l, LEGACY_JOINABLE))
        legacy_wait(l, fx, LEGACY_PH_PEERS_WAIT, false, UINT64_MAX);
    else if (legacy_is_ours(l, LEGACY_FROZEN))
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
    else
        legacy_later(l, "the version changed before all had come");
}

/* ---- Confirming ---- */

static void legacy_confirm_soon(struct legacy *l, struct legacy_fx *fx)
{
    (void)fx;
    legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
}

static void legacy_confirm(struct legacy *l, struct legacy_fx *fx)
{
    struct etcd2_request req = { .verb = ETCD2_PUT, .ttl_s = SHORT_TTL_S };

    if (!legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_again(l, fx);
        return;
    }
    buf_clear(&l->rank_path);
    (void)buf_printf(&l->rank_path, "%s/v_%" PRIu64 "/rank_%" PRId64, l->rdzv,
                     l->version, l->rank);
    (void)buf_u8(&l->rank_path, 0);
    req.key = legacy_rank_key(l);
    legacy_request(l, fx, LEGACY_PH_CONFIRM_KEY, &req);
}

static void legacy_confirm_put(struct legacy *l, struct legacy_fx *fx)
{
    legacy_no_memory(
        l, legacy_doc_confirm(&l->doc, (const char *)buf_data(&l->rank_path)));
    legacy_swap(l, fx, LEGACY_PH_CONFIRM_PUT,
                l->doc.status == LEGACY_FINAL ? 0 : SHORT_TTL_S);
}

static void legacy_confirmed(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect keep = { .kind = LEGACY_FX_KEEP,
                                        .path = legacy_rank_key(l),
                                        .ttl_s = SHORT_TTL_S,
                                        .rank = true };

    legacy_emit(fx, &keep);
    legacy_get(l, fx, LEGACY_PH_FINAL_GET);
}

static void legacy_final(struct legacy *l, struct legacy_fx *fx)
{
    struct legacy_effect e = { .kind = LEGACY_FX_JOINED,
                               .version = l->version,
                               .node_rank = l->rank,
                               .world = (int64_t)l->doc.participants };

    if (legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_wait(l, fx, LEGACY_PH_FINAL_WAIT, false, UINT64_MAX);
        return;
    }
    if (!legacy_is_ours(l, LEGACY_FINAL) || l->rank >= (int64_t)l->doc.participants) {
        legacy_later(l, "the version changed before all had confirmed");
        return;
    }
    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64 "/kv/", l->rdzv, l->version);
    e.path = buf_span(&l->path);
    legacy_emit(fx, &e);
    l->joining = false;
    l->member = true;
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, LEGACY_COALESCE_MS);
}

/* ---- Waiting for a running version to end ---- */

static void legacy_announce(struct legacy *l, struct legacy_fx *fx)
{
    if (!legacy_is_ours(l, LEGACY_FINAL)) {
        legacy_again(l, fx);
        return;
    }
    legacy_no_memory(l, legacy_doc_wait(&l->doc));
    legacy_swap(l, fx, LEGACY_PH_ANNOUNCE_PUT, 0);
}

static void legacy_announced(struct legacy *l, struct legacy_fx *fx)
{
    legacy_get(l, fx, LEGACY_PH_FREE_GET);
}

static void legacy_list_members(struct legacy *l, struct legacy_fx *fx)
{
    if (legacy_is_ours(l, LEGACY_FINAL))
        legacy_list(l, fx, LEGACY_PH_FREE_LIST);
    else
        legacy_again(l, fx);
}

/* The first confirmed member whose key is not in the listing, or NULL. */
static const char *legacy_missing(const struct legacy *l)
{
    for (size_t i = 0; i < l->doc.keep_alives; i++) {
        const char *path = legacy_doc_keep_alive(&l->doc, i);
        bool there = false;

        for (size_t k = 0; k < l->ev->count && !there; k++)
            there = span_eq(l->ev->nodes[k].key, span_str(path));
        if (!there)
            return path;
    }
    return NULL;
}

/* A running version that has lost a member is dead: whoever waits takes it away. */
static void legacy_free_version(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request del = { .verb = ETCD2_DELETE,
                                       .key = span_str(l->active),
                                       .prev_value = buf_span(&l->text) };
    const char *gone = legacy_missing(l);

    if (!gone) {
        legacy_wait(l, fx, LEGACY_PH_FREE_WAIT, true, UINT64_MAX);
        return;
    }
    log_line(l->log, LOG_INFO, AT_RENDEZVOUS,
             "Keep-alive key %s is not renewed: rendezvous version %" PRIu64
             " is incomplete",
             gone, l->version);
    legacy_request(l, fx, LEGACY_PH_FREE_DELETE, &del);
}

/* ---- Being a member ---- */

static void legacy_member(struct legacy *l, struct legacy_fx *fx)
{
    assert(l->member && !l->joining);
    if (legacy_is_ours(l, LEGACY_FINAL)) {
        l->waiting = l->doc.waiting;
        if (l->waiting > l->notified_waiting)
            legacy_news(fx, RDZV_NEWS_WAITING, NULL);
        l->notified_waiting = l->waiting;
        legacy_list(l, fx, LEGACY_PH_MEMBER_LIST);
        return;
    }
    if (l->doc.status == LEGACY_CLOSED && !l->notified_closed) {
        legacy_news(fx, RDZV_NEWS_CLOSED, NULL);
        l->notified_closed = true;
    }
    if (legacy_is_ours(l,
                       LEGACY_CLOSED)) { /* A node that is done waits for the others. */
        legacy_list(l, fx, LEGACY_PH_MEMBER_LIST);
        return;
    }
    legacy_news(fx, RDZV_NEWS_EVICTED, "our version of the rendezvous was replaced");
    l->phase = LEGACY_PH_IDLE; /* for good */
}

static void legacy_member_list(struct legacy *l, struct legacy_fx *fx)
{
    const char *gone = legacy_missing(l);

    if (gone && !l->notified_lost) {
        l->notified_lost = true;
        (void)snprintf(l->reason, sizeof l->reason, "keep-alive key %s is not renewed",
                       gone);
        legacy_news(fx, l->notified_closed ? RDZV_NEWS_DESERTED : RDZV_NEWS_LOST,
                    l->reason);
    }
    legacy_wait(l, fx, LEGACY_PH_MEMBER_WAIT, true, MEMBER_POLL_MS);
}

static void legacy_member_again(struct legacy *l, struct legacy_fx *fx)
{
    (void)fx;
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, LEGACY_COALESCE_MS);
}

/* ---- Closing ---- */

static void legacy_end_close(struct legacy *l, struct legacy_fx *fx, int code,
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
}

static void legacy_close_done(struct legacy *l, struct legacy_fx *fx)
{
    legacy_end_close(l, fx, 0, NULL);
}

static void legacy_close_put(struct legacy *l, struct legacy_fx *fx)
{
    if (l->doc.status == LEGACY_CLOSED) {
        legacy_close_done(l, fx);
        return;
    }
    legacy_no_memory(l, legacy_doc_close(&l->doc));
    legacy_swap(l, fx, LEGACY_PH_CLOSE_PUT, 0);
}

/* torch fails here; then nodes that come later would not learn that it is over. */
static void legacy_close_nothing(struct legacy *l, struct legacy_fx *fx)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = span_str(l->active),
                                       .value = span_str("{\"status\": \"closed\"}"),
                                       .prev_exist = ETCD2_MUST_NOT_EXIST };

    legacy_request(l, fx, LEGACY_PH_CLOSE_NEW, &req);
}

/* ---- Which step follows which answer ---- */

/* The request went wrong in a way that its phase has no answer to. */
static void legacy_on_failure(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_event *ev = l->ev;
    const char *text = ev->text && ev->text[0] ? ev->text : "the request failed";

    if (l->close) {
        legacy_end_close(l, fx, ev->code, text);
    } else if (l->joining && ev->fatal) {
        legacy_refuse(l, fx, ev->code, text);
    } else if (l->joining) {
        legacy_later(l, text);
    } else if (l->member && ev->code == MUSTER_ENOENT &&
               l->phase == LEGACY_PH_MEMBER_GET) {
        legacy_news(fx, RDZV_NEWS_LOST, "our version of the rendezvous was taken down");
        l->phase = LEGACY_PH_IDLE;
    } else if (l->member) {
        if (ev->code != MUSTER_ENOENT)
            legacy_news(fx, RDZV_NEWS_BACKEND, text);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
}

/* The tree has expired: make it again. */
static void legacy_without_tree(struct legacy *l, struct legacy_fx *fx)
{
    l->made = false;
    legacy_on_failure(l, fx);
}

/* Another node has made a document before us. */
static void legacy_look_at_it(struct legacy *l, struct legacy_fx *fx)
{
    legacy_get(l, fx, LEGACY_PH_LOOK);
}

/* A row has what follows when the phase's request is done, or its wait or pause is
 * over: `doc` if that was to read the document, `get` to read it in another phase, else
 * `done`. If somebody else's write came first, `lost`, or a delay in the phase `delay`.
 * If there is no such key, `none`. Everything else is a failure. */
struct phase_rule {
    void (*done)(struct legacy *l, struct legacy_fx *fx);
    void (*doc)(struct legacy *l, struct legacy_fx *fx);
    enum legacy_phase get;
    void (*lost)(struct legacy *l, struct legacy_fx *fx);
    enum legacy_phase delay;
    void (*none)(struct legacy *l, struct legacy_fx *fx);
};

static const struct phase_rule legacy_rules[] = {
    [LEGACY_PH_IDLE] = { 0 },
    [LEGACY_PH_MAKE_PREFIX] = { .done = legacy_make_next, .lost = legacy_make_next },
    [LEGACY_PH_MAKE_RUN] = { .done = legacy_make_next, .lost = legacy_make_next },
    [LEGACY_PH_MAKE_RDZV] = { .done = legacy_make_next, .lost = legacy_make_next },
    [LEGACY_PH_MAKE_COUNTER] = { .done = legacy_make_next, .lost = legacy_make_next },
    [LEGACY_PH_CREATE] = { legacy_read_counter, .lost = legacy_look_at_it,
                           .none = legacy_without_tree },
    [LEGACY_PH_COUNTER_GET] = { .done = legacy_count_version },
    [LEGACY_PH_COUNTER_PUT] = { .done = legacy_make_version,
                                .lost = legacy_counted_by_another },
    [LEGACY_PH_MAKE_VERSION] = { .done = legacy_publish },
    [LEGACY_PH_PUBLISH] = { .done = legacy_start_join },
    [LEGACY_PH_LOOK] = { .doc = legacy_look },
    [LEGACY_PH_LOOK_WAIT] = { .done = legacy_look_again },
    [LEGACY_PH_JOIN_DELAY] = { .get = LEGACY_PH_JOIN_GET },
    [LEGACY_PH_JOIN_GET] = { .doc = legacy_join },
    [LEGACY_PH_JOIN_PUT] = { .done = legacy_joined, .delay = LEGACY_PH_JOIN_DELAY },
    [LEGACY_PH_CALL_GET] = { .doc = legacy_last_call },
    [LEGACY_PH_CALL_KEEP] = { .done = legacy_hold_call, .delay = LEGACY_PH_CALL_DELAY },
    [LEGACY_PH_CALL_WAIT] = { .get = LEGACY_PH_CALL_GET },
    [LEGACY_PH_CALL_FREEZE] = { .done = legacy_confirm_soon,
                                .delay = LEGACY_PH_CALL_DELAY },
    [LEGACY_PH_CALL_DELAY] = { .get = LEGACY_PH_CALL_GET },
    [LEGACY_PH_PEERS_GET] = { .doc = legacy_peers },
    [LEGACY_PH_PEERS_WAIT] = { .get = LEGACY_PH_PEERS_GET },
    [LEGACY_PH_CONFIRM_DELAY] = { .get = LEGACY_PH_CONFIRM_GET },
    [LEGACY_PH_CONFIRM_GET] = { .doc = legacy_confirm },
    [LEGACY_PH_CONFIRM_KEY] = { .done = legacy_confirm_put },
    [LEGACY_PH_CONFIRM_PUT] = { .done = legacy_confirmed,
                                .delay = LEGACY_PH_CONFIRM_DELAY },
    [LEGACY_PH_FINAL_GET] = { .doc = legacy_final },
    [LEGACY_PH_FINAL_WAIT] = { .get = LEGACY_PH_FINAL_GET },
    [LEGACY_PH_ANNOUNCE_DELAY] = { .get = LEGACY_PH_ANNOUNCE_GET },
    [LEGACY_PH_ANNOUNCE_GET] = { .doc = legacy_announce },
    [LEGACY_PH_ANNOUNCE_PUT] = { .done = legacy_announced,
                                 .delay = LEGACY_PH_ANNOUNCE_DELAY },
    [LEGACY_PH_FREE_GET] = { .doc = legacy_list_members },
    [LEGACY_PH_FREE_LIST] = { .done = legacy_free_version },
    [LEGACY_PH_FREE_DELETE] = { .done = legacy_again, .lost = legacy_again },
    [LEGACY_PH_FREE_WAIT] = { .get = LEGACY_PH_FREE_GET },
    [LEGACY_PH_RETRY] = { .done = legacy_again },
    [LEGACY_PH_MEMBER_GET] = { .doc = legacy_member },
    [LEGACY_PH_MEMBER_LIST] = { .done = legacy_member_list },
    [LEGACY_PH_MEMBER_WAIT] = { .done = legacy_member_again },
    [LEGACY_PH_MEMBER_DELAY] = { .get = LEGACY_PH_MEMBER_GET },
    [LEGACY_PH_CLOSE_GET] = { .doc = legacy_close_put, .none = legacy_close_nothing },
    [LEGACY_PH_CLOSE_PUT] = { .done = legacy_close_done,
                              .delay = LEGACY_PH_CLOSE_DELAY },
    [LEGACY_PH_CLOSE_NEW] = { .done = legacy_close_done,
                              .delay = LEGACY_PH_CLOSE_DELAY },
    [LEGACY_PH_CLOSE_DELAY] = { .get = LEGACY_PH_CLOSE_GET },
};

static void legacy_take_doc(struct legacy *l, struct legacy_fx *fx)
{
    struct muster_error err = { 0 };
    int rc;

    legacy_doc_fini(&l->doc);
    buf_clear(&l->text);
    (void)buf_append_span(&l->text, l->ev->value);
    rc = legacy_doc_read(&l->doc, l->ev->value, &err);
    if (rc == 0) {
        l->closed = l->doc.status == LEGACY_CLOSED;
        legacy_seen(l);
        legacy_rules[l->phase].doc(l, fx);
        return;
    }
    legacy_no_memory(l, rc == MUSTER_ENOMEM ? rc : 0);
    (void)snprintf(l->reason, sizeof l->reason, "%s", err.text);
    if (l->joining) {
        legacy_refuse(l, fx, MUSTER_ESTATE, l->reason);
    } else if (l->close) {
        legacy_end_close(l, fx, MUSTER_ESTATE, l->reason);
    } else {
        legacy_news(fx, RDZV_NEWS_BACKEND, l->reason);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
}

static void legacy_over(struct legacy *l, struct legacy_fx *fx)
{
    const struct phase_rule *r = &legacy_rules[l->phase];

    if (r->get)
        legacy_get(l, fx, r->get);
    else
        r->done(l, fx);
}

/* A wait is over with or without an event, or if etcd has forgotten what came since. */
static void legacy_on_waited(struct legacy *l, struct legacy_fx *fx)
{
    const int code = l->ev->code;

    if (code != 0 && code != MUSTER_ETIMEDOUT && code != MUSTER_ESTATE)
        legacy_on_failure(l, fx);
    else if (l->joining && l->now.mono_ms > l->join_by_ms)
        legacy_again(l, fx); /* which gives up */
    else
        legacy_over(l, fx);
}

void legacy_on_reply(struct legacy *l, struct legacy_fx *fx)
{
    const struct phase_rule *r = &legacy_rules[l->phase];
    const int code = l->ev->code;

    if (l->polling) {
        legacy_on_waited(l, fx);
        return;
    }
    if (code == 0)
        l->index = l->ev->index;
    if (code == 0 && r->doc)
        legacy_take_doc(l, fx);
    else if (code == 0)
        legacy_over(l, fx);
    else if (code == MUSTER_EEXIST && r->lost)
        r->lost(l, fx);
    else if (code == MUSTER_EEXIST && r->delay)
        legacy_delay(l, r->delay);
    else if (code == MUSTER_ENOENT && r->none)
        r->none(l, fx);
    else
        legacy_on_failure(l, fx);
}

void legacy_on_timer(struct legacy *l, struct legacy_fx *fx)
{
    legacy_over(l, fx);
}

/* machine.c - see machine.h: torch's state machine. From top to bottom: effects and
 * going from phase to phase, the steps, the table of which one follows which answer,
 * what is asked for, step, progress.
 *
 * The way into a version: the tree, a version of our own or the one that is there, a
 * place in it, the last call, and everybody's word that it is there. Beside a running
 * version: wait for its end, and take it away if it has lost a member. In it: news. And
 * closing the run.
 *
 * The document is made where there is none, or swapped for the one that was read: of
 * two nodes that write, one reads again. Like torch, an attempt that meets anything
 * unexpected begins anew in a second. The dead are known by their keep-alive keys,
 * whose lifetimes in etcd see to it that nobody waits for them.
 *
 * Steps do not check for memory one by one: buffers remember a failure, and so does
 * legacy_no_memory(). legacy_step() looks at the end. */
#include "etcd/legacy/core/machine.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "etcd/legacy/core/document.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COALESCE_MS    200u  /* of changes: mostly more than one node moves */
#define RETRY_MS       1000u /* torch's pause between attempts */
#define SHORT_TTL_S    10u   /* of a document that must not outlive its nodes */
#define RUN_TTL_S      7200u
#define CALL_POLL_MS   (SHORT_TTL_S * 1000u / 2)
#define MEMBER_POLL_MS 15000u

/* Which answer, or which pause, we are waiting for. */
enum legacy_phase {
    LEGACY_PH_IDLE,
    LEGACY_PH_MAKE_PREFIX, /* the tree, once a handler */
    LEGACY_PH_MAKE_RUN,
    LEGACY_PH_MAKE_RDZV,
    LEGACY_PH_MAKE_COUNTER,
    LEGACY_PH_CREATE, /* init: a new version, or what is there */
    LEGACY_PH_COUNTER_GET,
    LEGACY_PH_COUNTER_PUT,
    LEGACY_PH_MAKE_VERSION,
    LEGACY_PH_PUBLISH,
    LEGACY_PH_LOOK,
    LEGACY_PH_LOOK_WAIT,
    LEGACY_PH_JOIN_DELAY,
    LEGACY_PH_JOIN_GET,
    LEGACY_PH_JOIN_PUT,
    LEGACY_PH_CALL_GET, /* last call: ours to hold open, and to end */
    LEGACY_PH_CALL_KEEP,
    LEGACY_PH_CALL_WAIT,
    LEGACY_PH_CALL_FREEZE,
    LEGACY_PH_CALL_DELAY,
    LEGACY_PH_PEERS_GET,
    LEGACY_PH_PEERS_WAIT,
    LEGACY_PH_CONFIRM_DELAY,
    LEGACY_PH_CONFIRM_GET,
    LEGACY_PH_CONFIRM_KEY,
    LEGACY_PH_CONFIRM_PUT,
    LEGACY_PH_FINAL_GET,
    LEGACY_PH_FINAL_WAIT,
    LEGACY_PH_ANNOUNCE_DELAY, /* a version is running: wait for its end */
    LEGACY_PH_ANNOUNCE_GET,
    LEGACY_PH_ANNOUNCE_PUT,
    LEGACY_PH_FREE_GET,
    LEGACY_PH_FREE_LIST,
    LEGACY_PH_FREE_DELETE,
    LEGACY_PH_FREE_WAIT,
    LEGACY_PH_RETRY,
    LEGACY_PH_MEMBER_GET, /* in a running version: news */
    LEGACY_PH_MEMBER_LIST,
    LEGACY_PH_MEMBER_WAIT,
    LEGACY_PH_MEMBER_DELAY,
    LEGACY_PH_CLOSE_GET,
    LEGACY_PH_CLOSE_PUT,
    LEGACY_PH_CLOSE_NEW,
    LEGACY_PH_CLOSE_DELAY,
};

struct legacy {
    int64_t min_nodes, max_nodes;
    uint64_t timeout_ms, last_call_ms;
    struct rng rng;
    const struct log *log;
    char *prefix, *run, *rdzv, *active, *counter; /* owned: paths */
    char *run_id;                                 /* owned */

    bool no_memory; /* ran out: nothing is done any more */
    enum legacy_phase phase;
    bool made;                     /* the tree is there */
    bool joining;                  /* a JOIN is to be answered */
    bool member;                   /* of a running version: news are wanted */
    bool close;                    /* a CLOSE is to be answered */
    bool requested;                /* a request is under way */
    bool polling;                  /* and it is a wait */
    const struct legacy_event *ev; /* that is dealt with; borrowed for the step */
    struct legacy_fx *fx;          /* likewise: its effects */
    struct now now;                /* of it */
    uint64_t due_ms, join_by_ms, call_by_ms;

    uint64_t version; /* ours, or the one we try to join */
    int64_t rank;
    struct legacy_doc doc; /* as read last, or as we are about to write it */
    struct buf text;       /* of the document as read: what a swap compares with */
    struct buf put;        /* of the document to write */
    struct buf path;       /* scratch: of the request */
    struct buf rank_path;  /* of our keep-alive */
    uint64_t index;        /* of the server, when that was read */
    int64_t waiting, notified_waiting;
    bool closed, notified_lost, notified_closed;
    bool reached; /* etcd has answered the last request that it should have */
    bool seen;    /* a document, since the JOIN */
    uint64_t seen_version, call_since_ms; /* that enough have come; MONO_NEVER */
    char reason[1020];
};

/* Remembers it if rc is an error. */
static void legacy_no_memory(struct legacy *l, int rc)
{
    l->no_memory |= rc < 0;
}

static void legacy_emit(struct legacy *l, struct legacy_effect e)
{
    assert(l->fx->count < LEGACY_FX_MAX);
    l->fx->at[l->fx->count++] = e;
}

/* ---- Requests ---- */

static void legacy_request(struct legacy *l, enum legacy_phase phase,
                           const struct etcd2_request *req)
{
    assert(!l->requested);
    l->phase = phase;
    l->due_ms = MONO_NEVER;
    l->requested = true;
    l->polling = false;
    legacy_emit(l,
                (struct legacy_effect){ .kind = LEGACY_FX_REQUEST, .request = *req });
}

static void legacy_get(struct legacy *l, enum legacy_phase phase)
{
    const struct etcd2_request req = { .key = span_str(l->active), .quorum = true };

    legacy_request(l, phase, &req);
}

/* Replaces the document that was read, l->text, by l->doc. */
static void legacy_swap(struct legacy *l, enum legacy_phase phase, uint64_t ttl_s)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .key = span_str(l->active),
                                 .prev_value = buf_span(&l->text),
                                 .ttl_s = ttl_s };

    buf_clear(&l->put);
    legacy_no_memory(l, legacy_doc_print(&l->doc, &l->put));
    req.value = buf_span(&l->put);
    legacy_request(l, phase, &req);
}

/* Past the deadline of a JOIN by a second at most, like torch. */
static void legacy_wait(struct legacy *l, enum legacy_phase phase, bool all,
                        uint64_t most_ms)
{
    const uint64_t now = l->now.mono_ms;
    struct legacy_effect e = {
        .kind = LEGACY_FX_REQUEST,
        .request = { .key = span_str(all ? l->rdzv : l->active),
                     .wait = true,
                     .wait_index = l->index + 1,
                     .recursive = all },
        .timeout_ms = most_ms,
    };

    assert(!l->requested);
    if (l->joining)
        e.timeout_ms =
            MIN_OF(most_ms, (l->join_by_ms > now ? l->join_by_ms - now : 0) + 1000);
    l->phase = phase;
    l->due_ms = MONO_NEVER;
    l->requested = l->polling = true;
    legacy_emit(l, e);
}

static void legacy_list(struct legacy *l, enum legacy_phase phase)
{
    struct etcd2_request req = { .quorum = true };

    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version);
    req.key = buf_span(&l->path);
    legacy_request(l, phase, &req);
}

/* ---- From phase to phase ---- */

static void legacy_pause(struct legacy *l, enum legacy_phase phase, uint64_t ms)
{
    l->phase = phase;
    l->due_ms = l->now.mono_ms + ms;
}

/* For 0 to 0.1 s. */
static void legacy_delay(struct legacy *l, enum legacy_phase phase)
{
    legacy_pause(l, phase, rng_below(&l->rng, 101));
}

/* The attempt has failed; the next one begins in a second. */
static void legacy_later(struct legacy *l, const char *why)
{
    assert(l->joining);
    (void)snprintf(l->reason, sizeof l->reason, "%s", why);
    log_line(l->log, LOG_INFO, AT_RENDEZVOUS,
             "Rendezvous attempt failed, will retry. Reason: %s", why);
    legacy_pause(l, LEGACY_PH_RETRY, RETRY_MS);
}

static void legacy_refuse(struct legacy *l, int code, const char *text)
{
    assert(l->joining && code < 0);
    l->joining = false;
    l->phase = LEGACY_PH_IDLE;
    l->due_ms = MONO_NEVER;
    legacy_emit(l, (struct legacy_effect){
                       .kind = LEGACY_FX_REFUSED, .code = code, .text = text });
}

static void legacy_news(struct legacy *l, enum rdzv_news news, const char *text)
{
    legacy_emit(l, (struct legacy_effect){
                       .kind = LEGACY_FX_NEWS, .news = news, .text = text });
}

/* A new attempt: the tree first, if nobody has made it; then a version of our own,
 * which tells if there is one already. */
static void legacy_again(struct legacy *l)
{
    const struct etcd2_request tree = { .verb = ETCD2_PUT,
                                        .key = span_str(l->prefix),
                                        .dir = true,
                                        .prev_exist = ETCD2_MUST_NOT_EXIST };
    const struct etcd2_request create = { .verb = ETCD2_PUT,
                                          .key = span_str(l->active),
                                          .value = span_str("{\"status\": \"setup\"}"),
                                          .ttl_s = 5,
                                          .prev_exist = ETCD2_MUST_NOT_EXIST };

    assert(l->joining);
    if (l->now.mono_ms > l->join_by_ms) {
        if (!l->reason[0])
            (void)snprintf(l->reason, sizeof l->reason, "too few nodes came");
        legacy_refuse(l, MUSTER_ETIMEDOUT, l->reason);
        return;
    }
    legacy_emit(l, (struct legacy_effect){ .kind = LEGACY_FX_DROP });
    legacy_request(l, l->made ? LEGACY_PH_CREATE : LEGACY_PH_MAKE_PREFIX,
                   l->made ? &create : &tree);
}

/* The node that holds the last call knows when it ends; the others know since when they
 * have seen enough nodes, which is as good for those who were there before.
 * This is what legacy_progress() tells. */
static void legacy_seen(struct legacy *l)
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

static void legacy_make_next(struct legacy *l)
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
        legacy_request(l, LEGACY_PH_MAKE_RUN, &req);
        return;
    case LEGACY_PH_MAKE_RUN:
        legacy_emit(l, keep);
        req.key = span_str(l->rdzv);
        legacy_request(l, LEGACY_PH_MAKE_RDZV, &req);
        return;
    case LEGACY_PH_MAKE_RDZV:
        req.dir = false;
        req.key = span_str(l->counter);
        req.value = span_str("0");
        legacy_request(l, LEGACY_PH_MAKE_COUNTER, &req);
        return;
    }
    l->made = true;
    legacy_again(l);
}

/* ---- A new version ---- */

static void legacy_read_counter(struct legacy *l)
{
    const struct etcd2_request req = { .key = span_str(l->counter), .quorum = true };

    legacy_request(l, LEGACY_PH_COUNTER_GET, &req);
}

static void legacy_count_version(struct legacy *l)
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
        legacy_refuse(l, MUSTER_ESTATE,
                      "Unexpected state of EtcdRendezvousHandler: version_counter is "
                      "not a number");
        return;
    }
    buf_clear(&l->put);
    (void)buf_printf(&l->put, "%" PRIu64, l->version);
    req.value = buf_span(&l->put);
    legacy_request(l, LEGACY_PH_COUNTER_PUT, &req);
}

/* We were away, and our setup document expired. */
static void legacy_counted_by_another(struct legacy *l)
{
    legacy_later(l, "somebody else has counted a version meanwhile");
}

static void legacy_make_version(struct legacy *l)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .dir = true,
                                 .prev_exist = ETCD2_MUST_NOT_EXIST };

    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version);
    req.key = buf_span(&l->path);
    legacy_request(l, LEGACY_PH_MAKE_VERSION, &req);
}

static void legacy_publish(struct legacy *l)
{
    buf_clear(&l->text);
    legacy_doc_fini(&l->doc);
    (void)buf_append_str(&l->text, "{\"status\": \"setup\"}");
    legacy_no_memory(l, legacy_doc_new(&l->doc, l->version));
    legacy_swap(l, LEGACY_PH_PUBLISH, 0);
}

/* ---- Joining ---- */

static void legacy_start_join(struct legacy *l)
{
    l->version = l->doc.version;
    legacy_delay(l, LEGACY_PH_JOIN_DELAY);
}

static void legacy_look(struct legacy *l)
{
    switch (l->doc.status) {
    case LEGACY_CLOSED:
        legacy_refuse(l, MUSTER_ECLOSED, "the run id was closed");
        return;
    case LEGACY_JOINABLE:
        legacy_start_join(l);
        return;
    case LEGACY_FINAL:
        l->version = l->doc.version;
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return;
    case LEGACY_SETUP:
    case LEGACY_FROZEN:
        legacy_wait(l, LEGACY_PH_LOOK_WAIT, false, UINT64_MAX);
        return;
    }
}

static void legacy_look_again(struct legacy *l)
{
    if (l->ev->code == 0) /* torch sleeps a second, and may sleep past a last call */
        legacy_delay(l, LEGACY_PH_RETRY);
    else
        legacy_later(l, "somebody else is setting up or completing a version");
}

static void legacy_enter(struct legacy *l)
{
    uint64_t ttl_s = 0;

    if (l->doc.status != LEGACY_JOINABLE) {
        legacy_later(l, "the version became non-joinable before we could join");
        return;
    }
    if (l->doc.version != l->version) {
        legacy_again(l);
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
    legacy_swap(l, LEGACY_PH_JOIN_PUT, ttl_s);
}

static void legacy_joined(struct legacy *l)
{
    if (l->rank == l->min_nodes - 1 && l->doc.status == LEGACY_JOINABLE) {
        l->call_by_ms = l->now.mono_ms + l->last_call_ms;
        legacy_get(l, LEGACY_PH_CALL_GET);
    } else {
        legacy_get(l, LEGACY_PH_PEERS_GET);
    }
}

/* The last call is ours: keep the document alive until it is over, then freeze it. */
static void legacy_last_call(struct legacy *l)
{
    if (legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
    } else if (!legacy_is_ours(l, LEGACY_JOINABLE)) {
        legacy_later(l, "the version changed during its last call");
    } else if (l->now.mono_ms < l->call_by_ms) {
        legacy_swap(l, LEGACY_PH_CALL_KEEP, SHORT_TTL_S);
    } else {
        legacy_no_memory(l, legacy_doc_freeze(&l->doc));
        legacy_swap(l, LEGACY_PH_CALL_FREEZE, SHORT_TTL_S);
    }
}

static void legacy_hold_call(struct legacy *l)
{
    const uint64_t left =
        l->call_by_ms > l->now.mono_ms ? l->call_by_ms - l->now.mono_ms : 0;

    legacy_wait(l, LEGACY_PH_CALL_WAIT, false, MIN_OF(CALL_POLL_MS, left + 1));
}

static void legacy_peers(struct legacy *l)
{
    if (legacy_is_ours(l, LEGACY_JOINABLE))
        legacy_wait(l, LEGACY_PH_PEERS_WAIT, false, UINT64_MAX);
    else if (legacy_is_ours(l, LEGACY_FROZEN))
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
    else
        legacy_later(l, "the version changed before all had come");
}

/* ---- Confirming ---- */

static void legacy_confirm_soon(struct legacy *l)
{
    legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
}

static void legacy_confirm(struct legacy *l)
{
    struct etcd2_request req = { .verb = ETCD2_PUT, .ttl_s = SHORT_TTL_S };

    if (!legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_again(l);
        return;
    }
    buf_clear(&l->rank_path);
    (void)buf_printf(&l->rank_path, "%s/v_%" PRIu64 "/rank_%" PRId64, l->rdzv,
                     l->version, l->rank);
    (void)buf_u8(&l->rank_path, 0);
    req.key = legacy_rank_key(l);
    legacy_request(l, LEGACY_PH_CONFIRM_KEY, &req);
}

static void legacy_confirm_put(struct legacy *l)
{
    legacy_no_memory(
        l, legacy_doc_confirm(&l->doc, (const char *)buf_data(&l->rank_path)));
    legacy_swap(l, LEGACY_PH_CONFIRM_PUT,
                l->doc.status == LEGACY_FINAL ? 0 : SHORT_TTL_S);
}

static void legacy_confirmed(struct legacy *l)
{
    legacy_emit(l, (struct legacy_effect){ .kind = LEGACY_FX_KEEP,
                                           .path = legacy_rank_key(l),
                                           .ttl_s = SHORT_TTL_S,
                                           .rank = true });
    legacy_get(l, LEGACY_PH_FINAL_GET);
}

static void legacy_final(struct legacy *l)
{
    struct legacy_effect e = { .kind = LEGACY_FX_JOINED,
                               .version = l->version,
                               .node_rank = l->rank,
                               .world = (int64_t)l->doc.participants };

    if (legacy_is_ours(l, LEGACY_FROZEN)) {
        legacy_wait(l, LEGACY_PH_FINAL_WAIT, false, UINT64_MAX);
        return;
    }
    if (!legacy_is_ours(l, LEGACY_FINAL) || l->rank >= (int64_t)l->doc.participants) {
        legacy_later(l, "the version changed before all had confirmed");
        return;
    }
    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64 "/kv/", l->rdzv, l->version);
    e.path = buf_span(&l->path);
    legacy_emit(l, e);
    l->joining = false;
    l->member = true;
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, COALESCE_MS);
}

/* ---- Waiting for a running version to end ---- */

static void legacy_announce(struct legacy *l)
{
    if (!legacy_is_ours(l, LEGACY_FINAL)) {
        legacy_again(l);
        return;
    }
    legacy_no_memory(l, legacy_doc_wait(&l->doc));
    legacy_swap(l, LEGACY_PH_ANNOUNCE_PUT, 0);
}

static void legacy_list_members(struct legacy *l)
{
    if (legacy_is_ours(l, LEGACY_FINAL))
        legacy_list(l, LEGACY_PH_FREE_LIST);
    else
        legacy_again(l);
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
static void legacy_free_version(struct legacy *l)
{
    const struct etcd2_request del = { .verb = ETCD2_DELETE,
                                       .key = span_str(l->active),
                                       .prev_value = buf_span(&l->text) };
    const char *gone = legacy_missing(l);

    if (!gone) {
        legacy_wait(l, LEGACY_PH_FREE_WAIT, true, UINT64_MAX);
        return;
    }
    log_line(l->log, LOG_INFO, AT_RENDEZVOUS,
             "Keep-alive key %s is not renewed: rendezvous version %" PRIu64
             " is incomplete",
             gone, l->version);
    legacy_request(l, LEGACY_PH_FREE_DELETE, &del);
}

/* ---- Being a member ---- */

static void legacy_member(struct legacy *l)
{
    assert(l->member && !l->joining);
    if (legacy_is_ours(l, LEGACY_FINAL)) {
        l->waiting = l->doc.waiting;
        if (l->waiting > l->notified_waiting)
            legacy_news(l, RDZV_NEWS_WAITING, NULL);
        l->notified_waiting = l->waiting;
        legacy_list(l, LEGACY_PH_MEMBER_LIST);
        return;
    }
    if (l->doc.status == LEGACY_CLOSED && !l->notified_closed) {
        legacy_news(l, RDZV_NEWS_CLOSED, NULL);
        l->notified_closed = true;
    }
    if (legacy_is_ours(l,
                       LEGACY_CLOSED)) { /* A node that is done waits for the others. */
        legacy_list(l, LEGACY_PH_MEMBER_LIST);
        return;
    }
    legacy_news(l, RDZV_NEWS_EVICTED, "our version of the rendezvous was replaced");
    l->phase = LEGACY_PH_IDLE; /* for good */
}

static void legacy_member_list(struct legacy *l)
{
    const char *gone = legacy_missing(l);

    if (gone && !l->notified_lost) {
        l->notified_lost = true;
        (void)snprintf(l->reason, sizeof l->reason, "keep-alive key %s is not renewed",
                       gone);
        legacy_news(l, l->notified_closed ? RDZV_NEWS_DESERTED : RDZV_NEWS_LOST,
                    l->reason);
    }
    legacy_wait(l, LEGACY_PH_MEMBER_WAIT, true, MEMBER_POLL_MS);
}

static void legacy_member_again(struct legacy *l)
{
    legacy_pause(l, LEGACY_PH_MEMBER_DELAY, COALESCE_MS);
}

/* ---- Closing ---- */

static void legacy_end_close(struct legacy *l, int code, const char *text)
{
    assert(l->close && code <= 0);
    l->close = false;
    l->closed = l->closed || code == 0;
    l->phase = LEGACY_PH_IDLE;
    if (code && l->member) /* not closed after all: we are as we were */
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    legacy_emit(l, (struct legacy_effect){
                       .kind = LEGACY_FX_CLOSED, .code = code, .text = text });
}

static void legacy_close_done(struct legacy *l)
{
    legacy_end_close(l, 0, NULL);
}

static void legacy_close_put(struct legacy *l)
{
    if (l->doc.status == LEGACY_CLOSED) {
        legacy_close_done(l);
        return;
    }
    legacy_no_memory(l, legacy_doc_close(&l->doc));
    legacy_swap(l, LEGACY_PH_CLOSE_PUT, 0);
}

/* torch fails here; then nodes that come later would not learn that it is over. */
static void legacy_close_nothing(struct legacy *l)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = span_str(l->active),
                                       .value = span_str("{\"status\": \"closed\"}"),
                                       .prev_exist = ETCD2_MUST_NOT_EXIST };

    legacy_request(l, LEGACY_PH_CLOSE_NEW, &req);
}

/* ---- Which step follows which answer ---- */

/* The request went wrong in a way that its phase has no answer to. */
static void legacy_on_failure(struct legacy *l)
{
    const struct legacy_event *ev = l->ev;
    const char *text = ev->text && ev->text[0] ? ev->text : "the request failed";

    if (l->close) {
        legacy_end_close(l, ev->code, text);
    } else if (l->joining && ev->fatal) {
        legacy_refuse(l, ev->code, text);
    } else if (l->joining) {
        legacy_later(l, text);
    } else if (l->member && ev->code == MUSTER_ENOENT &&
               l->phase == LEGACY_PH_MEMBER_GET) {
        legacy_news(l, RDZV_NEWS_LOST, "our version of the rendezvous was taken down");
        l->phase = LEGACY_PH_IDLE;
    } else if (l->member) {
        if (ev->code != MUSTER_ENOENT)
            legacy_news(l, RDZV_NEWS_BACKEND, text);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
}

/* The tree has expired: make it again. */
static void legacy_without_tree(struct legacy *l)
{
    l->made = false;
    legacy_on_failure(l);
}

/* Another node has made a document before us. */
static void legacy_look_at_it(struct legacy *l)
{
    legacy_get(l, LEGACY_PH_LOOK);
}

/* A row has what follows when the phase's request is done, or its wait or pause is
 * over: `doc` if that was to read the document, `get` to read it in another phase, else
 * `done`. If somebody else's write came first, `lost`, or a delay in the phase `delay`.
 * If there is no such key, `none`. Everything else is a failure. */
struct phase_rule {
    void (*done)(struct legacy *l);
    void (*doc)(struct legacy *l);
    enum legacy_phase get;
    void (*lost)(struct legacy *l);
    enum legacy_phase delay;
    void (*none)(struct legacy *l);
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
    [LEGACY_PH_JOIN_GET] = { .doc = legacy_enter },
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
    [LEGACY_PH_ANNOUNCE_PUT] = { .get = LEGACY_PH_FREE_GET,
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

static void legacy_take_doc(struct legacy *l)
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
        legacy_rules[l->phase].doc(l);
        return;
    }
    legacy_no_memory(l, rc == MUSTER_ENOMEM ? rc : 0);
    (void)snprintf(l->reason, sizeof l->reason, "%s", err.text);
    if (l->joining) {
        legacy_refuse(l, MUSTER_ESTATE, l->reason);
    } else if (l->close) {
        legacy_end_close(l, MUSTER_ESTATE, l->reason);
    } else {
        legacy_news(l, RDZV_NEWS_BACKEND, l->reason);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
}

static void legacy_over(struct legacy *l)
{
    const struct phase_rule *r = &legacy_rules[l->phase];

    if (r->get)
        legacy_get(l, r->get);
    else
        r->done(l);
}

/* A wait is over with or without an event, or if etcd has forgotten what came since. */
static void legacy_on_waited(struct legacy *l)
{
    const int code = l->ev->code;

    if (code != 0 && code != MUSTER_ETIMEDOUT && code != MUSTER_ESTATE)
        legacy_on_failure(l);
    else if (l->joining && l->now.mono_ms > l->join_by_ms)
        legacy_again(l); /* which gives up */
    else
        legacy_over(l);
}

static void legacy_answered(struct legacy *l)
{
    const struct phase_rule *r = &legacy_rules[l->phase];
    const int code = l->ev->code;

    if (l->polling) {
        legacy_on_waited(l);
        return;
    }
    if (code == 0)
        l->index = l->ev->index;
    if (code == 0 && r->doc)
        legacy_take_doc(l);
    else if (code == 0)
        legacy_over(l);
    else if (code == MUSTER_EEXIST && r->lost)
        r->lost(l);
    else if (code == MUSTER_EEXIST && r->delay)
        legacy_delay(l, r->delay);
    else if (code == MUSTER_ENOENT && r->none)
        r->none(l);
    else
        legacy_on_failure(l);
}

/* ---- Wishes ---- */

static void legacy_interrupt(struct legacy *l)
{
    if (l->requested)
        legacy_emit(l, (struct legacy_effect){ .kind = LEGACY_FX_CANCEL });
    l->requested = false;
    l->phase = LEGACY_PH_IDLE;
    l->due_ms = MONO_NEVER;
}

static void legacy_on_join(struct legacy *l)
{
    if (l->close) { /* which goes on, and is answered */
        legacy_emit(l,
                    (struct legacy_effect){ .kind = LEGACY_FX_REFUSED,
                                            .code = MUSTER_ECLOSED,
                                            .text = "the rendezvous is being closed" });
        return;
    }
    legacy_interrupt(l);
    l->joining = true;
    l->member = l->notified_lost = l->notified_closed = l->seen = false;
    l->waiting = l->notified_waiting = 0;
    l->reason[0] = '\0';
    l->join_by_ms = l->now.mono_ms + l->timeout_ms;
    legacy_again(l);
}

static void legacy_on_leave(struct legacy *l)
{

    if (!l->close) /* which goes on: somebody waits for it, and no JOIN is under way */
        legacy_interrupt(l);
    l->member = false;
    legacy_emit(l, (struct legacy_effect){ .kind = LEGACY_FX_DROP });
    if (l->joining)
        legacy_refuse(l, MUSTER_ECANCELED, "joining was canceled");
}

static void legacy_on_close(struct legacy *l)
{
    legacy_interrupt(l);
    l->close = true;
    if (l->joining)
        legacy_refuse(l, MUSTER_ECLOSED, "the rendezvous is being closed");
    legacy_get(l, LEGACY_PH_CLOSE_GET);
}

/* ---- Step ---- */

/* Whether etcd is there. A long poll that ended without an event says nothing. */
static void legacy_heard(struct legacy *l, const struct legacy_event *ev)
{
    if (l->polling && ev->code == MUSTER_ETIMEDOUT)
        return;
    l->reached = ev->code == 0 || ev->code == MUSTER_ENOENT ||
                 ev->code == MUSTER_EEXIST || ev->code == MUSTER_ESTATE;
}

static void legacy_take(struct legacy *l, const struct legacy_event *ev)
{
    switch (ev->kind) {
    case LEGACY_EV_JOIN:
        legacy_on_join(l);
        return;
    case LEGACY_EV_LEAVE:
        legacy_on_leave(l);
        return;
    case LEGACY_EV_CLOSE:
        legacy_on_close(l);
        return;
    case LEGACY_EV_REPLY:
        assert(l->requested);
        l->requested = false;
        legacy_heard(l, ev);
        legacy_answered(l);
        return;
    case LEGACY_EV_TIMER:
        if (l->due_ms > ev->now.mono_ms)
            return;
        l->due_ms = MONO_NEVER;
        legacy_over(l);
        return;
    }
}

/* What holds between two steps. */
static void legacy_check(const struct legacy *l)
{
    assert(!l->joining || !l->close);  /* A CLOSE refuses the JOIN under way, */
    assert(!l->joining || !l->member); /* and a member's JOIN ends its membership. */
    assert(!l->requested || l->due_ms == MONO_NEVER);
    assert(l->requested || l->due_ms != MONO_NEVER || l->phase == LEGACY_PH_IDLE);
    assert(l->requested || l->due_ms != MONO_NEVER || (!l->joining && !l->close));
}

int legacy_step(struct legacy *l, const struct legacy_event *ev, struct legacy_fx *fx)
{
    fx->count = 0;
    if (!l->no_memory) {
        l->ev = ev;
        l->fx = fx;
        l->now = ev->now;
        legacy_take(l, ev);
        legacy_check(l);
        legacy_no_memory(l, buf_error(&l->text));
        legacy_no_memory(l, buf_error(&l->put));
        legacy_no_memory(l, buf_error(&l->path));
        legacy_no_memory(l, buf_error(&l->rank_path));
    }
    if (!l->no_memory)
        return 0;
    fx->count = 0;
    return MUSTER_ENOMEM;
}

uint64_t legacy_deadline(const struct legacy *l)
{
    return l->no_memory ? MONO_NEVER : l->due_ms;
}

int64_t legacy_waiting(const struct legacy *l)
{
    return l->waiting;
}

bool legacy_closed(const struct legacy *l)
{
    return l->closed;
}

/* ---- New and free ---- */

static bool legacy_make_paths(struct legacy *l, const struct legacy_config *cfg)
{
    const size_t n = strlen(cfg->prefix);

    l->prefix =
        mem_printf("%s%s", cfg->prefix, n && cfg->prefix[n - 1] == '/' ? "" : "/");
    if (!l->prefix)
        return false;
    l->run_id = mem_strdup(cfg->run_id);
    l->run = mem_printf("%srun_%s/", l->prefix, cfg->run_id);
    l->rdzv = mem_printf("%srun_%s/rdzv", l->prefix, cfg->run_id);
    l->active = mem_printf("%srun_%s/rdzv/active_version", l->prefix, cfg->run_id);
    l->counter = mem_printf("%srun_%s/rdzv/version_counter", l->prefix, cfg->run_id);
    return l->run_id && l->run && l->rdzv && l->active && l->counter;
}

int legacy_new(const struct legacy_config *cfg, struct legacy **out,
               struct muster_error *err)
{
    struct legacy *l;

    if (cfg->prefix[0] != '/')
        return err_set(
            err, MUSTER_EINVAL,
            "etcd_prefix '%s' must start with '/': etcd answers absolute keys, "
            "and torch, which compares them, would wait for ever. Use "
            "etcd_prefix=/%s on every node",
            cfg->prefix, cfg->prefix);
    if (!utf8_valid(span_str(cfg->prefix)) || !utf8_valid(span_str(cfg->run_id)))
        return err_set(err, MUSTER_EINVAL,
                       "the run id or etcd_prefix ('%s', '%s') is not UTF-8, but nodes "
                       "of this backend keep their keys as JSON. Give another "
                       "--rdzv-id, or use --rdzv-backend=etcd-v2 on every node",
                       cfg->run_id, cfg->prefix);
    l = mem_calloc(1, sizeof *l);
    if (!l || !legacy_make_paths(l, cfg)) {
        legacy_free(l);
        return err_nomem(err);
    }
    l->min_nodes = cfg->min_nodes;
    l->max_nodes = cfg->max_nodes;
    l->timeout_ms = cfg->timeout_ms;
    l->last_call_ms = cfg->last_call_ms;
    l->log = cfg->log;
    l->due_ms = l->call_since_ms = MONO_NEVER;
    rng_init(&l->rng, cfg->seed);
    buf_init(&l->text, SIZE_MAX);
    buf_init(&l->put, SIZE_MAX);
    buf_init(&l->path, SIZE_MAX);
    buf_init(&l->rank_path, SIZE_MAX);
    *out = l;
    return 0;
}

void legacy_free(struct legacy *l)
{
    if (!l)
        return;
    mem_free(l->prefix);
    mem_free(l->run_id);
    mem_free(l->run);
    mem_free(l->rdzv);
    mem_free(l->active);
    mem_free(l->counter);
    legacy_doc_fini(&l->doc);
    buf_fini(&l->text);
    buf_fini(&l->put);
    buf_fini(&l->path);
    buf_fini(&l->rank_path);
    mem_free(l);
}

/* ---- What a node can tell a person while it waits, from the document as it was last
 * read. Torch's document has no names. ---- */

/* From our place in the document to the end of its making; see LEGACY_PHASES. */
static bool has_place(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_FINAL_WAIT;
}

static bool has_last_call(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_CALL_DELAY;
}

static void legacy_gathering(const struct legacy *l, struct rdzv_progress *out)
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
        legacy_gathering(l, out);
        break;
    case LEGACY_FROZEN: /* the members are settled; each has to confirm */
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

/* ---- Between the machine and an etcd client ---- */

#define REQUEST_MS 10000u
#define POLL_MS    20000u /* one long poll */
#define LATE_MS    1000u

/* A conditional write is not repeated if it may have been done: whether a document with
 * one more rank is ours or another node's, nobody can tell. */
struct legacy_manner legacy_manner_of(const struct legacy_effect *e)
{
    const struct etcd2_request *r = &e->request;

    return (struct legacy_manner){
        .timeout_ms = r->wait ? MIN_OF(e->timeout_ms, POLL_MS) : REQUEST_MS,
        .attempt_ms = r->wait ? POLL_MS : 0,
        .once = r->verb != ETCD2_GET || r->wait,
    };
}

static bool is_fatal(int code)
{
    return code == MUSTER_EACCES || code == MUSTER_ENOTSUP || code == MUSTER_EINVAL ||
           code == MUSTER_ENOTSTORE;
}

bool legacy_reply(struct legacy_event *ev, bool waiting, int status,
                  const struct etcd_answer *answer, const struct muster_error *err)
{
    const struct etcd2_reply *r = answer ? answer->v2 : NULL;

    *ev = (struct legacy_event){ .kind = LEGACY_EV_REPLY,
                                 .code = status,
                                 .fatal = is_fatal(status),
                                 .text = err ? err->text : NULL };
    if (waiting && !answer && !ev->fatal && status != MUSTER_ETIMEDOUT) {
        *ev =
            (struct legacy_event){ .kind = LEGACY_EV_REPLY, .code = MUSTER_ETIMEDOUT };
        return true;
    }
    if (r) {
        ev->value = r->node.value;
        ev->modified_index = r->node.modified_index;
        ev->index = MAX_OF(r->index, r->node.modified_index);
        ev->nodes = r->nodes;
        ev->count = r->count;
    }
    return false;
}

void legacy_keep_init(struct legacy_keep *k)
{
    *k = (struct legacy_keep){ .on = false };
    buf_init(&k->path, SIZE_MAX);
}

void legacy_keep_fini(struct legacy_keep *k)
{
    buf_fini(&k->path);
}

int legacy_keep_start(struct legacy_keep *k, const struct legacy_effect *e)
{
    k->on = false;
    buf_clear(&k->path);
    if (buf_append_span(&k->path, e->path) < 0)
        return MUSTER_ENOMEM;
    k->ttl_s = e->ttl_s;
    k->on = true;
    return 0;
}

int legacy_keep_encode(const struct legacy_keep *k, struct etcd_msg *m)
{
    const struct etcd2_request req = { .verb = ETCD2_PUT,
                                       .key = buf_span(&k->path),
                                       .ttl_s = k->ttl_s,
                                       .refresh = true,
                                       .prev_exist = ETCD2_MUST_EXIST };

    return etcd2_encode(m, &req);
}

uint64_t legacy_keep_timeout_ms(const struct legacy_keep *k)
{
    return k->ttl_s * 1000 / 2;
}

uint64_t legacy_keep_answer(struct legacy_keep *k, int status)
{
    if (status == MUSTER_ENOENT) {
        k->on = false; /* Too late: the others will see it, and so will the core. */
        return MONO_NEVER;
    }
    return status < 0 ? LATE_MS : k->ttl_s * 1000 / 2;
}

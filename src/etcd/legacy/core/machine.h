/* machine.h - one node's part in a rendezvous of torch's first etcd handler (backend
 * "etcd"): a JSON document that all change by compare-and-swap, a version at a time,
 * from setup over joinable and frozen to final.
 *
 * Pure: the driver (etcd/legacy/handler.c) performs the effects on etcd's v2 interface.
 * What always holds: at most one REQUEST is under way, and its answer is one REPLY;
 * CANCEL takes it back, and then no REPLY comes. JOIN is answered by exactly one JOINED
 * or REFUSED, CLOSE by one CLOSED, at the latest a request's time after its deadline.
 * Nodes have no names in this protocol: rank is the order of joining. */
#ifndef ETCD_LEGACY_CORE_MACHINE_H
#define ETCD_LEGACY_CORE_MACHINE_H

#include "base/base.h"
#include "base/log.h"
#include "etcd/core/kv_operation.h"
#include "rendezvous/core/news.h"
#include "rendezvous/core/progress.h"

struct legacy;

struct legacy_config {
    const char *prefix; /* copied; must start with "/"; need not end in one */
    const char *run_id; /* copied */
    int64_t min_nodes, max_nodes;
    uint64_t timeout_ms, last_call_ms;
    uint64_t seed;         /* of the random delays before a write */
    const struct log *log; /* borrowed, may be NULL */
};

int legacy_new(const struct legacy_config *cfg, struct legacy **out,
               struct muster_error *err);
void legacy_free(struct legacy *l); /* NULL is fine */

enum legacy_event_kind {
    LEGACY_EV_JOIN,  /* take part in the next version; a member leaves its own */
    LEGACY_EV_LEAVE, /* stop; a JOIN under way ends with ECANCELED */
    LEGACY_EV_CLOSE, /* close the run id for everybody */
    LEGACY_EV_REPLY, /* of the REQUEST under way */
    LEGACY_EV_TIMER, /* legacy_deadline() has come */
};

struct legacy_event {
    enum legacy_event_kind kind;
    struct now now;
    /* REPLY. 0: done; MUSTER_ENOENT, MUSTER_EEXIST (compare lost), MUSTER_ETIMEDOUT (a
     * wait without an event), MUSTER_ESTATE (history cleared): etcd's answers; others:
     * the request failed. `fatal`: and would fail again. */
    int code;
    bool fatal;
    const char *text;               /* borrowed for the call */
    struct span value;              /* of the node */
    uint64_t modified_index, index; /* of the node; of the server */
    const struct etcd2_node *nodes; /* of a listing; borrowed for the call */
    size_t count;
};

enum legacy_effect_kind {
    LEGACY_FX_REQUEST, /* send it; a wait may take timeout_ms */
    LEGACY_FX_CANCEL,  /* the request under way is of no interest any more */
    LEGACY_FX_KEEP,    /* refresh `path` (TTL ttl_s) at each half of its life; ... */
    LEGACY_FX_DROP,    /* ... and no longer that of our rank */
    LEGACY_FX_JOINED,  /* version, rank, world; the store is below `path` */
    LEGACY_FX_REFUSED, /* the JOIN failed: code, text */
    LEGACY_FX_CLOSED,  /* the CLOSE is through: code 0, or code and text */
    LEGACY_FX_NEWS,    /* news, text */
};

/* All spans and texts are borrowed until the next step. */
struct legacy_effect {
    enum legacy_effect_kind kind;
    struct etcd2_request request;
    uint64_t timeout_ms; /* of a wait */
    struct span path;
    uint64_t ttl_s;
    bool rank; /* KEEP: of our rank (DROP ends it), not of the run */
    uint64_t version;
    int64_t node_rank, world;
    int code;
    enum rdzv_news news;
    const char *text;
};

#define LEGACY_FX_MAX 8

struct legacy_fx {
    struct legacy_effect at[LEGACY_FX_MAX];
    size_t count;
};

/* 0 with the effects in fx (cleared first), or MUSTER_ENOMEM, with none. After that
 * every step returns it, and l can only be freed. */
int legacy_step(struct legacy *l, const struct legacy_event *ev, struct legacy_fx *fx);

uint64_t legacy_deadline(const struct legacy *l); /* by mono_ms; MONO_NEVER */

/* Last known. */
int64_t legacy_waiting(const struct legacy *l);
bool legacy_closed(const struct legacy *l);

/* How it stands with a JOIN, as of the document last read; false: nothing to tell. */
bool legacy_progress(const struct legacy *l, struct rdzv_progress *out);

/* ---- Between the machine and an etcd client: how its requests are sent, what an
 * answer is to it, and the keys it wants kept alive; for the driver ---- */

#define LEGACY_HICCUP_MS 500u /* before a wait that broke is taken for over */

/* How a REQUEST is to be sent. */
struct legacy_manner {
    uint64_t timeout_ms;
    uint64_t attempt_ms; /* 0: as the client likes */
    bool once;           /* not repeated if it may have reached a server */
};

struct legacy_manner legacy_manner_of(const struct legacy_effect *e);

/* Makes the REPLY of what came. True: a wait that broke is over, and what it waited for
 * is to be read again, after LEGACY_HICCUP_MS; ev says so. */
bool legacy_reply(struct legacy_event *ev, bool waiting, int status,
                  const struct etcd_answer *answer, const struct muster_error *err);

/* ---- A key that lives as long as we refresh it ---- */

struct legacy_keep {
    struct buf path; /* owned */
    uint64_t ttl_s;
    bool on;
};

void legacy_keep_init(struct legacy_keep *k);
void legacy_keep_fini(struct legacy_keep *k);

/* KEEP: the first refresh is due at once. MUSTER_ENOMEM: not on. */
int legacy_keep_start(struct legacy_keep *k, const struct legacy_effect *e);

int legacy_keep_encode(const struct legacy_keep *k, struct etcd_msg *m);
uint64_t legacy_keep_timeout_ms(const struct legacy_keep *k);

/* When to refresh it again; MONO_NEVER: it is gone, and we stop. */
uint64_t legacy_keep_answer(struct legacy_keep *k, int status);

#endif

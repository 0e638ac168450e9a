/* etcd.h - a model of an etcd cluster, for job_http.c.
 *
 * The cluster is one log of requests, in the order in which they are committed, and
 * some members: one of them leads, each may be killed, stopped or cut off from the
 * others. Requests are the bytes that the codecs of wire/ make, answers the bytes that
 * they read. What makes etcd hard is in it: a leader that is lost takes requests along,
 * of which some were done; a member that lags tells late; streams break, history is
 * compacted; leases and keys with a lifetime run out, but not without a leader. */
#ifndef SIM_ETCD_H
#define SIM_ETCD_H

#include "etcd/core/lease.h"
#include "etcd/core/retry.h"
#include "etcd/core/watch_stream.h"
#include "sim/sim.h"

#define ETCD_MEMBERS_MAX 5

/* ---- etcd_store.c: keys, revisions, history ---- */

struct etcd_entry {
    char *key, *value; /* owned; value in the wire's words: base64 of v3, text of v2 */
    bool dir;
    uint64_t modified, created;
    int64_t lease;     /* v3 */
    uint64_t expire_t; /* v2; SIM_NEVER */
};

struct etcd_change {
    uint64_t revision;
    char *key; /* owned */
    bool deleted;
};

struct etcd_lease_entry {
    int64_t id;
    uint64_t ttl_us, expire_t;
};

struct etcd_store {
    uint64_t revision, oldest; /* oldest: history before it is gone */
    struct etcd_entry *entries;
    size_t count;
    struct etcd_change *changes;
    size_t change_count;
    struct etcd_lease_entry *leases;
    size_t lease_count;
};

void etcd_store_fini(struct etcd_store *st);
struct etcd_entry *etcd_store_find(struct etcd_store *st, const char *key);
struct etcd_entry *etcd_store_put(struct etcd_store *st, const char *key,
                                  const char *value, bool dir);
void etcd_store_delete(struct etcd_store *st, struct etcd_entry *e);
void etcd_store_note(struct etcd_store *st, const char *key, bool deleted);
void etcd_store_compact(struct etcd_store *st);
struct etcd_lease_entry *etcd_store_lease(struct etcd_store *st, int64_t id);
bool etcd_store_expire(struct etcd_store *st,
                       uint64_t now_t); /* true: something went */

/* ---- etcd_v2.c, etcd_v3.c: requests and answers ---- */

struct etcd_response {
    long status;
    uint64_t index;
    struct buf body;
};

/* A watch that a request asks for. */
struct etcd_want {
    char *key, *end; /* owned; end NULL: the key alone. v2: end of all below it */
    uint64_t next;   /* 0: from now on */
    bool only_ends;
};

bool etcd2_is_wait(const struct etcd_msg *m, struct etcd_want *out);
bool etcd3_is_watch(const struct etcd_msg *m, struct etcd_want *out);
void etcd2_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_msg *m,
                 struct etcd_response *out);
void etcd3_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_msg *m,
                 struct etcd_response *out);
void etcd2_refuse(struct etcd_store *st, bool timed_out, struct etcd_response *out);
void etcd3_refuse(bool timed_out, struct etcd_response *out);
void etcd2_event(struct etcd_store *st, const struct etcd_change *c,
                 struct etcd_response *out);
void etcd2_cleared(struct etcd_store *st, uint64_t asked, struct etcd_response *out);
void etcd3_created(uint64_t revision, struct buf *out);
void etcd3_canceled(uint64_t revision, uint64_t compacted, struct buf *out);
void etcd3_events(struct etcd_store *st, const struct etcd_change *from, size_t count,
                  const struct etcd_want *w, struct buf *out);

/* ---- etcd_net.c: requests under way ---- */

typedef void (*sim_http_done)(void *ctx, int status, const struct etcd_http *http,
                              bool sent, const struct muster_error *err);
typedef bool (*sim_http_line)(void *ctx, struct span line); /* false: not wanted more */

struct sim_call {
    struct sim_call *next, **prev_next; /* of the node, until done */
    struct sim_node *node;
    uint32_t boot;
    size_t member;
    struct etcd_msg msg;
    bool done;       /* the node has its answer, or wants none */
    bool sent;       /* it may have reached the member */
    bool gone;       /* the member has heard that nobody waits */
    uint64_t down_t; /* no byte overtakes another */
    uint32_t refs;
    sim_http_done on_done;
    sim_http_line on_line; /* a stream's */
    void *ctx;
};

struct sim_call *sim_http(struct sim_node *n, size_t member, struct etcd_msg *m,
                          uint64_t timeout_ms, sim_http_done on_done,
                          sim_http_line on_line, void *ctx);
void sim_http_cancel(struct sim_call *c); /* NULL is fine */
void sim_call_unref(struct sim_call *c);
void sim_http_answer(struct sim_call *c,
                     const struct etcd_response *r); /* the member */
void sim_http_push(struct sim_call *c, struct span line);
void sim_http_break(struct sim_call *c);  /* the connection is cut */
void sim_http_refuse(struct sim_call *c); /* nobody listens */
void sim_http_back(struct sim_event *ev);
void sim_http_reset(struct sim_node *n); /* all connections of the node break */

/* ---- etcd_cluster.c: members and their bad luck ---- */

struct etcd_member {
    bool up;
    uint64_t stopped_t, cut_t; /* SIGSTOP; cut off from the other members */
};

struct etcd_pending {
    struct sim_call *call; /* a reference */
    uint64_t since_t, commit_t;
    bool lost; /* the leader that had it is gone */
};

struct etcd_watcher {
    struct sim_call *call; /* a reference */
    struct etcd_want want;
    bool due; /* a push is under way */
};

struct sim_etcd {
    bool v2;
    struct etcd_store store;
    struct etcd_member members[ETCD_MEMBERS_MAX];
    size_t count;
    int leader;         /* -1: none */
    uint64_t elected_t; /* 0: it leads from the beginning */
    bool electing;
    bool flaps; /* the leader was lost again before every node could be heard */
    struct etcd_pending *pending;
    size_t pending_count;
    struct etcd_watcher *watchers;
    size_t watcher_count;
    uint64_t slow_us; /* extra delay of pushes */
};

enum etcd_tick {
    ETCD_COMMIT,
    ETCD_ELECT,
    ETCD_EXPIRE,
    ETCD_PUSH,
    ETCD_PATIENCE, /* of requests without a leader */
    ETCD_MEMBER_BACK,
    ETCD_FAULT_KILL,
    ETCD_FAULT_STOP,
    ETCD_FAULT_CUT,
    ETCD_FAULT_COMPACT,
    ETCD_FAULT_STREAMS, /* every stream breaks */
    ETCD_TICKS
};

void sim_etcd_start(struct sim *s, bool v2, size_t members);
void sim_etcd_stop(struct sim *s);
void sim_etcd_request(struct sim *s, struct sim_call *c); /* it has arrived */
void sim_etcd_tick(struct sim *s, const struct sim_event *ev);
void sim_etcd_fault(struct sim *s, enum etcd_tick fault, size_t member,
                    uint64_t for_us);
bool sim_etcd_member_ok(const struct sim *s, size_t member);

/* etcd_watch.c */
void sim_etcd_watch(struct sim *s, struct sim_call *c, struct etcd_want *w);
void sim_etcd_changed(struct sim *s);
void sim_etcd_push(struct sim *s, struct sim_call *c);
void sim_etcd_drop_watchers(struct sim *s, size_t member, bool all);

#endif

/* etcd.h - a model of an etcd cluster, for job_http.c.
 *
 * The cluster is one log of requests, in the order in which they are committed, and
 * some members: one of them leads, and each may be killed, stopped or cut off from the
 * others. Requests and answers are the bytes that the codecs of etcd/core write and
 * read. The model has what makes etcd hard: requests are lost with their leader, some
 * after they were done; a member that lags reports changes late; streams break; history
 * is compacted; leases and keys with a lifetime expire, but not without a leader. */
#ifndef SIM_ETCD_H
#define SIM_ETCD_H

#include "etcd/core/lease.h"
#include "etcd/core/retry.h"
#include "etcd/core/watch_stream.h"
#include "sim/sim.h"

#define ETCD_MEMBERS_MAX 5

/* ---- etcd_store.c: keys, revisions, history ---- */

struct etcd_entry {
    char *key, *value; /* owned; value as on the wire: base64 in v3, text in v2 */
    bool dir;
    uint64_t modified, created;
    int64_t lease;     /* v3 */
    uint64_t expire_t; /* v2; or SIM_NEVER */
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
    uint64_t revision;
    uint64_t oldest; /* revision of which the history still knows */
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

/* Removes keys and leases whose time is up; true if there were any. */
bool etcd_store_expire(struct etcd_store *st, uint64_t now_t);

/* ---- etcd_v2.c, etcd_v3.c: requests and answers ---- */

struct etcd_response {
    long status;
    uint64_t index;
    struct buf body;
};

/* A watch that a request asks for. */
struct etcd_want {
    char *key, *end; /* owned; end NULL: the key alone; otherwise all keys below end */
    uint64_t next;   /* the first revision that is wanted; 0: from now on */
    bool only_ends;  /* only deletions */
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
typedef void (*sim_http_line)(void *ctx, struct span line);

struct sim_call {
    struct sim_call *next, **prev_next; /* in the node's list, until done */
    struct sim_node *node;
    uint32_t boot;
    size_t member;
    struct etcd_msg msg;
    bool done;       /* the node has its answer, or wants none */
    bool sent;       /* it may have reached the member */
    bool gone;       /* the member knows that nobody waits for the answer */
    uint64_t down_t; /* when the last byte arrives; later ones do not overtake it */
    uint32_t refs;
    sim_http_done on_done;
    sim_http_line on_line; /* of a stream */
    void *ctx;
};

struct sim_call *sim_http(struct sim_node *n, size_t member, struct etcd_msg *m,
                          uint64_t timeout_ms, sim_http_done on_done,
                          sim_http_line on_line, void *ctx);
void sim_http_cancel(struct sim_call *c); /* NULL is fine */
void sim_call_unref(struct sim_call *c);

/* What a member does. */
void sim_http_answer(struct sim_call *c, const struct etcd_response *r);
void sim_http_push(struct sim_call *c, struct span line);
void sim_http_break(struct sim_call *c);  /* the connection breaks */
void sim_http_refuse(struct sim_call *c); /* nobody listens */

void sim_http_back(struct sim_event *ev);
void sim_http_reset(struct sim_node *n); /* all connections of the node break */

/* ---- etcd_cluster.c: members and their faults ---- */

struct etcd_member {
    bool up;
    uint64_t stopped_t; /* until when it is stopped by SIGSTOP */
    uint64_t cut_t;     /* until when it is cut off from the other members */
};

struct etcd_pending {
    struct sim_call *call; /* a reference */
    uint64_t since_t, commit_t;
    bool lost; /* its leader is gone: it will be done, but the answer is lost */
};

struct etcd_watcher {
    struct sim_call *call; /* a reference */
    struct etcd_want want;
    bool due; /* a push is to come */
};

struct sim_etcd {
    bool v2;
    struct etcd_store store;
    struct etcd_member members[ETCD_MEMBERS_MAX];
    size_t count;
    int leader;         /* -1: none */
    uint64_t elected_t; /* 0: it has led from the beginning */
    bool electing;
    bool flaps; /* a leader was lost before all nodes could renew their keys with it */
    struct etcd_pending *pending;
    size_t pending_count;
    struct etcd_watcher *watchers;
    size_t watcher_count;
};

enum etcd_tick {
    ETCD_COMMIT,
    ETCD_ELECT,
    ETCD_EXPIRE,
    ETCD_PUSH,
    ETCD_PATIENCE, /* a request has waited for a leader in vain */
    ETCD_MEMBER_BACK,
};

enum etcd_fault {
    ETCD_FAULT_KILL,
    ETCD_FAULT_STOP,
    ETCD_FAULT_CUT,
    ETCD_FAULT_COMPACT,
    ETCD_FAULT_STREAMS, /* every stream breaks */
};

void sim_etcd_start(struct sim *s, bool v2, size_t members);
void sim_etcd_stop(struct sim *s);
void sim_etcd_request(struct sim *s, struct sim_call *c); /* it has arrived */
void sim_etcd_tick(struct sim *s, const struct sim_event *ev);
void sim_etcd_fault(struct sim *s, enum etcd_fault fault, size_t member,
                    uint64_t for_us);

/* Whether the member runs and can reach the others. */
bool sim_etcd_member_ok(const struct sim *s, size_t member);

/* etcd_watch.c */
void sim_etcd_watch(struct sim *s, struct sim_call *c, struct etcd_want *w);
void sim_etcd_changed(struct sim *s);
void sim_etcd_push(struct sim *s, struct sim_call *c);
void sim_etcd_drop_watchers(struct sim *s, size_t member, bool all);

#endif

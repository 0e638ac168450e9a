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

#include "base/buf.h"
#include "sim/os.h"

#define ETCD_MEMBERS_MAX 5

/* A request as it came; texts live as long as the job. */
struct etcd_request {
    const char *method, *path;
    struct span body;
};

/* ---- etcd_store.c: keys, revisions, history ---- */

struct etcd_entry {
    const char *key, *value; /* value as on the wire: base64 in v3, text in v2 */
    bool dir;
    uint64_t modified, created;
    int64_t lease;     /* v3 */
    uint64_t expire_t; /* v2; or OS_NEVER */
};

struct etcd_change {
    uint64_t revision;
    const char *key;
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
    const char *key, *end; /* end NULL: the key alone; otherwise all keys below end */
    uint64_t next;         /* the first revision that is wanted; 0: from now on */
    bool only_ends;        /* only deletions */
};

bool etcd2_is_wait(const struct etcd_request *m, struct etcd_want *out);
bool etcd3_is_watch(const struct etcd_request *m, struct etcd_want *out);
void etcd2_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_request *m,
                 struct etcd_response *out);
void etcd3_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_request *m,
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

/* ---- job_http.c: requests under way ---- */

struct etcd_client { /* a node, as the cluster knows it */
    uint64_t cut_t;  /* until when nothing passes between the two */
    unsigned opened; /* a bit for each member that it is connected to */
};

struct cluster_call {
    struct cluster_call *next; /* in the list of all */
    struct etcd_client *client;
    size_t member;
    struct etcd_request request;
    struct http_call *asker; /* NULL: it has its answer, or wants none */
    bool sent;               /* it may have reached the member */
    bool gone;               /* the member knows that nobody waits for the answer */
    uint64_t down_t; /* when the last byte arrives; later ones do not overtake it */
};

/* What a member does. */
void call_answer(struct cluster_call *c, const struct etcd_response *r);
void call_push(struct cluster_call *c, struct span line);
void call_break(struct cluster_call *c);  /* the connection breaks */
void call_refuse(struct cluster_call *c); /* nobody listens */

/* ---- etcd_cluster.c: members and their faults ---- */

struct etcd_member {
    bool up;
    uint64_t stopped_t; /* until when it is stopped by SIGSTOP */
    uint64_t cut_t;     /* until when it is cut off from the other members */
};

struct etcd_pending {
    struct cluster_call *call;
    uint64_t since_t, commit_t;
    bool lost; /* its leader is gone: it will be done, but the answer is lost */
};

struct etcd_watcher {
    struct cluster_call *call;
    struct etcd_want want;
    bool due; /* a push is to come */
};

struct cluster {
    struct rng rng;
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

enum etcd_fault {
    ETCD_FAULT_KILL,
    ETCD_FAULT_STOP,
    ETCD_FAULT_CUT,
    ETCD_FAULT_COMPACT,
    ETCD_FAULT_STREAMS, /* every stream breaks */
};

extern struct cluster cluster; /* count 0: there is none */

void cluster_start(bool v2, size_t members, uint64_t seed);
void cluster_on_request(void *call, uint64_t n); /* an os_event_fn: it has arrived */
void cluster_fault(enum etcd_fault fault, size_t member, uint64_t for_us);

/* Whether the member runs and can reach the others. */
bool cluster_member_ok(size_t member);

/* etcd_watch.c */
void cluster_watch(struct cluster_call *c, struct etcd_want *w);
void cluster_changed(void);
void cluster_drop_watchers(size_t member, bool all);

#endif

/* serve_plan.h - what a host of --rdzv-serve does to become a member of the job's etcd
 * cluster: what the others' lists of members mean for it, and how etcd is to be
 * started.
 *
 * Pure. A member's data live as long as its agent, so a machine that comes back has
 * lost what it had promised to the others: it must never start under its old id. */
#ifndef ETCD_SERVE_CORE_SERVE_PLAN_H
#define ETCD_SERVE_CORE_SERVE_PLAN_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* One of the listed hosts. */
struct serve_host {
    char *host;    /* owned; as the user wrote it, without brackets */
    uint16_t port; /* for clients; peers use the next one unless peer_port says */
    uint16_t peer_port;
};

struct serve_hosts {
    struct serve_host *items; /* owned */
    size_t count;
};

/* "h1,h2:2379,[::1]:2379". At most SERVE_HOSTS_MAX, no host and port twice. peer_port
 * 0: the one after the client's. MUSTER_EINVAL with a reason. */
#define SERVE_HOSTS_MAX 9
int serve_hosts_parse(struct serve_hosts *out, const char *endpoints, int64_t peer_port,
                      struct muster_error *err);
void serve_hosts_fini(struct serve_hosts *h);

/* "http://h1:2380". The caller frees it; NULL: out of memory. */
char *serve_url(const char *scheme, const char *host, uint16_t port);

/* What a member of the cluster says of one of its members. */
struct serve_member {
    uint64_t id;
    bool started;   /* has told its client's address: it has run */
    char *name;     /* owned; empty until it has run */
    char *peer_url; /* owned; the first */
};

struct serve_members {
    struct serve_member *items; /* owned */
    size_t count;
};

/* The body of GET /members at a peer's port, or of the answer to member/add. */
int serve_members_parse(struct serve_members *out, struct span body,
                        struct muster_error *err);
void serve_members_fini(struct serve_members *m);

enum serve_action {
    SERVE_NEW,     /* begin, or take the place that the cluster was made with */
    SERVE_ADD,     /* the cluster goes on without us: be added */
    SERVE_REPLACE, /* the cluster may list us as we were: be removed, then added */
    SERVE_WAIT,    /* there may be a cluster, and nobody has said so: ask again */
    SERVE_FOREIGN, /* it is another job's */
};

/* What is known when all have been asked. */
struct serve_view {
    const struct serve_members *listed; /* the list of whoever answered, or NULL */
    size_t hosts;                       /* how many are listed, we among them */
    size_t refused;       /* of them, those where certainly nothing listens */
    const char *peer_url; /* ours */
    const char *tag;      /* what names of our job's members begin with */
};

/* *old is set with REPLACE. */
enum serve_action serve_plan(const struct serve_view *v, uint64_t *old);

/* One host comes in at a time: an etcd that starts does not answer yet, and one that
 * starts beside it asks it first and waits for 10 s; and neither starts with a list
 * that the other has changed meanwhile. So whoever is to ADD or REPLACE itself takes a
 * turn: a key of the cluster's, with a lease, should it be killed on the way. The
 * bodies of the three requests, and what the first two were answered. */
#define SERVE_TURN_MS   5000u
#define SERVE_TURN_ROOM 256
#define SERVE_TURN_ASK  "{\"TTL\":5}" /* /v3/lease/grant */
bool serve_turn_lease(struct span body, uint64_t *lease);
void serve_turn_take(char out[SERVE_TURN_ROOM], uint64_t lease); /* /v3/kv/txn */
bool serve_turn_is_ours(struct span body);
void serve_turn_give(char out[SERVE_TURN_ROOM], uint64_t lease); /* /v3/lease/revoke */

/* What is known when we leave and all have been asked once more. */
struct serve_leave_view {
    const struct serve_members *listed; /* our own list; id 0: removed already */
    const struct serve_hosts *hosts;
    const char *scheme;
    bool answers[SERVE_HOSTS_MAX]; /* by host */
    size_t self;                   /* index in hosts */
    bool left;                     /* we have been removed */
};

/* Whom to remove next, as an index in told: first the dead, so that those who live are
 * a majority without us, too, and then ourselves. SERVE_NOBODY: nobody is left to
 * remove, or nobody can be, since there is no majority. */
#define SERVE_NOBODY SIZE_MAX
size_t serve_leave_next(const struct serve_leave_view *v);

/* "5f3a09c1-": tells the members of this job from those of another. */
#define SERVE_TAG_SIZE 12
void serve_tag(char out[SERVE_TAG_SIZE], const char *run_id);

/* "TAG0=http://h1:2380,TAG1=http://h2:2380": for a new cluster from the hosts, for one
 * that is there from its members, all of them, or etcd does not start. */
int serve_cluster_new(struct buf *out, const struct serve_hosts *hosts,
                      const char *scheme, const char *tag);
int serve_cluster_there(struct buf *out, const struct serve_members *members,
                        const char *own_name, const char *own_peer_url);

/* 3.4 of {"etcdserver":"3.4.23",...}. False if it is not that. */
bool serve_version_parse(struct span body, int *major, int *minor);

#endif

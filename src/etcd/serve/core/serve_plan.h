/* serve_plan.h - decides what a host of --rdzv-serve does to become a member of the
 * job's etcd cluster, from the lists of members that others send, and how etcd is
 * started.
 *
 * Pure. A member's data exist only as long as its agent. So a machine that comes back
 * has lost the votes and entries that the cluster counts on, and must never start under
 * its old id. */
#ifndef ETCD_SERVE_CORE_SERVE_PLAN_H
#define ETCD_SERVE_CORE_SERVE_PLAN_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* One of the listed hosts. */
struct serve_host {
    char *host;    /* owned; as the user wrote it, without brackets */
    uint16_t port; /* for clients */
    uint16_t peer_port;
};

struct serve_hosts {
    struct serve_host *items; /* owned */
    size_t count;
};

/* Parses "h1,h2:2379,[::1]:2379": at most SERVE_HOSTS_MAX hosts, none of them twice
 * with the same port. If peer_port is 0, peers use the port after the client's.
 * MUSTER_EINVAL with a reason. */
#define SERVE_HOSTS_MAX 9
int serve_hosts_parse(struct serve_hosts *out, const char *endpoints, int64_t peer_port,
                      struct muster_error *err);
void serve_hosts_fini(struct serve_hosts *h);

/* Makes "http://h1:2380". The caller frees it; NULL if memory runs out. */
char *serve_url(const char *scheme, const char *host, uint16_t port);

/* A member, as the cluster lists it. */
struct serve_member {
    uint64_t id;
    bool started;   /* it has run, as it has announced an address for clients */
    char *name;     /* owned; empty until it has run */
    char *peer_url; /* owned; the first */
};

struct serve_members {
    struct serve_member *items; /* owned */
    size_t count;
};

/* Parses the body of GET /members at a peer's port, or of the answer to member/add. */
int serve_members_parse(struct serve_members *out, struct span body,
                        struct muster_error *err);
void serve_members_fini(struct serve_members *m);

enum serve_action {
    SERVE_NEW,     /* begin a new cluster, or be one of its first members */
    SERVE_ADD,     /* a cluster runs without us: join it */
    SERVE_REPLACE, /* the cluster may list our old self: remove that, then join */
    SERVE_WAIT,    /* a cluster may be running, but none has answered: ask again */
    SERVE_FOREIGN, /* the cluster is another job's */
};

/* What is known when all hosts have been asked. */
struct serve_view {
    const struct serve_members *listed; /* the list of a host that answered, or NULL */
    size_t hosts;         /* how many hosts are listed, including this one */
    size_t refused;       /* how many of them certainly have no etcd running */
    const char *peer_url; /* ours */
    const char *tag;      /* which the names of our job's members begin with */
};

/* *old is set with REPLACE. */
enum serve_action serve_plan(const struct serve_view *v, uint64_t *old);

/* Only one host at a time may ADD or REPLACE itself. An etcd that is starting does not
 * answer yet, and one that starts beside it would ask it first and wait for 10 s; and
 * an etcd does not start with a list of members that another has changed meanwhile. So
 * a host first takes a turn: it writes a key to the cluster, under a lease in case it
 * is killed meanwhile. These make the bodies of the three requests, and read the
 * answers of the first two. */
#define SERVE_TURN_MS   5000u
#define SERVE_TURN_ROOM 256
#define SERVE_TURN_ASK  "{\"TTL\":5}" /* /v3/lease/grant */
bool serve_turn_lease(struct span body, uint64_t *lease);
void serve_turn_take(char out[SERVE_TURN_ROOM], uint64_t lease); /* /v3/kv/txn */
bool serve_turn_is_ours(struct span body);
void serve_turn_give(char out[SERVE_TURN_ROOM], uint64_t lease); /* /v3/lease/revoke */

/* What is known when we leave and all hosts have been asked once more. */
struct serve_leave_view {
    const struct serve_members *listed; /* our own list; an id of 0: removed already */
    const struct serve_hosts *hosts;
    const char *scheme;
    bool answers[SERVE_HOSTS_MAX]; /* by host */
    size_t self;                   /* index in hosts */
    bool left;                     /* we have been removed */
};

/* The index in listed of the member to remove next: first the dead ones, so that the
 * living ones are a majority without us, too, and then ourselves. SERVE_NOBODY if none
 * is left to remove, or none can be removed as there is no majority. */
#define SERVE_NOBODY SIZE_MAX
size_t serve_leave_next(const struct serve_leave_view *v);

/* Writes a prefix, "5f3a09c1-" say, that tells the members of this job from those of
 * another. */
#define SERVE_TAG_SIZE 12
void serve_tag(char out[SERVE_TAG_SIZE], const char *run_id);

/* Append etcd's initial-cluster, "TAG0=http://h1:2380,TAG1=http://h2:2380": for a new
 * cluster from the hosts, for a running one from its members. etcd does not start
 * unless all members are listed. */
int serve_cluster_new(struct buf *out, const struct serve_hosts *hosts,
                      const char *scheme, const char *tag);
int serve_cluster_existing(struct buf *out, const struct serve_members *members,
                           const char *own_name, const char *own_peer_url);

/* Reads 3 and 4 from {"etcdserver":"3.4.23",...}; false if the body is not like that.
 */
bool serve_version_parse(struct span body, int *major, int *minor);

/* The environment that etcd is started with. Settings are passed in it and not as
 * options, as an etcd that does not know one of them then still starts. */
struct serve_env_spec {            /* all borrowed */
    char *const *inherited;        /* the agent's; may be NULL */
    const struct serve_host *host; /* this machine */
    const char *scheme;            /* http or https */
    const char *address;           /* numeric: where it listens */
    const char *name;              /* of the member */
    const char *dir;               /* its data go to DIR/data */
    const char *run_id;
    const char *client_url, *peer_url; /* the URLs that it announces */
    const char *cluster;               /* serve_cluster_new() or _existing() */
    bool existing;                     /* it joins a running cluster */
    const char *ca, *cert, *key;       /* files; all NULL: no TLS */
};

/* Makes a list of NAME=value that ends with NULL. The user's own ETCD_ settings, which
 * are meant for another etcd, are left out. NULL if memory runs out. */
char **serve_env_new(const struct serve_env_spec *spec);
void serve_env_free(char **env); /* NULL is fine */

#endif

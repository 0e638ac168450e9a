/* store_hosts_int.h - what store_hosts.c (nodes of ours), store_hosts_runs.c (their
 * runs) and store_hosts_key.c (the key that torchrun's nodes use) share. */
#ifndef IO_STORE_HOSTS_INT_H
#define IO_STORE_HOSTS_INT_H

#include "base/map.h"
#include "io/store_hosts.h"
#include "rdzv/host.h"

#define RUN_KEY     "/torch.rendezvous." /* and the run id */
#define HOSTED_RUNS 1024u                /* at once */

/* One rendezvous. One that is over stays, and stays closed, until others need the room;
 * then its key still says so. */
struct hosted_run {
    struct map_link link;   /* by the key's name; the bytes lie behind the struct */
    struct rdzv_host *host; /* owned */
    bool watched;           /* somebody waits for changes of the key */
    int64_t kept;           /* the first round whose keys are still there */
    size_t conns;           /* whose `run` this is */
    uint64_t idle_ms;       /* since when there is none */
    struct hosted_run *next;
};

struct store_hosts {
    struct map runs;
    struct hosted_run *first;
    uv_timer_t timer;
    struct rdzv_host_fx fx;
    struct store_fx store_fx;
    struct buf out; /* one message on its way */
};

/* store_hosts.c */
void hosts_feed(struct store_server *s, struct hosted_run *run,
                struct rdzv_host_event *ev);
void hosts_arm(struct store_server *s);

/* store_hosts_runs.c */
/* The run that a HELLO names, made if it is new: *begun. MUSTER_EFULL if there are too
 * many that go on, or MUSTER_ENOMEM. */
int run_of_hello(struct store_server *s, struct span run_id, struct hosted_run **out,
                 bool *begun);
void run_free(struct store_server *s, struct hosted_run *run);
void run_hold(struct hosted_run *run, struct conn *c); /* c is a node's */
void run_let_go(struct conn *c);                       /* no longer, if it was */

/* store_hosts_key.c */
/* Writes what the host has into the store, if it is not there yet; aged: also if only
 * the heartbeats in it are old. Whoever waits for the key to change is woken by it. */
void hosts_show(struct store_server *s, struct hosted_run *run, bool aged);
/* Tells the host if somebody else has changed the key. */
void hosts_look(struct store_server *s, struct hosted_run *run);

#endif

/* store_hosts_int.h - what store_hosts.c (nodes of ours) and store_hosts_key.c (the key
 * that torchrun's nodes use) share. */
#ifndef IO_STORE_HOSTS_INT_H
#define IO_STORE_HOSTS_INT_H

#include "base/map.h"
#include "io/store_hosts.h"
#include "rdzv/host.h"

#define RUN_KEY "/torch.rendezvous." /* and the run id */

/* One rendezvous. Lives as long as the server: a run that is over stays closed. */
struct hosted_run {
    struct map_link link;   /* by the key's name; the bytes lie behind the struct */
    struct rdzv_host *host; /* owned */
    bool watched;           /* somebody waits for changes of the key */
    int64_t kept;           /* the first round whose keys are still there */
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

/* store_hosts_key.c */
/* Writes what the host has into the store, if it is not there yet; aged: also if only
 * the heartbeats in it are old. Whoever waits for the key to change is woken by it. */
void hosts_show(struct store_server *s, struct hosted_run *run, bool aged);
/* Tells the host if somebody else has changed the key. */
void hosts_look(struct store_server *s, struct hosted_run *run);

#endif

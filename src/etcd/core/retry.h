/* retry.h - a request to a cluster of several endpoints: what becomes of it after
 * a try, done, or another one, here or elsewhere, at once or after a pause.
 *
 * Pure: etcd/client.c makes the tries, the simulator makes them on a model. */
#ifndef ETCD_CORE_RETRY_H
#define ETCD_CORE_RETRY_H

#include "base/rng.h"
#include "etcd/core/kv_operation.h"

#define ETCD_ATTEMPT_MS 3000u /* what a try may take where nobody says otherwise */

struct etcd_retry {
    enum etcd_api api;
    enum etcd3_expect expect;
    bool once;                /* do not repeat it if it may have reached a server */
    bool raw;                 /* the answer is a list of machines, not JSON */
    bool user;                /* tokens are asked for */
    unsigned reauthed;        /* how often another token was asked for */
    uint64_t attempt_ms;      /* what a try may take, and a pause at most */
    unsigned tries;           /* begun so far */
    unsigned refused;         /* of those, the last ones that failed for good */
    struct muster_error last; /* why the last one failed; code 0: none has */
};

/* How a try ended. */
struct etcd_outcome {
    int status;                     /* 0: an answer; else nobody answered, and why */
    struct etcd_http http;          /* borrowed */
    bool sent;                      /* it may have reached the server */
    const struct muster_error *why; /* borrowed */
    size_t endpoints;               /* how many there are */
    uint64_t left_ms;               /* until the request's deadline */
    const char *where, *key;        /* for messages; key may be NULL */
};

enum etcd_verdict {
    ETCD_DONE,
    ETCD_AGAIN, /* after pause_ms */
    ETCD_REAUTH /* our token is not taken any more: get another, then again */
};

struct etcd_judged {
    int status;                /* DONE: 0, or a negative code */
    bool answered;             /* DONE: answer is etcd's own, be it a refusal */
    struct etcd_answer answer; /* points into v2, v3 and the outcome */
    struct muster_error err;
    bool failed; /* this endpoint is of no use just now: on to the next */
    uint64_t pause_ms;
    struct etcd2_reply v2;
    struct etcd3_reply v3;
};

/* The caller finishes the judged. */
enum etcd_verdict etcd_retry_judge(struct etcd_retry *t, struct rng *rng,
                                   const struct etcd_outcome *o,
                                   struct etcd_judged *out);
void etcd_judged_fini(struct etcd_judged *j);

/* How long the try that begins (it is counted already) may wait for its answer. Several
 * endpoints: attempt_ms, for the next may answer at once. One alone: twice as long with
 * each try, so that it is not asked in vain for ever if it is only slow; and as long as
 * it takes if the request is not to be repeated. */
uint64_t etcd_retry_patience_ms(const struct etcd_retry *t, size_t endpoints);

/* A pause before the tries-th repetition: doubling from 50 ms to 2 s, half of it
 * random. */
uint64_t etcd_pause_ms(struct rng *rng, unsigned tries);

#endif

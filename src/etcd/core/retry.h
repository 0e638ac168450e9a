/* retry.h - decides after each try of a request whether it is done, or is tried again,
 * at which endpoint, at once or after a pause.
 *
 * Pure: etcd/client.c makes the tries; the simulator makes them on a model. */
#ifndef ETCD_CORE_RETRY_H
#define ETCD_CORE_RETRY_H

#include "base/rng.h"
#include "etcd/core/kv_operation.h"

#define ETCD_ATTEMPT_MS 3000u /* how long a try may take, by default */

struct etcd_retry {
    enum etcd_api api;
    enum etcd3_expect expect;
    bool once;                /* do not repeat it if it may have reached a server */
    bool raw;                 /* the answer is a list of machines, not JSON */
    bool user;                /* there is a user, so v3 needs tokens */
    unsigned reauthed;        /* how often another token was asked for */
    uint64_t attempt_ms;      /* how long a try may take, and a pause at most */
    unsigned tries;           /* begun so far */
    unsigned refused;         /* how many of the last tries failed for good, in a row */
    struct muster_error last; /* why the last one failed; code 0: none has */
};

/* How a try ended. */
struct etcd_outcome {
    int status;                     /* 0: an answer came; else why there was none */
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
    ETCD_REAUTH /* our token is not accepted any more: get another, then try again */
};

struct etcd_judged {
    int status;                /* DONE: 0, or a negative code */
    bool answered;             /* DONE: etcd itself answered, perhaps with an error */
    struct etcd_answer answer; /* points into v2, v3 and the outcome */
    struct muster_error err;
    bool failed; /* this endpoint does not work at present: use the next one */
    uint64_t pause_ms;
    struct etcd2_reply v2;
    struct etcd3_reply v3;
};

/* The caller calls etcd_judged_fini(out) in any case. */
enum etcd_verdict etcd_retry_judge(struct etcd_retry *t, struct rng *rng,
                                   const struct etcd_outcome *o,
                                   struct etcd_judged *out);
void etcd_judged_fini(struct etcd_judged *j);

/* How long the try that begins (it is counted already) may wait for its answer. With
 * several endpoints it is attempt_ms, as the next one may answer at once. With a single
 * one it doubles with each try, so that a slow server gets the time that it needs; and
 * it has no limit if the request must not be repeated. */
uint64_t etcd_retry_patience_ms(const struct etcd_retry *t, size_t endpoints);

/* The pause before the tries-th repetition: it doubles from 50 ms to 2 s, and half of
 * it is random. */
uint64_t etcd_pause_ms(struct rng *rng, unsigned tries);

#endif

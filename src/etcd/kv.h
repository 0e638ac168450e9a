/* kv.h - what the rendezvous needs of an etcd, the same for v2 and v3: keys with a
 * token that changes with each write, conditional writes, listings, waiting for a
 * change.
 *
 * etcd/core/kv_operation.h decides what is sent and what an answer means. A callback is
 * never called before the call has returned, and exactly once unless the operation is
 * canceled. */
#ifndef ETCD_KV_H
#define ETCD_KV_H

#include "etcd/client.h"
#include "etcd/core/kv_operation.h"

struct etcd_op;

/* 0: done. MUSTER_EEXIST: the condition of a write did not hold, and held is the value
 * that is there. Other negative codes: it failed, and held is NULL. */
typedef void (*etcd_held_cb)(void *ctx, int status, const struct etcd_held *held,
                             const struct muster_error *err);

struct etcd_kv {
    struct etcd_client *client; /* borrowed */
    enum etcd_api api;
};

struct etcd_kv_request {
    enum kv_operation_kind kind;
    struct span path;           /* all but PUT; LIST: ends in "/" */
    const struct etcd_put *put; /* PUT */
    bool directory;             /* DELETE: with all below it */
    uint64_t revision;          /* WAIT: the last one whose changes are known */
    uint64_t timeout_ms;
};

/* Copies what it is given; out may be NULL. A missing key is not an error: held says
 * that it is not present, and for DELETE that there was nothing to delete; a missing
 * directory counts as empty. WAIT ends once something at path (below it, if it ends in
 * "/") may have changed; the caller then reads again. MUSTER_ETIMEDOUT if nothing has
 * changed in time. */
int etcd_kv_start(const struct etcd_kv *kv, const struct etcd_kv_request *req,
                  etcd_held_cb cb, void *ctx, struct etcd_op **out,
                  struct muster_error *err);

void etcd_op_cancel(struct etcd_op *op); /* NULL is fine */

#endif

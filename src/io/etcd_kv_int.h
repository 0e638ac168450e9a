/* etcd_kv_int.h - what etcd_kv.c, etcd_kv2.c and etcd_kv3.c share. */
#ifndef IO_ETCD_KV_INT_H
#define IO_ETCD_KV_INT_H

#include "io/etcd_kv.h"
#include "io/etcd_watch.h"

enum etcd_op_kind {
    ETCD_OP_GET,
    ETCD_OP_PUT,
    ETCD_OP_DELETE,
    ETCD_OP_LIST,
    ETCD_OP_WAIT
};

struct etcd_op {
    struct etcd_kv kv;
    enum etcd_op_kind kind;
    struct span path;  /* owned */
    struct span value; /* owned: of a put, to recognise it */
    struct span bell;  /* owned: see struct etcd_put */
    enum etcd_cond cond;
    uint64_t token, revision, by_ms, ttl_s;
    int64_t lease;
    bool directory, unique, checking; /* checking: a lost write reads what is there */
    struct etcd_call *call;
    struct etcd_watch *watch; /* v3's wait */
    uv_timer_t timer;         /* v3's wait; has_timer: it must be closed */
    bool has_timer, ended;
    etcd_held_cb cb;
    void *ctx;
};

uint64_t etcd_op_left(const struct etcd_op *op); /* ms until its deadline */

/* Sends msg (rc is what encoding it said) and goes on in cb, with op as ctx. */
int etcd_op_send(struct etcd_op *op, int rc, struct etcd_msg *msg,
                 enum etcd3_expect expect, uint64_t attempt_ms, etcd_cb cb,
                 struct muster_error *err);

/* Tells the user; op is gone. */
void etcd_op_finish(struct etcd_op *op, int status, const struct etcd_held *held,
                    const struct muster_error *err);

int etcd_kv2_start(struct etcd_op *op, struct muster_error *err);
int etcd_kv3_start(struct etcd_op *op, struct muster_error *err);

#endif

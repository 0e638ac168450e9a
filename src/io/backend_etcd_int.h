/* backend_etcd_int.h - what backend_etcd.c and backend_etcd_open.c share. */
#ifndef IO_BACKEND_ETCD_INT_H
#define IO_BACKEND_ETCD_INT_H

#include "io/etcd_kv.h"
#include "io/etcd_lease.h"
#include "io/etcd_presence.h"
#include "io/etcd_watch.h"
#include "io/rdzv_backend.h"
#include "rdzv/etcd_state.h"

struct etcd_state {
    struct rdzv_backend base;
    struct etcd_client *client; /* owned */
    struct etcd_kv kv;
    struct etcd_names names;
    uint64_t lease_ttl_s;
    struct etcd_presence *here; /* v3 */
    rdzv_peer_cb on_peer;
    void *peer_ctx;
    uint64_t read_ms;
    rdzv_open_cb on_open;
    void *open_ctx;
    uint64_t open_by_ms;
    struct etcd_op *req; /* get or set under way */
    rdzv_state_cb on_state;
    void *state_ctx;
    struct etcd_seen seen;
    bool unmade; /* a request that could not even be made is to be told */
    rdzv_changed_cb on_changed;
    void *changed_ctx;
    uv_timer_t soon;          /* tells a change that is known already; repeats a wait */
    struct etcd_op *wait;     /* v2 */
    struct etcd_watch *watch; /* v3 */
    struct etcd_lease *lease; /* v3 */
    int64_t lease_id;
    struct muster_error
        not_granted; /* why, the last time; code 0: it was not refused */
    rdzv_gone_cb on_gone;
    void *gone_ctx;
    bool soon_closed, client_closed;
};

static inline struct etcd_state *etcd_state_of(struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct etcd_state, base);
}

/* backend_etcd.c */
void etcd_state_get(struct rdzv_backend *base, uint64_t timeout_ms, rdzv_state_cb cb,
                    void *ctx);
void etcd_state_set(struct rdzv_backend *base, struct span value, bool has_token,
                    struct span token, bool quiet, uint64_t timeout_ms,
                    rdzv_state_cb cb, void *ctx);
bool etcd_state_watch(struct rdzv_backend *base, bool present, struct span value,
                      rdzv_changed_cb cb, void *ctx);

#endif

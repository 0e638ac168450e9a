/* rdzv_legacy_int.h - what the files of the backend "etcd" share; see
 * rdzv_etcd_legacy.c. */
#ifndef IO_RDZV_LEGACY_INT_H
#define IO_RDZV_LEGACY_INT_H

#include "io/etcd_kv.h"
#include "io/offload.h"
#include "io/rdzv_handler.h"
#include "rdzv/legacy.h"
#include "rdzv/legacy_link.h"

#define NEWS_MAX 8

struct keep {
    struct old *owner;
    struct legacy_keep state;
    uv_timer_t timer;
    struct etcd_call *call;
};

struct wish {
    rdzv_done_cb cb;
    void *ctx;
};

struct old {
    struct rdzv_handler base;
    const struct trace *trace; /* borrowed */
    struct legacy *core;
    struct etcd_client *client;
    struct etcd_kv kv;
    char *run_id, *local_addr; /* owned; local_addr may be NULL */
    struct etcd_call *req;     /* the core's request */
    bool waiting;              /* and it is a long poll */
    struct keep run, rank;
    uv_timer_t timer, soon, hiccup;

    struct astore *store; /* owned: of the version */
    struct rdzv_round round;
    char addr[1025], master[1025];
    uint64_t addr_by_ms; /* rank 0 has told the workers' address by then */
    struct offload *naming;

    rdzv_next_cb next_cb;
    void *next_ctx;
    struct muster_error refused; /* code 0: not */
    bool rejoin;
    bool joined; /* and the workers' address is known: to be told */
    rdzv_news_cb news_cb;
    void *news_ctx;
    struct {
        enum rdzv_news kind;
        struct muster_error err;
    } news[NEWS_MAX];
    size_t news_count;
    struct wish close, leave, stop;
    bool closing, close_done, leave_done, stopped, destroying;
    struct muster_error close_err;
    size_t refs;
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

/* rdzv_etcd_legacy.c: the only caller of the core. */
void legacy_wish(struct old *o, enum legacy_event_kind kind);
void legacy_keep_stop(struct keep *k);

/* rdzv_legacy_face.c: tells the agent what there is to tell, from the loop. */
void legacy_soon(struct old *o);
extern const struct rdzv_handler_ops legacy_ops;

/* rdzv_legacy_addr.c: the version's store, and the workers' address in it. */
void legacy_drop_store(struct old *o);
void legacy_refused(struct old *o, int code, const struct muster_error *err);
void legacy_settle_address(struct old *o);

/* Frees o; its handles are closed, or were never made. */
void legacy_old_free(struct old *o);

#endif

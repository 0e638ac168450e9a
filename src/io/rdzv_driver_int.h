/* rdzv_driver_int.h - the dynamic handler, shared by rdzv_driver.c (the core's driver)
 * and rdzv_dynamic.c (parameters, who we are, opening). */
#ifndef IO_RDZV_DRIVER_INT_H
#define IO_RDZV_DRIVER_INT_H

#include <assert.h>

#include "base/err.h"
#include "io/offload.h"
#include "io/rdzv_backend.h"
#include "io/rdzv_local.h"
#include "io/rdzv_master.h"

/* Nothing yet; finding our name; opening the backend; at work; opening has failed. */
enum dynamic_stage { STAGE_NEW, STAGE_NAME, STAGE_OPEN, STAGE_READY, STAGE_BROKEN };

struct dynamic {
    struct rdzv_handler base;
    struct rdzv_backend *backend; /* owned */
    struct rdzv_params params;    /* owned */
    struct rdzv_settings settings;
    const struct trace *trace; /* borrowed */
    bool share;                /* the workers' store is served by an agent */
    uint64_t read_ms;

    char addr[1025]; /* who we are: addr, pid, local_id */
    int64_t pid, local_id;
    char where[1025];       /* MASTER_ADDR if we are rank 0 */
    struct offload *naming; /* owned while it runs */

    enum dynamic_stage stage;
    struct muster_error broken; /* STAGE_BROKEN: why */
    struct rdzv *core;          /* owned; from STAGE_OPEN on */
    uv_timer_t timer;           /* the core's deadline */
    uv_timer_t soon;            /* what is to be told from the loop */
    uv_timer_t linger;          /* a host's, after closing */
    bool in_feed, stopped, destroying;
    bool collided; /* somebody else has our name: join under another */
    struct {
        bool next, close, leave, stop; /* to be told when `soon` fires */
        struct muster_error next_err;
    } tell;
    unsigned wishes; /* bits 1 << RDZV_EV_JOIN and so on, that came during a feed */
    unsigned renamed;

    rdzv_next_cb next_cb; /* NULL: no next() under way */
    void *next_ctx;
    bool joining; /* the core has the JOIN */
    struct rdzv_round round;
    struct rdzv_master *master; /* owned */
    struct astore *store;       /* owned: the group's, without prefix */
    struct astore *prefixed;    /* owned: the round's view of it */

    rdzv_news_cb news_cb;
    void *news_ctx;
    struct wish {
        rdzv_done_cb cb; /* NULL: not under way */
        void *ctx;
    } close, leave, stop;
    bool stop_closes;
    uint64_t linger_by_ms;

    size_t refs; /* of destroy(): what is still closing */
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

extern const struct rdzv_handler_ops dynamic_ops;

/* Finds our name and opens the backend; ends in STAGE_READY or STAGE_BROKEN, and then
 * in dynamic_opened(). */
void dynamic_open(struct dynamic *d);
void dynamic_opened(struct dynamic *d);

/* Makes the core for who we are now. */
int dynamic_core(struct dynamic *d, struct muster_error *err);

/* Another local_id: somebody else is called as we are. */
void dynamic_rename(struct dynamic *d);

/* Compares our settings with those of whoever came first, and says so in the log. */
void dynamic_settings(struct dynamic *d);

void dynamic_free(struct dynamic *d);

#endif

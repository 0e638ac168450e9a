/* rdzv_static_int.h - the static handler, shared by rdzv_static.c (counting in) and
 * rdzv_static_face.c (what the agent calls). */
#ifndef IO_RDZV_STATIC_INT_H
#define IO_RDZV_STATIC_INT_H

#include "io/rdzv_handler.h"
#include "io/store_server.h"
#include "rdzv/endpoint.h"

struct fixed {
    struct rdzv_handler base;
    const struct trace *trace; /* borrowed */
    char *run_id;              /* owned */
    struct endpoint at;
    int64_t rank, world;
    uint64_t timeout_ms, by_ms;

    struct store_server *server; /* owned; rank 0 */
    struct astore *store;        /* owned */
    struct astore *counter;      /* owned: the connection for init/ */
    struct astore *prefixed;     /* owned */
    int64_t here;  /* who has counted in, as rank 0 has seen it; 0: we have not */
    char word[64]; /* the key by which we know that we have counted; not rank 0's */
    bool tried;    /* to count in: the word may be there */
    bool ready, destroying;
    bool ending; /* our server: its port is free again before anything is told */
    struct rdzv_round round;
    rdzv_next_cb next_cb;
    void *next_ctx;
    uv_timer_t soon;
    struct muster_error why; /* of a failure that is told soon; code 0: none */
    struct {
        rdzv_done_cb cb;
        void *ctx;
    } done[3]; /* set_closed, leave, shutdown: told soon */
    size_t refs;
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

/* rdzv_static.c: serves if we are rank 0, connects, counts us in and waits for all. */
void fixed_begin(struct fixed *f);
void fixed_fail(struct fixed *f, const struct muster_error *err);
void fixed_take_word(struct fixed *f); /* back: we shall not count again */

/* rdzv_static_face.c. What there is to tell is told from the loop. */
extern const struct rdzv_handler_ops static_ops;
void fixed_soon(struct fixed *f);
void fixed_drop(struct fixed *f, struct astore **s); /* NULL in *s is fine */
void fixed_end_server(struct fixed *f);
void fixed_release(struct fixed *f);

#endif

/* dynamic_int.h - the dynamic handler, shared by dynamic.c (the core's driver, what the
 * agent calls and is told), dynamic_round.c (next() and its outcome) and dynamic_open.c
 * (parameters, our name, opening). */
#ifndef RENDEZVOUS_DYNAMIC_INT_H
#define RENDEZVOUS_DYNAMIC_INT_H

#include <assert.h>

#include "base/err.h"
#include "loop/blocking_call.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/state.h"
#include "rendezvous/local_identity.h"
#include "rendezvous/master_addr.h"
#include "rendezvous/member_driver.h"
#include "rendezvous/state_backend.h"

/* Nothing yet; finding our name; opening the backend; at work; opening has failed. */
enum dynamic_stage { STAGE_NEW, STAGE_NAME, STAGE_OPEN, STAGE_READY, STAGE_BROKEN };

#define RUNS_FIRST_MS 1000u /* of waiting, before we ask for other runs, and */
#define RUNS_EVERY_MS 3000u

struct dynamic_handler {
    struct rdzv_handler base;
    struct rdzv_backend *backend; /* owned */
    struct rdzv_params params;    /* owned */
    struct rdzv_settings settings;
    const struct trace *trace; /* borrowed */
    bool share;                /* the workers' store is served by an agent */
    uint64_t read_ms;
    uint64_t open_by_ms; /* the backend is reached by then, or not at all */

    char addr[1025]; /* who we are: addr, pid, local_id */
    int64_t pid, local_id;
    char where[1025];             /* MASTER_ADDR if we are rank 0 */
    bool nameless;                /* our own name does not resolve */
    struct blocking_call *naming; /* owned while it runs */

    enum dynamic_stage stage;
    struct muster_error broken;   /* STAGE_BROKEN: why */
    struct rdzv *core;            /* owned; from STAGE_OPEN on */
    struct member_driver *member; /* owned; in the core's place if the store hosts */
    struct rdzv_node rank0;       /* rank 0 of a hosted round; borrowed from member */
    struct rdzv_node *members;    /* owned; of a hosted round with torchrun's nodes */
    struct rdzv_state *seen;      /* owned; members borrow from it */
    void (*found_members)(struct dynamic_handler *d);
    int hosted;             /* rdzv-conf hosted: 1, or 0 to do without */
    int64_t grace_ms;       /* rdzv-conf loss_grace_ms */
    int64_t rank_order_key; /* rdzv-conf node_order; negative: none */
    uv_timer_t timer;       /* for the earliest of all that is due */
    uint64_t away_by_ms;    /* the store is unreachable: news by then, or MONO_NEVER */
    struct muster_error away_err;
    uint64_t linger_at_ms; /* a host's, after closing: when to look who is still here */
    bool in_feed, stopped, destroying;
    bool ended;    /* we have closed the run, and said goodbye to its host */
    bool collided; /* somebody else has our name: join under another */
    struct {
        bool next, close, leave, stop; /* to be told from the loop */
        struct muster_error next_err;
    } tell;
    unsigned requests; /* bits 1 << RDZV_EV_JOIN and so on, that came during a feed */
    unsigned renamed;

    rdzv_next_cb next_cb; /* NULL: no next() under way */
    void *next_ctx;
    bool joining;        /* the core has the JOIN */
    uint64_t runs_at_ms; /* when to ask which other runs there are, or MONO_NEVER */
    char other_runs[RDZV_WHY_SIZE]; /* the answer, in words; empty: none */
    int refused;    /* a code of the join that the close need not tell again, or 0 */
    bool canceling; /* next() is to end with MUSTER_ECANCELED, whatever comes of it */
    bool unjoined;  /* a JOIN was taken back during a feed: to be told */
    struct rdzv_round round;
    struct rdzv_master *master;   /* owned */
    struct async_store *store;    /* owned: the group's, without prefix */
    struct async_store *prefixed; /* owned: the round's view of it */

    rdzv_news_cb news_cb;
    void *news_ctx;
    struct pending {
        rdzv_done_cb cb; /* NULL: not under way */
        void *ctx;
    } close, leave, stop;
    bool stop_closes;
    bool close_waits; /* until the backend is open */
    uint64_t linger_by_ms;

    size_t refs; /* of destroy(): what is still closing */
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

extern const struct rdzv_handler_ops dynamic_ops;

/* A request for the core or the member; at once, or after the step that is under way.
 */
void dynamic_request(struct dynamic_handler *d, enum rdzv_event_kind kind);

/* dynamic_round.c: next(), its outcome, and the stores of its round. */
void dynamic_begin_join(struct dynamic_handler *d);
void dynamic_joined(struct dynamic_handler *d, const struct rdzv_effect *e);
void dynamic_refused(struct dynamic_handler *d, const struct rdzv_effect *e);
void dynamic_canceled(struct dynamic_handler *d);
void dynamic_next_failed(struct dynamic_handler *d, int code, const char *text);
void dynamic_close_stores(struct dynamic_handler *d);

/* dynamic.c: news, and what became of close, leave and shutdown. What d->tell has is
 * told from the loop. */
void dynamic_news(struct dynamic_handler *d, const struct rdzv_effect *e);
void dynamic_done(struct dynamic_handler *d, const struct rdzv_effect *e);
void dynamic_arm(struct dynamic_handler *d); /* something else may be due first */

/* One node, and a free port that was never announced, as of --standalone: no other node
 * can come. */
bool dynamic_is_alone(const struct dynamic_handler *d);

/* Finds our name and opens the backend; ends in STAGE_READY or STAGE_BROKEN, and then
 * in dynamic_opened(). */
void dynamic_open(struct dynamic_handler *d);
void dynamic_opened(struct dynamic_handler *d);

/* Makes the core for who we are now. */
int dynamic_core(struct dynamic_handler *d, struct muster_error *err);

/* Tells what the core or the member has decided to whom it concerns. */
void dynamic_on_effect(void *ctx, const struct rdzv_effect *told);

/* dynamic_round.c: in the core's place, if the backend's store hosts. False: it does
 * not, or is not to. */
bool dynamic_be_member(struct dynamic_handler *d);

/* The members of the hosted round just joined, as far as the workers' address needs
 * them; cb(d) comes at once or from the loop. */
void dynamic_hosted_members(struct dynamic_handler *d,
                            void (*cb)(struct dynamic_handler *d));

void dynamic_forget_members(struct dynamic_handler *d);

/* Another local_id: somebody else is called as we are. */
void dynamic_rename(struct dynamic_handler *d);

/* Shows us to the others by way of the backend, if it can; and one of them ended. */
void dynamic_present(struct dynamic_handler *d);
void dynamic_peer_gone(void *ctx, struct span node);

/* Compares our settings with those of whoever came first, and says so in the log. */
void dynamic_settings(struct dynamic_handler *d);

void dynamic_free(struct dynamic_handler *d);

#endif

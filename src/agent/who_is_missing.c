/* who_is_missing.c - see who_is_missing.h. One CHECK for each node that is missing, a
 * few at a time: the store's answer to a CHECK of many keys is one for all of them. */
#include "agent/who_is_missing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "rendezvous/core/rank_exchange.h"

#define SLOTS   32u   /* questions under way at once */
#define LOOK_MS 5000u /* for each */

struct slot {
    struct who_is_missing *look;
    int64_t rank;
};

struct who_is_missing {
    struct async_store *store; /* owned: a handle of our own */
    enum missing_at at;
    struct missing_ranks ranks;
    int64_t done;
    int64_t next; /* rank to ask for; -1: all have been asked */
    struct slot slots[SLOTS];
    unsigned pending;
    bool asking, answered, closing;
    void (*notify)(void *ctx);
    void *ctx;
};

static void ask_for_rank(struct who_is_missing *l, struct slot *s);

static void end_if_answered(struct who_is_missing *l)
{
    if (l->pending || l->closing || !l->asking)
        return;
    l->asking = false;
    l->notify(l->ctx);
}

/* --- ranks ------------------------------------------------------------------------ */

static void on_checked(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct slot *s = ctx;
    struct who_is_missing *l = s->look;

    (void)err; /* The wait itself fails for the same reason, and reports it. */
    l->pending--;
    if (status < 0) {
        l->next = -1;
    } else {
        l->answered = true;
        if (reply->number == 0)
            missing_ranks_mark(&l->ranks, s->rank);
    }
    if (!l->closing)
        ask_for_rank(l, s);
    end_if_answered(l);
}

static void ask_for_rank(struct who_is_missing *l, struct slot *s)
{
    char key[sizeof RANKS_ROLE_KEY + 20];

    if (l->next >= 0)
        l->next = missing_ranks_next(&l->ranks, l->next);
    if (l->next < 0)
        return;
    *s = (struct slot){ l, l->next };
    (void)snprintf(key, sizeof key, RANKS_ROLE_KEY "%" PRId64, l->next);
    if (async_store_check(l->store, span_str(key), LOOK_MS, on_checked, s, NULL) < 0) {
        l->next = -1;
        return;
    }
    l->next++;
    l->pending++;
}

/* --- how many are done ------------------------------------------------------------ */

static void on_counted(void *ctx, int status, const struct c10d_reply *reply,
                       const struct muster_error *err)
{
    struct who_is_missing *l = ctx;
    char text[24];

    (void)err;
    l->pending--;
    if (status == 0 && reply->value.n < sizeof text) {
        (void)snprintf(text, sizeof text, "%.*s", (int)reply->value.n,
                       reply->value.n ? (const char *)reply->value.p : "");
        l->done = MIN_OF(MAX_OF(strtoll(text, NULL, 10), 0), l->ranks.world);
    }
    end_if_answered(l);
}

static void ask_count(struct who_is_missing *l)
{
    if (async_store_get(l->store, span_str(RANKS_MEMBERS_KEY), LOOK_MS, on_counted, l,
                        NULL) == 0)
        l->pending++;
}

/* --- open, ask, close ------------------------------------------------------------- */

struct who_is_missing *who_is_missing_open(struct async_store *store,
                                           enum missing_at at, int64_t world,
                                           int64_t own_rank, void (*notify)(void *ctx),
                                           void *ctx)
{
    struct who_is_missing *l = mem_calloc(1, sizeof *l);

    if (!l)
        return NULL;
    *l = (struct who_is_missing){ .at = at, .notify = notify, .ctx = ctx };
    if (missing_ranks_init(&l->ranks, world, NULL) < 0 ||
        store->ops->clone(store, &l->store, NULL) < 0) {
        missing_ranks_fini(&l->ranks);
        mem_free(l);
        return NULL;
    }
    missing_ranks_mark(&l->ranks, own_rank);
    return l;
}

bool who_is_missing_ask(struct who_is_missing *l)
{
    if (l->asking)
        return false;
    l->next = 0;
    if (l->at == MISSING_AT_END)
        ask_count(l);
    for (size_t i = 0; i < SLOTS && l->at == MISSING_AT_START; i++)
        ask_for_rank(l, &l->slots[i]);
    l->asking = l->pending > 0;
    return l->asking;
}

struct missing_seen who_is_missing_seen(const struct who_is_missing *l)
{
    if (!l)
        return (struct missing_seen){ NULL, 0 };
    return (struct missing_seen){ l->answered ? &l->ranks : NULL, l->done };
}

static void who_is_missing_on_closed(void *ctx)
{
    struct who_is_missing *l = ctx;

    missing_ranks_fini(&l->ranks);
    mem_free(l);
}

void who_is_missing_close(struct who_is_missing *l)
{
    if (!l)
        return;
    l->closing = true;
    async_store_close(l->store, who_is_missing_on_closed, l);
}

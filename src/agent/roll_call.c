/* roll_call.c - see roll_call.h. One CHECK for each node that is missing, a few at a
 * time: the store's answer to a CHECK of many keys is one for all of them. */
#include "agent/roll_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "rendezvous/core/rank_exchange.h"

#define SLOTS   32u   /* questions under way at once */
#define LOOK_MS 5000u /* for each */

struct slot {
    struct roll_caller *look;
    int64_t rank;
};

struct roll_caller {
    struct async_store *store; /* owned: a handle of our own */
    enum roll_kind at;
    struct roll_call roll;
    int64_t done;
    int64_t next; /* rank to ask for; -1: all have been asked */
    struct slot slots[SLOTS];
    unsigned pending;
    bool asking, answered, closing;
    void (*notify)(void *ctx);
    void *ctx;
};

static void ask_next(struct roll_caller *l, struct slot *s);

static void end_asking(struct roll_caller *l)
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
    struct roll_caller *l = s->look;

    (void)err; /* The wait itself fails for the same reason, and reports it. */
    l->pending--;
    if (status < 0) {
        l->next = -1;
    } else {
        l->answered = true;
        if (reply->number == 0)
            roll_call_mark(&l->roll, s->rank);
    }
    if (!l->closing)
        ask_next(l, s);
    end_asking(l);
}

static void ask_next(struct roll_caller *l, struct slot *s)
{
    char text[sizeof RANKS_ROLE_KEY + 20];
    struct span key;

    if (l->next >= 0)
        l->next = roll_call_missing(&l->roll, l->next);
    if (l->next < 0)
        return;
    *s = (struct slot){ l, l->next };
    (void)snprintf(text, sizeof text, RANKS_ROLE_KEY "%" PRId64, l->next);
    key = span_str(text);
    if (async_store_check(l->store, &key, 1, LOOK_MS, on_checked, s, NULL) < 0) {
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
    struct roll_caller *l = ctx;
    char text[24];

    (void)err;
    l->pending--;
    if (status == 0 && reply->value.n < sizeof text) {
        (void)snprintf(text, sizeof text, "%.*s", (int)reply->value.n,
                       reply->value.n ? (const char *)reply->value.p : "");
        l->done = MIN_OF(MAX_OF(strtoll(text, NULL, 10), 0), l->roll.world);
    }
    end_asking(l);
}

static void ask_count(struct roll_caller *l)
{
    if (async_store_get(l->store, span_str(RANKS_MEMBERS_KEY), LOOK_MS, on_counted, l,
                        NULL) == 0)
        l->pending++;
}

/* --- open, ask, close ------------------------------------------------------------- */

struct roll_caller *roll_caller_open(struct async_store *store, enum roll_kind at,
                                     int64_t world, int64_t own_rank,
                                     void (*notify)(void *ctx), void *ctx)
{
    struct roll_caller *l = mem_calloc(1, sizeof *l);

    if (!l)
        return NULL;
    *l = (struct roll_caller){ .at = at, .notify = notify, .ctx = ctx };
    if (roll_call_init(&l->roll, world, NULL) < 0 ||
        store->ops->clone(store, &l->store, NULL) < 0) {
        roll_call_fini(&l->roll);
        mem_free(l);
        return NULL;
    }
    roll_call_mark(&l->roll, own_rank);
    return l;
}

bool roll_caller_ask(struct roll_caller *l)
{
    if (l->asking)
        return false;
    l->next = 0;
    if (l->at == ROLL_OF_DONE)
        ask_count(l);
    for (size_t i = 0; i < SLOTS && l->at == ROLL_OF_RANKS; i++)
        ask_next(l, &l->slots[i]);
    l->asking = l->pending > 0;
    return l->asking;
}

struct roll_seen roll_caller_seen(const struct roll_caller *l)
{
    if (!l)
        return (struct roll_seen){ NULL, 0 };
    return (struct roll_seen){ l->answered ? &l->roll : NULL, l->done };
}

static void roll_call_on_closed(void *ctx)
{
    struct roll_caller *l = ctx;

    roll_call_fini(&l->roll);
    mem_free(l);
}

void roll_caller_close(struct roll_caller *l)
{
    if (!l)
        return;
    l->closing = true;
    async_store_close(l->store, roll_call_on_closed, l);
}

/* static_join.c - see static_join.h. */
#include "rendezvous/core/static_join.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "store/core/reserved.h"

static int static_join_ask(struct static_join *c, enum static_join_stage stage,
                           struct now now, struct dialogue_fx *fx)
{
    struct store_dialogue *t = &c->dialogue;
    char text[24], key[DIALOGUE_KEY];
    struct buf list;
    int rc = 0;

    buf_init(&list, SIZE_MAX);
    (void)snprintf(text, sizeof text, "%" PRId64, c->here);
    (void)snprintf(key, sizeof key, RESERVED_CHANGED "%016" PRIx64 "/" STATIC_JOIN_KEY,
                   reserved_hash(span_str(text)));
    if (stage == STATIC_JOIN_LOOK)
        rc = c10d_list_add(&list, span_str(c->token));
    if (stage == STATIC_JOIN_WAIT)
        rc = c10d_list_add(&list, span_str(key));
    if (rc < 0) {
        buf_fini(&list);
        return MUSTER_ENOMEM;
    }
    c->stage = stage;
    dialogue_ask(t, &list, NULL, stage == STATIC_JOIN_ADD ? 2 : 1,
                 stage == STATIC_JOIN_WAIT, now, fx);
    switch (stage) {
    case STATIC_JOIN_LOOK:
    case STATIC_JOIN_WAIT:
        t->parts[0] = (struct c10d_request){
            .op = stage == STATIC_JOIN_LOOK ? C10D_CHECK : C10D_WAIT,
            .list = { buf_span(&t->list), 1 },
        };
        return 0;
    case STATIC_JOIN_ADD: /* The token goes first: without it we have not been counted.
                           */
        c->tried = true;
        t->parts[0] = (struct c10d_request){ .op = C10D_SET,
                                             .key = span_str(c->token),
                                             .value = span_str("1") };
        break;
    case STATIC_JOIN_READ:
        break;
    }
    t->parts[t->count - 1] =
        (struct c10d_request){ .op = C10D_ADD,
                               .key = span_str(STATIC_JOIN_KEY),
                               .number = stage == STATIC_JOIN_ADD };
    return 0;
}

static int static_join_timed_out(const struct static_join *c, struct dialogue_fx *fx)
{
    return dialogue_fail(fx, MUSTER_ETIMEDOUT,
                         "Timed out after %" PRIu64
                         " seconds waiting for clients. %" PRId64 "/%" PRId64
                         " clients joined. Start the missing nodes with the same "
                         "--master-addr, --master-port and --nnodes",
                         c->timeout_ms / 1000 + 1, c->here, c->world);
}

static int static_join_counted(struct static_join *c, const struct dialogue_event *ev,
                               struct dialogue_fx *fx)
{
    const int64_t before = c->here;
    int rc;

    c->here = ev->reply->number;
    if (c->rank != 0 || c->here >= c->world) {
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    if (ev->now.mono_ms >= c->dialogue.by_ms)
        return static_join_timed_out(c, fx);
    rc = static_join_ask(c, STATIC_JOIN_WAIT, ev->now, fx);
    if (rc < 0)
        c->here = before;
    return rc;
}

static int static_join_answered(struct static_join *c, const struct dialogue_event *ev,
                                struct dialogue_fx *fx)
{
    assert(c->dialogue.asking);
    if (ev->status < 0 && ev->status != MUSTER_ETIMEDOUT) {
        if (!dialogue_is_broken(ev->status) || ev->now.mono_ms >= c->dialogue.by_ms)
            return dialogue_fail(fx, ev->status, "%s", ev->text);
        c->stage = STATIC_JOIN_LOOK; /* We do not know whether we were counted. */
        dialogue_again(&c->dialogue, ev->now, fx);
        return 0;
    }
    switch (c->stage) {
    case STATIC_JOIN_LOOK: /* In c10d's CHECK, number 0 means that the key exists. */
        return static_join_ask(
            c, ev->reply->number == 0 ? STATIC_JOIN_READ : STATIC_JOIN_ADD, ev->now,
            fx);
    case STATIC_JOIN_ADD:
    case STATIC_JOIN_READ:
        return static_join_counted(c, ev, fx);
    case STATIC_JOIN_WAIT: /* More have come, or it is time to look again. */
        return static_join_ask(c, STATIC_JOIN_READ, ev->now, fx);
    }
    return 0;
}

int static_join_step(struct store_dialogue *t, const struct dialogue_event *ev,
                     struct dialogue_fx *fx)
{
    struct static_join *c = CONTAINER_OF(t, struct static_join, dialogue);
    int rc;

    assert(c->world > 0 && c->rank >= 0 && c->rank < c->world && c->token[0]);
    switch (ev->kind) {
    case DIALOGUE_BEGIN:
        assert(t->by_ms == MONO_NEVER);
        t->by_ms = c->timeout_ms < MONO_NEVER - ev->now.mono_ms
                       ? ev->now.mono_ms + c->timeout_ms
                       : MONO_NEVER - 1;
        rc = static_join_ask(c, c->tried ? STATIC_JOIN_LOOK : STATIC_JOIN_ADD, ev->now,
                             fx);
        if (rc < 0)
            t->by_ms = MONO_NEVER;
        return rc;
    case DIALOGUE_ANSWER:
        return static_join_answered(c, ev, fx);
    case DIALOGUE_TIMER:
        assert(!t->asking);
        if (ev->now.mono_ms >= t->by_ms)
            return static_join_timed_out(c, fx);
        return static_join_ask(c, c->stage, ev->now, fx);
    }
    return 0;
}

/* count_in.c - see count_in.h. */
#include "rendezvous/core/count_in.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "store/core/reserved.h"

static int ask(struct count_in *c, enum count_in_stage stage, struct now now,
               struct talk_fx *fx)
{
    struct talk *t = &c->talk;
    char text[24], key[TALK_KEY];
    struct buf list;
    int rc = 0;

    buf_init(&list, SIZE_MAX);
    (void)snprintf(text, sizeof text, "%" PRId64, c->here);
    (void)snprintf(key, sizeof key, RESERVED_CHANGED "%016" PRIx64 "/" COUNT_IN_KEY,
                   reserved_hash(span_str(text)));
    if (stage == COUNT_IN_LOOK)
        rc = c10d_list_add(&list, span_str(c->token));
    if (stage == COUNT_IN_WAIT)
        rc = c10d_list_add(&list, span_str(key));
    if (rc < 0) {
        buf_fini(&list);
        return MUSTER_ENOMEM;
    }
    c->stage = stage;
    talk_ask(t, &list, NULL, stage == COUNT_IN_ADD ? 2 : 1, stage == COUNT_IN_WAIT, now,
             fx);
    switch (stage) {
    case COUNT_IN_LOOK:
    case COUNT_IN_WAIT:
        t->parts[0] = (struct c10d_request){
            .op = stage == COUNT_IN_LOOK ? C10D_CHECK : C10D_WAIT,
            .list = { buf_span(&t->list), 1 },
        };
        return 0;
    case COUNT_IN_ADD: /* The token goes first: without it we have not been counted. */
        c->tried = true;
        t->parts[0] = (struct c10d_request){ .op = C10D_SET,
                                             .key = span_str(c->token),
                                             .value = span_str("1") };
        break;
    case COUNT_IN_READ:
        break;
    }
    t->parts[t->count - 1] = (struct c10d_request){ .op = C10D_ADD,
                                                    .key = span_str(COUNT_IN_KEY),
                                                    .number = stage == COUNT_IN_ADD };
    return 0;
}

static int time_is_up(const struct count_in *c, struct talk_fx *fx)
{
    return talk_fail(fx, MUSTER_ETIMEDOUT,
                     "Timed out after %" PRIu64 " seconds waiting for clients. %" PRId64
                     "/%" PRId64
                     " clients joined. Start the missing nodes with the same "
                     "--master-addr, --master-port and --nnodes",
                     c->timeout_ms / 1000 + 1, c->here, c->world);
}

static int counted(struct count_in *c, const struct talk_event *ev, struct talk_fx *fx)
{
    const int64_t before = c->here;
    int rc;

    c->here = ev->reply->number;
    if (c->rank != 0 || c->here >= c->world) {
        fx->kind = TALK_DONE;
        return 0;
    }
    if (ev->now.mono_ms >= c->talk.by_ms)
        return time_is_up(c, fx);
    rc = ask(c, COUNT_IN_WAIT, ev->now, fx);
    if (rc < 0)
        c->here = before;
    return rc;
}

static int answered(struct count_in *c, const struct talk_event *ev, struct talk_fx *fx)
{
    assert(c->talk.asking);
    if (ev->status < 0 && ev->status != MUSTER_ETIMEDOUT) {
        if (!talk_is_broken(ev->status) || ev->now.mono_ms >= c->talk.by_ms)
            return talk_fail(fx, ev->status, "%s", ev->text);
        c->stage = COUNT_IN_LOOK; /* We do not know whether we were counted. */
        talk_again(&c->talk, ev->now, fx);
        return 0;
    }
    switch (c->stage) {
    case COUNT_IN_LOOK: /* In c10d's CHECK, number 0 means that the key exists. */
        return ask(c, ev->reply->number == 0 ? COUNT_IN_READ : COUNT_IN_ADD, ev->now,
                   fx);
    case COUNT_IN_ADD:
    case COUNT_IN_READ:
        return counted(c, ev, fx);
    case COUNT_IN_WAIT: /* More have come, or it is time to look again. */
        return ask(c, COUNT_IN_READ, ev->now, fx);
    }
    return 0;
}

int count_in_step(struct talk *t, const struct talk_event *ev, struct talk_fx *fx)
{
    struct count_in *c = CONTAINER_OF(t, struct count_in, talk);
    int rc;

    assert(c->world > 0 && c->rank >= 0 && c->rank < c->world && c->token[0]);
    switch (ev->kind) {
    case TALK_BEGIN:
        assert(t->by_ms == MONO_NEVER);
        t->by_ms = c->timeout_ms < MONO_NEVER - ev->now.mono_ms
                       ? ev->now.mono_ms + c->timeout_ms
                       : MONO_NEVER - 1;
        rc = ask(c, c->tried ? COUNT_IN_LOOK : COUNT_IN_ADD, ev->now, fx);
        if (rc < 0)
            t->by_ms = MONO_NEVER;
        return rc;
    case TALK_ANSWER:
        return answered(c, ev, fx);
    case TALK_TIMER:
        assert(!t->asking);
        if (ev->now.mono_ms >= t->by_ms)
            return time_is_up(c, fx);
        return ask(c, c->stage, ev->now, fx);
    }
    return 0;
}

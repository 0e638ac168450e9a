/* gather.c - see gather.h. */
#include "store/core/gather.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

void gather_fini(struct gather *g)
{
    dialogue_fini(&g->dialogue);
    text_list_fini(&g->texts);
}

/* Says ours and, in the same breath, waits for all. Said again, it changes nothing. */
static int gather_ask(struct gather *g, struct now now, struct dialogue_fx *fx)
{
    struct store_dialogue *t = &g->dialogue;
    char key[DIALOGUE_KEY];
    struct buf list;
    int rc = 0;

    buf_init(&list, SIZE_MAX);
    for (int64_t i = 0; rc == 0 && i < g->world; i++) {
        (void)snprintf(key, sizeof key, "%s%" PRId64, g->prefix, i);
        rc = c10d_list_add(&list, span_str(key));
    }
    if (rc < 0) {
        buf_fini(&list);
        return MUSTER_ENOMEM;
    }
    dialogue_ask(t, &list, NULL, 2, true, now, fx);
    (void)snprintf(t->key[0], sizeof t->key[0], "%s%" PRId64, g->prefix, g->rank);
    t->parts[0] = (struct c10d_request){ .op = C10D_SET,
                                         .key = span_str(t->key[0]),
                                         .value = g->text };
    t->parts[1] =
        (struct c10d_request){ .op = C10D_MULTI_GET,
                               .list = { buf_span(&t->list), (size_t)g->world } };
    return 0;
}

static bool gather_over(const struct gather *g, struct now now, struct dialogue_fx *fx)
{
    const struct store_dialogue *t = &g->dialogue;

    if (now.mono_ms >= t->by_ms) {
        (void)dialogue_fail(fx, MUSTER_ETIMEDOUT,
                            "%s timed out: not every node of %" PRId64
                            " has told within %" PRIu64 " s",
                            g->what, g->world, g->timeout_ms / 1000);
        return true;
    }
    if (!g->can_rejoin || t->broke_ms == MONO_NEVER ||
        now.mono_ms - t->broke_ms < GATHER_PATIENCE_MS)
        return false;
    fx->kind = DIALOGUE_REJOIN;
    return true;
}

static int gather_answer(struct gather *g, const struct dialogue_event *ev,
                         struct dialogue_fx *fx)
{
    struct text_list texts = { 0 };
    struct span text;

    if (dialogue_is_broken(ev->status) || ev->status == MUSTER_ETIMEDOUT) {
        if (gather_over(g, ev->now, fx))
            return 0;
        if (ev->status == MUSTER_ETIMEDOUT)
            return gather_ask(g, ev->now, fx);
        dialogue_again(&g->dialogue, ev->now, fx);
        return 0;
    }
    if (ev->status < 0)
        return dialogue_fail(fx, ev->status, "%s: %s", g->what, ev->text);
    for (struct c10d_list list = ev->reply->list; c10d_list_next(&list, &text);)
        (void)text_list_add(&texts, text.n ? (const char *)text.p : "", text.n);
    if (texts.err || texts.count != (size_t)g->world) {
        const int rc = texts.err;

        text_list_fini(&texts);
        return rc ? rc
                  : dialogue_fail(fx, MUSTER_EPROTO,
                                  "%s: the store has not answered for %" PRId64
                                  " nodes",
                                  g->what, g->world);
    }
    g->texts = texts;
    fx->kind = DIALOGUE_DONE;
    return 0;
}

int gather_step(struct store_dialogue *t, const struct dialogue_event *ev,
                struct dialogue_fx *fx)
{
    struct gather *g = CONTAINER_OF(t, struct gather, dialogue);

    assert(g->world > 1 && g->rank >= 0 && g->rank < g->world && g->what);
    switch (ev->kind) {
    case DIALOGUE_BEGIN:
        t->by_ms = g->timeout_ms < MONO_NEVER - ev->now.mono_ms
                       ? ev->now.mono_ms + g->timeout_ms
                       : MONO_NEVER;
        return gather_ask(g, ev->now, fx);
    case DIALOGUE_ANSWER:
        return gather_answer(g, ev, fx);
    case DIALOGUE_TIMER:
        return gather_over(g, ev->now, fx) ? 0 : gather_ask(g, ev->now, fx);
    }
    return 0;
}

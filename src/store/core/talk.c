/* talk.c - see talk.h. */
#include "store/core/talk.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"

#define FIRST_PAUSE_MS 10u
#define MOST_PAUSE_MS  500u

void talk_init(struct talk *t)
{
    *t = (struct talk){ .by_ms = MONO_NEVER,
                        .again_ms = MONO_NEVER,
                        .broke_ms = MONO_NEVER };
    buf_init(&t->list, SIZE_MAX);
    buf_init(&t->value, SIZE_MAX);
}

void talk_fini(struct talk *t)
{
    if (!t)
        return;
    buf_fini(&t->list);
    buf_fini(&t->value);
}

uint64_t talk_deadline(const struct talk *t)
{
    return t->asking ? MONO_NEVER : MIN_OF(t->again_ms, t->by_ms);
}

bool talk_is_broken(int status)
{
    switch (status) {
    case MUSTER_EHANGUP:
    case MUSTER_EREFUSED:
    case MUSTER_EUNREACH:
    case MUSTER_ECONN:
    case MUSTER_ENOMEM: /* The driver had no memory; it may have some next time. */
    case MUSTER_EFULL:
        return true;
    default:
        return false;
    }
}

void talk_again(struct talk *t, struct now now, struct talk_fx *fx)
{
    const uint64_t pause =
        MIN_OF((uint64_t)FIRST_PAUSE_MS << MIN_OF(t->failures, 16u), MOST_PAUSE_MS);

    t->asking = false;
    t->failures++;
    t->again_ms = now.mono_ms + pause;
    if (t->broke_ms == MONO_NEVER)
        t->broke_ms = now.mono_ms;
    fx->kind = TALK_NOTHING;
}

void talk_ask(struct talk *t, struct buf *list, struct buf *value, size_t parts,
              bool blocks, struct now now, struct talk_fx *fx)
{
    const uint64_t left = t->by_ms > now.mono_ms ? t->by_ms - now.mono_ms : 0;

    assert(parts > 0 && parts <= TALK_PARTS);
    if (list) {
        buf_fini(&t->list);
        t->list = *list;
    }
    if (value) {
        buf_fini(&t->value);
        t->value = *value;
    }
    t->count = parts;
    t->blocks = blocks;
    t->timeout_ms =
        blocks ? MAX_OF(MIN_OF(left, TALK_SLICE_MS), 1u) : (uint64_t)TALK_REPLY_MS;
    t->again_ms = MONO_NEVER;
    t->asking = true;
    fx->kind = TALK_ASK;
}

int talk_fail(struct talk_fx *fx, int code, const char *fmt, ...)
{
    va_list args;

    assert(code < 0);
    fx->kind = TALK_FAILED;
    fx->err.code = code;
    va_start(args, fmt);
    (void)vsnprintf(fx->err.text, sizeof fx->err.text, fmt, args);
    va_end(args);
    return 0;
}

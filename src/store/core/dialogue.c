/* dialogue.c - see dialogue.h. */
#include "store/core/dialogue.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"

#define FIRST_PAUSE_MS 10u
#define MOST_PAUSE_MS  500u

void dialogue_init(struct store_dialogue *t)
{
    *t = (struct store_dialogue){ .by_ms = MONO_NEVER,
                                  .again_ms = MONO_NEVER,
                                  .broke_ms = MONO_NEVER };
    buf_init(&t->list, SIZE_MAX);
    buf_init(&t->value, SIZE_MAX);
}

void dialogue_fini(struct store_dialogue *t)
{
    if (!t)
        return;
    buf_fini(&t->list);
    buf_fini(&t->value);
}

uint64_t dialogue_deadline(const struct store_dialogue *t)
{
    return t->asking ? MONO_NEVER : MIN_OF(t->again_ms, t->by_ms);
}

bool dialogue_is_broken(int status)
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

void dialogue_again(struct store_dialogue *t, struct now now, struct dialogue_fx *fx)
{
    const uint64_t pause =
        MIN_OF((uint64_t)FIRST_PAUSE_MS << MIN_OF(t->failures, 16u), MOST_PAUSE_MS);

    t->asking = false;
    t->failures++;
    t->again_ms = now.mono_ms + pause;
    if (t->broke_ms == MONO_NEVER)
        t->broke_ms = now.mono_ms;
    fx->kind = DIALOGUE_NOTHING;
}

void dialogue_ask(struct store_dialogue *t, struct buf *list, struct buf *value,
                  size_t parts, bool blocks, struct now now, struct dialogue_fx *fx)
{
    const uint64_t left = t->by_ms > now.mono_ms ? t->by_ms - now.mono_ms : 0;

    assert(parts > 0 && parts <= DIALOGUE_PARTS);
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
    t->timeout_ms = blocks ? MAX_OF(MIN_OF(left, DIALOGUE_SLICE_MS), 1u)
                           : (uint64_t)DIALOGUE_REPLY_MS;
    t->again_ms = MONO_NEVER;
    t->asking = true;
    fx->kind = DIALOGUE_ASK;
}

int dialogue_fail(struct dialogue_fx *fx, int code, const char *fmt, ...)
{
    va_list args;

    assert(code < 0);
    fx->kind = DIALOGUE_FAILED;
    fx->err.code = code;
    va_start(args, fmt);
    (void)vsnprintf(fx->err.text, sizeof fx->err.text, fmt, args);
    va_end(args);
    return 0;
}

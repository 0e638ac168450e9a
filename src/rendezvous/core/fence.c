/* fence.c - see fence.h. */
#include "rendezvous/core/fence.h"

#include <assert.h>

#define BEATS_MARGIN_MS 2000u /* SIGKILL takes milliseconds, on a bad day a second */

void fence_init(struct fence *f, uint64_t limit_ms, uint64_t margin_ms)
{
    assert(margin_ms > 0 && margin_ms < limit_ms);
    *f = (struct fence){ .limit_ms = limit_ms,
                         .margin_ms = margin_ms,
                         .sent_ms = MONO_NEVER,
                         .due_ms = MONO_NEVER };
}

void fence_init_beats(struct fence *f, uint64_t interval_ms, uint64_t dead_after_ms)
{
    fence_init(f, dead_after_ms, MIN_OF(interval_ms / 2, BEATS_MARGIN_MS));
    f->off = dead_after_ms <= interval_ms;
}

void fence_sent(struct fence *f, uint64_t now_ms)
{
    f->sent_ms = MIN_OF(f->sent_ms, now_ms);
}

void fence_answered(struct fence *f)
{
    if (f->sent_ms == MONO_NEVER || f->off)
        return;
    f->due_ms = f->sent_ms < MONO_NEVER - f->limit_ms
                    ? f->sent_ms + f->limit_ms - f->margin_ms
                    : MONO_NEVER;
    f->sent_ms = MONO_NEVER;
    f->asked = false;
}

void fence_unanswered(struct fence *f)
{
    f->sent_ms = MONO_NEVER;
}

void fence_absent(struct fence *f, uint64_t now_ms)
{
    if (f->asked || now_ms < f->due_ms || now_ms - f->due_ms >= f->margin_ms)
        return;
    f->asked = true;
    f->due_ms = now_ms + (f->due_ms + f->margin_ms - now_ms) / 2;
}

bool fence_passed(struct fence *f, uint64_t now_ms)
{
    if (now_ms < f->due_ms)
        return false;
    if (!f->asked && now_ms - f->due_ms >= f->margin_ms) {
        f->asked = true;
        f->due_ms = now_ms + f->margin_ms;
        return false;
    }
    f->due_ms = MONO_NEVER;
    f->asked = false;
    return true;
}

/* trace.c - see trace.h. */
#include "base/trace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void trace(const struct trace *t, enum trace_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (!t || !t->emit || level < t->least)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    t->emit(t->ctx, level, line);
}

bool trace_rate_allows(struct trace_rate *r, uint64_t now_ms, const struct trace *t,
                       const char *who)
{
    if (!r->since_ms || now_ms - r->since_ms >= TRACE_LINES_MS) {
        if (r->left_out)
            trace(t, TRACE_WARN,
                  "%s: %u more connections were refused in %" PRIu64 " s", who,
                  r->left_out, (now_ms - r->since_ms) / 1000);
        *r = (struct trace_rate){ .since_ms = now_ms ? now_ms : 1 };
    }
    if (++r->lines <= TRACE_LINES)
        return true;
    r->left_out++;
    return false;
}
